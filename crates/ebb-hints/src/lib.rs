//! What a program can tell Ebb about its memory, and ask of it: `ebb.h` for Rust.
//!
//! The functions find Ebb at run time, by `dlsym`. A program that uses them runs without Ebb as well. Then they do nothing, and
//! return what they say. Ebb is never in a statically linked program, so there they find nothing either. They exist on every
//! system, and can find Ebb on Linux on x86-64.
//!
//! * **Threads**: every function may be called by any number of threads at once.
//! * **Signal handlers**: the same, once [`is_active`] has returned. The first call of any function looks for Ebb by `dlsym`, which
//!   may take locks. From then on they allocate nothing and take no lock of the program's.
//! * **After fork**, a child may call all of them. Between vfork and exec, it may call [`is_active`] and [`advise`] only: the others
//!   fail with `EBUSY`.
//!
//! ```
//! use ebb_hints::Error;
//!
//! let big = vec![1u8; 1 << 20];
//! ebb_hints::cold(&big)?;
//! match ebb_hints::stats() {
//!     Ok(stats) => println!("{} bytes of {} are in RAM", stats.held_bytes, stats.wanted_bytes),
//!     Err(Error::NOT_UNDER_EBB) => println!("there is no Ebb"),
//!     Err(error) => return Err(error),
//! }
//! # Ok::<(), Error>(())
//! ```
#![no_std]
#![warn(missing_docs)]

use core::fmt;

mod agent;

/// Bytes of the pages that advice is about.
pub const PAGE: usize = 4096;

/// Why Ebb did not do what was asked: an error number, as in `errno`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error(pub i32);

impl Error {
    /// Ebb does not manage this process.
    pub const NOT_UNDER_EBB: Self = Self(libc::ENOSYS);
    /// The range is not whole pages, or not wholly mapped; or the size is too small.
    pub const INVALID: Self = Self(libc::EINVAL);
    /// The budget is set, but the processes hold more, and give up no more.
    pub const STILL_ABOVE: Self = Self(libc::EAGAIN);
    /// Between vfork and exec, the memory is the parent's.
    pub const BUSY: Self = Self(libc::EBUSY);
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NOT_UNDER_EBB => write!(f, "Ebb does not manage this process: start it with `ebb run`"),
            Self::INVALID => {
                write!(f, "Ebb refuses the range or the size: give whole pages that are mapped, or at least 4 MiB")
            }
            Self::STILL_ABOVE => {
                write!(f, "the budget is set, but the processes hold more: see `ebb ps`, or set a larger one")
            }
            Self::BUSY => write!(f, "the memory is the parent's between vfork and exec: ask before or after that"),
            Self(errno) => write!(f, "Ebb answers with error number {errno}"),
        }
    }
}

impl core::error::Error for Error {}

/// What this process and its tree of processes hold. Sizes are bytes. An agent that is older than this crate leaves the last
/// fields 0, and `size` says how many bytes it knew.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes of this structure that are known.
    pub size: u64,
    /// Memory of this process with content, wherever the content is.
    pub wanted_bytes: u64,
    /// What counts against the budget: the next three.
    pub held_bytes: u64,
    /// In page tables, with Ebb's own tables.
    pub resident_bytes: u64,
    /// Unmapped, and not compressed yet.
    pub staged_bytes: u64,
    /// The compressed pool.
    pub pool_bytes: u64,
    /// What is in the pool, before compression.
    pub pool_content_bytes: u64,
    /// Content that is neither resident nor staged.
    pub swapped_bytes: u64,
    /// Of that, content on devices, before compression.
    pub device_bytes: u64,
    /// Faults that this process has served.
    pub faults: u64,
    /// The budget of all processes under the same `ebb run`; so with all that follow.
    pub tree_ram_bytes: u64,
    /// What they hold of it.
    pub tree_held_bytes: u64,
    /// The most they ever held.
    pub tree_peak_bytes: u64,
    /// Faults that found a staged page: nearly free.
    pub tree_faults_staged: u64,
    /// Faults that decompressed a page.
    pub tree_faults_pool: u64,
    /// Faults that read from a device.
    pub tree_faults_device: u64,
    /// Brought in before anybody touched it.
    pub tree_readahead_bytes: u64,
    /// Everything that was ever swapped out.
    pub tree_swapped_out_bytes: u64,
    /// Everything that was ever written to devices for that.
    pub tree_device_write_bytes: u64,
    /// Time that threads lost to swap, in nanoseconds.
    pub tree_stall_ns: u64,
}

