//! The RAM that the program believes in, where `ebb run --show-ram` names another size than the true one.
//!
//! sysinfo(2), `/proc/meminfo` and the memory files of the program's control groups tell that size (`text`). The
//! descriptor is the kernel's own file (`file`), so everything but a read is as ever: how it is opened, described,
//! seeked, waited for, duplicated and inherited. A read gets a part of a text that the agent makes from the kernel's.
//! Like the kernel's, the text is made anew at its beginning, and stays the same for the reads that follow on.

use crate::base::{calls, user};
use crate::kept::{marks, shown};
use crate::syscalls::proc_files::{Parts, give, is_read, position, seek, tell};
use crate::table::visit::{IOV_MAX, PAGE_BYTES};
use ebb::{Space, uapi};
use linux_raw_sys::{errno as e, general as g};
use text::{Figures, File};

mod file;
mod text;

use file::Held;
pub use file::{behind, find_meminfo};

const EFAULT: i64 = -(e::EFAULT as i64);
const EINVAL: i64 = -(e::EINVAL as i64);
const EOPNOTSUPP: i64 = -(e::EOPNOTSUPP as i64);

/// True of a call whose answer may be a descriptor for [`note`].
pub fn opens(nr: u32) -> bool {
    matches!(nr, g::__NR_open | g::__NR_openat | g::__NR_openat2)
}

/// Marks a descriptor that was just opened, if its file may be one of these.
#[cold]
pub fn note(fd: i64) {
    if fd >= 0 && file::may_be_one(fd as u64) {
        marks::mark(fd);
    }
}

/// The figures of this moment.
fn figures(space: &Space) -> Figures {
    let (wanted, held) = space.tree().page().wanted_and_held();
    let total = shown::bytes();
    Figures {
        total,
        free: total.saturating_sub(wanted.saturating_mul(PAGE_BYTES)),
        out: wanted.saturating_sub(held).saturating_mul(PAGE_BYTES),
    }
}

/// sysinfo(2).
pub fn sysinfo(space: &Space, a: &[u64; 6]) -> i64 {
    let mut info = [0u64; 14];
    // SAFETY: the kernel writes one `struct sysinfo`, 112 bytes.
    let ret = unsafe { calls::raw_syscall(g::__NR_sysinfo as u64, &[info.as_mut_ptr() as u64, 0, 0, 0, 0, 0]) };
    if ret != 0 {
        return ret;
    }
    retell(&mut info, figures(space));
    if user::write(a[0], &info).is_ok() { 0 } else { EFAULT }
}

/// Tells `figures` in a `struct sysinfo`.
fn retell(info: &mut [u64; 14], figures: Figures) {
    // The places of the fields, in words.
    const TOTAL: usize = 4;
    const FREE: usize = 5;
    const SHARED: usize = 6;
    const BUFFERS: usize = 7;
    const SWAP: usize = 8;
    const SWAP_FREE: usize = 9;
    const UNIT: usize = 13;
    let unit = u64::from(info[UNIT] as u32).max(1);
    let (total, free) = (figures.total / unit, figures.free / unit);
    (info[TOTAL], info[FREE], info[SWAP], info[SWAP_FREE]) = (total, free, 0, 0);
    for at in [SHARED, BUFFERS] {
        info[at] = info[at].min(figures.used() / unit);
    }
}

/// True of a call that moves a file's content within the kernel. It is refused for these files, as the kernel refuses
/// it for many, and programs then read and write.
pub fn is_moved(nr: u32, a: &[u64; 6]) -> bool {
    let from = match nr {
        g::__NR_sendfile => a[1],
        g::__NR_splice | g::__NR_copy_file_range => a[0],
        _ => return false,
    };
    marks::is_marked(from) && behind(from).is_some()
}

/// The answer to such a call.
pub const MOVED: i64 = EINVAL;

