//! Devices that come and go while the program runs: swapon, swapoff, and the list of devices.

use crate::base::text::Text;
use crate::base::uapi::fd::identity_of;
use crate::base::uapi::{self, Errno};
use crate::counters::writes::{Allowance, PLACES, Writes};
use crate::device::file::{FileError, SpillFile};
use crate::device::list::Changing;
use crate::device::list::Writer;
use crate::device::list::{Files, bit, numbers};
use crate::device::{SwapInfo, SwapSpec, SwapState};
use crate::pages::{clean, stock};
use crate::places::swapspace::{Evacuation, Stuck};
use crate::protocols::gate::Exclusive;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::{faulty, reclaim, shrink};
use core::ffi::CStr;
use core::sync::atomic::AtomicU32;
use ebb_slots::Slot;

/// Rounds of one millisecond that [`make_room`] waits for reclaim by others, before it finds that there is no room.
const PATIENCE: u32 = 200;

const STUCK: &str = "a device does not answer: try again when it does";

/// Why a device was not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapOnError {
    /// A device is being added or removed, or somebody who shares the program's memory would not have the file.
    Busy,
    /// The directory is a device already.
    Used,
    /// A thread waits for a device that does not answer. With the gate to be closed, all threads would have to wait for that.
    Stuck,
    /// There are as many devices as there can be.
    TooMany,
    /// It has a write budget, and the tree has no place to keep it.
    NoPlace,
    /// The file could not be made.
    Create(Errno),
}

impl core::fmt::Display for SwapOnError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Busy => write!(f, "devices are being changed, or another process shares the memory: try again"),
            Self::Stuck => write!(f, "{STUCK}"),
            Self::Used => write!(f, "the directory is already a device: name another one"),
            Self::TooMany => write!(f, "there is no room for another device: remove one first"),
            Self::NoPlace => write!(
                f,
                "the tree has used {PLACES} directories, and can keep no write budget for another one: name one of \
                 them, or leave the budget out"
            ),
            Self::Create(e) => write!(f, "no file can be created there ({e}): name a writable directory"),
        }
    }
}

impl core::error::Error for SwapOnError {}

/// Why a device was not removed. Everything is as it was, except that some content may be elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapOffError {
    /// A device is being added or removed.
    Busy,
    /// A thread waits for a device that does not answer. With the gate to be closed, all threads would have to wait for that.
    Stuck,
    /// There is no such device.
    NotFound,
    /// The caller ended it.
    Interrupted,
    /// Neither another device nor the pool takes what it holds.
    NoRoom,
    /// Likewise, and the write budget of another device is spent.
    Held,
    /// Some of what it holds cannot be read. The rest has moved.
    Unreadable(FileError),
}

impl core::fmt::Display for SwapOffError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Busy => write!(f, "devices are being changed: try again"),
            Self::Stuck => write!(f, "{STUCK}"),
            Self::NotFound => write!(f, "there is no such device: `Space::devices` lists the devices"),
            Self::Interrupted => write!(f, "the caller interrupted it: the device stays"),
            Self::NoRoom => write!(f, "nothing else has room for its content: add a device or raise the budget first"),
            Self::Held => {
                write!(f, "the write budget of another device is spent: wait, raise that budget, or add a device")
            }
            Self::Unreadable(e) => {
                write!(f, "some of its content cannot be read: {e}; the device stays, with only that")
            }
        }
    }
}

impl core::error::Error for SwapOffError {}

