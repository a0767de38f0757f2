//! The devices of a process: the files that it writes to, in the order of their priorities, and the files that it
//! inherited by fork and only reads.
//!
//! Owns the files. A location word names a file by its number in this list, so a number is free again only when no slot
//! has content in its file. The list changes with the gate closed, as its functions demand. Its readers are inside the
//! gate, or are the one thread that may change it. Only the descriptors may be read by anybody at any time.

use crate::base::clock;
use crate::base::uapi::{self, Errno};
use crate::counters::devices::Device;
use crate::counters::stats::{self, Shared};
use crate::device::DEVICES_MAX;
use crate::device::ahead::Ahead;
use crate::device::contexts::Contexts;
use crate::device::file::{FileError, Packing, Place, Reclaim, Sealed, SpillFile, Taker};
use crate::device::flights::Flights;
use crate::device::lives::Lives;
use crate::protocols::gate::{Exclusive, Held};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use ebb_slots::{CLUSTER_SLOTS, Priorities, Shard, Slot};

/// Most files: a process's own and those that it inherited.
pub const FILES_MAX: usize = 64;

/// Some of the files, a bit for each number.
pub type Files = u64;

/// The bit of file `i`.
pub const fn bit(i: usize) -> Files {
    1 << i
}

/// The numbers of `files`, in ascending order.
pub fn numbers(files: Files) -> impl Iterator<Item = usize> {
    (0..FILES_MAX).filter(move |i| files & bit(*i) != 0)
}

/// A thread that writes to the devices, and what it needs for that.
#[derive(Clone, Copy)]
pub struct Writer<'a> {
    /// Held so that no file goes away meanwhile.
    pub held: &'a Held,
    /// The thread's allocation shard. A device with fewer shards wraps the number.
    pub shard: usize,
    /// Frees slots that only clean pages need.
    pub reclaim: Reclaim<'a>,
    /// Where runs are counted.
    pub stats: &'a Shared,
}

impl<'a> Writer<'a> {
    fn taker(self) -> Taker<'a> {
        Taker { shard: Shard(self.shard), reclaim: self.reclaim, stats: self.stats }
    }
}

/// A batch on its way to a device.
pub struct Flight {
    file: usize,
    sealed: Sealed,
}

/// The devices of one process.
pub struct Devices {
    files: *mut MaybeUninit<Option<SpillFile>>,
    /// Number of entries that are initialized.
    nr_files: AtomicUsize,
    /// The files' descriptors, -1 for none; and the descriptor of a file that is being added or removed.
    fds: [AtomicI32; FILES_MAX],
    transient_fd: AtomicI32,
    /// Says which of the processes that share files are alive.
    lives: &'static Lives,
    /// For transfers in flight.
    contexts: &'static Contexts,
    priorities: Priorities,
    /// Slots written so far, by which devices of equal priority take turns.
    written: AtomicU32,
    /// Why the devices last took nothing: an error number, or 0 when no slot was free.
    last_errno: AtomicU32,
    /// Why the last device that could not be made could not: an error number; 0 for none.
    unmade_errno: AtomicU32,
    /// A budget was spent, and nobody has looked since whether to tell the user.
    is_held: AtomicBool,
    /// A file failed so often that it was closed, and nobody has told the user yet.
    has_news: AtomicBool,
    /// Set while somebody adds or removes a device.
    is_changing: AtomicBool,
    /// The device that is about to be removed, with its priority.
    leaving: UnsafeCell<Option<(usize, i16)>>,
    /// Read-ahead of each file.
    ahead: [Ahead; FILES_MAX],
    stats: &'static Shared,
}

/// The right to change the list of devices, which one thread at a time has.
pub struct Changing<'a>(&'a Devices);

impl Changing<'_> {
    /// All files. Nobody else changes the list meanwhile, so reading it needs no gate.
    pub fn all(&self) -> impl Iterator<Item = (usize, &SpillFile)> {
        let devices = self.0;
        // SAFETY: only the thread that has `self` changes the list, and when it does it uses none of these references.
        (0..devices.nr_files.load(Ordering::Acquire)).filter_map(|i| Some((i, unsafe { devices.entry(i) }?)))
    }

    /// True when one more device is possible.
    pub fn has_room(&self) -> bool {
        self.0.has_room_beside(self.all())
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.is_changing.store(false, Ordering::Release);
    }
}

