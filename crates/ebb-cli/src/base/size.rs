//! Amounts of memory as people write and read them. All units of bytes are powers of 1024.

use std::fmt;

/// Why a text cannot be a size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SizeError {
    Empty,
    NotANumber,
    /// A number with more than one point.
    TwoPoints(String),
    /// A number that ends with its point.
    OpenPoint(String),
    UnknownUnit(String),
    DecimalUnit(String),
    Zero,
    TooLarge,
    PercentRange,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the size is empty"),
            Self::NotANumber => write!(f, "it does not begin with a number"),
            Self::TwoPoints(number) => write!(f, "`{number}` is not a number: it has more than one point"),
            Self::OpenPoint(number) => write!(f, "`{number}` is not a number: no digit follows the point"),
            Self::UnknownUnit(unit) => write!(f, "`{unit}` is not a unit"),
            Self::DecimalUnit(unit) => write!(f, "`{unit}` could mean powers of 1000 or of 1024"),
            Self::Zero => write!(f, "it is zero"),
            Self::TooLarge => write!(f, "it is more than a 64-bit machine can address"),
            Self::PercentRange => write!(f, "a percentage must be more than 0% and at most 100%"),
        }
    }
}

/// Largest size accepted: the user half of a 48-bit address space.
const SIZE_BYTES_MAX: u128 = 1 << 47;

/// Digits after the point that count. Further digits are worth less than a byte, even of a terabyte.
const FRACTION_DIGITS_MAX: usize = 12;

/// An amount, or a share of a whole that is known only later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    Bytes(u64),
    /// Millionths of the whole: 500,000 is 50%.
    Share {
        millionths: u64,
    },
}

/// Splits a decimal number into numerator and power of ten. Returns both, and the text behind the number.
fn split_number(text: &str) -> Result<(u128, u128, &str), SizeError> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if !number.contains(|c: char| c.is_ascii_digit()) {
        return Err(SizeError::NotANumber);
    }
    if fraction.contains('.') {
        return Err(SizeError::TwoPoints(number.to_owned()));
    }
    if number.ends_with('.') {
        return Err(SizeError::OpenPoint(number.to_owned()));
    }
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS_MAX)];
    let scale = 10u128.pow(fraction.len() as u32);
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| SizeError::TooLarge)? };
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| SizeError::NotANumber)? };
    let numerator = whole.checked_mul(scale).and_then(|n| n.checked_add(fraction)).ok_or(SizeError::TooLarge)?;
    Ok((numerator, scale, unit))
}

/// Parses a size in bytes: `512K`, `64M`, `1.5G`, `1GiB`, `4096` (bytes).
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(SizeError::Empty);
    }
    let (numerator, scale, unit) = split_number(text)?;
    let unit = unit.trim_start();
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "kb" | "mb" | "gb" | "tb" => return Err(SizeError::DecimalUnit(unit.to_owned())),
        _ => return Err(SizeError::UnknownUnit(unit.to_owned())),
    };
    let bytes = numerator.checked_mul(1 << shift).ok_or(SizeError::TooLarge)? / scale;
    match bytes {
        0 => Err(SizeError::Zero),
        1..=SIZE_BYTES_MAX => Ok(bytes as u64),
        _ => Err(SizeError::TooLarge),
    }
}

