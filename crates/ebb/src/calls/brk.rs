//! brk(2): the heap that grows and shrinks at its end.

use crate::base::uapi::Errno;
use crate::calls::beside::{self, New};
use crate::calls::mapping::{self, page_up};
use crate::memory::region::Attr;
use crate::pages::{books, tally};
use crate::protocols::gate::{Exclusive, Held, Inside};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use linux_raw_sys::general as g;

/// What the heap's pages allow.
const PROT: u32 = g::PROT_READ | g::PROT_WRITE;

impl Space {
    /// brk(2). Added memory belongs to the calling thread's group.
    pub fn brk(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        let mut inside = self.threads.enter(ctx);
        let moved = move_break(self, ctx, &mut inside, a);
        drop(inside);
        let new = match moved {
            Moved::To(new) => new,
            Moved::Added { start, end, new } => {
                self.exclusive(|exclusive| manage_added(self, exclusive, ctx, start, end));
                new
            }
            Moved::Not => self.exclusive(|exclusive| move_alone(self, exclusive, ctx, a)),
        };
        books::note_books_used(self, ctx);
        new as i64
    }
}

/// The outcome of an attempt beside other threads.
enum Moved {
    /// The break is where the kernel says.
    To(u64),
    /// The kernel has added memory, and Ebb does not manage it yet: that needs the gate closed.
    Added { start: usize, end: usize, new: u64 },
    /// All of it needs the gate closed.
    Not,
}

fn current() -> Option<u64> {
    // SAFETY: asks for the current break only.
    unsafe { mapping::kernel(g::__NR_brk, [0; 6]) }.ok()
}

/// The kernel's part. It answers with the break, which is where it was if the kernel refuses.
fn call(a: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: the program's call. The caller hides what it takes away, or has closed the gate.
    match unsafe { mapping::kernel(g::__NR_brk, a) } {
        Ok(new) if new == a[0] => Ok(new),
        _ => Err(Errno::NOMEM),
    }
}

/// Moves the break beside other threads.
fn move_break(space: &Space, ctx: &ThreadCtx, inside: &mut Inside<'_>, a: [u64; 6]) -> Moved {
    // The holder may wait for those that are inside.
    let one = space.threads.lock(inside, &space.kernel.program_break);
    let Some(old) = current() else { return Moved::Not };
    if a[0] == 0 {
        return Moved::To(old);
    }
    let (old_end, new_end) = (page_up(old as usize), page_up(a[0] as usize));
    if new_end < old_end {
        // SAFETY: the program's call, which takes the end of the heap away.
        let result = unsafe { beside::replace_inside(space, inside, (new_end, old_end), None, || call(a)) };
        return result.map_or(Moved::Not, |result| Moved::To(result.unwrap_or(old)));
    }
    let Ok(new) = call(a) else { return Moved::To(old) };
    drop(one);
    let group = |held: &Held| Some(tally::thread_group(held, ctx));
    let added = New { attr: Attr::from_prot(PROT), group: &group };
    match new_end == old_end || beside::manage(space, inside, old_end, new_end, added) {
        true => Moved::To(new),
        false => Moved::Added { start: old_end, end: new_end, new },
    }
}

/// Manages memory that the kernel has added, but for what another thread has taken away, or taken away and added again, meanwhile.
fn manage_added(space: &Space, exclusive: &Exclusive<'_>, ctx: &ThreadCtx, start: usize, end: usize) {
    let end = end.min(current().map_or(start, |now| page_up(now as usize)));
    let mut at = start;
    while at < end {
        let known = space.regions.first_in(exclusive, at, end);
        let hole_end = known.map_or(end, |region| region.start.max(at));
        if at < hole_end {
            mapping::drop_content(space, exclusive, at, hole_end);
            let group = tally::thread_group(exclusive, ctx);
            mapping::manage(space, exclusive, at, hole_end, Attr::from_prot(PROT), group);
        }
        at = known.map_or(end, |region| region.end);
    }
}

/// Moves the break with the gate closed; the new break.
fn move_alone(space: &Space, exclusive: &Exclusive<'_>, ctx: &ThreadCtx, a: [u64; 6]) -> u64 {
    let old = current().unwrap_or(0);
    let Ok(new) = call(a) else { return old };
    let (old_end, new_end) = (page_up(old as usize), page_up(new as usize));
    if new_end > old_end {
        let group = tally::thread_group(exclusive, ctx);
        mapping::manage(space, exclusive, old_end, new_end, Attr::from_prot(PROT), group);
    } else if new_end < old_end {
        mapping::forget(space, exclusive, new_end, old_end);
    }
    new
}
