//! How many tasks the process has, without Ebb's.
//!
//! A program of one thread may look whether it is alone before it forks or gives up what it may do. It looks at the
//! links of the directory of its tasks, or at the number in `stat` and `status`. In the kernel's answer, that one
//! number is changed. A program with several threads counts Ebb's, too.

use crate::base::{calls, user};
use crate::syscalls::proc_files::{describe, is_read, position, tell};
use linux_raw_sys::general as g;

/// Links of the directory when there is one task in it.
const LINKS_ALONE: u64 = 3;
/// Bytes of text in which the number is looked for.
const TEXT_BYTES: usize = 4096;

/// True of a call that tells a file's links: by its path, or by its descriptor.
pub fn tells_links(nr: u32) -> bool {
    matches!(nr, g::__NR_stat | g::__NR_lstat | g::__NR_fstat | g::__NR_newfstatat | g::__NR_statx)
}

/// Corrects the answer to such a call that has succeeded: one link for one thread, if the call was on the process's own
/// directory of tasks.
pub fn correct_links(nr: u32, a: &[u64; 6]) {
    let mut own = [0u64; 18];
    let args = [c"/proc/self/task".as_ptr() as u64, own.as_mut_ptr() as u64, 0, 0, 0, 0];
    // SAFETY: the kernel reads a C string, and writes one `struct stat`.
    let ret = unsafe { calls::raw_syscall(g::__NR_stat as u64, &args) };
    let Some(([device, inode], _)) = describe(ret, &own) else { return };
    let out = match nr {
        g::__NR_newfstatat => a[2],
        g::__NR_statx => a[4],
        _ => a[1],
    };
    // The program may have unmapped it meanwhile.
    let _ = if nr == g::__NR_statx {
        const NLINK_AT: u64 = 16;
        const INODE_AT: u64 = 32;
        const DEVICE_AT: u64 = 136;
        let found = (user::read::<u64>(out + INODE_AT), user::read::<[u32; 2]>(out + DEVICE_AT));
        match found {
            (Ok(found), Ok([major, minor])) if found == inode && number_of(major, minor) == device => {
                user::write(out + NLINK_AT, &(LINKS_ALONE as u32))
            }
            _ => return,
        }
    } else {
        const NLINK_AT: u64 = 16;
        match user::read::<[u64; 2]>(out) {
            Ok(found) if found == [device, inode] => user::write(out + NLINK_AT, &LINKS_ALONE),
            _ => return,
        }
    };
}

/// A device's number as it is in `struct stat`.
fn number_of(major: u32, minor: u32) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    (major & 0xffff_f000) << 32 | (major & 0xfff) << 8 | (minor & 0xffff_ff00) << 12 | minor & 0xff
}

/// Reads `stat` or `status` by `make`, and corrects the number; none when the call is another one.
pub(super) fn read(nr: u32, a: &[u64; 6], make: impl FnOnce() -> i64) -> Option<i64> {
    // The number stands near the beginning: a program that reads on has read it.
    let is_first = is_read(nr) && position(nr, a).map_or_else(|| tell(a[0]), |at| at as i64) == 0;
    if !is_first || !matches!(nr, g::__NR_read | g::__NR_pread64) {
        return None;
    }
    let ret = make();
    let mut text = [0u8; TEXT_BYTES];
    let n = usize::try_from(ret).unwrap_or(0).min(TEXT_BYTES);
    if user::read_bytes(a[1], &mut text[..n]).is_ok()
        && let Some(at) = digit_in(&text[..n])
    {
        // The program may have unmapped it meanwhile.
        let _ = user::write(a[1] + at as u64, &b'1');
    }
    Some(ret)
}

/// Where the number of tasks is, if it has one digit.
fn digit_in(text: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"\nThreads:\t";
    /// Blanks between the end of the program's name and the number.
    const BLANKS: usize = 18;
    let at = match text.windows(NAME.len()).position(|part| part == NAME) {
        Some(at) => at + NAME.len(),
        None => {
            let name_end = text.iter().rposition(|&c| c == b')')?;
            let blanks = (name_end..text.len()).filter(|&i| text[i] == b' ');
            blanks.take(BLANKS).nth(BLANKS - 1)? + 1
        }
    };
    let is_digit = |at: usize| text.get(at).is_some_and(u8::is_ascii_digit);
    (is_digit(at) && at + 1 < text.len() && !is_digit(at + 1)).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_tasks_is_found_where_it_is() {
        let status = b"Name:\ta\nThreads:\t2\nSigQ:\t0/9\n";
        assert_eq!(digit_in(status), Some(17));
        let stat = b"7 (a) b) 2) S 1 7 7 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 3 0 99 1000\n";
        assert_eq!(digit_in(stat).map(|at| stat[at]), Some(b'3'));
        assert_eq!(digit_in(b"Name:\ta\nThreads:\t12\n"), None);
        assert_eq!((digit_in(b""), digit_in(b"7 (a) S 1"), digit_in(b"x\nThreads:\t2")), (None, None, None));
    }

    #[test]
    fn it_is_where_the_kernel_has_it() {
        // A program of one thread, whatever its priority is.
        for file in ["/proc/self/status", "/proc/self/stat", "/proc/thread-self/stat"] {
            let text = std::process::Command::new("cat").arg(file).output().expect("it runs").stdout;
            assert_eq!(digit_in(&text).map(|at| text[at]), Some(b'1'), "{file}");
        }
    }

    #[test]
    fn numbers_of_devices_are_as_the_kernel_packs_them() {
        use std::os::unix::fs::MetadataExt;
        let device = std::fs::metadata("/dev/null").expect("it is there").rdev();
        assert_eq!(number_of(1, 3), device);
        assert_eq!(number_of(0x123, 0x4_5678), 0x4561_2378);
    }
}
