//! Shows `maps`, `smaps` and `numa_maps` without Ebb's mappings.
//!
//! Each mapping has a line that begins with its range. In `smaps`, lines about the mapping follow, which begin with a
//! name. A line is shown or hidden once it is complete, or too long to be one of Ebb's nameless mappings. If the kernel
//! has joined Ebb's memory with the program's, the line is shown once for each part that is the program's. In `smaps`,
//! the lines about the mapping follow the last of these.
//!
//! The kernel cuts its text where the buffer of a read ends. So between reads, the agent keeps the beginning of a line,
//! and the text that it has still to give, for up to `STREAMS` descriptors. The kernel's position tells whether that
//! belongs to the next read; after a seek it does not. A read by position (pread) counts bytes as the program was given
//! them. If it does not continue the last read, it reads from the beginning.

use crate::base::{calls, here};
use ebb::uapi::own;
use ebb_sync::Lock;
use linux_raw_sys::general as g;

/// Bytes that the kernel is asked for at a time.
const CHUNK_BYTES: usize = 2048;
/// A line of this many bytes is shown or hidden before its end is there.
const LINE_BYTES: usize = 128;
/// Parts of one mapping that are shown.
const SHOWN_MAX: usize = 4;
/// Descriptors that are read at the same time.
const STREAMS: usize = 8;

/// Bytes that one chunk can produce: the whole chunk, and a kept line that is shown in parts.
const OUT_BYTES: usize = CHUNK_BYTES + (SHOWN_MAX + 1) * LINE_BYTES;

/// True if the whole range is Ebb's.
pub fn is_hidden(start: usize, end: usize) -> bool {
    let mut hidden = true;
    for_each_shown(start, end, |_, _| hidden = false);
    hidden
}

/// Calls `f` with the parts of a mapping that are shown.
fn for_each_shown(start: usize, end: usize, mut f: impl FnMut(usize, usize)) {
    let (low, high) = here::written_range();
    own::for_each_other(start, end, |from, to| {
        // Leave out the agent's data, too. It lies apart from the ranges, which were mapped later.
        let parts = [(from, to.min(low as usize)), (from.max(high as usize), to)];
        let mut last = 0;
        for (from, to) in parts {
            if from < to && from >= last {
                f(from, to);
                last = to;
            }
        }
    });
}

/// What becomes of the bytes up to the end of the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rest {
    /// They are kept until the line is complete.
    Kept,
    Shown,
    Hidden,
}

/// One text on its way from the kernel to the program.
struct Filter {
    rest: Rest,
    /// The last mapping is Ebb's: the lines about it are left out.
    leaves_out: bool,
    line: [u8; LINE_BYTES],
    line_len: usize,
    out: [u8; OUT_BYTES],
    /// How many bytes of `out` the program has got, and how many there are.
    given: usize,
    out_len: usize,
}

impl Filter {
    const fn new() -> Self {
        Self {
            rest: Rest::Kept,
            leaves_out: false,
            line: [0; LINE_BYTES],
            line_len: 0,
            out: [0; OUT_BYTES],
            given: 0,
            out_len: 0,
        }
    }

    /// Starts anew, at the beginning of the text or in the middle.
    fn restart(&mut self, is_start: bool) {
        self.rest = if is_start { Rest::Kept } else { Rest::Shown };
        (self.leaves_out, self.line_len, self.given, self.out_len) = (false, 0, 0, 0);
    }

    fn put(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(OUT_BYTES - self.out_len);
        debug_assert_eq!(n, bytes.len());
        self.out[self.out_len..self.out_len + n].copy_from_slice(&bytes[..n]);
        self.out_len += n;
    }