impl Space {
    /// Adds a device. `is_shared` is asked before the device is used: it says whether everybody who uses this memory
    /// now has the new descriptor. A thread or process with a descriptor table of its own does not have it. The caller
    /// must not be inside.
    pub fn swapon(
        &self,
        _ctx: &ThreadCtx,
        spec: &SwapSpec<'_>,
        is_shared: &mut dyn FnMut() -> bool,
    ) -> Result<(), SwapOnError> {
        let devices = &self.swap.devices;
        // If the directory does not respond, this thread waits for it here, where it holds up nobody.
        probe(spec.dir).map_err(SwapOnError::Create)?;
        let changing = devices.begin_change().ok_or(SwapOnError::Busy)?;
        if changing.all().any(|(_, file)| file.is_stuck_inside()) {
            return Err(SwapOnError::Stuck);
        }
        if changing.all().any(|(i, file)| devices.priority(i).is_some() && file.dir() == spec.dir) {
            return Err(SwapOnError::Used);
        }
        if !changing.has_room() {
            return Err(SwapOnError::TooMany);
        }
        if spec.writes.is_some() && self.stats.writes.enter(spec.dir.to_bytes()) == 0 {
            return Err(SwapOnError::NoPlace);
        }
        let create = |exclusive: &Exclusive<'_>| {
            let made = SpillFile::create_beside(spec, devices.lives(), !self.kernel.force().no_direct, |fd| {
                devices.set_transient_fd(fd)
            });
            let added = made.map(|(file, identity)| (devices.add(exclusive, file), identity));
            // A file that was not added is destroyed below.
            if !matches!(added, Ok((Err(_), _))) {
                devices.set_transient_fd(-1);
            }
            added.map_err(SwapOnError::Create)
        };
        // With the gate closed nobody forks meanwhile.
        let (added, identity) = uapi::fd::change(|| self.exclusive(create))?;
        let Ok(i) = added.map_err(|file| destroy(self, file)) else { return Err(SwapOnError::TooMany) };
        // Nothing is in the file yet. This is the last moment to notice that the descriptor is another file's.
        let is_ours = changing.all().any(|(n, file)| n == i && identity_of(file.fd()) == Ok(identity));
        if !is_ours || !is_shared() {
            if let Some(file) = self.exclusive(|exclusive| devices.remove(exclusive, i)) {
                let fd = self.exclusive(|exclusive| file.destroy_but_fd(exclusive, &self.budget));
                // Otherwise the number is the program's now.
                if is_ours {
                    uapi::close(fd);
                }
                devices.set_transient_fd(-1);
            }
            return Err(SwapOnError::Busy);
        }
        if let Some((allowance, writes)) = self.stats.writes.find(spec.dir.to_bytes()).zip(spec.writes) {
            allowance.change(writes);
        }
        // With the gate closed nobody forks: a child would find the list half changed.
        self.exclusive(|_| {
            let priority = spec.priority.unwrap_or_else(|| devices.priority_below());
            devices.write_to(i, priority);
            self.swap.set_has_file(true);
        });
        Ok(())
    }

    /// Whether the write budgets of all devices of this process are spent. The caller must not be inside.
    pub fn is_held(&self, ctx: &ThreadCtx) -> bool {
        faulty::are_all_held(self, ctx)
    }

    /// Changes how much the processes of the tree may write to a directory where this process has a device. False if it has none there,
    /// or the tree has no place for the budget. The caller must not be inside.
    pub fn set_writes(&self, ctx: &ThreadCtx, dir: &CStr, writes: Writes) -> bool {
        let inside = self.threads.enter(ctx);
        let is_there = self.swap.devices.own(&inside).any(|(_, file)| file.dir() == dir);
        drop(inside);
        let allowance = if is_there { self.stats.writes.find(dir.to_bytes()) } else { None };
        allowance.map(|allowance| allowance.change(writes)).is_some()
    }
}

