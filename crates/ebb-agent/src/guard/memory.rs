//! The engine behind [`Memory`], for one call of the calling thread.

use crate::base::text::Line;
use crate::guard::{Memory, Pin, device};
use crate::kept::environment;
use crate::table::visit::ReadMemory;
use crate::threads::thread::{self, ThreadBlock};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use ebb::{ADDR_END, PageMap, PinResult, Space, ThreadCtx};

/// Bytes of the smallest unit. For each unit, the engine knows whether it was ever managed.
const UNIT_BYTES_MIN: usize = 64 * 4096;

/// Bytes above the stack pointer that surely belong to the thread's stack, so that they may be looked at.
const STACK_BYTES: u64 = 256 << 10;

/// The most memory that a guest of this process has in one piece, in bytes.
static GUEST_BYTES: AtomicU64 = AtomicU64::new(0);

/// One call of the calling thread.
pub struct SpaceMemory<'a> {
    space: &'a Space,
    ctx: &'a ThreadCtx,
    /// Stack pointer of the call. Calls made at higher addresses of the same stack still use their pins.
    sp: u64,
    /// The calling thread's block.
    block: *mut ThreadBlock,
}

impl<'a> SpaceMemory<'a> {
    /// For a call that was made with stack pointer `sp`, in a signal handler.
    #[inline]
    pub fn new(space: &'a Space, ctx: &'a ThreadCtx, sp: u64) -> Self {
        Self { space, ctx, sp, block: thread::on_stack() }
    }

    /// For a call that was made with stack pointer `sp`, on the program's stack.
    #[inline]
    pub fn of_block(space: &'a Space, block: &'a ThreadBlock, sp: u64) -> Self {
        Self { space, ctx: block.ctx(), sp, block: block.as_ptr() }
    }

    /// Runs `f` on the agent's stack.
    fn on_own<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: the calling thread's own block.
        crate::threads::stack::on_own(unsafe { &*self.block }, f)
    }
}

/// Cuts a range to the addresses that can be managed. None if nothing is left.
#[inline]
fn range(addr: u64, len: u64) -> Option<(usize, usize)> {
    let (addr, len) = (addr as usize, len as usize);
    (addr < ADDR_END && len > 0).then(|| (addr, len.min(ADDR_END - addr)))
}

impl ReadMemory for SpaceMemory<'_> {
    fn read(&self, addr: u64, out: &mut [u8]) -> bool {
        crate::base::user::read_bytes(addr, out).is_ok()
    }

    #[inline]
    fn may_be_managed(&self, addr: u64, len: u64) -> bool {
        let Some((addr, len)) = range(addr, len) else { return false };
        let is_small = addr / UNIT_BYTES_MIN == (addr + len - 1) / UNIT_BYTES_MIN;
        self.space.is_managed(addr) || !is_small && self.space.is_any_managed(addr, len)
    }

    fn may_be_looked_at(&self, addr: u64) -> bool {
        let is_plain = |addr| PageMap::open().is_some_and(|map| map.is_plain(addr));
        range(addr, 1).is_some_and(|(addr, _)| self.space.has_content(addr) || is_plain(addr))
    }

    fn is_on_stack(&self, addr: u64) -> bool {
        (self.sp..self.sp.saturating_add(STACK_BYTES)).contains(&addr)
    }

    fn is_driver(&self, fd: i32) -> bool {
        device::is_driver(fd)
    }

    fn takes_commands(&self, fd: i32) -> bool {
        device::may_take_commands() && device::is_driver(fd)
    }

    fn note_guest_memory(&self, bytes: u64) {
        GUEST_BYTES.fetch_max(bytes, Relaxed);
    }

    fn guest_memory_max(&self) -> u64 {
        GUEST_BYTES.load(Relaxed)
    }

    fn is_self(&self, pid: i32) -> bool {
        // The kernel accepts the number of any thread for its process.
        pid == ebb::uapi::getpid() || ebb::uapi::is_own_thread(pid)
    }
}

impl Memory for SpaceMemory<'_> {
    fn pin_begin(&self) {
        self.space.pin_begin(self.ctx, self.sp);
    }

    #[inline]
    fn pin_fast(&self, addr: u64, len: u64) -> bool {
        range(addr, len).is_some_and(|(addr, len)| self.space.pin_fast(self.ctx, self.sp, addr, len))
    }

    fn pin_add(&self, addr: u64, len: u64) -> Pin {
        let Some((addr, len)) = range(addr, len) else { return Pin::Ok };
        match self.on_own(|| self.space.pin_add(self.ctx, addr, len)) {
            PinResult::Ok => Pin::Ok,
            PinResult::TooLarge => Pin::TooLarge,
            PinResult::Unreadable => Pin::Unreadable,
        }
    }

    #[inline]
    fn pin_end(&self) {
        self.space.pin_end(self.ctx);
    }

    #[inline]
    fn pin_max(&self) -> u64 {
        self.space.pin_max() as u64
    }

    fn piece_max(&self) -> u64 {
        self.space.pin_piece_max() as u64
    }

    fn calls_pin_too_much(&self) -> bool {
        self.space.calls_pin_too_much()
    }

    fn bring_in(&self, addr: u64, len: u64) -> bool {
        range(addr, len).is_none_or(|(addr, len)| self.on_own(|| self.space.bring_in(self.ctx, addr, len)))
    }

    fn exclude(&self, addr: u64, len: u64) {
        if let Some((addr, len)) = range(addr, len) {
            self.on_own(|| self.space.exclude(self.ctx, addr, len));
        }
    }

    fn register(&self, addr: u64, len: u64) -> bool {
        let Some((addr, len)) = range(addr, len) else { return true };
        let is_there = self.on_own(|| self.space.register(self.ctx, addr, len));
        if !is_there {
            say_refused(len as u64, self.space.limit_bytes());
        }
        is_there
    }

    fn is_known_to_drivers(&self, addr: u64) -> bool {
        self.space.is_known_to_drivers(addr as usize)
    }

    fn give_to_driver(&self, addr: u64) {
        self.on_own(|| self.space.give_to_driver(self.ctx, addr as usize));
    }

    fn request(&self, context: u64, block: u64, addr: u64, len: u64) {
        if let Some((addr, len)) = range(addr, len) {
            self.on_own(|| self.space.request_add(self.ctx, context, block, addr, len));
        }
    }

    fn write(&self, addr: u64, bytes: &[u8]) -> bool {
        // SAFETY: the agent's side is `bytes`; the program named the other side as output of its call.
        unsafe { crate::base::copy::copy(addr, bytes.as_ptr() as u64, bytes.len()) }
    }

    fn block(&self) -> u64 {
        // SAFETY: the calling thread's own block.
        unsafe { crate::signals::masks::block_all(self.block) }
    }

    fn unblock(&self, mask: u64) {
        // SAFETY: the calling thread's own block.
        unsafe { crate::signals::masks::restore(self.block, mask) }
    }
}

/// Says once why a device or a guest gets no memory, unless Ebb is to be quiet.
#[cold]
fn say_refused(bytes: u64, limit: u64) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Relaxed) || environment::kept_vars().any(|var| var == b"EBB_VERBOSE=0") {
        return;
    }
    let mut line = Line::new();
    line.str("ebb: ENOMEM: the program registers ").num(bytes >> 20);
    line.str(" MiB for a device or a virtual machine, all of which must stay in RAM, but the budget is only ")
        .num(limit >> 20);
    line.str(" MiB; give more --ram, or give the virtual machine less memory\n").write();
}
