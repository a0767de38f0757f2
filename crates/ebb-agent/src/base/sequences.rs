//! Whether the kernel accesses data of a mapped file on its own.
//!
//! * Restartable sequences: the kernel reads their descriptors when it preempts a thread, and ends the process if it
//!   cannot. By convention they are in a section `__rseq_cs`.
//! * Static probes (USDT): the kernel writes to their counters, in mappings of that very file. A file that has counters
//!   has a section `.probes`.

use core::ffi::CStr;
use ebb::uapi;

const SECTIONS: [&[u8]; 2] = [b"__rseq_cs\0", b".probes\0"];
/// Bytes of the 64-bit ELF header, and of a section's header.
const HEADER_BYTES: usize = 64;
/// Most sections that are looked at, and most bytes of their names.
const SECTIONS_MAX: usize = 128;
const NAMES_MAX: usize = 4096;

/// Whether the file at `path` may have such data. False only when it certainly has none.
pub fn may_have(path: &CStr) -> bool {
    let Ok(fd) = uapi::open_read(path) else { return true };
    let has = read(fd).unwrap_or(true);
    uapi::close(fd);
    has
}

/// Whether the file has one of the sections; none when the file does not tell.
fn read(fd: i32) -> Option<bool> {
    let mut head = [0u8; HEADER_BYTES];
    uapi::pread_exact(fd, &mut head, 0).ok()?;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (at, bytes, count, names) = (word(&head, 40, 8), word(&head, 58, 2), word(&head, 60, 2), word(&head, 62, 2));
    let count = usize::try_from(count).ok().filter(|count| (1..=SECTIONS_MAX).contains(count))?;
    if bytes != HEADER_BYTES as u64 || names as usize >= count {
        return None;
    }
    let mut section = [0u8; HEADER_BYTES];
    uapi::pread_exact(fd, &mut section, at.checked_add(names * bytes)?).ok()?;
    let (start, len) = (word(&section, 24, 8), word(&section, 32, 8));
    let len = usize::try_from(len).ok().filter(|len| *len <= NAMES_MAX)?;
    let mut text = [0u8; NAMES_MAX];
    uapi::pread_exact(fd, &mut text[..len], start).ok()?;
    // The table lists only names of sections that exist. A name may be stored as the end of another, so any offset counts.
    Some(SECTIONS.iter().any(|section| text[..len].windows(section.len()).any(|name| name == *section)))
}

/// A little-endian number of `bytes` bytes.
fn word(text: &[u8], at: usize, bytes: usize) -> u64 {
    text[at..at + bytes].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn sections_that_the_kernel_uses_are_found() {
        let folder = std::env::temp_dir().join(format!("ebb-sequences-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let built = |name: &str, source: &str| {
            let file = folder.join(name);
            let mut cc = Command::new("cc")
                .args(["-shared", "-fPIC", "-x", "c", "-o"])
                .arg(&file)
                .arg("-")
                .stdin(Stdio::piped())
                .spawn()
                .expect("a compiler");
            cc.stdin.take().expect("piped").write_all(source.as_bytes()).expect("it reads");
            assert!(cc.wait().expect("it ends").success());
            CString::new(file.into_os_string().into_encoded_bytes()).expect("no NUL")
        };
        let without = built("without.so", "int a[100] = {1};");
        let with = built("with.so", "long b[4] __attribute__((section(\"__rseq_cs\"), aligned(32))) = {1};");
        let probes = built("probes.so", "short s __attribute__((section(\".probes\"))) = 1;");
        assert!(!may_have(&without) && may_have(&with) && may_have(&probes));
        std::fs::remove_dir_all(&folder).expect("it can go");
    }

    #[test]
    fn what_is_no_such_file_may_have_them() {
        assert!(may_have(c"/proc/self/status") && may_have(c"/nowhere/at/all") && may_have(c"/etc/passwd"));
    }
}
