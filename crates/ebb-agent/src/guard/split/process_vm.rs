//! Makes `process_vm_readv` and `process_vm_writev` in pieces. Each has two vectors, and both may lie in the program's
//! own memory.
//!
//! The kernel's answer is short only where an address of one side is wrong. To the kernel, an eviction during the call
//! looks like a wrong address. So the bytes of a call are pinned on both sides.

use crate::guard::Memory;
use crate::guard::split::plan::Policy;
use crate::guard::split::{
    DoCall, Entry, How, PIECE_VECTORS, SCATTERED_VECTORS, Vector, fits, one_of, piece, piece_bytes_max, progress,
};

/// Makes the call in pieces, and returns its answer.
pub(super) fn run<M: Memory>(mem: &M, nr: u64, args: &[u64; 6], do_call: DoCall<'_>) -> i64 {
    let vectors = (Vector::at(mem, args[1], args[2]), Vector::at(mem, args[3], args[4]));
    // If a vector cannot be used, the kernel will say why.
    let (Some(mut local), Some(mut remote)) = vectors else { return piece(mem, nr, args, do_call) };
    let own = mem.is_self(args[0] as i32);
    let max = piece_bytes_max(mem.pin_max()) / if own { 2 } else { 1 };
    let total = local.total.min(remote.total);
    let mut entries: [[Entry; PIECE_VECTORS]; 2] = [[[0; 2]; PIECE_VECTORS]; 2];
    let mut done = 0;
    loop {
        let from = (local, remote);
        let mut vectors_max = PIECE_VECTORS;
        let (counts, wanted) = loop {
            let taken = take(mem, (&mut local, &mut remote), &mut entries, vectors_max, (total - done).min(max));
            let Some((counts, wanted)) = taken else { return if done > 0 { done as i64 } else { -super::EFAULT } };
            let ours = entries[0][..counts.0].iter().chain(entries[1][..counts.1].iter().filter(|_| own));
            if vectors_max <= SCATTERED_VECTORS / 2 || fits(mem, ours) {
                break (counts, wanted);
            }
            (local, remote) = from;
            vectors_max = SCATTERED_VECTORS / 2;
        };
        let [to, of] = entries.each_mut().map(|entries| entries.as_mut_ptr() as u64);
        let now = [args[0], to, counts.0 as u64, of, counts.1 as u64, args[5]];
        let ret = one_of(mem, nr, &now, How { goes_on: true, is_modest: false }, do_call);
        if let Some(answer) = progress(&mut done, wanted, total, ret, Policy::LoopFile) {
            return answer;
        }
    }
}

/// Takes the same number of bytes from both vectors. Returns the numbers of their entries, and the bytes.
fn take<M: Memory>(
    mem: &M,
    (local, remote): (&mut Vector, &mut Vector),
    entries: &mut [[Entry; PIECE_VECTORS]; 2],
    vectors_max: usize,
    bytes_max: u64,
) -> Option<((usize, usize), u64)> {
    let from = *local;
    let [to, of] = entries.each_mut().map(|entries| &mut entries[..vectors_max]);
    let (_, bytes) = local.take(mem, to, bytes_max)?;
    let (n_of, bytes) = remote.take(mem, of, bytes)?;
    *local = from;
    let (n_to, bytes) = local.take(mem, to, bytes)?;
    Some(((n_to, n_of), bytes))
}
