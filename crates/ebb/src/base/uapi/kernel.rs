//! Which kernel this is.

use super::call;
use linux_raw_sys::general as g;

/// Bytes of each text of `struct utsname`, and the place of the release among them.
const TEXT_BYTES: usize = 65;
const RELEASE: usize = 2;
const TEXTS: usize = 6;

/// True if this is Linux `major`.`minor` or newer. False if that is unknown.
pub fn is_at_least(major: u32, minor: u32) -> bool {
    let mut texts = [[0u8; TEXT_BYTES]; TEXTS];
    // SAFETY: the kernel writes one `struct utsname`.
    let got = unsafe { call(g::__NR_uname, [texts.as_mut_ptr() as u64, 0, 0, 0, 0, 0]) };
    got.is_ok() && version_of(&texts[RELEASE]).is_some_and(|version| version >= (major, minor))
}

/// The first two numbers of a release such as `6.18.44-fc`.
fn version_of(release: &[u8]) -> Option<(u32, u32)> {
    let mut numbers = release.split(|&c| c == b'.').map(|text| {
        let digits = text.iter().take_while(|c| c.is_ascii_digit());
        let (mut n, mut len) = (0u32, 0);
        for digit in digits {
            n = n.checked_mul(10)?.checked_add(u32::from(digit - b'0'))?;
            len += 1;
        }
        (len > 0).then_some(n)
    });
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_its_first_two_numbers() {
        let of = |text: &str| version_of(text.as_bytes());
        assert_eq!((of("6.18.44-fc-v657"), of("5.10\0"), of("6.1-rc3")), (Some((6, 18)), Some((5, 10)), Some((6, 1))));
        assert_eq!((of(""), of("6"), of("six.1"), of("6.x"), of("99999999999.1")), (None, None, None, None, None));
        assert!(is_at_least(5, 11) && !is_at_least(1 << 20, 0));
    }
}
