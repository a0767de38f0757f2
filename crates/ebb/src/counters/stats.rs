//! Counters of a squeezed process tree: one shared page that the command maps too.
//!
//! Owns nothing: the page is a memfd that `ebb run` makes and every managed process maps. The counters are monotonic
//! sums or maxima, in relaxed atomics. A process that dies in the middle of an update breaks nothing. Counters are
//! bumped on paths that take microseconds, so plain shared atomics are cheap enough.

use crate::base::{clock, uapi};
pub use crate::counters::devices::{Device, Devices};
use crate::counters::lockstat;
pub use crate::counters::lockstat::Contention;
pub use crate::counters::reaches::{self, Reaches};
pub use crate::counters::runs::Runs;
pub use crate::counters::thp::Thp;
use crate::counters::writes;
pub use crate::counters::writes::{Allowance, BATCH_BYTES, Period, Writes};
use crate::protocols::stalls::{INSTANT_SHIFT, INSTANTS_MAX, Stalls};
use crate::tree;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Written in `Shared::magic`; changes with the layout.
pub const MAGIC: u64 = 0x4542_4230_3030_3333;

/// Room for a fatal error and its NUL: a line with the longest directory that is likely.
pub const ERROR_BYTES: usize = 512;
/// Room for the name of a tree and its NUL.
pub const NAME_BYTES: usize = 64;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The shared counters. Units are in the names; plain names count events.
        #[repr(C)]
        #[derive(Debug)]
        pub struct Shared {
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// Runs of slots on devices.
            pub runs: Runs,
            /// How large a resident set would have kept the pages that came back.
            pub reaches: Reaches,
            /// What was read from each device.
            pub devices: Devices,
            /// What was written to each directory, and how much of that may be.
            pub writes: writes::Table,
            /// First fatal error of any process in the tree, NUL-terminated UTF-8.
            pub error: [AtomicU64; ERROR_BYTES / 8],
            /// Raised, and woken as a shared futex, to ask the processes of the tree to open their control sockets.
            pub asked: AtomicU32,
            /// Where threads waited for each other.
            pub locks: lockstat::Table,
            /// The budget, and who holds how much of it.
            pub tree: tree::Page,
            /// Nanoseconds per cycle of the processor's counter, times 2^20, once the first process has measured it.
            pub ns_per_cycle: AtomicU64,
            /// Which memory gets folios of 2 MiB: a [`Thp`].
            pub thp: AtomicU32,
            /// After so many milliseconds without use memory leaves RAM although there is room; 0 for never.
            pub idle_ms: AtomicU64,
            /// The size of RAM that the programs are shown; 0 for the truth.
            pub show_ram_bytes: AtomicU64,
            /// The user's name for the tree: ASCII, NUL-terminated; empty when there is none.
            pub name: [AtomicU64; NAME_BYTES / 8],
            /// 1 once the agent runs in the first program, which may stay too small to be managed.
            pub has_begun: AtomicU32,
            /// 1 once Ebb has ended the first process because there was no memory for it.
            pub has_ended_first: AtomicU32,
            /// When threads of the programs waited for swap, at least one of them.
            pub stalls: Stalls,
        }

        impl Shared {
            /// Calls `f` with each counter's name and value, in declaration order.
            pub fn for_each(&self, mut f: impl FnMut(&'static str, u64)) {
                $(f(stringify!($name), self.$name.load(Relaxed));)*
                self.runs.for_each(f);
            }
        }
    };
}