    /// Takes what was read: at most one chunk, and only once all of the last one was given.
    fn take(&mut self, mut bytes: &[u8]) {
        (self.given, self.out_len) = (0, 0);
        while !bytes.is_empty() {
            let end = bytes.iter().position(|&c| c == b'\n').map_or(bytes.len(), |newline| newline + 1);
            let room = if self.rest == Rest::Kept { LINE_BYTES - self.line_len } else { end };
            let (part, later) = bytes.split_at(end.min(room));
            bytes = later;
            let is_end = part.last() == Some(&b'\n');
            match self.rest {
                Rest::Shown => self.put(part),
                Rest::Hidden => {}
                Rest::Kept => {
                    self.line[self.line_len..self.line_len + part.len()].copy_from_slice(part);
                    self.line_len += part.len();
                    if is_end || self.line_len == LINE_BYTES {
                        self.rest = self.decide();
                        self.line_len = 0;
                    }
                }
            }
            if is_end {
                self.rest = Rest::Kept;
            }
        }
    }

    /// The text has ended.
    fn end(&mut self) {
        (self.given, self.out_len) = (0, 0);
        if self.line_len > 0 {
            self.decide();
            self.line_len = 0;
        }
    }

    /// Shows or hides the kept line. Returns what becomes of the rest of the line.
    fn decide(&mut self) -> Rest {
        let line = self.line;
        let line = &line[..self.line_len];
        match head(line) {
            None if self.leaves_out => return Rest::Hidden,
            None => self.put(line),
            Some(Head { start, end: None, .. }) => {
                self.leaves_out = is_hidden(start, start + 1);
                if self.leaves_out {
                    return Rest::Hidden;
                }
                self.put(line);
            }
            Some(Head { start, end: Some(end), len }) => {
                let mut shown = [(0, 0); SHOWN_MAX];
                let mut n = 0;
                for_each_shown(start, end, |from, to| {
                    if n < SHOWN_MAX {
                        shown[n] = (from, to);
                        n += 1;
                    }
                });
                self.leaves_out = n == 0;
                if self.leaves_out {
                    return Rest::Hidden;
                }
                if shown[0] == (start, end) || line.last() != Some(&b'\n') {
                    self.put(line);
                } else {
                    for (from, to) in &shown[..n] {
                        let mut range = crate::base::text::Line::new();
                        range.hex_padded(*from as u64, 8).str("-").hex_padded(*to as u64, 8);
                        self.put(range.as_bytes());
                        self.put(&line[len..]);
                    }
                }
            }
        }
        Rest::Shown
    }

    /// Gives as much as there is and fits. Returns how many bytes.
    fn give(&mut self, out: &mut [u8]) -> usize {
        let n = out.len().min(self.out_len - self.given);
        out[..n].copy_from_slice(&self.out[self.given..self.given + n]);
        self.given += n;
        n
    }

    fn is_empty(&self) -> bool {
        self.given == self.out_len
    }
}

/// How a mapping's line begins.
#[derive(PartialEq, Eq, Debug)]
struct Head {
    start: usize,
    end: Option<usize>,
    /// Bytes of the range's text.
    len: usize,
}

/// The range that a line begins with; none for a line about a mapping.
fn head(line: &[u8]) -> Option<Head> {
    let space = line.iter().position(|&c| c == b' ')?;
    let range = &line[..space];
    let number = |text: &[u8]| {
        let is_hex = |c: &u8| c.is_ascii_digit() || (b'a'..=b'f').contains(c);
        let text = Some(text).filter(|text| !text.is_empty() && text.iter().all(is_hex))?;
        usize::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok()
    };
    match range.iter().position(|&c| c == b'-') {
        Some(dash) => Some(Head { start: number(&range[..dash])?, end: Some(number(&range[dash + 1..])?), len: space }),
        None => Some(Head { start: number(range)?, end: None, len: space }),
    }
}

/// One descriptor's text.
pub struct Stream {
    /// The descriptor's number plus 1; 0 while free. A free stream is all zeros, so that what small programs never use
    /// takes no space in the library's file.
    fd: i64,
    by_position: bool,
    /// The kernel's position after the last read.
    at: u64,
    /// Bytes that were given since the beginning.
    given: u64,
    filter: Filter,
}

