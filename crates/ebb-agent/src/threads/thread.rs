//! What the agent keeps for each thread of the program.
//!
//! A thread's block is 256 KiB, aligned to its size: a guard page, the agent's own alternate signal stack, and at the
//! end the [`ThreadBlock`]. Every signal that the kernel delivers to the thread arrives on that stack, never on the
//! program's. So a stack pointer inside the block says that agent code was interrupted. And the kernel never writes to
//! a program stack, however small or evicted that is.
//!
//! A signal handler knows its thread by its own stack pointer ([`on_stack`]). For code that runs on the program's stack, the GS
//! base points to the block as well, but the program may change it at any time. Code that finds something else there
//! ([`current`], [`has_gs`]) has its system calls caught: in the handler, the stack pointer tells the thread.
//!
//! Blocks come in chunks of [`CHUNK_BLOCKS`] and are used again. Invariants: only the thread that owns a block changes it,
//! apart from its creator before the thread runs, a parent that waits for its vfork child, and [`set_number`]. Whoever looks
//! for blocks of processes that are gone reads what its creator noted. Blocks are never managed.

use crate::base::calls;
use crate::base::change::Change;
use crate::base::frame::{AltStack, Context, FPSTATE_BYTES_MAX, Frame};
use crate::base::queue::Queue;
use crate::threads::actions::SigTable;
use crate::threads::entry;
use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::mem::{offset_of, size_of};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ebb::ThreadCtx;
use ebb::uapi::{self, Errno};
use ebb_sync::Lock;
use linux_raw_sys::general as g;

/// Size and alignment of a block, in bytes.
pub const BLOCK_BYTES: usize = 256 << 10;
/// Offset in a block of its [`ThreadBlock`]; the stack ends there.
pub const HEAD_AT: usize = 216 << 10;
const GUARD_BYTES: usize = 4096;
const CHUNK_BLOCKS: usize = 64;
/// Most threads in one process.
const BLOCKS_MAX: usize = 32_768;

const _: () = assert!(size_of::<ThreadBlock>() <= BLOCK_BYTES - HEAD_AT);
const _: () = assert!(HEAD_AT.is_multiple_of(64));

/// The system call that the thread is in, or its last one.
#[repr(C)]
pub struct Call {
    /// Address at which the program goes on.
    pub ip: Cell<u64>,
    /// Argument registers as the program set them.
    pub args: Cell<[u64; 6]>,
    /// Argument registers as the kernel saw them.
    pub used: Cell<[u64; 6]>,
    pub nr: Cell<u64>,
    /// Whether its buffers are pinned.
    pub pinned: AtomicBool,
    /// Whether the engine was told of requests that the kernel may not take; see `aio`.
    pub has_requests: Cell<bool>,
    /// Bytes that are set aside for the buffers of its requests.
    pub reserved: Cell<u64>,
    /// How many attempts ended with EFAULT.
    pub tries: Cell<u32>,
    /// Whether the call replaces the signal mask while it waits.
    pub has_mask: Cell<bool>,
    /// That mask as the program gave it.
    pub mask: Cell<u64>,
    /// The part of that mask that the kernel sees.
    pub kernel_mask: Cell<u64>,
    /// Whom the call changes, and whether Ebb's threads are held for it; see `tasks`.
    pub change: Cell<Change>,
    pub holds: Cell<bool>,
    /// Argument structure of pselect6 and io_pgetevents: pointer and size of the mask.
    pub mask_arg: Cell<[u64; 2]>,
}

