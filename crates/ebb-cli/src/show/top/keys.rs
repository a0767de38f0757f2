//! Keys, as terminals send them.

use crate::show::top::view::Key;

const ESCAPE: u8 = 0x1b;

/// What the bytes begin with.
enum Read {
    /// A key, or none that is known, of so many bytes.
    Key(Option<Key>, usize),
    /// A sequence that may go on.
    More,
}

/// A sequence that begins with CSI (`ESC [`) or SS3 (`ESC O`).
fn sequence(bytes: &[u8]) -> Read {
    // Parameters and intermediate bytes, then a final one.
    let Some(end) = bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte)).map(|at| at + 2) else {
        // No key is so long.
        return if bytes.len() < 32 { Read::More } else { Read::Key(None, bytes.len()) };
    };
    let key = match (&bytes[2..end], bytes[end]) {
        (_, b'A') => Some(Key::Up),
        (_, b'B') => Some(Key::Down),
        (_, b'C') => Some(Key::Right),
        (_, b'D') => Some(Key::Left),
        (_, b'H') | (b"1" | b"7", b'~') => Some(Key::Home),
        (_, b'F') | (b"4" | b"8", b'~') => Some(Key::End),
        (b"5", b'~') => Some(Key::PageUp),
        (b"6", b'~') => Some(Key::PageDown),
        (_, b'M') if bytes[1] == b'O' => Some(Key::Enter),
        _ => None,
    };
    Read::Key(key, end + 1)
}

fn first(bytes: &[u8]) -> Read {
    match bytes {
        [ESCAPE] => Read::More,
        [ESCAPE, b'[' | b'O', ..] => sequence(bytes),
        // Alt and a key: no key of ours.
        [ESCAPE, second, ..] if *second != ESCAPE => Read::Key(None, 2),
        [ESCAPE, ..] => Read::Key(Some(Key::Escape), 1),
        [b'\r' | b'\n', ..] => Read::Key(Some(Key::Enter), 1),
        [0x03, ..] => Read::Key(Some(Key::Interrupt), 1),
        [0x0c, ..] => Read::Key(Some(Key::Redraw), 1),
        [0x1a, ..] => Read::Key(Some(Key::Suspend), 1),
        [byte @ b' '..=b'~', ..] => Read::Key(Some(Key::Char(char::from(*byte))), 1),
        _ => Read::Key(None, 1),
    }
}

/// Takes the keys from `pending`. A sequence that has no end yet stays there, unless `is_all`: then Escape was pressed alone.
pub fn take(pending: &mut Vec<u8>, is_all: bool) -> Vec<Key> {
    let (mut at, mut keys) = (0, Vec::new());
    while at < pending.len() {
        match first(&pending[at..]) {
            Read::Key(key, len) => {
                keys.extend(key);
                at += len;
            }
            Read::More if is_all => {
                // What follows an Escape without an end is no key.
                keys.extend((pending.len() - at == 1).then_some(Key::Escape));
                at = pending.len();
            }
            Read::More => break,
        }
    }
    pending.drain(..at);
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Vec<Key> {
        take(&mut bytes.to_vec(), true)
    }

    #[test]
    fn keys_of_all_terminals_are_known() {
        assert_eq!(all(b"\x1b[A\x1bOB\x1b[1;5C\x1b[D"), [Key::Up, Key::Down, Key::Right, Key::Left]);
        assert_eq!(all(b"\x1b[5~\x1b[6~"), [Key::PageUp, Key::PageDown]);
        assert_eq!(all(b"\x1b[H\x1b[1~\x1bOH\x1b[F\x1b[8~"), [Key::Home, Key::Home, Key::Home, Key::End, Key::End]);
        assert_eq!(
            all(b"q\r+\x03\x1a\x0c"),
            [Key::Char('q'), Key::Enter, Key::Char('+'), Key::Interrupt, Key::Suspend, Key::Redraw]
        );
    }

    #[test]
    fn what_is_no_key_does_nothing() {
        assert_eq!(all("ä\u{1f980}".as_bytes()), []);
        assert_eq!(all(b"\x1bq\x1b[200~\x1b[<0;1;1M\x00\x7f"), []);
        assert_eq!(all(&[b"\x1b[".as_slice(), &[b'1'; 100], b"q"].concat()), []);
        assert_eq!(all(b"\x1b[1;"), []);
    }

    #[test]
    fn an_escape_alone_is_one_only_when_nothing_follows() {
        let mut pending = b"t\x1b".to_vec();
        assert_eq!(take(&mut pending, false), [Key::Char('t')]);
        pending.extend(b"[B");
        assert_eq!(take(&mut pending, false), [Key::Down]);
        assert_eq!(all(b"\x1b"), [Key::Escape]);
        assert_eq!(all(b"\x1b\x1b[A"), [Key::Escape, Key::Up]);
    }
}
