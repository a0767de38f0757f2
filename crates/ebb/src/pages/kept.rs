//! Pages that the kernel does not drop: locked memory.

use crate::base::PAGE;
use crate::base::uapi::{self, Errno};
use crate::protocols::page::State;
use crate::space::Space;
use linux_raw_sys::general as g;

/// Whether any of the range is locked. MADV_COLD changes no content, and the kernel refuses it for locked memory.
pub(crate) fn is_locked(start: usize, len: usize) -> bool {
    uapi::madvise(start, len, g::MADV_COLD) == Err(Errno::INVAL)
}

/// Whether the kernel locks new mappings (MCL_FUTURE). It would bring them in before Ebb can register them.
pub fn is_future_locked() -> bool {
    match uapi::map_for_now(PAGE) {
        Ok(page) => {
            let answer = is_locked(page as usize, PAGE);
            // SAFETY: mapped above, and nobody refers to it.
            let _ = unsafe { uapi::munmap(page as usize, PAGE) };
            answer
        }
        // The new page exceeds the limit of locked memory.
        Err(errno) => errno == Errno::AGAIN,
    }
}

/// The new state of a page that the kernel did not drop: marked as locked if it is. Inside the gate.
pub(crate) fn kept(space: &Space, at: usize, state: State) -> State {
    if !is_locked(at, PAGE) {
        return state;
    }
    space.kernel.set_has_locked(true);
    state.with_locked(true)
}