counters! {
    /// [`MAGIC`].
    magic,
    /// Processes that were managed.
    processes,
    /// Program threads that were armed.
    threads,
    /// Current budget of the tree.
    ram_limit_bytes,
    /// Largest charge (resident + frames + pool + metadata) of all processes together.
    peak_held_bytes,
    /// Largest amount of memory that all processes wanted at once: resident + staged + swapped pages.
    peak_wanted_bytes,
    /// Largest amount of anonymous memory that managed processes held beside their charge, as seen from outside.
    peak_beside_bytes,
    /// Largest amount of memory that the kernel used for all processes, as seen from outside: page tables and stacks of
    /// threads.
    peak_kernel_bytes,
    /// Pages given on first touch.
    first_touch_pages,
    /// Faults that were first touches.
    faults_first_touch,
    /// Faults served from a staged frame: no decompression.
    faults_soft,
    /// Faults served from the pool or a same-filled word.
    faults_pool,
    /// Of these, faults on cold objects.
    faults_cold,
    /// Faults served from a file.
    faults_file,
    /// Faults that found the page present. Another thread was faster, perhaps in bringing it in ahead of a walk, or
    /// write protection was lifted, or the thread took the page back from a sweep.
    faults_spurious,
    /// Faults of a first write to a clean page.
    faults_protected,
    /// Swapped pages that read-ahead or MADV_WILLNEED brought in, beside the page of a fault.
    readahead_pages,
    /// Pages, swapped or staged, that the background thread brought in ahead of a walk.
    read_beside_pages,
    /// Pages brought in for system calls.
    syscall_in_pages,
    /// First touches that got a folio of 2 MiB.
    thp_fault_alloc,
    /// First touches that should have got one, but the kernel had none.
    thp_fault_fallback,
    /// Folios of 2 MiB that were made of small pages: for MADV_COLLAPSE, or because they proved hot.
    thp_collapse_alloc,
    /// Folios of 2 MiB that left the page table whole.
    thp_unmapped,
    /// Of these, folios that came back whole before they were stored.
    thp_returned,
    /// Steps of storing a folio of 2 MiB in which a second thread helped.
    thp_swpout_helped,
    /// Folios of 2 MiB that were swapped in whole.
    thp_swpin,
    /// Units made of small pages again, because the program has parted a folio, or before a fork.
    thp_split_page,
    /// Pages that left the page table.
    unmap_pages,
    /// Of these, clean pages: their slots still held the content, so nothing was stored.
    dropped_clean_pages,
    /// Slots that were freed for a device that was short of them. Their pages were in memory, clean.
    cache_only_reclaimed,
    /// Of `unmap_pages`, pages that were stored where they were, without staging.
    in_place_pages,
    /// Pages that threads took back from a sweep, because they were about to write to them.
    taken_back_pages,
    /// System calls that unmapped managed pages for reclaim.
    unmap_calls,
    /// Of these, MOVE calls.
    unmap_move_calls,
    /// Segments of a single page that were unmapped to staging, with a call for that page alone.
    unmap_single_calls,
    /// Times that the kernel refused a MOVE, for example of a page that is shared since a fork, or pinned.
    move_refused,
    /// Units that were swept.
    sweeps,
    /// Units passed over because they had proved hot.
    sweeps_skipped,
    /// Pages that a sweep left because they had been used since the last one.
    referenced_pages,
    /// Pages stored in the pool.
    out_pool_pages,
    /// Pages of zeros that left memory: they are nowhere then, and read as zeros.
    swpout_zero,
    /// Pages that were same-filled, so that storing them cost nothing.
    out_same_pages,
    /// Pages that went to a file instead of the pool: they do not compress, or the pool had no room.
    out_file_pages,
    /// Pool objects written back to a file.
    writeback_pages,
    /// Pages that ageing unmapped, to see whether somebody wants them, or clean ones because nobody did.
    idle_unmapped_pages,
    /// Pages that nobody used for the idle period, and that ageing stored therefore.
    idle_out_pages,
    /// Pool objects that ageing wrote to a file, because their pages stayed out for another period.
    idle_writeback_pages,
    /// Pages that moved within files to make room for runs.
    cleaned_pages,
    /// Writes that a device did not take, for another reason than want of room.
    device_write_errors,
    /// Slots of files that are never used again, because the device did not take what was written there.
    retired_slots,
    /// Pages that could not be brought back when somebody needed them.
    unreadable_pages,
    /// Refaults whose distance was within the resident set.
    refaults_near,
    /// Staged pages that came back to their program, whatever the cause.
    staged_back_pages,
    /// Pages that came in by MOVE: untouched or swapped ones in frames of the stock, staged ones in their own frames.
    moved_in_pages,
    /// Bytes of all pages ever stored in the pool, before compression.
    pool_in_bytes,
    /// Bytes of these pages after compression.
    pool_out_bytes,
    /// Bytes of the objects that were written to files.
    file_object_bytes,
    /// Bytes of the slots that were written for them.
    file_bytes,
    /// Slots that were written while their thread went on with the next batch.
    flown_slots,
    /// Batches in flight that were written again, because the kernel did not take them whole.
    failed_flights,
    /// Slots that were read for a walk before it needed them.
    fetched_slots,
    /// Reads for a walk that nobody needed.
    unused_fetches,
    /// How often a thread inside the gate did not wait for a device, because it did not answer while others waited for the thread.
    late_transfers,
    /// Largest amount of content in the pool of any one process, before compression.
    peak_pool_content_bytes,
    /// Largest memory of the pool of any one process.
    peak_pool_bytes,
    /// Largest memory of the swap table of any one process: 8 bytes for each slot of the clusters in use.
    peak_swap_table_bytes,
    /// Objects of the pool that became cold: compressed once more, by a slower codec.
    cooled_pages,
    /// Bytes of these objects before.
    cooled_in_bytes,
    /// Bytes of these objects after.
    cooled_out_bytes,
    /// Objects that were tried and stay as they are, because they do not get clearly smaller.
    cooled_not_pages,
    /// Processor time that this took.
    cooling_ns,
    /// Largest amount of content that was cold in any one process, before compression.
    peak_cold_content_bytes,
    /// Objects that compaction moved.
    compacted_objects,
    /// Times that a program thread had to reclaim by itself.
    direct_reclaims,
    /// Time that program threads spent in faults, without direct reclaim.
    fault_ns,
    /// Processor time of the same faults, with their direct reclaim: sixteen times what one in sixteen took.
    fault_cpu_ns,
    /// Time that program threads spent in direct reclaim.
    direct_reclaim_ns,
    /// Processor time of background reclaim.
    background_ns,
    /// System calls caught by Syscall User Dispatch.
    traps,
    /// System calls that came through interposed symbols.
    interposed_calls,
    /// Calls that failed with EFAULT and were repeated after their buffers were brought in.
    efault_retries,
    /// Programs in the tree that could not be managed.
    unmanaged_programs,
    /// Messages that were not written, because standard error was another file by then, or there was none.
    messages_unsaid,
}
/// Bytes of swap table that each slot of a cluster in use costs.
pub const SWAP_TABLE_BYTES_PER_SLOT: u64 = 8;