/// Everything that belongs to one thread.
#[repr(C)]
pub struct ThreadBlock {
    /// The block's own address.
    this: *const ThreadBlock,
    /// [`CHECK`], which no memory of the program's holds by chance.
    check: u64,
    /// The FS base that the thread was last seen with, so that another thread's GS base does not pass for its own.
    fs_base: Cell<u64>,
    /// The last system call.
    pub call: Call,
    /// Whether the thread makes a call that only the kernel's own code makes (see `uprobe`), and the program's mask meanwhile.
    pub is_passing: Cell<bool>,
    pub pass_mask: Cell<u64>,
    /// Signals that wait in the agent. A handler may change the queue at any instruction: use [`ThreadBlock::queue`].
    queue: Queue,
    index: u32,
    pub ctx: Cell<*const ThreadCtx>,
    /// A mask for the kernel to read or write, in calls from a stack that may be evicted; see `signals`.
    pub kernel_mask: Cell<u64>,
    /// The signals that the agent holds for itself and the program has blocked; see `signals`.
    pub blocked: Cell<u64>,
    /// What the program's mask lets through. While the agent runs, what it was when the thread entered, or has been set to since;
    /// nothing before a thread's first entry. Other threads read it (see `first`).
    pub open: AtomicU64,
    /// The program's alternate signal stack.
    pub alt: Cell<AltStack>,
    /// The signal actions of this thread's process.
    pub table: Cell<*const SigTable>,
    /// Room for the actions of a process that shares memory but not actions.
    pub own_table: SigTable,
    /// Whether this thread belongs to another process that shares the memory.
    pub foreign: Cell<bool>,
    /// Whether that process has its descriptors in common with the one that started it.
    pub shares_files: Cell<bool>,
    /// Whether the block is freed when the parent's vfork returns, not before.
    pub parent_frees: Cell<bool>,
    /// The block of the thread that made this one.
    pub made_by: Cell<*const ThreadBlock>,
    /// Whether the new process asked for default actions (CLONE_CLEAR_SIGHAND).
    pub resets_actions: Cell<bool>,
    /// Whether the thread has asked to be traced and the kernel does not know yet; see `traced`.
    pub asks_to_be_traced: Cell<bool>,
    /// The thread's number, by which blocks of dead processes are found; 0 until the parent knows it.
    pub tid: AtomicI32,
    /// The pid namespace in which `tid` is a number, and the thread's own. The processes that share this memory number
    /// their namespaces; 0 is the owner's.
    pub tid_namespace: Cell<u32>,
    pub namespace: AtomicU32,
    /// Which use of the block this is: see [`set_number`].
    pub serial: u64,
    /// A sum over all calls that have changed what this thread may do; see `tasks`.
    pub version: AtomicU64,
    /// The thread's own stack, where it is known. Only there may a hint for unwinders be left below the stack pointer.
    pub stack_start: Cell<u64>,
    pub stack_end: Cell<u64>,
    /// Memory that holds the arguments of an execve, and its size.
    pub scratch: Cell<usize>,
    pub scratch_bytes: Cell<usize>,
    /// What a new thread starts from.
    pub start: UnsafeCell<Frame>,
    pub fpstate: FpState,
}

/// Room for vector state.
#[repr(C, align(64))]
pub struct FpState(pub UnsafeCell<[u8; FPSTATE_BYTES_MAX]>);

/// Offsets that assembly code uses.
pub mod at {
    use super::{Call, Queue, ThreadBlock, offset_of};
    pub const CHECK: usize = offset_of!(ThreadBlock, check);
    pub const FS_BASE: usize = offset_of!(ThreadBlock, fs_base);
    pub const CALL_IP: usize = offset_of!(ThreadBlock, call) + offset_of!(Call, ip);
    pub const CALL_ARGS: usize = offset_of!(ThreadBlock, call) + offset_of!(Call, args);
    pub const DEFERRED: usize = offset_of!(ThreadBlock, queue) + offset_of!(Queue, deferred);
}

impl ThreadBlock {
    /// `process`, the number of this thread's process in `namespace`; none if that is not the thread's own namespace.
    fn number_in(&self, namespace: u32, process: i32) -> Option<u32> {
        (self.namespace.load(Ordering::Relaxed) == namespace).then_some(process as u32)
    }