/// Whether a size is written without a unit, so that it counts bytes: often somebody forgot the unit.
pub fn is_unitless(text: &str) -> bool {
    text.trim().bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// Parses a size, or a percentage such as `50%`.
pub fn parse_amount(text: &str) -> Result<Amount, SizeError> {
    match parse_multiple(text) {
        Ok(Amount::Share { millionths }) if millionths > 1_000_000 => Err(SizeError::PercentRange),
        Err(SizeError::Zero | SizeError::TooLarge) if text.trim_end().ends_with('%') => Err(SizeError::PercentRange),
        amount => amount,
    }
}

/// Likewise, but the percentage may be of more than the whole, such as `300%`.
pub fn parse_multiple(text: &str) -> Result<Amount, SizeError> {
    let text = text.trim();
    let Some(percent) = text.strip_suffix('%') else {
        return parse_size(text).map(Amount::Bytes);
    };
    let (numerator, scale, rest) = split_number(percent.trim_end())?;
    if !rest.is_empty() {
        return Err(SizeError::UnknownUnit(format!("{rest}%")));
    }
    let millionths = numerator.checked_mul(10_000).ok_or(SizeError::TooLarge)? / scale;
    match u64::try_from(millionths) {
        Ok(0) => Err(SizeError::Zero),
        Ok(millionths) => Ok(Amount::Share { millionths }),
        Err(_) => Err(SizeError::TooLarge),
    }
}

/// `1.5 GiB`: one digit after the point, and none for bytes.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// `512M`, `1.5G`, `0B`: as the tools of util-linux print sizes.
pub fn short_bytes(bytes: u64) -> String {
    const UNITS: [char; 7] = ['B', 'K', 'M', 'G', 'T', 'P', 'E'];
    let unit = bytes.checked_ilog2().unwrap_or(0) / 10;
    let one = 1u128 << (10 * unit);
    let tenths = (u128::from(bytes) * 10 + one / 2) / one;
    let name = UNITS[unit as usize];
    if tenths.is_multiple_of(10) {
        format!("{}{name}", tenths / 10)
    } else {
        format!("{}.{}{name}", tenths / 10, tenths % 10)
    }
}

/// Three digits and a unit, in at most five characters: `54.2M`, `1.50G`, `1023M`, `0B`.
pub fn fixed_bytes(bytes: u64) -> String {
    const UNITS: [char; 7] = ['B', 'K', 'M', 'G', 'T', 'P', 'E'];
    let mut unit = (bytes.checked_ilog2().unwrap_or(0) / 10) as usize;
    let mut value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    // What would be rounded to 1024 is 1 of the next unit.
    if value >= 1023.5 && unit + 1 < UNITS.len() {
        (unit, value) = (unit + 1, value / 1024.0);
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { if value >= 9.995 { 1 } else { 2 } };
    format!("{value:.digits$}{}", UNITS[unit])
}

/// A count in at most five characters: `12345`, `123k`, `4.5M`.
pub fn fixed_count(count: u64) -> String {
    const UNITS: [char; 6] = ['k', 'M', 'G', 'T', 'P', 'E'];
    if count < 100_000 {
        return count.to_string();
    }
    let (mut value, mut unit) = (count as f64 / 1e3, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (unit, value) = (unit + 1, value / 1e3);
    }
    format!("{value:.*}{}", usize::from(value < 99.95), UNITS[unit])
}

/// `1,234,567`.
pub fn human_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `850 ns`, `12.3 ms`, `4.56 s`.
pub fn human_ns(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024_in_either_case() {
        assert_eq!(parse_size("512K"), Ok(512 << 10));
        assert_eq!(parse_size("64m"), Ok(64 << 20));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("2 TiB"), Ok(2 << 40));
        assert_eq!(parse_size("4096"), Ok(4096));
    }

    #[test]
    fn fractions_are_exact() {
        assert_eq!(parse_size("1.5G"), Ok(3 << 29));
        assert_eq!(parse_size(".5M"), Ok(1 << 19));
        assert_eq!(parse_size("0.1K"), Ok(102));
    }

    #[test]
    fn units_of_a_thousand_are_refused_instead_of_guessed() {
        assert_eq!(parse_size("64MB"), Err(SizeError::DecimalUnit("MB".into())));
    }

    #[test]
    fn texts_that_are_no_size_are_refused() {
        assert_eq!(parse_size(""), Err(SizeError::Empty));
        assert_eq!(parse_size("M"), Err(SizeError::NotANumber));
        assert_eq!(parse_size("."), Err(SizeError::NotANumber));
        assert_eq!(parse_size("..G"), Err(SizeError::NotANumber));
        assert_eq!(parse_size("1..5G"), Err(SizeError::TwoPoints("1..5".into())));
        assert_eq!(parse_size("1.5.5G"), Err(SizeError::TwoPoints("1.5.5".into())));
        assert_eq!(parse_size("1.G"), Err(SizeError::OpenPoint("1.".into())));
        assert_eq!(parse_size("-1G"), Err(SizeError::NotANumber));
        assert_eq!(parse_size("1Q"), Err(SizeError::UnknownUnit("Q".into())));
        assert_eq!(parse_size("0"), Err(SizeError::Zero));
        assert_eq!(parse_size("0.0001K"), Err(SizeError::Zero));
        assert_eq!(parse_size("999999999T"), Err(SizeError::TooLarge));
        assert_eq!(parse_size("99999999999999999999999999999999999999999"), Err(SizeError::TooLarge));
        assert_eq!(parse_size("340282366920938463463374607431768211455T"), Err(SizeError::TooLarge));
    }

    #[test]
    fn a_number_alone_has_no_unit() {
        assert!(["5", "1.5", " 4096 "].into_iter().all(is_unitless));
        assert!(!["5M", "5 b", "5%", "1.5GiB"].into_iter().any(is_unitless));
    }

    #[test]
    fn percentages_are_shares_up_to_the_whole() {
        assert_eq!(parse_amount("50%"), Ok(Amount::Share { millionths: 500_000 }));
        assert_eq!(parse_amount("12.5%"), Ok(Amount::Share { millionths: 125_000 }));
        assert_eq!(parse_amount("100 %"), Ok(Amount::Share { millionths: 1_000_000 }));
        assert_eq!(parse_amount("0%"), Err(SizeError::PercentRange));
        assert_eq!(parse_amount("101%"), Err(SizeError::PercentRange));
        assert_eq!(parse_amount("5M%"), Err(SizeError::UnknownUnit("M%".into())));
        assert_eq!(parse_multiple("300%"), Ok(Amount::Share { millionths: 3_000_000 }));
        assert_eq!(parse_multiple("0.00001%"), Err(SizeError::Zero));
        assert_eq!(parse_multiple("99999999999999999999%"), Err(SizeError::TooLarge));
        assert_eq!(parse_amount("1G"), Ok(Amount::Bytes(1 << 30)));
    }

    #[test]
    fn sizes_are_as_short_as_those_of_util_linux() {
        let sizes = [0, 1023, 1024, 1536, 512 << 20, 3 << 29, (1 << 30) + (1 << 20), (1 << 20) - 1, u64::MAX];
        let texts = sizes.map(short_bytes);
        assert_eq!(texts, ["0B", "1023B", "1K", "1.5K", "512M", "1.5G", "1G", "1024K", "16E"]);
    }

    #[test]
    fn amounts_are_shown_for_people() {
        assert_eq!(human_bytes(512), "512 B");
        assert_eq!(human_bytes(3 << 29), "1.5 GiB");
        assert_eq!(human_count(0), "0");
        assert_eq!(human_count(1_234_567), "1,234,567");
        assert_eq!(human_ns(850), "850 ns");
        assert_eq!(human_ns(4_560_000_000), "4.56 s");
    }

    #[test]
    fn fixed_sizes_and_counts_have_at_most_five_characters() {
        let sizes = [0, 1023, 1024, 10 << 20, 104_800_000, (1 << 20) - 1, (1 << 30) - 1, 3 << 29, u64::MAX];
        let texts = ["0B", "1023B", "1.00K", "10.0M", "99.9M", "1.00M", "1.00G", "1.50G", "16.0E"];
        assert_eq!(sizes.map(fixed_bytes), texts);
        let counts = [0, 99_999, 100_000, 999_499, 999_999, 4_500_000, 123_456_789, u64::MAX];
        assert_eq!(counts.map(fixed_count), ["0", "99999", "100k", "999k", "1.0M", "4.5M", "123M", "18.4E"]);
        for shift in 0..64 {
            for near in [(1u64 << shift) - 1, 1 << shift, (1u64 << shift) / 10 * 9, u64::MAX >> shift] {
                assert!(fixed_bytes(near).len() <= 5 && fixed_count(near).len() <= 5, "{near}");
            }
        }
    }
}