/// Looks for a name in the directory that nobody has looked for before. So whoever has the directory must answer, and not only the
/// kernel from what it remembers.
fn probe(dir: &CStr) -> Result<(), Errno> {
    uapi::fd::identity_of_path(dir)?;
    let mut text = Text::default();
    text.str(dir.to_bytes()).str(b"/.ebb-probe-").hex(uapi::now_ns() as usize).str(b"\0");
    let path = CStr::from_bytes_until_nul(text.bytes()).map_err(|_| Errno::INVAL)?;
    match uapi::fd::identity_of_path(path) {
        Err(Errno::NOENT) | Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Destroys a file that is no device any more. The descriptor is closed outside the gate, because that may take long.
/// The file's memory is freed with the gate closed: a fork in the middle would share memory that is about to go, and
/// give up masks that are read here.
fn destroy(space: &Space, file: SpillFile) {
    uapi::close(space.exclusive(|exclusive| file.destroy_but_fd(exclusive, &space.budget)));
    space.swap.devices.set_transient_fd(-1);
}

impl Space {
    /// Removes the device in directory `dir`: moves what it holds to other devices or into the pool, then closes it.
    /// Calls `keep_going` before each step, with the bytes still to be moved, and gives up when that returns false. All
    /// or nothing: after an error the device is in use as before. The caller must not be inside.
    pub fn swapoff(
        &self,
        ctx: &ThreadCtx,
        dir: &CStr,
        keep_going: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), SwapOffError> {
        let devices = &self.swap.devices;
        let changing = devices.begin_change().ok_or(SwapOffError::Busy)?;
        if changing.all().any(|(_, file)| file.is_stuck()) {
            return Err(SwapOffError::Stuck);
        }
        let (mut leaving, mut is_late): (Files, _) = (0, false);
        // Whoever is writing to the device has finished once the gate is closed.
        self.exclusive(|exclusive| {
            is_late = devices.all(exclusive).any(|(_, file)| file.dir() == dir && file.is_late());
            if is_late {
                return;
            }
            for (i, _) in devices.all(exclusive).filter(|(_, file)| file.dir() == dir) {
                leaving |= bit(i);
                if let Some(priority) = devices.priority(i) {
                    devices.write_no_more(i);
                    devices.set_leaving(exclusive, Some((i, priority)));
                }
            }
            if leaving != 0 {
                self.swap.set_has_file(devices.has_open(exclusive));
            }
        });
        if is_late {
            return Err(SwapOffError::Stuck);
        }
        if leaving == 0 {
            return Err(SwapOffError::NotFound);
        }
        let result = empty(self, ctx, &changing, leaving, keep_going).map_err(|error| match error {
            SwapOffError::NoRoom if faulty::is_held(self, ctx) => SwapOffError::Held,
            error => error,
        });
        self.exclusive(|exclusive| {
            if result.is_err() && devices.undo_leaving(exclusive) {
                self.swap.set_has_file(devices.has_open(exclusive));
            }
            devices.set_leaving(exclusive, None);
        });
        if result.is_ok() {
            for i in numbers(leaving) {
                let end = |exclusive: &Exclusive<'_>| {
                    devices.remove(exclusive, i).map(|file| file.destroy_but_fd(exclusive, &self.budget))
                };
                if let Some(fd) = self.exclusive(end) {
                    uapi::close(fd);
                    devices.set_transient_fd(-1);
                }
            }
        }
        shrink::release_all_unused(self, ctx);
        faulty::say_news(self, ctx);
        result
    }
}

/// Bytes that this process has in the files of a mask.
fn bytes_in(changing: &Changing<'_>, files: Files) -> u64 {
    let used = |(i, file): (usize, &SpillFile)| if files & bit(i) != 0 { file.nr_used() } else { 0 };
    changing.all().map(used).map(|slots| u64::from(slots) * 4096).sum()
}

fn empty(
    space: &Space,
    ctx: &ThreadCtx,
    changing: &Changing<'_>,
    leaving: Files,
    keep_going: &mut dyn FnMut(u64) -> bool,
) -> Result<(), SwapOffError> {
    let mut left = bytes_in(changing, leaving);
    // Walks again until a walk finds nothing to move. Only then is the device given up: lost content is the worst that
    // can happen.
    loop {
        let mut moved_in_walk = 0;
        let mut unreadable = None;
        let mut next = Some(Slot(0));
        while let Some(from) = next {
            if !keep_going(left) {
                return Err(SwapOffError::Interrupted);
            }
            make_room(space, ctx, &mut || keep_going(left))?;
            let mut work = space.places.work.lease(&space.budget, ctx);
            let inside = space.threads.enter(ctx);
            let reclaim = |slot, at| clean::reclaim_cache_only(space, &inside, slot, at);
            let (budget, stats) = (&space.budget, space.stats);
            let writer = Writer { held: &inside, shard: ctx.shard(), reclaim: &reclaim, stats };
            let job = Evacuation { writer, budget, stats, leaving };
            let step = space.swap.evacuate(&job, from, work.pages());
            drop(inside);
            let step = step.map_err(|Stuck| SwapOffError::NoRoom)?;
            unreadable = step.unreadable.or(unreadable);
            moved_in_walk += step.moved;
            left = bytes_in(changing, leaving);
            next = step.next;
        }
        if moved_in_walk == 0 {
            return unreadable.map_or(Ok(()), |error| Err(SwapOffError::Unreadable(error)));
        }
    }
}

/// Makes room in the budget for what comes into the pool. Fails when `keep_going` returns false, or nothing can be
/// reclaimed.
pub(crate) fn make_room(
    space: &Space,
    ctx: &ThreadCtx,
    keep_going: &mut dyn FnMut() -> bool,
) -> Result<(), SwapOffError> {
    let mut waits = 0;
    let _closed = stock::close_stock(space);
    while space.budget.is_tight() {
        if !keep_going() {
            return Err(SwapOffError::Interrupted);
        }
        if stock::shrink_stock(space, ctx) || reclaim::reclaim_step(space, ctx) {
            waits = 0;
        } else if space.budget.charged() < space.budget.limit() {
            return Ok(());
        } else if waits == PATIENCE {
            return Err(SwapOffError::NoRoom);
        } else {
            waits += 1;
            uapi::futex_wait(&AtomicU32::new(0), 0, Some(1_000_000));
        }
    }
    Ok(())
}

impl Space {
    /// Calls `f` for each device: first those that are written to, in the order in which they were added. Returns
    /// false, and calls nothing, while devices are changing.
    pub fn devices(&self, mut f: impl FnMut(SwapInfo<'_>)) -> bool {
        let devices = &self.swap.devices;
        let Some(changing) = devices.begin_change() else { return false };
        let is_own = |i: usize| devices.priority(i).is_some();
        for own in [true, false] {
            for (i, file) in changing.all().filter(|(i, _)| is_own(*i) == own) {
                let dir = file.dir();
                let same = |(_, other): &(usize, &SpillFile)| other.dir() == dir;
                // A directory's files are shown as one device.
                let is_first = changing.all().find(same).is_some_and(|(first, _)| first == i);
                let has_own = changing.all().any(|other| is_own(other.0) && same(&other));
                if own || (is_first && !has_own) {
                    let slots: u64 = changing.all().filter(same).map(|(_, file)| u64::from(file.nr_used())).sum();
                    let state = match () {
                        () if changing.all().filter(same).any(|(_, file)| file.is_stuck()) => SwapState::Stuck,
                        () if own && file.closed().is_some() => SwapState::Closed,
                        () if own && file.held_ns(self.stats) > 0 => SwapState::Held,
                        () => SwapState::Good,
                    };
                    let priority = devices.priority(i);
                    let (read_ns, counts) = devices.ahead(i).map_or((0, (0, 0)), |a| (a.read_ns(), a.counts()));
                    let allowance = file.allowance(self.stats);
                    f(SwapInfo {
                        dir,
                        bytes: file.bytes(),
                        used_bytes: slots * 4096,
                        priority,
                        kind: file.kind(),
                        read_ns,
                        readahead_hits: counts.0,
                        readahead_misses: counts.1,
                        written_bytes: allowance.map_or(0, Allowance::written),
                        writes: allowance.and_then(Allowance::budget),
                        state,
                    });
                }
            }
        }
        true
    }
}
