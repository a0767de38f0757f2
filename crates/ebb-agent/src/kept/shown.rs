//! The size of RAM that the program is shown, if that is not the true one, and the texts that it reads of it.
//!
//! The kernel makes a text anew when it is read from its beginning, and keeps it for the reads that follow on. So does
//! the agent, for up to [`TEXTS`] files at a time: a program that reads a text in pieces gets pieces of one text.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use ebb_sync::Lock;

/// Bytes of the longest text. The kernel's own have at most 4096.
pub const TEXT_BYTES: usize = 8192;
/// Files that can be read in pieces at the same time. With more, the oldest text is made anew.
const TEXTS: usize = 8;

/// Bytes; 0 for the truth. Set before the program runs.
static SIZE_BYTES: AtomicU64 = AtomicU64::new(0);

/// Shows the program `bytes` of RAM.
pub fn set(bytes: u64) {
    SIZE_BYTES.store(bytes, Relaxed);
}

/// Whether the program is shown another size than the true one.
#[inline(always)]
pub fn is_on() -> bool {
    bytes() != 0
}

/// The size that is shown, in bytes.
#[inline(always)]
pub fn bytes() -> u64 {
    SIZE_BYTES.load(Relaxed)
}

/// A descriptor, and the file behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    pub fd: u64,
    /// Device and inode.
    pub file: [u64; 2],
}

/// A text of a file, and where the next read follows on.
pub struct Text {
    key: Key,
    next: u64,
    len: usize,
    bytes: [u8; TEXT_BYTES],
}

impl Text {
    /// A text without a file, to write to. It is all zero: then it takes no room among the data that every process copies.
    pub const fn new() -> Self {
        Self { key: Key { fd: 0, file: [0; 2] }, next: 0, len: 0, bytes: [0; TEXT_BYTES] }
    }

    /// Appends bytes. What does not fit is left out.
    pub fn put(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(TEXT_BYTES - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&bytes[..n]);
        self.len += n;
    }

    /// The bytes so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Copies what stands at position `from` to `out`, and notes that the next read follows on. Returns how many bytes that are.
    pub fn give(&mut self, from: u64, out: &mut [u8]) -> usize {
        let rest = usize::try_from(from).ok().and_then(|from| self.as_bytes().get(from..)).unwrap_or_default();
        let n = rest.len().min(out.len());
        out[..n].copy_from_slice(&rest[..n]);
        self.next = from + n as u64;
        n
    }
}

/// The texts of all descriptors.
pub struct Texts {
    all: [Text; TEXTS],
    oldest: usize,
}

impl Texts {
    /// The text that a read at `from` follows on, which another descriptor of the file may have begun; none if a new one
    /// is to be made.
    pub fn following(&mut self, key: Key, from: u64) -> Option<&mut Text> {
        let follows = |text: &Text| from > 0 && text.key.file == key.file && text.next == from;
        let own = self.all.iter().position(|text| text.key == key && follows(text));
        let at = own.or_else(|| self.all.iter().position(follows))?;
        Some(&mut self.all[at])
    }

    /// An empty text in place of the descriptor's last one, or of the oldest.
    pub fn anew(&mut self, key: Key) -> &mut Text {
        let own = self.all.iter().position(|text| text.key.fd == key.fd);
        let at = own.unwrap_or_else(|| {
            self.oldest = (self.oldest + 1) % TEXTS;
            self.oldest
        });
        let text = &mut self.all[at];
        (text.key, text.next, text.len) = (key, 0, 0);
        text
    }
}

ebb_sync::lock_classes! {
    /// The texts of the shown size. Held while one is made, never while the program's memory is touched. Fork takes it
    /// first, so that the child finds it free.
    ShownLock = "texts of the shown RAM";
}

static ALL: Lock<Texts, ShownLock> = Lock::new(Texts { all: [const { Text::new() }; TEXTS], oldest: 0 });

/// The lock of the texts, which fork must hold.
pub fn texts_lock() -> &'static Lock<Texts, ShownLock> {
    &ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(fd: u64, inode: u64) -> Key {
        Key { fd, file: [1, inode] }
    }

    fn texts() -> Box<Texts> {
        Box::new(Texts { all: [const { Text::new() }; TEXTS], oldest: 0 })
    }

    #[test]
    fn a_text_is_given_in_pieces_and_ends() {
        let mut text = Text::new();
        text.put(b"0123456789");
        let mut out = [0; 4];
        assert_eq!((text.give(0, &mut out), &out), (4, b"0123"));
        assert_eq!((text.give(8, &mut out), &out[..2]), (2, &b"89"[..]));
        assert_eq!((text.give(10, &mut out), text.give(11, &mut out), text.give(u64::MAX, &mut out)), (0, 0, 0));
    }

    #[test]
    fn what_does_not_fit_in_a_text_is_left_out() {
        let mut text = Text::new();
        text.put(&[b'x'; TEXT_BYTES - 1]);
        text.put(b"yz");
        assert_eq!((text.as_bytes().len(), text.as_bytes()[TEXT_BYTES - 1]), (TEXT_BYTES, b'y'));
    }

    #[test]
    fn a_read_follows_on_in_the_text_that_its_file_began() {
        let mut all = texts();
        let text = all.anew(key(3, 7));
        text.put(b"abcdef");
        text.give(0, &mut [0; 2]);
        assert!(all.following(key(3, 7), 2).is_some_and(|text| text.as_bytes() == b"abcdef"));
        // A duplicate goes on there, too.
        assert!(all.following(key(4, 7), 2).is_some());
        assert!(all.following(key(3, 7), 0).is_none() && all.following(key(3, 7), 3).is_none());
        assert!(all.following(key(3, 8), 2).is_none());
    }

    #[test]
    fn a_descriptor_has_one_text_and_takes_the_oldest_for_it() {
        let mut all = texts();
        for fd in 0..TEXTS as u64 {
            let text = all.anew(key(fd, fd));
            text.put(b"ab");
            text.give(0, &mut [0; 1]);
        }
        all.anew(key(0, 70)).give(0, &mut []);
        assert!(all.following(key(0, 0), 1).is_none());
        let mut left = |fd| {
            all.anew(key(fd, fd)).give(0, &mut []);
            (1..TEXTS as u64).filter(|fd| all.following(key(*fd, *fd), 1).is_some()).collect::<Vec<_>>()
        };
        // The first to go is that of descriptor 0.
        assert_eq!((left(100), left(101)), ((1..TEXTS as u64).collect(), (2..TEXTS as u64).collect()));
    }
}
