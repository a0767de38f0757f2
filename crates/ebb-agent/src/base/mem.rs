//! The agent's own versions of the memory functions that the compiler calls.
//!
//! libc's functions read words of libc's that the program may overwrite (the sizes from which they copy past the
//! caches), and a program may define functions of its own under these names. Ebb must keep working while a program
//! tests all memory that its maps show, as redis does just before it ends, or gives every name a checked version. The
//! symbols are hidden: only this library calls them.
//!
//! Few bytes are moved by loads and stores that overlap, some by a loop, and many by the processor's own string operations.

core::arch::global_asm!(
    ".pushsection .text.ebb_mem,\"ax\",@progbits",
    ".irp name, memcpy, memmove, ebb_memmove, memset, ebb_memset, memcmp, bcmp, ebb_memcmp, strlen, ebb_strlen",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name,@function",
    ".endr",
    ".p2align 5",
    "memcpy:",
    "memmove:",
    "ebb_memmove:",
    "mov rax, rdi",
    "cmp rdx, 16",
    "jb 30f",
    "cmp rdx, 32",
    "ja 20f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "ret",
    "20:",
    "mov rcx, rdi",
    "sub rcx, rsi",
    "cmp rcx, rdx",
    "jb 25f",
    "cmp rdx, 1024",
    "jae 22f",
    // Load the last bytes first: the loop may overwrite them.
    "movups xmm4, [rsi + rdx - 16]",
    "movups xmm5, [rsi + rdx - 32]",
    "lea r8, [rdi + rdx - 32]",
    "21:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "add rsi, 32",
    "add rdi, 32",
    "cmp rdi, r8",
    "jb 21b",
    "movups [r8], xmm5",
    "movups [r8 + 16], xmm4",
    "ret",
    "22:",
    "mov r9, [rsi + rdx - 8]",
    "lea r8, [rdi + rdx - 8]",
    "mov rcx, rdx",
    "shr rcx, 3",
    "rep movsq",
    "mov [r8], r9",
    "ret",
    // The destination begins inside the source: copy from the end.
    "25:",
    "movups xmm4, [rsi]",
    "movups xmm5, [rsi + 16]",
    "26:",
    "movups xmm0, [rsi + rdx - 16]",
    "movups xmm1, [rsi + rdx - 32]",
    "movups [rdi + rdx - 16], xmm0",
    "movups [rdi + rdx - 32], xmm1",
    "sub rdx, 32",
    "cmp rdx, 32",
    "ja 26b",
    "movups [rdi], xmm4",
    "movups [rdi + 16], xmm5",
    "ret",
    "30:",
    "cmp edx, 8",
    "jb 31f",
    "mov rcx, [rsi]",
    "mov r8, [rsi + rdx - 8]",
    "mov [rdi], rcx",
    "mov [rdi + rdx - 8], r8",
    "ret",
    "31:",
    "cmp edx, 4",
    "jb 32f",
    "mov ecx, [rsi]",
    "mov r8d, [rsi + rdx - 4]",
    "mov [rdi], ecx",
    "mov [rdi + rdx - 4], r8d",
    "ret",
    "32:",
    "test edx, edx",
    "jz 33f",
    "mov r9, rdx",
    "shr r9, 1",
    "movzx ecx, byte ptr [rsi]",
    "movzx r8d, byte ptr [rsi + rdx - 1]",
    "movzx r10d, byte ptr [rsi + r9]",
    "mov [rdi], cl",
    "mov [rdi + r9], r10b",
    "mov [rdi + rdx - 1], r8b",
    "33:",
    "ret",
    ".p2align 5",
    "memset:",
    "ebb_memset:",
    "movzx esi, sil",
    "movabs r9, 0x0101010101010101",
    "imul r9, rsi",
    "mov r8, rdi",
    "cmp rdx, 16",
    "jb 42f",
    "cmp rdx, 512",
    "ja 41f",
    "movq xmm0, r9",
    "punpcklqdq xmm0, xmm0",
    "lea rcx, [rdi + rdx - 16]",
    "40:",
    "movups [rdi], xmm0",
    "add rdi, 16",
    "cmp rdi, rcx",
    "jb 40b",
    "movups [rcx], xmm0",
    "mov rax, r8",
    "ret",
    "41:",
    "mov rax, r9",
    "mov rcx, rdx",
    "mov [rdi + rdx - 8], r9",
    "shr rcx, 3",
    "rep stosq",
    "mov rax, r8",
    "ret",
    "42:",
    "mov rax, rdi",
    "cmp edx, 8",
    "jb 43f",
    "mov [rdi], r9",
    "mov [rdi + rdx - 8], r9",
    "ret",
    "43:",
    "cmp edx, 4",
    "jb 44f",
    "mov [rdi], r9d",
    "mov [rdi + rdx - 4], r9d",
    "ret",
    "44:",
    "test edx, edx",
    "jz 45f",
    "mov [rdi], r9b",
    "mov [rdi + rdx - 1], r9b",
    "shr rdx, 1",
    "mov [rdi + rdx], r9b",
    "45:",
    "ret",
    ".p2align 5",
    "memcmp:",
    "bcmp:",
    "ebb_memcmp:",
    "50:",
    "cmp rdx, 16",
    "jb 51f",
    "movups xmm0, [rdi]",
    "movups xmm1, [rsi]",
    "pcmpeqb xmm0, xmm1",
    "pmovmskb eax, xmm0",
    "xor eax, 0xffff",
    "jnz 53f",
    "add rdi, 16",
    "add rsi, 16",
    "sub rdx, 16",
    "jmp 50b",
    "51:",
    "test rdx, rdx",
    "jz 52f",
    "movzx eax, byte ptr [rdi]",
    "movzx ecx, byte ptr [rsi]",
    "sub eax, ecx",
    "jnz 54f",
    "inc rdi",
    "inc rsi",
    "dec rdx",
    "jmp 51b",
    "52:",
    "xor eax, eax",
    "ret",
    // The first byte that differs.
    "53:",
    "bsf ecx, eax",
    "movzx eax, byte ptr [rdi + rcx]",
    "movzx ecx, byte ptr [rsi + rcx]",
    "sub eax, ecx",
    "54:",
    "ret",
    ".p2align 5",
    "strlen:",
    "ebb_strlen:",
    "xor eax, eax",
    "55:",
    "cmp byte ptr [rdi + rax], 0",
    "je 56f",
    "inc rax",
    "jmp 55b",
    "56:",
    "ret",
    ".popsection",
);