/// The texts of all descriptors.
pub struct Texts {
    streams: [Stream; STREAMS],
    next: usize,
}

ebb_sync::lock_classes! {
    /// The texts that the program reads. Held for one read of the kernel's text, never while the program's memory is
    /// touched. Fork takes it first, so that the child finds it free.
    TextsLock = "texts of /proc";
}

static TEXTS: Lock<Texts, TextsLock> = Lock::new(Texts {
    streams: [const { Stream { fd: 0, by_position: false, at: 0, given: 0, filter: Filter::new() } }; STREAMS],
    next: 0,
});

/// The lock of the texts, which fork must hold.
pub fn texts_lock() -> &'static Lock<Texts, TextsLock> {
    &TEXTS
}

impl Texts {
    /// The text of a descriptor; without a position `now`, the text that is read by pread. If no text of this
    /// descriptor continues at `now`, one of another descriptor may: this one is a duplicate that goes on there.
    pub fn stream(&mut self, fd: i64, now: Option<u64>) -> &mut Stream {
        let by_position = now.is_none();
        let own = self.streams.iter().position(|s| s.fd == fd + 1 && s.by_position == by_position);
        let goes_on = |i: &usize| now.is_none_or(|now| self.streams[*i].at == now);
        let others = |now| self.streams.iter().position(|s| now != 0 && !s.by_position && s.fd > 0 && s.at == now);
        let found = own.filter(goes_on).or_else(|| now.and_then(others)).or(own);
        let i = found.unwrap_or_else(|| {
            self.next = (self.next + 1) % STREAMS;
            let stream = &mut self.streams[self.next];
            (stream.fd, stream.by_position, stream.at, stream.given) = (fd + 1, by_position, u64::MAX, u64::MAX);
            self.next
        });
        &mut self.streams[i]
    }
}

impl Stream {
    /// Reads from the kernel's file. Returns the kernel's answer.
    fn read(&self, fd: u64, bytes: &mut [u8]) -> i64 {
        let nr = if self.by_position { g::__NR_pread64 } else { g::__NR_read };
        let args = [fd, bytes.as_mut_ptr() as u64, bytes.len() as u64, self.at, 0, 0];
        // SAFETY: the kernel writes only to `bytes`.
        unsafe { calls::raw_syscall(nr as u64, &args) }
    }

    /// Moves to the kernel's position `now`, which differs from the last one after a seek.
    pub fn follow(&mut self, now: u64) {
        if now != self.at {
            self.filter.restart(now == 0);
            (self.at, self.given) = (now, 0);
        }
    }

