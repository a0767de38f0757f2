//! Directories whose entries name descriptors, mappings or tasks of the process, without Ebb's.

use crate::base::{copy, user};
use crate::guard::{self, SpaceMemory};
use linux_raw_sys::{errno as e, general as g};

const EFAULT: i64 = -(e::EFAULT as i64);
/// Offset of an entry's length.
const LENGTH_AT: u64 = 16;
/// Bytes of the longest name that is looked at, a range of memory.
const NAME_BYTES: usize = 40;

/// Lists the directory; none when the call is another one.
pub(super) fn call(
    mem: &SpaceMemory<'_>,
    nr: u32,
    a: &[u64; 6],
    is_hidden: &dyn Fn(&[u8]) -> bool,
    make: &mut dyn FnMut(u64, &[u64; 6]) -> i64,
) -> Option<i64> {
    let name_at = match nr {
        // In one format the type stands before the name, in the other it does not.
        g::__NR_getdents64 => 19,
        g::__NR_getdents => 18,
        _ => return None,
    };
    loop {
        let ret = guard::call(mem, nr as u64, a, make);
        if ret <= 0 {
            return Some(ret);
        }
        match shorten(a[1], ret as u64, name_at, is_hidden) {
            // Everything that was listed is Ebb's: this is not the end of the directory.
            Ok(0) => {}
            Ok(left) => return Some(left as i64),
            Err(user::Fault) => return Some(EFAULT),
        }
    }
}

/// Takes the hidden entries out of the entries at `at`. Returns how many bytes are left.
fn shorten(at: u64, len: u64, name_at: u64, is_hidden: &dyn Fn(&[u8]) -> bool) -> Result<u64, user::Fault> {
    let (mut from, mut to) = (0, 0);
    while from < len {
        let [low, high] = user::read::<[u8; 2]>(at + from + LENGTH_AT)?;
        let bytes = u16::from_ne_bytes([low, high]) as u64;
        if bytes <= name_at || from + bytes > len {
            // Somebody has written over the entries.
            return Err(user::Fault);
        }
        let mut name = [0u8; NAME_BYTES];
        let name = &mut name[..NAME_BYTES.min((bytes - name_at) as usize)];
        user::read_bytes(at + from + name_at, name)?;
        let end = name.iter().position(|&c| c == 0).unwrap_or(name.len());
        if !is_hidden(&name[..end]) {
            // SAFETY: both are within the buffer that the program gave for the entries.
            if to != from && !unsafe { copy::copy(at + to, at + from, bytes as usize) } {
                return Err(user::Fault);
            }
            to += bytes;
        }
        from += bytes;
    }
    Ok(to)
}

/// Parses the number of a descriptor or a task.
pub(super) fn number(name: &[u8]) -> Option<u64> {
    core::str::from_utf8(name).ok()?.parse().ok()
}

/// Parses a range of memory, `START-END`.
pub(super) fn range(name: &[u8]) -> Option<(usize, usize)> {
    let dash = name.iter().position(|&c| c == b'-')?;
    let number = |text: &[u8]| usize::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok();
    Some((number(&name[..dash])?, number(&name[dash + 1..])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Vec<u8> {
        let bytes = (19 + name.len() + 1).next_multiple_of(8);
        let mut out = vec![0u8; bytes];
        out[16..18].copy_from_slice(&(bytes as u16).to_ne_bytes());
        out[19..19 + name.len()].copy_from_slice(name.as_bytes());
        out
    }

    #[test]
    fn hidden_entries_are_taken_out_and_the_rest_moves_up() {
        let names = ["978", "0", "979", "1", "12345", "980"];
        let mut all: Vec<u8> = names.iter().flat_map(|name| entry(name)).collect();
        let is_hidden = |name: &[u8]| number(name).is_some_and(|fd| (900..1000).contains(&fd));
        let left = shorten(all.as_mut_ptr() as u64, all.len() as u64, 19, &is_hidden).expect("it can be read");
        let expected: Vec<u8> = ["0", "1", "12345"].iter().flat_map(|name| entry(name)).collect();
        assert_eq!(&all[..left as usize], &expected[..]);
        assert_eq!(shorten(all.as_mut_ptr() as u64, left, 19, &|_| true), Ok(0));
    }

    #[test]
    fn names_are_numbers_or_ranges() {
        assert_eq!((number(b"17"), number(b"."), number(b"")), (Some(17), None, None));
        assert_eq!(range(b"7f00-8000"), Some((0x7f00, 0x8000)));
        assert_eq!((range(b".."), range(b"7f00-")), (None, None));
    }
}