#[cfg(test)]
mod tests {
    use core::ffi::{c_char, c_int};

    unsafe extern "C" {
        fn ebb_memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8;
        fn ebb_memset(to: *mut u8, byte: c_int, n: usize) -> *mut u8;
        fn ebb_memcmp(a: *const u8, b: *const u8, n: usize) -> c_int;
        fn ebb_strlen(text: *const c_char) -> usize;
    }

    /// Lengths around every size at which the functions take another path.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..200).chain(250..262).chain(505..520).chain(1016..1040).chain([2047, 4096, 4099, 8192])
    }

    fn pattern(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 167 + i / 251) as u8).collect()
    }

    #[test]
    fn bytes_move_to_where_they_overlap_in_any_way_and_no_others_change() {
        for n in lengths() {
            for (from, to) in [
                (64, 9000),
                (9000, 64),
                (64, 64),
                (64, 65),
                (65, 64),
                (64, 71),
                (71, 64),
                (64, 80),
                (80, 64),
                (64, 101),
                (101, 64),
                (64, 1100),
                (1100, 64),
            ] {
                let mut memory = pattern(20_000);
                let mut expected = memory.clone();
                expected.copy_within(from..from + n, to);
                // SAFETY: both ranges lie in the vector.
                let result = unsafe { ebb_memmove(memory.as_mut_ptr().add(to), memory.as_ptr().add(from), n) };
                assert_eq!(result, memory[to..].as_mut_ptr());
                assert!(memory == expected, "{n} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn bytes_are_set_and_no_others() {
        for n in lengths() {
            for at in [16, 17, 23] {
                let mut memory = pattern(10_000);
                let mut expected = memory.clone();
                expected[at..at + n].iter_mut().for_each(|byte| *byte = 0xa5);
                // SAFETY: the range lies in the vector. Only the low byte of the number counts.
                let result = unsafe { ebb_memset(memory.as_mut_ptr().add(at), 0x7a5, n) };
                assert_eq!(result, memory[at..].as_mut_ptr());
                assert!(memory == expected, "{n} bytes at {at}");
            }
        }
    }

    #[test]
    fn the_first_byte_that_differs_decides() {
        for n in lengths() {
            let a = pattern(n);
            // SAFETY: both vectors have `n` bytes.
            let compare = |a: &[u8], b: &[u8]| unsafe { ebb_memcmp(a.as_ptr(), b.as_ptr(), n) }.signum();
            assert_eq!(compare(&a, &a.clone()), 0);
            for at in [0, 1, 7, 8, 15, 16, 17, 31, n / 2, n.saturating_sub(2), n.saturating_sub(1)] {
                if at < n {
                    let mut b = a.clone();
                    b[at] = b[at].wrapping_add(100);
                    b[n - 1] ^= 1;
                    let expected = a.cmp(&b) as i32;
                    assert_eq!((compare(&a, &b), compare(&b, &a)), (expected, -expected), "{n} bytes, {at}");
                }
            }
        }
    }

    #[test]
    fn a_text_ends_with_its_first_zero() {
        for n in 0..70 {
            let mut text = vec![b'x'; n];
            text.extend([0, b'y', 0]);
            // SAFETY: the text ends with a zero.
            assert_eq!(unsafe { ebb_strlen(text.as_ptr().cast()) }, n);
        }
    }
}
