//! A line of text without an allocator.

/// Longest line.
const BYTES: usize = 400;

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
        t.str(&[b'x'; BYTES]);
        assert_eq!(t.bytes().len(), BYTES);
    }
}