impl Shared {
    /// Bytes to map: whole pages.
    pub const MAP_BYTES: usize = core::mem::size_of::<Self>().next_multiple_of(4096);

    /// Stores `text` as the tree's fatal error unless one is there already.
    pub fn set_error(&self, text: &[u8]) {
        if self.error[0].compare_exchange(0, 1, Relaxed, Relaxed).is_err() {
            return;
        }
        // Written back to front, so that a reader sees nothing before the first word is final.
        for (i, word) in self.error.iter().enumerate().rev() {
            let mut bytes = [0u8; 8];
            for (j, byte) in bytes.iter_mut().enumerate() {
                let at = i * 8 + j;
                *byte = if at + 1 < self.error.len() * 8 { text.get(at).copied().unwrap_or(0) } else { 0 };
            }
            word.store(u64::from_le_bytes(bytes), Relaxed);
        }
    }

    /// The share of the last `ms` milliseconds in which at least one thread waited in a fault, or in a call for its buffers, in millionths: "some" of PSI, by
    /// instants. None if the clock cannot be read, or its rate is not known because no process has been managed yet.
    pub fn stalled_some(&self, ms: u64) -> Option<u64> {
        let ns_per_cycle = self.ns_per_cycle.load(Relaxed);
        if ns_per_cycle == 0 || uapi::counter_is_forbidden() {
            return None;
        }
        let ns_per_instant = ns_per_cycle.saturating_mul(1 << (INSTANT_SHIFT - 20));
        let instants = (ms.saturating_mul(1_000_000) / ns_per_instant.max(1)).clamp(1, INSTANTS_MAX);
        Some(self.stalls.count(clock::cycles(), instants) * 1_000_000 / instants)
    }

    /// How long at least one thread has waited so, in nanoseconds, by instants. Waits count when they end.
    pub fn stalled_some_ns(&self) -> u64 {
        let ns_per_instant = self.ns_per_cycle.load(Relaxed).saturating_mul(1 << (INSTANT_SHIFT - 20));
        self.stalls.total().saturating_mul(ns_per_instant)
    }

    /// Names the tree. What does not fit is left out. Must be called before anybody else may look.
    pub fn set_name(&self, name: &[u8]) {
        let mut bytes = [0; NAME_BYTES];
        let len = name.len().min(NAME_BYTES - 1);
        bytes[..len].copy_from_slice(&name[..len]);
        for (word, chunk) in self.name.iter().zip(bytes.chunks_exact(8)) {
            let mut part = [0; 8];
            part.copy_from_slice(chunk);
            word.store(u64::from_le_bytes(part), Relaxed);
        }
    }

    /// The tree's name, as NUL-terminated bytes.
    pub fn name_bytes(&self) -> [u8; NAME_BYTES] {
        let mut out = [0; NAME_BYTES];
        for (word, chunk) in self.name.iter().zip(out.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        out
    }

    /// The tree's fatal error, as NUL-terminated bytes; all zero when there is none.
    pub fn error_bytes(&self) -> [u8; ERROR_BYTES] {
        let mut out = [0u8; ERROR_BYTES];
        for (word, chunk) in self.error.iter().zip(out.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        out
    }
}

/// Adds `n` to a counter.
#[inline]
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

/// Raises a counter to `value` if that is more.
#[inline]
pub fn raise(counter: &AtomicU64, value: u64) {
    if counter.load(Relaxed) < value {
        counter.fetch_max(value, Relaxed);
    }
}