    /// The lowest address of the alternate stack.
    fn stack_low(&self) -> u64 {
        ptr::from_ref(self) as u64 - HEAD_AT as u64 + GUARD_BYTES as u64
    }

    /// The address just above the alternate stack.
    pub fn stack_top(&self) -> u64 {
        ptr::from_ref(self) as u64
    }

    /// Whether `sp` is on this thread's agent stack.
    pub fn owns(&self, sp: u64) -> bool {
        sp >= self.stack_low() - GUARD_BYTES as u64 && sp <= self.stack_top()
    }

    /// A pointer through which the block's own thread may write to it.
    pub fn as_ptr(&self) -> *mut Self {
        self.this.cast_mut()
    }

    /// The alternate stack as sigaltstack(2) takes it.
    pub fn stack(&self) -> AltStack {
        AltStack { sp: self.stack_low(), flags: 0, pad: 0, size: self.stack_top() - self.stack_low() }
    }

    /// Signals that wait in the agent.
    pub fn queue(&self) -> &'static Queue {
        // SAFETY: `this` is the block's address, which stays mapped. Handlers that interrupt share the queue, and it is
        // never reached through an exclusive reference.
        unsafe { &*ptr::addr_of!((*self.this).queue) }
    }

    /// The engine's context of this thread.
    pub fn ctx(&self) -> &'static ThreadCtx {
        // SAFETY: set before the thread first runs, from the engine's array that lives as long as the space.
        unsafe { &*self.ctx.get() }
    }

    /// Tells the engine where the program's alternate stack is. A call made on it does not mean that calls on other
    /// stacks are over.
    pub fn tell_alt_stack(&self) {
        if let Some(space) = crate::base::here::space() {
            space.set_alt_stack(self.ctx(), self.alt.get().sp, self.alt.get().sp.saturating_add(self.alt.get().size));
        }
    }

    /// The signal actions of this thread's process.
    pub fn table(&self) -> &SigTable {
        // SAFETY: points to the process's static table or to one in a block that outlives this thread.
        unsafe { &*self.table.get() }
    }

    /// Whether this thread has its table of actions for itself.
    pub fn has_own_table(&self) -> bool {
        ptr::eq(self.table.get(), &raw const self.own_table)
    }

    /// Copies `context` and its vector state here, for a new thread to start from with the answer 0, at stack pointer `sp`
    /// unless that is 0.
    pub fn set_start(&self, context: &Context, sp: u64) {
        let mut start = *context;
        if context.regs.fpstate != 0 {
            let from = context.regs.fpstate as *const u8;
            // SAFETY: the kernel just wrote at least the legacy area there, on the agent's stack.
            let bytes = crate::base::frame::fpstate_bytes(unsafe { &*from.cast() });
            // SAFETY: as above; `bytes` is what the kernel wrote, at most the room here.
            unsafe { ptr::copy_nonoverlapping(from, self.fpstate.0.get().cast(), bytes) };
            start.regs.fpstate = self.fpstate.0.get() as u64;
        }
        start.stack = self.stack();
        start.regs.ax = 0;
        if sp != 0 {
            start.regs.sp = sp;
        }
        // SAFETY: the thread does not run yet, and nobody else looks there.
        unsafe { (*self.start.get()).context = start };
    }
}

/// The calling thread's block, for code on the program's stack. None when the program has put the GS base to its own
/// use, or has changed the FS base since the thread's last caught call.
#[inline]
pub fn current() -> Option<&'static ThreadBlock> {
    crate::base::here::space()?;
    // SAFETY: a block lives as long as its thread; only shared access to what the thread itself owns.
    unsafe { entry::current().as_ref() }
}

/// The calling thread's block, wherever agent code runs for a thread of the program. Where the program has a GS base of
/// its own, such code runs on the block's stack. None in Ebb's own threads.
pub fn here() -> Option<&'static ThreadBlock> {
    current().or_else(on_own_stack)
}