// SAFETY: entries and `leaving` change only under the exclusive gate or before the space is shared; files are shared safely.
unsafe impl Sync for Devices {}
// SAFETY: as above.
unsafe impl Send for Devices {}

impl Devices {
    /// A list without devices.
    pub fn new(stats: &'static Shared) -> Result<Self, Errno> {
        Ok(Self {
            files: uapi::reserve(FILES_MAX * size_of::<Option<SpillFile>>())?.cast(),
            nr_files: AtomicUsize::new(0),
            fds: [const { AtomicI32::new(-1) }; FILES_MAX],
            transient_fd: AtomicI32::new(-1),
            lives: Lives::new()?,
            contexts: Contexts::new()?,
            priorities: Priorities::new(),
            written: AtomicU32::new(0),
            last_errno: AtomicU32::new(0),
            unmade_errno: AtomicU32::new(0),
            is_held: AtomicBool::new(false),
            has_news: AtomicBool::new(false),
            is_changing: AtomicBool::new(false),
            leaving: UnsafeCell::new(None),
            ahead: core::array::from_fn(|_| Ahead::default()),
            stats,
        })
    }

    /// Begins a change of the list; none while another change is under way.
    pub fn begin_change(&self) -> Option<Changing<'_>> {
        let begun = self.is_changing.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        begun.is_ok().then(|| Changing(self))
    }

    /// Sets the device that is about to be removed, with its priority; `None` when there is none any more.
    pub fn set_leaving(&self, _exclusive: &Exclusive<'_>, leaving: Option<(usize, i16)>) {
        // SAFETY: the gate is closed.
        unsafe { *self.leaving.get() = leaving };
    }

    /// Makes the device that was about to be removed writable again. False when there is no such device.
    pub fn undo_leaving(&self, _exclusive: &Exclusive<'_>) -> bool {
        // SAFETY: the gate is closed.
        let Some((i, priority)) = (unsafe { (*self.leaving.get()).take() }) else { return false };
        self.write_to(i, priority);
        true
    }

    /// In fork's child: ends a change that a thread of the parent had begun, because nobody here goes on with it. True
    /// when that makes a device writable again that was about to be removed.
    pub fn undo_change(&self, exclusive: &Exclusive<'_>) -> bool {
        self.is_changing.store(false, Ordering::Relaxed);
        self.undo_leaving(exclusive)
    }

    /// All entries, for changes.
    #[expect(clippy::mut_from_ref, reason = "the gate is closed: the caller is the only user")]
    pub fn all_mut<'a>(&'a self, _exclusive: &'a Exclusive<'_>) -> &'a mut [Option<SpillFile>] {
        // SAFETY: the gate is closed.
        unsafe { self.entries_mut() }
    }

    /// # Safety
    /// Nobody else may use the list.
    #[expect(clippy::mut_from_ref, reason = "the caller is the only user")]
    unsafe fn entries_mut(&self) -> &mut [Option<SpillFile>] {
        let n = self.nr_files.load(Ordering::Relaxed);
        // SAFETY: the first `nr_files` entries have a value; see the contract.
        unsafe { core::slice::from_raw_parts_mut(self.files.cast::<Option<SpillFile>>(), n) }
    }

    /// Says which of the processes that share files are alive.
    pub fn lives(&self) -> &'static Lives {
        self.lives
    }

    /// In fork's child: forgets the transfers in flight, which are the parent's.
    pub fn forget_transfers(&self, exclusive: &Exclusive<'_>) {
        self.contexts.reset(|serial, slots| {
            let file = self.all(exclusive).find(|(_, file)| file.serial() == serial);
            file.iter().for_each(|(_, file)| file.end_left(slots));
        });
    }

    /// The contexts of transfers in flight.
    pub fn contexts(&self) -> &'static Contexts {
        self.contexts
    }

    /// Most descriptors that [`Self::fds`] gives: those of all files, the transient one, and two of the lives.
    pub const FDS_MAX: usize = FILES_MAX + 3;

    /// The descriptors of all files and of the lives, -1 where there is none.
    pub fn fds(&self) -> impl Iterator<Item = i32> + '_ {
        let known = &self.fds[..self.nr_files.load(Ordering::Acquire)];
        known.iter().chain([&self.transient_fd]).map(|fd| fd.load(Ordering::Relaxed)).chain(self.lives.fds())
    }

    /// Keeps the program away from the descriptor of a file that is being added or removed; -1 for none.
    pub fn set_transient_fd(&self, fd: i32) {
        self.transient_fd.store(fd, Ordering::Relaxed);
    }

    /// In fork's child: closes a file that a thread of the parent was about to close. The child has no use for it.
    pub fn close_transient(&self) {
        let fd = self.transient_fd.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            uapi::close(fd);
        }
    }

    /// Moves descriptor `fd` to another number. False when it belongs to no file or life, or no number is free.
    pub fn move_fd(&self, exclusive: &Exclusive<'_>, fd: i32) -> bool {
        for (i, file) in self.all(exclusive) {
            if file.fd() == fd
                && let Some(new) = file.move_fd(exclusive)
            {
                self.fds[i].store(new, Ordering::Relaxed);
                return true;
            }
        }
        self.lives.move_fd(exclusive, fd)
    }

    /// The file with number `i`.
    pub fn file<'a>(&'a self, _held: &'a Held, i: usize) -> Option<&'a SpillFile> {
        // SAFETY: entries change only under the exclusive gate.
        unsafe { self.entry(i) }
    }

    /// # Safety
    /// Nobody may change the list while the answer is in use.
    unsafe fn entry(&self, i: usize) -> Option<&SpillFile> {
        if i >= self.nr_files.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the entry has a value; the caller's contract.
        unsafe { (*self.files.add(i)).assume_init_ref().as_ref() }
    }

    /// All files, with their numbers.
    pub fn all<'a>(&'a self, held: &'a Held) -> impl Iterator<Item = (usize, &'a SpillFile)> {
        (0..self.nr_files.load(Ordering::Acquire)).filter_map(|i| self.file(held, i).map(|file| (i, file)))
    }

    /// The files that this process writes to.
    pub fn own<'a>(&'a self, held: &'a Held) -> impl Iterator<Item = (usize, &'a SpillFile)> {
        self.all(held).filter(|(i, _)| self.priorities.priority(*i as u8).is_some())
    }

    /// The priority of a file that this process writes to.
    pub fn priority(&self, i: usize) -> Option<i16> {
        self.priorities.priority(i as u8)
    }

    /// A priority below those of all files that this process writes to, and at most -1.
    pub fn priority_below(&self) -> i16 {
        (0..FILES_MAX).filter_map(|i| self.priority(i)).min().unwrap_or(0).min(0).saturating_sub(1)
    }

    /// True when one more device is possible beside `files`, which must be all that there are.
    fn has_room_beside<'a>(&self, files: impl Iterator<Item = (usize, &'a SpillFile)>) -> bool {
        let (mut taken, mut own) = (0, 0);
        for (i, _) in files {
            taken += 1;
            own += usize::from(self.priority(i).is_some());
        }
        taken < FILES_MAX && own < DEVICES_MAX
    }

    /// Adds a file, which is not written to yet, and returns its number. Gives the file back when there is no room.
    #[expect(clippy::result_large_err, reason = "whoever made a file that finds no room destroys it")]
    pub fn add(&self, exclusive: &Exclusive<'_>, file: SpillFile) -> Result<usize, SpillFile> {
        if !self.has_room_beside(self.all(exclusive)) {
            return Err(file);
        }
        // SAFETY: the gate is closed.
        Ok(unsafe { self.put(file) })
    }

    /// Does what [`Self::add`] does, before the space is shared.
    #[expect(clippy::result_large_err, reason = "whoever made a file that finds no room destroys it")]
    pub fn add_unshared(&mut self, file: SpillFile) -> Result<usize, SpillFile> {
        if self.nr_files.load(Ordering::Relaxed) >= DEVICES_MAX {
            return Err(file);
        }
        // SAFETY: nobody else has the list.
        Ok(unsafe { self.put(file) })
    }

    /// Puts a file into the first empty entry, or at the end. There must be room.
    ///
    /// # Safety
    /// Nobody else may use the list.
    unsafe fn put(&self, mut file: SpillFile) -> usize {
        file.set_contexts(self.contexts);
        let n = self.nr_files.load(Ordering::Relaxed);
        // SAFETY: the caller's contract.
        let entries = unsafe { self.entries_mut() };
        let i = entries.iter().position(Option::is_none).unwrap_or(n);
        self.fds[i].store(file.fd(), Ordering::Relaxed);
        let (ahead, kind) = (&self.ahead[i], file.kind());
        ahead.begin(kind);
        file.set_place(self.stats.writes.enter(file.dir().to_bytes()));
        ahead.place.store(self.stats.devices.enter(file.dir().to_bytes(), kind.number()), Ordering::Relaxed);
        if i < n {
            entries[i] = Some(file);
        } else {
            // SAFETY: there is room, so `n` is below FILES_MAX; nobody reads the entry yet.
            unsafe { self.files.add(n).write(MaybeUninit::new(Some(file))) };
            self.nr_files.store(n + 1, Ordering::Release);
        }
        i
    }

    /// Lets the process write to file `i` from now on.
    pub fn write_to(&self, i: usize, priority: i16) {
        let added = self.priorities.add(i as u8, priority);
        debug_assert!(added, "a device was added twice");
    }

    /// Lets the process write to file `i` no more. A thread that is writing at this moment may go on, unless the gate
    /// is closed.
    pub fn write_no_more(&self, i: usize) {
        self.priorities.remove(i as u8);
    }

    /// Takes a file that nothing refers to out of the list, for the caller to destroy. The program is still kept away
    /// from its descriptor.
    pub fn remove(&self, exclusive: &Exclusive<'_>, i: usize) -> Option<SpillFile> {
        self.write_no_more(i);
        let file = self.all_mut(exclusive).get_mut(i).and_then(Option::take)?;
        self.set_transient_fd(file.fd());
        self.fds[i].store(-1, Ordering::Relaxed);
        Some(file)
    }

    /// Writes a batch of objects (see [`SpillFile::write`]) to the first device that takes all of it; returns the
    /// device's number, which `placed` is told as well. When no device takes the batch, the caller may try parts of it: so
    /// pages that belong together stay together while they can.
    pub fn write(
        &self,
        writer: Writer<'_>,
        packing: &Packing,
        data: &mut [u8],
        mut placed: impl FnMut(usize, Slot, Place),
    ) -> Result<usize, FileError> {
        let turn = self.written.fetch_add(packing.nr_slots() as u32, Ordering::Relaxed) / CLUSTER_SLOTS;
        let mut order = [0; ebb_slots::DEVICES_MAX];
        let n = self.priorities.order(turn, &mut order);
        let (mut error, mut is_full, mut is_held) = (FileError::Full, false, false);
        let mut errno = 0;
        let taker = writer.taker();
        let mut asked: Files = 0;
        // A device that refused a moment ago is asked again only when no other takes the batch.
        for wants_rested in [true, false] {
            for i in order[..n].iter().map(|i| *i as usize) {
                if asked & bit(i) != 0 {
                    continue;
                }
                let Some(file) = self.file(writer.held, i).filter(|file| !(wants_rested && file.is_resting())) else {
                    continue;
                };
                asked |= bit(i);
                match file.write(taker, packing, data, |slot, place| placed(i, slot, place)) {
                    Ok(()) => return Ok(i),
                    Err(error) if error.is_lost() => return Err(error),
                    Err(FileError::Held) => {
                        is_held = true;
                        self.note_held();
                    }
                    Err(e) => {
                        self.note_failure(file);
                        is_full |= e == FileError::Full;
                        errno = match e {
                            FileError::Io(e) => e.0 as u32,
                            FileError::Closed => Errno::IO.0 as u32,
                            // There was no slot that it need not grow for.
                            FileError::Full => file.growth_errno(),
                            _ => 0,
                        };
                        error = e;
                    }
                }
            }
        }
        self.last_errno.store(errno, Ordering::Relaxed);
        Err(match () {
            // One that is only full takes the batch once the caller has given up copies there.
            () if is_full => FileError::Full,
            // No part of the batch would be taken either.
            () if is_held => FileError::Held,
            () => error,
        })
    }

    /// Begins to write a batch to the first device that may take it (see [`SpillFile::begin`]). None if that does not begin: then
    /// [`Self::write`] takes the batch, unless what was to be written [is lost](FileError::is_lost).
    pub fn begin(
        &self,
        writer: Writer<'_>,
        packing: &Packing,
        data: &mut [u8],
        flights: &mut Flights<'_>,
        which: usize,
    ) -> Result<Option<Flight>, FileError> {
        let slots = packing.nr_slots() as u32;
        let turn = self.written.load(Ordering::Relaxed) / CLUSTER_SLOTS;
        let mut order = [0; ebb_slots::DEVICES_MAX];
        let n = self.priorities.order(turn, &mut order);
        // That which is asked first, as in `write`.
        let files = order[..n].iter().filter_map(|i| Some((usize::from(*i), self.file(writer.held, usize::from(*i))?)));
        let may_take = |file: &SpillFile| file.closed().is_none() && !file.is_resting() && !self.looks_held(file);
        let Some((i, file)) = files.into_iter().find(|(_, file)| may_take(file)) else { return Ok(None) };
        let sealed = file.begin(writer.taker(), packing, data, flights, which)?;
        if sealed.is_some() {
            self.written.fetch_add(slots, Ordering::Relaxed);
        }
        Ok(sealed.map(|sealed| Flight { file: i, sealed }))
    }

    /// Ends what [`Self::begin`] began; returns as [`Self::write`] does, but asks no other device.
    pub fn finish(
        &self,
        writer: Writer<'_>,
        packing: &Packing,
        data: &mut [u8],
        flights: &mut Flights<'_>,
        flight: Flight,
        mut placed: impl FnMut(usize, Slot, Place),
    ) -> Result<usize, FileError> {
        let Flight { file: i, sealed } = flight;
        // Nobody has closed the gate since.
        let file = self.file(writer.held, i).ok_or(FileError::Corrupt)?;
        let placed = |slot, place| placed(i, slot, place);
        file.finish(writer.taker(), packing, data, flights, sealed, placed)
            .inspect_err(|_| self.note_failure(file))
            .map(|()| i)
    }

    /// Whether the budget of a file is spent, which is noted.
    fn looks_held(&self, file: &SpillFile) -> bool {
        let is_held = file.held_ns(self.stats) > 0;
        if is_held {
            self.note_held();
        }
        is_held
    }

    fn note_held(&self) {
        if !self.is_held.load(Ordering::Relaxed) {
            self.is_held.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a budget was spent since the last call. It may be called outside the gate.
    pub fn take_held(&self) -> bool {
        self.is_held.load(Ordering::Relaxed) && self.is_held.swap(false, Ordering::Relaxed)
    }

    /// For how long nothing can be written to any device whose budget is spent: none if there is no such device.
    pub fn held_ns(&self, held: &Held) -> Option<u64> {
        let open = self.own(held).filter(|(_, file)| file.closed().is_none());
        open.map(|(_, file)| file.held_ns(self.stats)).filter(|ns| *ns > 0).min()
    }

    /// Whether the budget of a file is spent.
    pub fn is_held(&self, file: &SpillFile) -> bool {
        file.held_ns(self.stats) > 0
    }

    /// Whether the budgets of all devices that take content at all are spent.
    pub fn are_all_held(&self, held: &Held) -> bool {
        let mut open = self.own(held).filter(|(_, file)| file.closed().is_none()).peekable();
        open.peek().is_some() && open.all(|(_, file)| file.held_ns(self.stats) > 0)
    }

    /// Notes that a file failed, which may have closed it. See [`Self::take_news`].
    #[cold]
    pub fn note_failure(&self, file: &SpillFile) {
        if file.is_newly_closed() {
            self.has_news.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a file was closed since the last call. It may be called outside the gate, where no file may be looked at.
    pub fn take_news(&self) -> bool {
        self.has_news.load(Ordering::Relaxed) && self.has_news.swap(false, Ordering::Relaxed)
    }

    /// Whether there is a file that takes content: one that this process writes to, and that is not closed.
    pub fn has_open(&self, held: &Held) -> bool {
        self.own(held).any(|(_, file)| file.closed().is_none())
    }

    /// What is known of read-ahead in file `i`. Anybody may look at any time. The number may be another file's by now.
    pub fn ahead(&self, i: usize) -> Option<&Ahead> {
        self.ahead.get(i)
    }

    /// Where the tree counts for file `i`.
    fn counts(&self, i: usize) -> Option<&Device> {
        self.stats.devices.get(self.ahead.get(i)?.place.load(Ordering::Relaxed))
    }

    /// Notes that of the pages that were read ahead from file `i`, so many were used, and so many were not.
    pub fn note_ahead(&self, i: usize, used: u32, unused: u32) {
        let Some(ahead) = self.ahead.get(i) else { return };
        ahead.note(used, unused);
        if let Some(counts) = self.counts(i) {
            let counts = [(&counts.readahead_hits, used), (&counts.readahead_misses, unused)];
            counts.into_iter().filter(|(_, n)| *n > 0).for_each(|(count, n)| stats::add(count, n.into()));
        }
    }

    /// Reads `slots` slots of file `i`, from slot `first` on, by `read`, and notes how long that takes if it succeeds.
    pub fn timed_read<T, E>(
        &self,
        i: usize,
        first: u32,
        slots: usize,
        read: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let began = clock::cycles();
        let result = read();
        // What fails says nothing of the time of a read.
        if let Some(ahead) = self.ahead.get(i).filter(|_| result.is_ok()) {
            let is_known = began != 0 && !clock::is_forbidden();
            let ns = is_known.then(|| clock::ns(clock::cycles().saturating_sub(began)));
            ahead.note_read(first, slots, ns);
            if let Some(counts) = self.counts(i) {
                stats::add(&counts.reads, 1);
                stats::add(&counts.read_ns, ns.unwrap_or(0));
            }
        }
        result
    }

    /// Counts reads of file `i` for which nobody waits yet.
    pub fn note_reads(&self, i: usize, reads: u64) {
        if let Some(counts) = self.counts(i) {
            stats::add(&counts.reads, reads);
        }
    }

    /// Has `bring` bring what was read of slots of file `i` before, and notes for how long it waits. It returns how many have come.
    pub fn timed_fetch(&self, i: usize, bring: impl FnOnce() -> usize) -> usize {
        let began = clock::cycles();
        let came = bring();
        if came > 0 {
            stats::add(&self.stats.fetched_slots, came as u64);
            let waited_ns = if clock::is_forbidden() { 0 } else { clock::ns(clock::cycles().saturating_sub(began)) };
            if let Some(counts) = self.counts(i) {
                stats::add(&counts.read_ns, waited_ns);
            }
        }
        came
    }

    /// Notes that a device could not be made.
    pub fn note_unmade(&self, errno: Errno) {
        self.unmade_errno.store(errno.0 as u32, Ordering::Relaxed);
    }

    /// Why this process has no device of its own although it should have one: an error number.
    pub fn unmade(&self, held: &Held) -> Option<u32> {
        let errno = self.unmade_errno.load(Ordering::Relaxed);
        (errno != 0 && self.own(held).next().is_none()).then_some(errno)
    }

    /// Why the devices last took nothing: an error number, or 0 when no slot was free.
    pub fn last_errno(&self) -> u32 {
        self.last_errno.load(Ordering::Relaxed)
    }
}
