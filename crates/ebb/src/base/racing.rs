//! Copies of memory that others may write to meanwhile.

use super::PAGE;

/// Copies the page at `from`, which must be mapped. Other threads may write to it: then the copy has some of what they wrote, and
/// is to be thrown away. Rust has no such reads, so the processor's string instruction does it.
pub(crate) fn copy_page(from: usize, to: &mut [u8; PAGE]) {
    // SAFETY: `to` is a page of its own, and the caller says that `from` is mapped. What the instruction reads there is not
    // Rust's memory to it, but bytes.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") PAGE => _,
            inout("rsi") from => _,
            inout("rdi") to.as_mut_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied() {
        let from: [u8; PAGE] = core::array::from_fn(|i| (i * 7) as u8);
        let mut to = [0xff; PAGE];
        copy_page(from.as_ptr() as usize, &mut to);
        assert_eq!(from, to);
    }
}