/// As [`here`], where the code is known to run on the block's stack or for no thread of the program.
pub fn on_own_stack() -> Option<&'static ThreadBlock> {
    let block = on_stack();
    let (base, bytes) = (block as usize - HEAD_AT, CHUNK_BLOCKS * BLOCK_BYTES);
    let nr_chunks = ARENA.used_max.load(Ordering::Relaxed).div_ceil(CHUNK_BLOCKS);
    let mut chunks = CHUNKS_AT[..nr_chunks].iter().map(|chunk| chunk.load(Ordering::Relaxed));
    let is_block = chunks.any(|chunk| chunk != 0 && (chunk..chunk + bytes).contains(&base));
    // SAFETY: a block that was used is mapped, and the thread whose stack this is lives.
    is_block.then(|| unsafe { &*block })
}

/// The block of the calling signal handler, which runs on the block's stack.
#[inline(always)]
pub fn on_stack() -> *mut ThreadBlock {
    let sp: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    ((sp & !(BLOCK_BYTES - 1)) + HEAD_AT) as *mut ThreadBlock
}

/// What [`ThreadBlock::check`] holds: the address of this static, which is random, times an odd number, with the lowest
/// bit set.
pub static CHECK: AtomicU64 = AtomicU64::new(0);

/// 1 when user space may read and write the bases of FS and GS.
pub static HAS_FSGSBASE: AtomicU32 = AtomicU32::new(0);

/// Records whether user space may write the GS base, and sets [`CHECK`].
pub fn set_has_fsgsbase(yes: bool) {
    HAS_FSGSBASE.store(yes as u32, Ordering::Relaxed);
    CHECK.store((&raw const CHECK as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, Ordering::Relaxed);
}

/// Whether the program may have a GS base of its own.
#[inline]
pub fn has_fsgsbase() -> bool {
    HAS_FSGSBASE.load(Ordering::Relaxed) != 0
}

/// The calling thread's GS base. To be called only where [`has_fsgsbase`] is true.
#[inline]
pub fn gs_base() -> u64 {
    let base;
    // SAFETY: reads a register; the kernel said in AT_HWCAP2 that user space may.
    unsafe { asm!("rdgsbase {}", out(reg) base, options(nomem, nostack, preserves_flags)) };
    base
}

/// Whether the GS base of the calling thread points to its block `b`.
#[inline]
pub fn has_gs(b: &ThreadBlock) -> bool {
    !has_fsgsbase() || gs_base() == ptr::from_ref(b) as u64
}

/// Remembers the FS base of the calling thread, whose block is `b`.
#[inline]
pub fn note_fs(b: &ThreadBlock) {
    if has_fsgsbase() {
        let base: u64;
        // SAFETY: reads a register; the kernel said in AT_HWCAP2 that user space may.
        unsafe { asm!("rdfsbase {}", out(reg) base, options(nomem, nostack, preserves_flags)) };
        b.fs_base.set(base);
    }
}

/// Makes `block` the calling thread's. A GS base that the program uses stays: any but 0 and `inherited`, the block of
/// the thread that made this one.
///
/// # Safety
/// No other thread may use the block.
pub unsafe fn set_current(block: *mut ThreadBlock, inherited: *const ThreadBlock) {
    // SAFETY: the caller's contract.
    note_fs(unsafe { &*block });
    if has_fsgsbase() {
        let base = gs_base();
        if base == 0 || base == inherited as u64 {
            // SAFETY: the kernel said so in AT_HWCAP2; the program does not use GS.
            unsafe { asm!("wrgsbase {}", in(reg) block, options(nostack, preserves_flags)) };
        }
    } else {
        const ARCH_SET_GS: u64 = 0x1001;
        // SAFETY: the program does not use GS (arch_prctl is refused).
        unsafe { uapi::syscall(g::__NR_arch_prctl as u64, [ARCH_SET_GS, block as u64, 0, 0, 0, 0]) };
    }
}

/// All blocks of the process.
struct Arena {
    chunks: Lock<Chunks, BlocksLock>,
    /// Blocks at or above this have never been used.
    used_max: AtomicUsize,
    /// Where to look for a free block next.
    next: AtomicUsize,
}

/// Addresses of the chunks; 0 where there is none.
type Chunks = [usize; BLOCKS_MAX / CHUNK_BLOCKS];

/// The arena's chunks again, for code that cannot wait for the arena's lock. A chunk is never given back.
static CHUNKS_AT: [AtomicUsize; BLOCKS_MAX / CHUNK_BLOCKS] = [const { AtomicUsize::new(0) }; BLOCKS_MAX / CHUNK_BLOCKS];

ebb_sync::lock_classes! {
    /// The blocks of a process. Held with every signal blocked. Fork takes it first, so that the child finds it free.
    BlocksLock = "thread blocks";
}

static ARENA: Arena = Arena {
    chunks: Lock::new([0; BLOCKS_MAX / CHUNK_BLOCKS]),
    used_max: AtomicUsize::new(0),
    next: AtomicUsize::new(0),
};

/// One word for each block: 0 free, 1 in use. Apart from the blocks, so that a search for a free one touches few pages.
static USED: [AtomicU32; BLOCKS_MAX] = [const { AtomicU32::new(0) }; BLOCKS_MAX];

/// The lock of the block arena, which fork must hold.
pub fn arena_lock() -> &'static Lock<Chunks, BlocksLock> {
    &ARENA.chunks
}