    /// Moves to where `offset` bytes were given, and reads what comes before into `scratch`. False if the text ends
    /// before that.
    pub fn go_to(&mut self, fd: u64, offset: u64, scratch: &mut [u8]) -> Result<bool, i64> {
        if offset == self.given {
            return Ok(true);
        }
        self.filter.restart(true);
        (self.at, self.given) = (0, 0);
        while self.given < offset {
            let skipped = (offset - self.given).min(scratch.len() as u64) as usize;
            if self.next(fd, &mut scratch[..skipped])? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the next bytes that are shown, at most `out.len()`. Returns how many, or an error.
    pub fn next(&mut self, fd: u64, out: &mut [u8]) -> Result<usize, i64> {
        let mut done = 0;
        loop {
            done += self.filter.give(&mut out[done..]);
            if done == out.len() {
                break;
            }
            let mut chunk = [0u8; CHUNK_BYTES];
            let room = CHUNK_BYTES.min(out.len() - done);
            match self.read(fd, &mut chunk[..room]) {
                n if n > 0 => {
                    self.at = self.at.wrapping_add(n as u64);
                    self.filter.take(&chunk[..n as usize]);
                }
                // Only 0 is the end of the text: a read of the kernel may be short elsewhere.
                0 => {
                    self.filter.end();
                    if self.filter.is_empty() {
                        break;
                    }
                }
                error if done == 0 => return Err(error),
                _ => break,
            }
        }
        self.given = self.given.wrapping_add(done as u64);
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: usize = 0x20_0000_0000;

    /// What a text becomes if it is read `step` bytes at a time.
    fn shown(text: &str, step: usize) -> String {
        let mut filter = Filter::new();
        let mut all = Vec::new();
        let mut out = [0u8; 100];
        let mut drain = |filter: &mut Filter, all: &mut Vec<u8>| {
            while !filter.is_empty() {
                let n = filter.give(&mut out);
                all.extend_from_slice(&out[..n]);
            }
        };
        for chunk in text.as_bytes().chunks(step) {
            filter.take(chunk);
            drain(&mut filter, &mut all);
        }
        filter.end();
        drain(&mut filter, &mut all);
        String::from_utf8(all).expect("text")
    }

    fn line(start: usize, end: usize, rest: &str) -> String {
        format!("{:08x}-{:08x} {rest}\n", BASE + start, BASE + end)
    }

    #[test]
    fn ebbs_mappings_are_left_out_however_the_text_is_cut() {
        own::add(BASE + 0x10_0000, 0x10_0000);
        let long = "x".repeat(300);
        let anon = "rw-p 00000000 00:00 0 ";
        let text = [
            line(0, 0x1000, anon),
            line(0x10_0000, 0x11_0000, anon),
            line(0x11_0000, 0x20_0000, "---p 00000000 00:00 0 "),
            line(0x30_0000, 0x40_0000, &format!("r--p 00000000 fe:01 1234     /{long}")),
            line(0x50_0000, 0x51_0000, anon),
        ];
        let expected = [&text[0], &text[3], &text[4]].map(String::as_str).concat();
        for step in [1, 7, 64, 127, 128, 129, 1024, 2048] {
            assert_eq!(shown(&text.concat(), step), expected, "{step}");
        }
        // A joined mapping is shown for the parts that are the program's.
        let joined = line(0x8_0000, 0x28_0000, anon);
        let parts = line(0x8_0000, 0x10_0000, anon) + &line(0x20_0000, 0x28_0000, anon);
        assert_eq!(shown(&joined, 50), parts);
    }

    #[test]
    fn what_is_said_about_ebbs_mappings_is_left_out() {
        own::add(BASE + 0x90_0000, 0x1000);
        let about = "Size:                  4 kB\nAnonymous:             0 kB\nVmFlags: rd wr \n";
        let text = [
            line(0x80_0000, 0x81_0000, "rw-p 00000000 00:00 0 "),
            about.to_string(),
            line(0x90_0000, 0x90_1000, "rw-p 00000000 00:00 0 "),
            about.to_string(),
            line(0xa0_0000, 0xa1_0000, "rw-p 00000000 00:00 0 [heap]"),
            about.to_string(),
        ];
        let expected = [&text[0], &text[1], &text[4], &text[5]].map(String::as_str).concat();
        for step in [1, 33, 2048] {
            assert_eq!(shown(&text.concat(), step), expected);
        }
        // numa_maps says only where a mapping begins.
        let numa = format!("{:08x} default anon=1\n{:08x} default\n", BASE + 0x80_0000, BASE + 0x90_0000);
        assert_eq!(shown(&numa, 11), numa[..numa.find('\n').expect("a line") + 1]);
    }

    #[test]
    fn a_line_begins_with_a_range_or_with_a_name() {
        assert_eq!(head(b"7f00-8000 rw-p "), Some(Head { start: 0x7f00, end: Some(0x8000), len: 9 }));
        assert_eq!(head(b"7f00 default"), Some(Head { start: 0x7f00, end: None, len: 4 }));
        for about in [&b"Size:   4 kB"[..], b"Anonymous: 0 kB", b"FilePmdMapped: 0", b"", b"abc"] {
            assert_eq!(head(about), None);
        }
    }
}
