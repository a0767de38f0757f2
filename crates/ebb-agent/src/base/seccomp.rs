//! What a seccomp filter answers to a system call: an interpreter of the part of classic BPF that the kernel accepts there.
//!
//! It allocates nothing and makes no system call. Every program ends, because jumps lead forward only. A program that
//! the kernel would not load has no answer.

/// Most instructions in a filter (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = 4096;
/// `AUDIT_ARCH_X86_64`.
pub const ARCH: u32 = 0xc000_003e;

/// One instruction as the kernel takes it (`struct sock_filter`): code, jump if true, jump if false, operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

impl Instruction {
    /// Decodes an instruction's eight bytes in memory.
    pub const fn of(word: u64) -> Self {
        Self { code: word as u16, jt: (word >> 16) as u8, jf: (word >> 24) as u8, k: (word >> 32) as u32 }
    }
}

/// What a filter sees (`struct seccomp_data`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data {
    pub nr: u32,
    pub arch: u32,
    /// The address behind the `syscall` instruction.
    pub ip: u64,
    pub args: [u64; 6],
}

impl Data {
    const BYTES: u32 = 64;

    /// The word at byte offset `at`; none where there is none.
    fn word(&self, at: u32) -> Option<u32> {
        let half = |value: u64| if at.is_multiple_of(8) { value as u32 } else { (value >> 32) as u32 };
        match at {
            _ if !at.is_multiple_of(4) => None,
            0 => Some(self.nr),
            4 => Some(self.arch),
            8 | 12 => Some(half(self.ip)),
            _ => self.args.get((at as usize - 16) / 8).map(|&arg| half(arg)),
        }
    }
}

/// What becomes of a call under a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The call is made. So is a call that a tracer is asked about: the tracer would not be there if it did not let
    /// calls go on.
    Made,
    /// The call is not made; the caller gets an answer.
    Answered,
    /// The caller dies, or gets a signal.
    Deadly,
}

impl Action {
    /// Decodes what a filter returns.
    pub const fn of(value: u32) -> Self {
        const TRAP: u32 = 0x0003_0000;
        const ERRNO: u32 = 0x0005_0000;
        const USER_NOTIF: u32 = 0x7fc0_0000;
        const TRACE: u32 = 0x7ff0_0000;
        const LOG: u32 = 0x7ffc_0000;
        const ALLOW: u32 = 0x7fff_0000;
        match value & 0xffff_0000 {
            TRACE | LOG | ALLOW => Self::Made,
            ERRNO | USER_NOTIF => Self::Answered,
            TRAP => Self::Deadly,
            // The kernel treats a value that it does not know as the first of its actions, which kills.
            _ => Self::Deadly,
        }
    }
}

// Instruction classes and modes, as in <linux/bpf_common.h>.
const LD: u16 = 0;
const LDX: u16 = 1;
const ST: u16 = 2;
const STX: u16 = 3;
const ALU: u16 = 4;
const JMP: u16 = 5;
const RET: u16 = 6;
const MISC: u16 = 7;
const IMM: u16 = 0x00;
const ABS: u16 = 0x20;
const MEM: u16 = 0x60;
const LEN: u16 = 0x80;
/// The operand is X instead of the constant.
const X: u16 = 0x08;
/// ALU: division.
const DIV: u16 = 0x30;
/// RET: the operand is the accumulator.
const RET_A: u16 = 0x10;
const TAX: u16 = 0x00;
const TXA: u16 = 0x80;

/// What `program` returns for `data`; none for a program that the kernel would not load.
pub fn run(program: &[Instruction], data: &Data) -> Option<u32> {
    let (mut a, mut x, mut scratch) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0usize;
    loop {
        let Instruction { code, jt, jf, k } = *program.get(at)?;
        // Jumps lead forward only, so the program ends.
        at += 1;
        let operand = if code & X != 0 { x } else { k };
        match code & 7 {
            // Words only.
            LD if code == LD | ABS => a = data.word(k)?,
            LD if code == LD | IMM => a = k,
            LD if code == LD | MEM => a = *scratch.get(k as usize)?,
            LD if code == LD | LEN => a = Data::BYTES,
            LDX if code == LDX | IMM => x = k,
            LDX if code == LDX | MEM => x = *scratch.get(k as usize)?,
            LDX if code == LDX | LEN => x = Data::BYTES,
            ST if code == ST => *scratch.get_mut(k as usize)? = a,
            STX if code == STX => *scratch.get_mut(k as usize)? = x,
            // The kernel ends a filter that divides by an X of 0: it answers 0, which kills.
            ALU if code == ALU | DIV | X && x == 0 => return Some(0),
            ALU => a = calculate(code, a, operand)?,
            JMP => {
                let taken = |is_true: bool| if is_true { jt as usize } else { jf as usize };
                at = at.checked_add(match code & !X {
                    0x05 if code & X == 0 => k as usize,
                    0x15 => taken(a == operand),
                    0x25 => taken(a > operand),
                    0x35 => taken(a >= operand),
                    0x45 => taken(a & operand != 0),
                    _ => return None,
                })?;
            }
            RET if code == RET => return Some(k),
            RET if code == RET | RET_A => return Some(a),
            MISC if code == MISC | TAX => x = a,
            MISC if code == MISC | TXA => a = x,
            _ => return None,
        }
    }
}

