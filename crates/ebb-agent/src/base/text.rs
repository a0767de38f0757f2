//! Messages, put together without an allocator and written with one system call.

/// Longest message, in bytes: a path, and what is said about it.
const BYTES_MAX: usize = 768;

/// A message under construction; what does not fit is cut off.
pub struct Line {
    bytes: [u8; BYTES_MAX],
    len: usize,
}

impl Line {
    /// An empty message.
    pub const fn new() -> Self {
        Self { bytes: [0; BYTES_MAX], len: 0 }
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let n = bytes.len().min(BYTES_MAX - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&bytes[..n]);
        self.len += n;
        self
    }

    /// Adds text.
    pub fn str(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// Adds a number.
    pub fn num(&mut self, value: u64) -> &mut Self {
        self.digits(value, 10)
    }

    /// Adds a number in hexadecimal digits.
    pub fn hex(&mut self, value: u64) -> &mut Self {
        self.digits(value, 16)
    }

    /// Adds a number in hexadecimal digits, with leading zeros so that it has at least `digits` of them.
    pub fn hex_padded(&mut self, value: u64, digits: usize) -> &mut Self {
        for place in (1..digits as u32).rev() {
            if value >> (4 * place) != 0 {
                break;
            }
            self.str("0");
        }
        self.hex(value)
    }

    fn digits(&mut self, mut value: u64, base: u64) -> &mut Self {
        let mut out = [0u8; 20];
        let mut at = out.len();
        loop {
            at -= 1;
            out[at] = b"0123456789abcdef"[(value % base) as usize];
            value /= base;
            if value == 0 {
                break;
            }
        }
        self.bytes(&out[at..])
    }

    /// The message so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Writes the message to standard error, if that is still the file that `ebb` had there.
    pub fn write(&self) {
        ebb::uapi::stderr::say(self.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_their_base() {
        let mut line = Line::new();
        line.num(0).str(" ").num(1205).str(" ").hex(0xfe0);
        line.str(" ").hex_padded(0xabc, 5).str(" ").hex_padded(0x123456, 5).str(" ").hex_padded(0, 2);
        assert_eq!(line.as_bytes(), b"0 1205 fe0 00abc 123456 00");
    }

    #[test]
    fn what_does_not_fit_is_cut_off() {
        let mut line = Line::new();
        line.bytes(&[b'a'; 800]);
        assert_eq!(line.as_bytes().len(), BYTES_MAX);
    }
}
