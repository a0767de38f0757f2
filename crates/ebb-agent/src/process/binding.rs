//! What the loader needs to find a function when the program calls it for the first time.
//!
//! That is memory of the loader's, which goes out like any other. A traced child whose parent waits in vfork must not meet
//! a page that is out (see `signals/traced.rs`), and the few calls that it makes after an exec that failed may be its first
//! ones of these functions. So what the loader has of each image comes in before.

use crate::base::{images, user};
use ebb::{Space, ThreadCtx};

/// Most images.
const IMAGES_MAX: usize = 512;
/// What the loader keeps of an image lies so close to its entry in the list.
const AROUND: usize = 64 << 10;

/// Brings in what the loader has of the images, as far as it is managed.
pub fn bring_in(space: &Space, ctx: &ThreadCtx) {
    let mut at = images::first() as u64;
    for _ in 0..IMAGES_MAX {
        if at == 0 {
            return;
        }
        space.bring_in_around(ctx, at as usize, AROUND);
        // Base, name, dynamic section, and the next entry (`LinkMap`).
        let Ok([_, _, _, next]) = user::read::<[u64; 4]>(at) else { return };
        at = next;
    }
}
