//! Reports that a page cannot be brought back: to standard error, for whoever needs it now. What is only read ahead is not reported, and
//! stays where it is: a later touch tries again.

use crate::base::killable;
use crate::base::text::Text;
use crate::base::uapi;
use crate::device::file::faults::is_passing;
use crate::device::file::{FileError, SLOT_BYTES};
use crate::places::swapspace::LoadError;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use core::sync::atomic::Ordering;

/// Who needs the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asker {
    /// A thread that touched it.
    Thread,
    /// A system call that uses it.
    Call,
}

/// Most pages that are named, in all processes of a tree: a program may touch the same page for ever.
const LINES_MAX: u64 = 256;

const PREFIX: &[u8] = b"ebb: ";

/// How long a thread waits before it tries again to read what the kernel could not read just now, and how often.
const PAUSE_NS: u64 = 20_000_000;
const TRIES_MAX: u32 = 250;

/// Waits for an error that may pass by itself, so that nothing is lost for want of a moment's memory. False if it is of another kind, or
/// has lasted for 5 s. Outside the gate.
#[cold]
pub(crate) fn may_pass(why: Option<LoadError>, tries: &mut u32) -> bool {
    let Some(LoadError::File { error: FileError::Io(errno), .. }) = why else { return false };
    *tries += 1;
    let waits = is_passing(errno) && *tries <= TRIES_MAX;
    if waits {
        killable::sleep(PAUSE_NS);
    }
    waits
}

/// Reports that the page at `page` cannot be brought back, in one line that names the device and the place in its file. Outside the gate.
#[cold]
pub(crate) fn report(space: &Space, ctx: &ThreadCtx, page: usize, why: Option<LoadError>, asker: Asker) {
    let before = space.stats.unreadable_pages.fetch_add(1, Ordering::Relaxed);
    let mut line = Text::default();
    line.str(PREFIX).str(b"the page at ").hex(page).str(b" cannot be brought back: ");
    match why {
        Some(LoadError::File { file, at, error }) => {
            let inside = space.threads.enter(ctx);
            // A swapoff may have taken the file away meanwhile.
            let dir = space.swap.devices.file(&inside, file).map(|file| file.dir().to_bytes());
            line.str(dir.unwrap_or(b"a device")).str(b", offset ");
            drop(inside);
            line.number(at as usize * SLOT_BYTES).str(b" of the spill file: ");
            match error {
                FileError::Io(errno) => line.str(b"the read fails with ").errno(errno).str(b"; check the disk"),
                _ => line.str(b"the content was changed; check the disk"),
            };
        }
        Some(LoadError::Corrupt) => _ = line.str(b"its copy in memory was damaged; check the memory"),
        Some(LoadError::Lost) => _ = line.str(b"it has no content: this is a bug in Ebb; please report it"),
        None => _ = line.str(b"the kernel does not map it: this is a bug in Ebb; please report it"),
    }
    line.str(match asker {
        Asker::Thread => b"; the program gets SIGBUS\n",
        Asker::Call => b"; the system call that needs it fails\n",
    });
    let is_damage = !matches!(why, Some(LoadError::File { .. }));
    if is_damage {
        // Ends the program where it must not go on. The text is without what every line begins and ends with.
        space.inconsistent(&line.bytes()[PREFIX.len()..line.bytes().len() - 1]);
    }
    space.stats.set_error(line.bytes());
    match before {
        ..LINES_MAX => uapi::stderr::say(line.bytes()),
        LINES_MAX => uapi::stderr::say(b"ebb: more pages cannot be brought back; no more of them are named\n"),
        _ => {}
    }
}