/// Uses of blocks so far.
static SERIAL: AtomicU64 = AtomicU64::new(1);

/// Notes the number of the process that runs on `block`, another one that shares this memory. Does nothing if that process is gone
/// already and the block is in use for another thread: `serial` is that of the use that is meant.
pub fn set_number(block: *mut ThreadBlock, serial: u64, tid: i32) {
    let _chunks = ARENA.chunks.lock();
    // SAFETY: blocks stay mapped, and are taken only with the lock held.
    let block = unsafe { &*block };
    if block.serial == serial {
        block.tid.store(tid, Ordering::Relaxed);
    }
}

/// Takes a block for a new thread. Every signal must be blocked.
pub fn alloc() -> Result<*mut ThreadBlock, Errno> {
    let mut chunks = ARENA.chunks.lock();
    let used_max = ARENA.used_max.load(Ordering::Relaxed);
    let from = ARENA.next.load(Ordering::Relaxed);
    let free = (from..used_max).chain(0..from.min(used_max)).find(|&i| USED[i].load(Ordering::Acquire) == 0);
    let index = match free.or_else(|| reap(&chunks, used_max)) {
        Some(i) => i,
        None if used_max < BLOCKS_MAX => used_max,
        None => return Err(Errno::AGAIN),
    };
    let chunk = index / CHUNK_BLOCKS;
    if chunks[chunk] == 0 {
        let bytes = CHUNK_BLOCKS * BLOCK_BYTES;
        let at = uapi::reserve_aligned(bytes, BLOCK_BYTES)? as usize;
        // A huge page here would make every thread cost 2 MiB.
        let _ = uapi::madvise(at, bytes, g::MADV_NOHUGEPAGE);
        chunks[chunk] = at;
        CHUNKS_AT[chunk].store(at, Ordering::Relaxed);
    }
    let base = chunks[chunk] + index % CHUNK_BLOCKS * BLOCK_BYTES;
    if index == used_max {
        // SAFETY: the block's first page, which nobody uses.
        uapi::check(unsafe { uapi::syscall(g::__NR_mprotect as u64, [base as u64, GUARD_BYTES as u64, 0, 0, 0, 0]) })?;
        ARENA.used_max.store(index + 1, Ordering::Relaxed);
    }
    ARENA.next.store(index + 1, Ordering::Relaxed);
    USED[index].store(1, Ordering::Relaxed);
    let block = (base + HEAD_AT) as *mut ThreadBlock;
    // SAFETY: the block is free and mapped; zero is a valid value of every field but those set here, which come
    // before the vector state that needs no initial value.
    unsafe {
        ptr::write_bytes(block.cast::<u8>(), 0, offset_of!(ThreadBlock, fpstate));
        (*block).this = block;
        (*block).check = CHECK.load(Ordering::Relaxed);
        (*block).index = index as u32;
        (*block).serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        (*block).alt = Cell::new(AltStack { sp: 0, flags: crate::base::signum::SS_DISABLE, pad: 0, size: 0 });
    }
    Ok(block)
}