/// Computes an instruction of the class ALU; none for one that the kernel would not load.
fn calculate(code: u16, a: u32, operand: u32) -> Option<u32> {
    Some(match code & !X {
        0x04 => a.wrapping_add(operand),
        0x14 => a.wrapping_sub(operand),
        0x24 => a.wrapping_mul(operand),
        // The kernel does not load a division by a constant 0.
        0x34 => a.checked_div(operand)?,
        0x44 => a | operand,
        0x54 => a & operand,
        // The kernel does not load a shift by a constant of 32 or more.
        0x64 | 0x74 if code & X == 0 && operand >= 32 => return None,
        0x64 => a.wrapping_shl(operand),
        0x74 => a.wrapping_shr(operand),
        0x84 if code & X == 0 => a.wrapping_neg(),
        0xa4 => a ^ operand,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALLOW: u32 = 0x7fff_0000;
    const ENOSYS: u32 = 0x0005_0026;

    fn data(nr: u32, args: [u64; 6]) -> Data {
        Data { nr, arch: ARCH, ip: 0x1111_2222_3333_4444, args }
    }

    fn op(code: u16, k: u32) -> Instruction {
        Instruction { code, jt: 0, jf: 0, k }
    }

    fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    #[test]
    fn an_instruction_is_eight_bytes() {
        let word = u64::from_ne_bytes([0x15, 0, 1, 2, 0x3e, 0, 0, 0xc0]);
        assert_eq!(Instruction::of(word), jump(0x15, ARCH, 1, 2));
    }

    #[test]
    fn a_list_of_calls() {
        let program =
            [op(0x20, 0), jump(0x15, 16, 0, 3), op(0x20, 24), jump(0x15, 0x5401, 1, 0), op(6, ENOSYS), op(6, ALLOW)];
        assert_eq!(run(&program, &data(0, [0; 6])), Some(ALLOW));
        assert_eq!(run(&program, &data(16, [1, 0x5401, 0, 0, 0, 0])), Some(ALLOW));
        assert_eq!(run(&program, &data(16, [1, 0xc028_aa03, 0, 0, 0, 0])), Some(ENOSYS));
    }

    #[test]
    fn every_word_of_the_data_is_where_the_kernel_has_it() {
        let data = data(7, [1 | 2 << 32, 3 | 4 << 32, 5 | 6 << 32, 7 | 8 << 32, 9 | 10 << 32, 11 | 12 << 32]);
        let words: Vec<_> = (0..16).map(|i| run(&[op(0x20, i * 4), op(0x16, 0)], &data)).collect();
        let expected = [7, ARCH, 0x3333_4444, 0x1111_2222, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        assert_eq!(words, expected.map(Some));
        for beyond in [64, 2, u32::MAX, 68] {
            assert_eq!(run(&[op(0x20, beyond), op(0x16, 0)], &data), None);
        }
    }

    #[test]
    fn arithmetic_is_of_32_bits() {
        let of = |code, a, x| run(&[op(1, x), op(0, a), op(code, x), op(0x16, 0)], &data(0, [0; 6]));
        for (code, a, b, result) in [
            (0x04, u32::MAX, 2, 1),
            (0x14, 1, 2, u32::MAX),
            (0x24, 1 << 31, 2, 0),
            (0x34, 7, 2, 3),
            (0x44, 5, 2, 7),
            (0x54, 7, 2, 2),
            (0x64, 1, 31, 1 << 31),
            (0x74, 1 << 31, 31, 1),
            (0xa4, 7, 2, 5),
        ] {
            assert_eq!(of(code, a, b), Some(result), "{code:#x}");
            assert_eq!(of(code | X, a, b), Some(result), "{code:#x} X");
        }
        assert_eq!(of(0x84, 1, 0), Some(u32::MAX));
        assert_eq!((of(0x34, 7, 0), of(0x34 | X, 7, 0)), (None, Some(0)));
        assert_eq!((of(0x64, 7, 32), of(0x94, 7, 2)), (None, None));
    }

    /// What the kernel makes of a call under the program: its answer, or none where the program kills or is not loaded.
    fn kernel_answers(program: &[Instruction]) -> Option<i64> {
        let words: Vec<libc::sock_filter> =
            program.iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
        let loaded = libc::sock_fprog { len: words.len() as u16, filter: words.as_ptr().cast_mut() };
        // SAFETY: the child makes system calls only; its first call under the filter but the last is what is asked about.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &loaded) != 0 {
                    libc::_exit(255);
                }
                let answer = libc::syscall(libc::SYS_getuid);
                libc::_exit(if answer < 0 { *libc::__errno_location() } else { 0 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            (libc::WIFEXITED(status) && libc::WEXITSTATUS(status) != 255).then(|| libc::WEXITSTATUS(status).into())
        }
    }

    #[test]
    fn the_kernel_ends_a_filter_that_divides_by_zero() {
        // Only calls of getuid get as far as to the calculation.
        let of = |code, x| {
            let getuid = libc::SYS_getuid as u32;
            let calculation = [op(1, x), op(0, 5), op(code, x), op(6, ENOSYS)];
            [&[op(0x20, 0), jump(0x15, getuid, 1, 0), op(6, ALLOW)][..], &calculation].concat()
        };
        for (code, x, answer) in
            [(0x34 | X, 0, None), (0x34, 0, None), (0x34 | X, 2, Some(38)), (0x64, 32, None), (0x64 | X, 32, Some(38))]
        {
            let program = of(code, x);
            let ours = run(&program, &data(libc::SYS_getuid as u32, [0; 6]));
            let is_answered = ours.map(Action::of) == Some(Action::Answered);
            assert_eq!((kernel_answers(&program), is_answered), (answer, answer.is_some()), "{code:#x} {x}");
        }
    }

    #[test]
    fn registers_and_scratch_memory_keep_what_they_are_given() {
        let program =
            [op(0, 5), op(2, 15), op(7, 0), op(3, 0), op(0, 9), op(0x60, 15), op(0x61, 0), op(0x0c, 0), op(0x16, 0)];
        assert_eq!(run(&program, &data(0, [0; 6])), Some(10));
        assert_eq!(run(&[op(0x81, 0), op(0x87, 0), op(0x16, 0)], &data(0, [0; 6])), Some(64));
        assert_eq!(run(&[op(0x80, 0), op(0x16, 0)], &data(0, [0; 6])), Some(64));
        assert_eq!(run(&[op(2, 16), op(6, 0)], &data(0, [0; 6])), None);
    }

    #[test]
    fn jumps_compare_without_sign() {
        let of =
            |code, a: u32, k| run(&[op(0, a), op(1, k), jump(code, k, 1, 0), op(6, 0), op(6, 1)], &data(0, [0; 6]));
        for x in [0, X] {
            assert_eq!((of(0x15 | x, 4, 4), of(0x15 | x, 4, 5)), (Some(1), Some(0)));
            assert_eq!((of(0x25 | x, u32::MAX, 1), of(0x25 | x, 4, 4)), (Some(1), Some(0)));
            assert_eq!((of(0x35 | x, 4, 4), of(0x35 | x, 3, 4)), (Some(1), Some(0)));
            assert_eq!((of(0x45 | x, 6, 2), of(0x45 | x, 4, 2)), (Some(1), Some(0)));
        }
        assert_eq!(run(&[op(5, 1), op(6, 0), op(6, 9)], &data(0, [0; 6])), Some(9));
    }

    #[test]
    fn a_program_without_an_end_is_no_answer() {
        assert_eq!(run(&[], &data(0, [0; 6])), None);
        assert_eq!(run(&[op(0, 1)], &data(0, [0; 6])), None);
        assert_eq!(run(&[op(5, u32::MAX)], &data(0, [0; 6])), None);
    }

    #[test]
    fn actions_are_told_by_their_upper_half() {
        for (value, action) in [
            (ALLOW, Action::Made),
            (0x7ffc_0000, Action::Made),
            (0x7ff0_0001, Action::Made),
            (ENOSYS, Action::Answered),
            (0x7fc0_0000, Action::Answered),
            (0x0003_0007, Action::Deadly),
            (0, Action::Deadly),
            (0x8000_0000, Action::Deadly),
            (0x1234_0000, Action::Deadly),
        ] {
            assert_eq!(Action::of(value), action, "{value:#x}");
        }
    }

    /// Mostly known instructions, so that programs run for a while.
    fn instruction() -> impl Strategy<Value = Instruction> {
        let known = prop::sample::select(vec![
            0x20u16, 0, 0x60, 0x80, 1, 0x61, 0x81, 2, 3, 0x04, 0x0c, 0x34, 0x3c, 0x64, 0x6c, 0x74, 0x7c, 0x84, 0xa4, 5,
            0x15, 0x1d, 0x25, 0x35, 0x45, 6, 0x16, 7, 0x87,
        ]);
        let code = prop_oneof![9 => known, 1 => any::<u16>()];
        let k = prop_oneof![0..80u32, any::<u32>()];
        (code, 0..4u8, any::<u8>(), k).prop_map(|(code, jt, jf, k)| Instruction { code, jt, jf: jf % 5, k })
    }

    proptest! {
        #[test]
        fn any_program_ends(program in prop::collection::vec(instruction(), 0..200), nr: u32, args: [u64; 6]) {
            run(&program, &data(nr, args));
        }

        #[test]
        fn any_bytes_end(program in prop::collection::vec(any::<u64>(), 0..100), nr: u32) {
            let program: Vec<_> = program.into_iter().map(Instruction::of).collect();
            run(&program, &data(nr, [0; 6]));
        }
    }
}
