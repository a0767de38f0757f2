//! A line of text without an allocator.

use crate::base::uapi::Errno;
use linux_raw_sys::errno as e;

/// Longest line: the longest name of a directory, and as much again.
const BYTES: usize = 1024;

/// Names of errors that devices give.
const ERRORS: [(u32, &[u8]); 19] = [
    (e::EPERM, b"EPERM"),
    (e::EINTR, b"EINTR"),
    (e::EIO, b"EIO"),
    (e::ENXIO, b"ENXIO"),
    (e::EBADF, b"EBADF"),
    (e::EAGAIN, b"EAGAIN"),
    (e::ENOMEM, b"ENOMEM"),
    (e::EACCES, b"EACCES"),
    (e::ENODEV, b"ENODEV"),
    (e::EINVAL, b"EINVAL"),
    (e::EFBIG, b"EFBIG"),
    (e::ENOSPC, b"ENOSPC"),
    (e::EROFS, b"EROFS"),
    (e::ENODATA, b"ENODATA"),
    (e::ENOLINK, b"ENOLINK"),
    (e::ETIMEDOUT, b"ETIMEDOUT"),
    (e::ESTALE, b"ESTALE"),
    (e::EREMOTEIO, b"EREMOTEIO"),
    (e::EDQUOT, b"EDQUOT"),
];

/// A line under construction. What does not fit is left out.
pub struct Text {
    bytes: [u8; BYTES],
    len: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; BYTES], len: 0 }
    }
}

impl Text {
    /// Appends text.
    pub fn str(&mut self, text: &[u8]) -> &mut Self {
        let n = text.len().min(BYTES - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&text[..n]);
        self.len += n;
        self
    }

    /// Appends a decimal number.
    pub fn number(&mut self, mut n: usize) -> &mut Self {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        self.str(&digits[at..])
    }

    /// Appends a hexadecimal number.
    pub fn hex(&mut self, n: usize) -> &mut Self {
        let nr_digits = (usize::BITS - n.leading_zeros()).div_ceil(4).max(1);
        self.str(b"0x");
        for i in (0..nr_digits).rev() {
            self.str(&[b"0123456789abcdef"[n >> (4 * i) & 15]]);
        }
        self
    }

    /// Appends the name of an error, or its number.
    pub fn errno(&mut self, errno: Errno) -> &mut Self {
        match ERRORS.iter().find(|(number, _)| *number as i32 == errno.0) {
            Some((_, name)) => self.str(name),
            None => self.str(b"errno ").number(errno.0.unsigned_abs() as usize),
        }
    }

    /// The line so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_and_long_lines_are_cut() {
        let mut t = Text::default();
        t.str(b"n=").number(0).str(b",").number(18_446_744_073_709_551_615);
        assert_eq!(t.bytes(), b"n=0,18446744073709551615");
        t.str(b" ").hex(0).str(b" ").hex(0xdead_beef_0123_4567);
        assert_eq!(t.bytes(), b"n=0,18446744073709551615 0x0 0xdeadbeef01234567");
        t.str(b" ").errno(Errno::IO).str(b" ").errno(Errno(111));
        assert!(t.bytes().ends_with(b" EIO errno 111"));
        t.str(&[b'x'; BYTES]);
        assert_eq!(t.bytes().len(), BYTES);
    }
}