/// The pid namespace of the calling thread. A number from another namespace says nothing here.
fn own_namespace() -> u32 {
    here().map_or(0, |block| block.namespace.load(Ordering::Relaxed))
}

/// Notes the pid namespace of a process that begins and shares this memory. `own` is the block of the caller, its thread.
pub fn note_namespace(own: &ThreadBlock) {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let is_first = calls::gettid() == calls::getpid();
    // Its parent is in another namespace.
    if is_first && uapi::getppid() == 0 {
        own.namespace.store(NEXT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Number of the child process that uses `block`; none when its pid namespace is not the calling thread's.
pub fn number_of_child(block: &ThreadBlock, process: i32) -> Option<u32> {
    block.number_in(own_namespace(), process)
}

/// Finds a block whose process shared the memory and was killed. Nobody else could free that block.
fn reap(chunks: &Chunks, used_max: usize) -> Option<usize> {
    let namespace = own_namespace();
    for i in 0..used_max {
        // SAFETY: the lock is held; blocks below `used_max` are mapped.
        let block = unsafe { &*at_index(chunks, i) };
        if block.foreign.get()
            && block.tid.load(Ordering::Relaxed) > 0
            && block.tid_namespace.get() == namespace
            && !uapi::process_exists(block.tid.load(Ordering::Relaxed))
        {
            release_scratch(block);
            if let Some(space) = crate::base::here::space() {
                space.outlive(block.ctx(), block.number_in(namespace, block.tid.load(Ordering::Relaxed)));
                space.detach_thread(block.ctx());
            }
            return Some(i);
        }
    }
    None
}

/// Calls `f` with each block that is in use. Every signal must be blocked.
pub fn for_each_used(mut f: impl FnMut(&ThreadBlock)) {
    let chunks = ARENA.chunks.lock();
    for (i, used) in USED.iter().enumerate().take(ARENA.used_max.load(Ordering::Relaxed)) {
        if used.load(Ordering::Acquire) != 0 {
            // SAFETY: the lock is held; blocks below `used_max` are mapped.
            f(unsafe { &*at_index(&chunks, i) });
        }
    }
}

/// Whether a block is used by another process, or by one whose number is not known yet. Such a process shares the
/// memory, as between vfork and exec.
pub fn has_foreign() -> bool {
    let namespace = own_namespace();
    let chunks = ARENA.chunks.lock();
    let mut used = (0..ARENA.used_max.load(Ordering::Relaxed)).filter(|&i| USED[i].load(Ordering::Acquire) != 0);
    used.any(|i| {
        // SAFETY: the lock is held; blocks below `used_max` are mapped.
        let block = unsafe { &*at_index(&chunks, i) };
        block.foreign.get()
            && (block.tid.load(Ordering::Relaxed) == 0
                || block.tid_namespace.get() != namespace
                || uapi::process_exists(block.tid.load(Ordering::Relaxed)))
    })
}

/// The process whose memory this is; those that share it are others.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Makes the calling process the owner of this memory.
pub fn set_owner() {
    OWNER.store(uapi::getpid() as u32, Ordering::Relaxed);
    ebb::outlived::set_look(look_for_dead);
}

/// Ends the process if another process that shares this memory died inside the engine. Called in a wait, perhaps with
/// locks held.
fn look_for_dead() {
    let (owner, own) = (OWNER.load(Ordering::Relaxed) as i32, uapi::getpid());
    let namespace = own_namespace();
    let (Some(space), Some(chunks)) = (crate::base::here::space(), ARENA.chunks.try_lock()) else { return };
    for i in (0..ARENA.used_max.load(Ordering::Relaxed)).filter(|&i| USED[i].load(Ordering::Acquire) != 0) {
        // SAFETY: the lock is held; blocks below `used_max` are mapped.
        let block = unsafe { &*at_index(&chunks, i) };
        let (process, of) = if block.foreign.get() {
            (block.tid.load(Ordering::Relaxed), block.tid_namespace.get())
        } else {
            (owner, 0)
        };
        if process > 0
            && of == namespace
            && process != own
            && !block.ctx.get().is_null()
            && !shares_memory(own, process)
        {
            space.outlive(block.ctx(), block.number_in(namespace, process));
        }
    }
}

/// Whether `other` still uses the memory of the process `own`. A killed process has no memory, even before its parent
/// has waited for it.
fn shares_memory(own: i32, other: i32) -> bool {
    const KCMP_VM: u64 = 1;
    // SAFETY: compares only.
    let ret = unsafe { uapi::syscall(g::__NR_kcmp as u64, [own as u64, other as u64, KCMP_VM, 0, 0, 0]) };
    // Any other error says nothing about `other`, and is no reason to end.
    ret == 0 || (ret < 0 && ret != -(linux_raw_sys::errno::ESRCH as i64))
}

/// The block number `i`.
fn at_index(chunks: &Chunks, i: usize) -> *mut ThreadBlock {
    (chunks[i / CHUNK_BLOCKS] + i % CHUNK_BLOCKS * BLOCK_BYTES + HEAD_AT) as *mut ThreadBlock
}

/// Unmaps the arguments of an execve that succeeded, in a process that shared the memory.
pub fn release_scratch(block: &ThreadBlock) {
    if block.scratch.get() != 0 {
        // SAFETY: the mapping belonged to the block's thread, which is gone.
        let _ = unsafe { uapi::munmap(block.scratch.get(), block.scratch_bytes.get()) };
    }
}

/// Frees a block whose thread is gone or never ran.
///
/// # Safety
/// Nobody may use the block afterwards.
pub unsafe fn free(block: *mut ThreadBlock) {
    // SAFETY: the caller's contract.
    used_word(unsafe { &*block }).store(0, Ordering::Release);
}

/// The word that says whether `block` is in use.
pub fn used_word(block: &ThreadBlock) -> &'static AtomicU32 {
    &USED[block.index as usize]
}

/// Frees all blocks but `own`, in fork's child: no other thread came along.
pub fn keep_only(own: &ThreadBlock) {
    for (i, word) in USED.iter().enumerate().take(ARENA.used_max.load(Ordering::Relaxed)) {
        word.store((i == own.index as usize) as u32, Ordering::Relaxed);
    }
    ARENA.next.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_another_pid_namespace_says_nothing_of_a_process() {
        let block = alloc().expect("a block");
        // SAFETY: the block is this test's.
        let b = unsafe { &*block };
        b.foreign.set(true);
        b.tid.store(i32::MAX, Ordering::Relaxed);
        b.tid_namespace.set(1);
        assert!(has_foreign());
        let reaped = reap(&ARENA.chunks.lock(), b.index as usize + 1);
        assert_ne!(reaped, Some(b.index as usize));
        b.tid_namespace.set(0);
        assert!(!has_foreign());
        assert_eq!(reap(&ARENA.chunks.lock(), b.index as usize + 1), Some(b.index as usize));
        // SAFETY: nobody uses it.
        unsafe { free(block) };
    }
}