/// Advice about memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Advice {
    /// Not needed soon: the first to leave RAM when RAM is short. Nothing happens now.
    Cold = 1,
    /// The content is not needed any more, and never compressed or written. Until the program writes to a page, the page reads as
    /// its old content or as zeroes, and may change from the first to the second at any time. Only private anonymous memory.
    Dead = 2,
    /// Needed soon: what is swapped out comes in, as far as RAM has room.
    Soon = 3,
}

/// Asks the agent; the answer is `otherwise` where it does not manage this process.
fn ask(what: u32, a: u64, b: u64, c: u64, otherwise: Result<u64, Error>) -> Result<u64, Error> {
    let Some(agent) = agent::find() else { return otherwise };
    // SAFETY: the arguments are those of the request, and whoever gives advice about memory answers for it.
    let answer = unsafe { agent(what, a, b, c) };
    match u64::try_from(answer) {
        Ok(answer) => Ok(answer),
        Err(_) if answer == -i64::from(libc::ENOSYS) => otherwise,
        Err(_) => Err(Error(-answer as i32)),
    }
}

/// Whether Ebb manages the memory of this process, or will once it has grown.
pub fn is_active() -> bool {
    ask(0, 0, 0, 0, Ok(0)) == Ok(1)
}

/// What this process and its tree hold. [`Error::NOT_UNDER_EBB`] without Ebb.
pub fn stats() -> Result<Stats, Error> {
    let mut stats = Stats::default();
    ask(1, &raw mut stats as u64, size_of::<Stats>() as u64, 0, Err(Error::NOT_UNDER_EBB))?;
    Ok(stats)
}

/// Has this process give up so many bytes of RAM now, its coldest memory first. Returns how many it gave up, which may be fewer if
/// there is no more, or a few more. What the program touches again comes back. Without Ebb: 0.
pub fn reclaim(bytes: u64) -> Result<u64, Error> {
    ask(2, bytes, 0, 0, Ok(0))
}

/// Sets the budget of all processes under this `ebb run`, and waits until they hold no more. [`Error::NOT_UNDER_EBB`] without Ebb,
/// [`Error::INVALID`] below 4 MiB.
pub fn set_ram(bytes: u64) -> Result<(), Error> {
    ask(3, bytes, 0, 0, Err(Error::NOT_UNDER_EBB)).map(drop)
}

/// Gives advice about whole pages. [`Error::INVALID`] if the range is not whole pages, wraps around, or is not wholly mapped (what
/// is mapped of it takes the advice all the same). Without Ebb it does nothing, and looks at nothing.
///
/// # Safety
/// With [`Advice::Dead`], nothing may rely on the content of the range until it is written again.
pub unsafe fn advise(start: *mut u8, bytes: usize, advice: Advice) -> Result<(), Error> {
    ask(4, start as u64, bytes as u64, advice as u64, Ok(0)).map(drop)
}

/// Says that this memory is not needed soon. Pages that are only partly in `range` are left out.
pub fn cold(range: &[u8]) -> Result<(), Error> {
    advise_inside(range, Advice::Cold)
}

/// Says that this memory is needed soon. Pages that are only partly in `range` are left out.
pub fn soon(range: &[u8]) -> Result<(), Error> {
    advise_inside(range, Advice::Soon)
}

fn advise_inside(range: &[u8], advice: Advice) -> Result<(), Error> {
    let skipped = range.as_ptr().align_offset(PAGE);
    let Some(pages) = range.get(skipped..).filter(|pages| pages.len() >= PAGE) else { return Ok(()) };
    // SAFETY: the advice changes no content.
    unsafe { advise(pages.as_ptr().cast_mut(), pages.len() & !(PAGE - 1), advice) }
}
