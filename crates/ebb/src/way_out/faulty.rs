//! What reclaim does about devices that do not work: it waits for those that do not answer, and tells the user of those that are closed.
//!
//! Whoever finds out that a device has failed too often is inside the gate, where nobody may wait for standard error. So that is said
//! later, by whoever reclaims next.

use crate::base::text::Text;
use crate::base::uapi;
use crate::base::uapi::Errno;
use crate::device::file::faults::{FAILURES_MAX, WINDOW_NS};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;

/// Says which devices were closed since somebody last looked, if any. Outside the gate.
#[inline]
pub(crate) fn say_closed(space: &Space, ctx: &ThreadCtx) {
    if space.swap.devices.take_news() {
        say(space, ctx);
    }
}

/// Whether threads wait for a device that does not answer, or have given that up. What they have in hand is still to be stored, so there
/// is hope. Outside the gate.
#[cold]
pub(crate) fn is_device_stuck(space: &Space, ctx: &ThreadCtx) -> bool {
    let inside = space.threads.enter(ctx);
    let is_stuck = space.swap.devices.all(&inside).any(|(_, file)| file.is_late() || file.is_stuck());
    drop(inside);
    is_stuck
}

/// How many transfers that were given up have ended; the count wraps.
pub(crate) fn late_answers(space: &Space) -> u32 {
    space.swap.devices.contexts().nr_reaped()
}

#[cold]
fn say(space: &Space, ctx: &ThreadCtx) {
    let devices = &space.swap.devices;
    loop {
        let mut line = Text::default();
        let inside = space.threads.enter(ctx);
        let has_open = devices.has_open(&inside);
        if !has_open {
            // From now on the pool takes what it can.
            space.swap.set_has_file(false);
        }
        let is_more = devices.all(&inside).any(|(_, file)| match file.take_closed() {
            Some(errno) => {
                describe(&mut line, file.dir().to_bytes(), errno, has_open);
                true
            }
            None => false,
        });
        drop(inside);
        if !is_more {
            return;
        }
        uapi::stderr::say(line.bytes());
    }
}

fn describe(line: &mut Text, dir: &[u8], errno: Errno, has_open: bool) {
    line.str(b"ebb: ").str(dir).str(b": ");
    if errno == Errno::ROFS {
        line.str(b"its file system is read-only now (EROFS)");
    } else {
        line.number(FAILURES_MAX as usize).str(b" writes to the spill file failed within ");
        line.number((WINDOW_NS / 60_000_000_000) as usize).str(b" minutes, the last with ").errno(errno);
    }
    line.str(b"; nothing more is written there, but what is there can still be read; check the disk, and ");
    line.str(if has_open {
        b"remove the device with `ebb swapoff`\n"
    } else {
        b"add another device with `ebb swapon`\n"
    });
}
