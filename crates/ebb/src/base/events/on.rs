//! With the feature: records go to a shared mapping of a file, which outlives the process.

use super::Kind;
use crate::base::PAGE;
use crate::base::uapi::{self, Errno};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU64, AtomicUsize};

/// One record: page number, count and kind; then the detail.
type Record = [AtomicU64; 2];

/// Room for records. The file is sparse.
const RECORDS_MAX: usize = 1 << 31;
const BYTES: usize = RECORDS_MAX * size_of::<Record>();

/// The file's first record is its head: the number of records, the head included. The head's second word is free.
static RECORDS: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());
static FILTER: AtomicUsize = AtomicUsize::new(0);
static PRESENT: AtomicI64 = AtomicI64::new(0);

/// Begins to record into a new file. Must be called once, before the process has a second thread.
pub fn begin(path: &core::ffi::CStr) -> Result<(), Errno> {
    let fd = uapi::create(path)?;
    let mapped = uapi::truncate(fd, BYTES as u64).and_then(|()| uapi::map_shared(fd, BYTES));
    uapi::close(fd);
    let records = mapped?.cast::<Record>();
    // SAFETY: the mapping begins with a record, and zeroed memory is a valid one.
    let head = unsafe { &*records };
    head[0].store(1, Relaxed);
    RECORDS.store(records, Relaxed);
    Ok(())
}

/// Has each fault unmap pages until at most `pages` are mapped, and switches read-ahead off. So the faults are a trace of
/// what the program touches, from which only touches of pages that were touched a moment ago are missing.
pub fn set_filter(pages: usize) {
    FILTER.store(pages, Relaxed);
}

/// Stops recording: fork's child has its parent's file.
pub(crate) fn stop() {
    RECORDS.store(core::ptr::null_mut(), Relaxed);
    set_filter(0);
}

/// Whether the process records.
pub(crate) fn is_on() -> bool {
    !RECORDS.load(Relaxed).is_null()
}

/// Adds a record. It is dropped if the file is full.
pub(crate) fn record(kind: Kind, addr: usize, n: usize, detail: u64) {
    let records = RECORDS.load(Relaxed);
    if records.is_null() {
        return;
    }
    // SAFETY: mapped by `begin`, for good.
    let head = unsafe { &*records };
    let at = head[0].fetch_add(1, Relaxed) as usize;
    if at >= RECORDS_MAX {
        head[0].store(RECORDS_MAX as u64, Relaxed);
        return;
    }
    // SAFETY: checked index.
    let record = unsafe { &*records.add(at) };
    record[1].store(detail, Relaxed);
    record[0].store(((addr / PAGE) as u64) << 24 | (n as u64) << 8 | kind as u64, Relaxed);
}

/// Whether the process makes a trace.
pub(crate) fn is_filtering() -> bool {
    FILTER.load(Relaxed) > 0
}

/// Whether more pages are mapped than a trace allows.
pub(crate) fn is_over_filter() -> bool {
    is_filtering() && PRESENT.load(Relaxed) > FILTER.load(Relaxed) as i64
}

pub(crate) fn count_present(n: i64) {
    PRESENT.fetch_add(n, Relaxed);
}

/// `fixed` in place of `size`. So mappings of one program have the same addresses whatever its budget.
pub(crate) const fn same_in_all_runs(_: usize, fixed: usize) -> usize {
    fixed
}
