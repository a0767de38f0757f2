//! Relocates this library's data, which the loader leaves as it is.
//!
//! Tables of functions, of texts and of places in the source hold addresses, so that somebody has to add to them where the
//! library lies. The loader would do so in every small program, and have a page copied for every 170 places, though a
//! dormant process reads none of them. So the linker describes these words (RELR, "relative relocations packed") under
//! tags of the dynamic section that glibc passes over: those that Android used before there were common ones (`build.rs`).
//!
//! * The global offset table is relocated as soon as the loader is done with this library ([`apply_to_calls`]): compiled code calls
//!   through it, and the loader writes to its page anyway. What the program runs first may call in here before any
//!   constructor: a resolver of its own.
//! * All other words are relocated when the process leaves the dormant life ([`apply`]). Code that runs earlier must not
//!   read them: `crates/ebb-cli/tests/command/layout.rs` checks it.
//!
//! Where the linker cannot write such a table the loader has relocated all, and there is nothing to do here.

#[cfg(not(test))]
use core::{
    arch::asm,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

/// The table's address and its size in bytes.
const DT_ANDROID_RELR: u64 = 0x6fff_e000;
const DT_ANDROID_RELRSZ: u64 = 0x6fff_e001;

/// Addresses in this library. Not by name: the compiler may keep those of symbols in words that are to be relocated.
#[cfg(not(test))]
macro_rules! address {
    ($symbol:literal) => {{
        let at: *mut u8;
        // SAFETY: computes an address.
        unsafe {
            asm!(concat!("lea {at}, [rip + ", $symbol, "]"), at = out(reg) at, options(nomem, nostack, preserves_flags))
        };
        at
    }};
}

/// Relocates the global offset table: the first thing that this library does.
///
/// # Safety
/// Called once, by the loader's thread, while it relocates this library (`start`: `ebb_resolve`). The code must call no
/// function and name no variable by that table.
#[cfg(not(test))]
pub unsafe extern "C" fn apply_to_calls() {
    let (image, dynamic) = (address!("__ehdr_start"), address!("_DYNAMIC"));
    let calls = calls(image);
    // SAFETY: the linker's own table, in this library's loaded image; nobody uses the words yet.
    unsafe { relocate(image, dynamic.cast(), |at| calls.contains(&at)) }
}

/// Relocates all other data, unless that is done.
///
/// Must be called before the code that may use it, and from another function: a compiler may read constants earlier. No
/// other thread of this process may run in the agent. Signals must be blocked, or none of the agent's handlers installed.
#[cfg(not(test))]
#[inline(never)]
pub extern "C" fn apply() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if IS_DONE.load(Ordering::Relaxed) {
        return;
    }
    let (image, dynamic) = (address!("__ehdr_start"), address!("_DYNAMIC"));
    let calls = calls(image);
    // SAFETY: as above.
    unsafe { relocate(image, dynamic.cast(), |at| !calls.contains(&at)) }
    IS_DONE.store(true, Ordering::Relaxed);
}

/// In tests the loader relocates.
#[cfg(test)]
pub extern "C" fn apply() {}

/// Offsets of the global offset table (`agent.ld`).
#[cfg(not(test))]
#[inline(always)]
fn calls(image: *mut u8) -> Range<usize> {
    let offset = |at: *mut u8| at as usize - image as usize;
    offset(address!("ebb_calls_start"))..offset(address!("ebb_calls_end"))
}

/// Relocates those words of the image at `image` that its dynamic section at `dynamic` describes and `takes` takes.
///
/// # Safety
/// The image must be loaded there, with its table and words where its linker put them. Nobody else uses the words.
#[inline(always)]
unsafe fn relocate(image: *mut u8, mut dynamic: *const [u64; 2], takes: impl Fn(usize) -> bool) {
    const DT_NULL: u64 = 0;
    let (mut table, mut bytes) = (0, 0);
    loop {
        // SAFETY: the section ends with DT_NULL.
        let [tag, value] = unsafe { dynamic.read() };
        match tag {
            DT_NULL => break,
            DT_ANDROID_RELR => table = value as usize,
            DT_ANDROID_RELRSZ => bytes = value as usize,
            _ => {}
        }
        // SAFETY: not past DT_NULL.
        dynamic = unsafe { dynamic.add(1) };
    }
    let mut next = 0;
    for i in 0..bytes / 8 {
        // SAFETY: an entry of the table.
        let entry = unsafe { image.add(table).cast::<u64>().add(i).read() };
        next = each(entry, next, |at| {
            if takes(at) {
                // SAFETY: a word of the image that the table names.
                unsafe {
                    let word = image.add(at).cast::<u64>();
                    word.write(word.read().wrapping_add(image as u64));
                }
            }
        });
    }
}

/// Calls `f` with the offset of each word that `entry` of a RELR table names. `next`: the word that a bitmap begins with,
/// as the entry before returned it. An even entry is the offset of one word. An odd one is a bitmap of the 63 words
/// that follow.
#[inline(always)]
fn each(entry: u64, next: usize, mut f: impl FnMut(usize)) -> usize {
    const WORD: usize = 8;
    const BITS: usize = 63;
    if entry & 1 == 0 {
        f(entry as usize);
        return entry as usize + WORD;
    }
    let mut bits = entry >> 1;
    while bits != 0 {
        f(next + bits.trailing_zeros() as usize * WORD);
        bits &= bits - 1;
    }
    next + BITS * WORD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(table: &[u64]) -> Vec<usize> {
        let (mut found, mut next) = (Vec::new(), 0);
        for &entry in table {
            next = each(entry, next, |at| found.push(at));
        }
        found
    }

    #[test]
    fn a_table_names_words_and_those_that_follow() {
        assert_eq!(words(&[0x1000]), [0x1000]);
        assert_eq!(words(&[0x1000, 0b1011]), [0x1000, 0x1008, 0x1018]);
        // The next bitmap goes on behind 63 words, whatever the first one named.
        assert_eq!(words(&[0x1000, 1, 0b11]), [0x1000, 0x1008 + 63 * 8]);
        assert_eq!(words(&[0x1000, 1 << 63 | 1]), [0x1000, 0x1008 + 62 * 8]);
        assert_eq!(words(&[0x1000, 0x2000, 0b11]), [0x1000, 0x2000, 0x2008]);
    }

    #[test]
    fn the_words_taken_point_into_the_image() {
        let mut image = [0u64; 8];
        // The table is the last two words: the third word, and the two that follow it.
        (image[2], image[3], image[4]) = (8, 16, 24);
        (image[6], image[7]) = (16, 0b111);
        let dynamic = [[DT_ANDROID_RELR, 48], [DT_ANDROID_RELRSZ, 16], [0, 0]];
        let at = image.as_mut_ptr();
        // SAFETY: all that the table names is in `image`.
        unsafe { relocate(at.cast(), dynamic.as_ptr(), |at| at != 24) };
        let base = at as u64;
        assert_eq!(image[..6], [0, 0, base + 8, 16, base + 24, 0]);
    }

    #[test]
    fn an_image_without_a_table_stays_as_it_is() {
        let mut image = [7u64; 4];
        // SAFETY: nothing is named.
        unsafe { relocate(image.as_mut_ptr().cast(), [[6, 1], [0, 0]].as_ptr(), |_| true) };
        assert_eq!(image, [7; 4]);
    }
}
