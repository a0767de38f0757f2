//! What the loader needs to find a function when the program calls it for the first time.
//!
//! That is memory of the loader's, which goes out like any other. A traced child whose parent waits in vfork must not meet
//! a page that is out (see `signals/traced.rs`), and the few calls that it makes after an exec that failed may be its first
//! ones of these functions. So what the loader has of each image comes in before.

use crate::base::user;
use core::ffi::c_int;
use ebb::{Space, ThreadCtx};

unsafe extern "C" {
    /// The loader's list of the images that it has loaded.
    static _r_debug: Debug;
}

#[repr(C)]
struct Debug {
    version: c_int,
    map: u64,
}

/// Most images.
const IMAGES_MAX: usize = 512;
/// What the loader keeps of an image lies so close to its entry in the list.
const AROUND: usize = 64 << 10;

/// Brings in what the loader has of the images, as far as it is managed.
pub fn bring_in(space: &Space, ctx: &ThreadCtx) {
    // SAFETY: a word of the loader's, which is set before any program begins.
    let mut at = unsafe { _r_debug.map };
    for _ in 0..IMAGES_MAX {
        // Base, name, dynamic section, and the next entry.
        let Ok([_, _, _, next]) = user::read::<[u64; 4]>(at) else { return };
        space.bring_in_around(ctx, at as usize, AROUND);
        at = next;
        if at == 0 {
            return;
        }
    }
}