/// Answers a call on such a file; none where the kernel answers as ever. `is_foreign` says that this process works on its
/// parent's memory. Such a process may be killed while it holds a lock, which its parent would then wait for without end. So
/// it takes none, and its reads follow on in new texts.
pub(super) fn call(
    space: &Space,
    is_foreign: bool,
    nr: u32,
    a: &[u64; 6],
    (file, key): (File, shown::Key),
) -> Option<i64> {
    if !is_read(nr) {
        return None;
    }
    // To wait busily is to wait.
    if nr == g::__NR_preadv2 && a[5] as u32 & !g::RWF_HIPRI != 0 {
        return Some(EOPNOTSUPP);
    }
    let parts = Parts::of(nr, a);
    if a[2] > if parts.vector.is_some() { IOV_MAX } else { i64::MAX as u64 } {
        return None;
    }
    let wanted = match parts.bytes(shown::TEXT_BYTES as u64) {
        Ok(0) => return None,
        Ok(wanted) => wanted as usize,
        Err(user::Fault) => return Some(EFAULT),
    };
    let at = position(nr, a);
    let mut bytes = [0u8; shown::TEXT_BYTES];
    let (from, n) = {
        let mut texts = (!is_foreign).then(|| shown::texts_lock().lock());
        let held = Held::new(&key)?;
        // Threads that read on at the same time get one part each.
        let from = u64::try_from(at.map_or_else(|| tell(held.fd()), |at| at as i64)).ok()?;
        let out = &mut bytes[..wanted];
        let n = match texts.as_mut().and_then(|texts| texts.following(key, from)) {
            // The descriptor may be one that must not read.
            Some(text) => {
                uapi::pread(held.fd() as i32, &mut [], 0).map_err(negative).map(|_| Some(text.give(from, out)))
            }
            None => match texts.as_mut() {
                Some(texts) => give_new(space, &held, file, texts.anew(key), from, out),
                None => give_once(space, &held, file, from, out),
            },
        };
        let n = match n {
            Ok(n) => n?,
            Err(answer) => return Some(answer),
        };
        if at.is_none() {
            seek(held.fd(), from + n as u64, g::SEEK_SET);
        }
        (from, n)
    };
    // The lock is given back by now, because the program's memory may be out.
    let done = give(nr, a, &bytes[..n]);
    if at.is_none() && done < n as i64 {
        // As in the kernel, what did not arrive has not been read.
        let _texts = (!is_foreign).then(|| shown::texts_lock().lock());
        if let Some(held) = Held::new(&key) {
            seek(held.fd(), from + done.max(0) as u64, g::SEEK_SET);
        }
    }
    Some(done)
}

/// Copies a part of a text that is made now. Returns how many bytes; none or an error where [`make`] has none.
fn give_new(
    space: &Space,
    held: &Held,
    file: File,
    text: &mut shown::Text,
    from: u64,
    out: &mut [u8],
) -> Result<Option<usize>, i64> {
    Ok(make(space, held, file, text)?.then(|| text.give(from, out)))
}

/// As [`give_new`], of a text that nobody keeps.
#[inline(never)]
fn give_once(space: &Space, held: &Held, file: File, from: u64, out: &mut [u8]) -> Result<Option<usize>, i64> {
    give_new(space, held, file, &mut shown::Text::new(), from, out)
}

/// The answer that tells of an error.
fn negative(errno: uapi::Errno) -> i64 {
    -i64::from(errno.0)
}

/// Makes the text from the kernel's. False for one that is too long, which no kernel has, and if the file is another by
/// now; an error is the kernel's answer.
#[inline(never)]
fn make(space: &Space, held: &Held, file: File, text: &mut shown::Text) -> Result<bool, i64> {
    let mut kernels = [0u8; shown::TEXT_BYTES];
    let n = uapi::pread(held.fd() as i32, &mut kernels, 0).map_err(negative)?;
    if n == kernels.len() || !held.is_there() {
        return Ok(false);
    }
    figures(space).tell(file, &kernels[..n], text);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysinfo_tells_the_shown_size_and_no_swap() {
        let figures = Figures { total: 3 << 30, free: 1 << 30, out: 0 };
        let mut info = [0u64; 14];
        (info[0], info[4], info[5], info[6], info[7], info[8], info[9]) = (77, 24 << 30, 20 << 30, 5 << 30, 9, 1, 1);
        info[10] = 99;
        info[13] = 1;
        retell(&mut info, figures);
        assert_eq!(info, [77, 0, 0, 0, 3 << 30, 1 << 30, 2 << 30, 9, 0, 0, 99, 0, 0, 1]);
        info[13] = 4096;
        retell(&mut info, figures);
        assert_eq!((info[4], info[5]), (3 << 18, 1 << 18));
    }

    #[test]
    fn opens_are_known_by_their_numbers() {
        assert!([g::__NR_open, g::__NR_openat, g::__NR_openat2].into_iter().all(opens));
        assert!(!opens(g::__NR_creat) && !opens(g::__NR_read));
    }
}
