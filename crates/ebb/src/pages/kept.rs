//! What the kernel would not drop: locked memory.

use crate::base::PAGE;
use crate::base::uapi::{self, Errno};
use crate::protocols::page::State;
use crate::space::Space;
use linux_raw_sys::general as g;

/// Whether the kernel has any of the range locked. MADV_COLD changes no content, and is refused for what is locked.
pub(crate) fn is_locked(start: usize, len: usize) -> bool {
    uapi::madvise(start, len, g::MADV_COLD) == Err(Errno::INVAL)
}

/// Whether the kernel locks what is mapped from now on (MCL_FUTURE), which it would bring in before it can be registered.
pub fn is_future_locked() -> bool {
    match uapi::map_for_now(PAGE) {
        Ok(page) => {
            let answer = is_locked(page as usize, PAGE);
            // SAFETY: mapped above, and nobody refers to it.
            let _ = unsafe { uapi::munmap(page as usize, PAGE) };
            answer
        }
        // More than may be locked.
        Err(errno) => errno == Errno::AGAIN,
    }
}

/// The state of a page that the kernel would not drop: marked, if it is locked. Inside the gate.
pub(crate) fn kept(space: &Space, at: usize, state: State) -> State {
    if !is_locked(at, PAGE) {
        return state;
    }
    space.kernel.set_has_locked(true);
    state.with_locked(true)
}
