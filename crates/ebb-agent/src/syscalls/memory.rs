//! Calls that change the address space: the engine performs them, because it must know before and after.

use crate::base::calls;
use crate::base::outcome::Outcome;
use core::sync::atomic::{AtomicBool, Ordering};
use ebb::stats::Thp;
use ebb::{PAGE, Space, ThreadCtx};
use linux_raw_sys::{errno as e, general as g};

const EINVAL: i64 = -(e::EINVAL as i64);
const SHM_REMAP: u64 = 0x4000;

/// Performs the call if it changes the address space. Returns its answer; none for other calls.
pub fn call(space: &'static Space, ctx: &ThreadCtx, nr: u32, a: &[u64; 6]) -> Option<i64> {
    Some(match nr {
        g::__NR_mmap => space.mmap(ctx, *a),
        g::__NR_munmap => space.munmap(ctx, *a),
        g::__NR_mremap => space.mremap(ctx, *a),
        g::__NR_mprotect | g::__NR_pkey_mprotect => space.mprotect(ctx, nr, *a),
        g::__NR_madvise => space.madvise(ctx, *a),
        g::__NR_brk => space.brk(ctx, *a),
        g::__NR_mlock | g::__NR_mlock2 => space.mlock(ctx, nr, *a),
        g::__NR_munlock => space.munlock(ctx, *a),
        g::__NR_mlockall => space.mlockall(),
        g::__NR_munlockall => space.munlockall(*a),
        g::__NR_process_madvise if !is_remote_advice(a[3] as u32) => EINVAL,
        g::__NR_shmat if a[2] & SHM_REMAP != 0 && a[1] != 0 => shmat(space, ctx, a),
        _ => return None,
    })
}

/// Whether advice is for another process's memory, too. Advice that drops content is only for a process's own memory,
/// and new in Linux 6.13. Programs that are refused use madvise, which the engine sees.
fn is_remote_advice(advice: u32) -> bool {
    [g::MADV_COLD, g::MADV_PAGEOUT, g::MADV_WILLNEED, g::MADV_COLLAPSE].contains(&advice)
}

/// Attaches a segment over what is mapped: the engine forgets the range first.
fn shmat(space: &'static Space, ctx: &ThreadCtx, a: &[u64; 6]) -> i64 {
    const IPC_STAT: u64 = 2;
    const SEGMENT_BYTES_AT: usize = 6;
    let mut stat = [0u64; 14];
    // SAFETY: the kernel writes one `struct shmid64_ds`, 112 bytes.
    let ret =
        unsafe { calls::raw_syscall(g::__NR_shmctl as u64, &[a[0], IPC_STAT, stat.as_mut_ptr() as u64, 0, 0, 0]) };
    if ret < 0 {
        return ret;
    }
    let bytes = stat[SEGMENT_BYTES_AT].next_multiple_of(PAGE as u64);
    let ret = space.munmap(ctx, [a[1], bytes, 0, 0, 0, 0]);
    if ret < 0 {
        return ret;
    }
    // SAFETY: the program's own call; nothing is mapped there any more.
    unsafe { calls::raw_syscall(g::__NR_shmat as u64, a) }
}

/// Has the engine make as many large folios as the process has not forbidden, by itself or by a process that started it.
pub fn look_at_thp(space: &Space) {
    const PR_GET_THP_DISABLE: u64 = 42;
    /// All but what the program advises, since Linux 6.18.
    const EXCEPT_ADVISED: i64 = 2;
    // SAFETY: asks only.
    let ret = unsafe { calls::raw_syscall(g::__NR_prctl as u64, &[PR_GET_THP_DISABLE, 0, 0, 0, 0, 0]) };
    space.set_thp_limit(match ret {
        ..=0 => Thp::Always,
        _ if ret & EXCEPT_ADVISED != 0 => Thp::Advise,
        _ => Thp::Never,
    });
}

/// Whether the program wants pages merged; see [`merge`].
static MERGE_WANTED: AtomicBool = AtomicBool::new(false);

/// Remembers what the program asked for before it was managed.
pub fn take_over_merge() {
    const PR_GET_MEMORY_MERGE: u64 = 68;
    // SAFETY: asks only.
    let ret = unsafe { calls::raw_syscall(g::__NR_prctl as u64, &[PR_GET_MEMORY_MERGE, 0, 0, 0, 0, 0]) };
    MERGE_WANTED.store(ret == 1, Ordering::Relaxed);
}

/// PR_SET_MEMORY_MERGE and PR_GET_MEMORY_MERGE. The program's wish is remembered and has no effect, because the kernel
/// may take as long as it likes to fulfil it. Merged pages would lose the write protection that the engine relies on.
pub fn merge(a: &[u64; 6]) -> Outcome {
    const PR_SET_MEMORY_MERGE: u32 = 67;
    let sets = a[0] as u32 == PR_SET_MEMORY_MERGE;
    let rest = a[2] | a[3] | a[4] | if sets { 0 } else { a[1] };
    if rest != 0 {
        return Outcome::Done(EINVAL);
    }
    if sets {
        MERGE_WANTED.store(a[1] != 0, Ordering::Relaxed);
        return Outcome::Done(0);
    }
    Outcome::Done(MERGE_WANTED.load(Ordering::Relaxed) as i64)
}
