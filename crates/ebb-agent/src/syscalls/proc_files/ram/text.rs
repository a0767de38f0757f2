//! The kernel's texts about memory, told for another size of RAM. Knows the texts alone: no file, no process.

use crate::kept::shown::Text;

/// What is told, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    /// The size of RAM.
    pub total: u64,
    /// What is left of it.
    pub free: u64,
    /// What the tree would hold in addition if nothing of it were swapped out.
    pub out: u64,
}

/// What a file tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum File {
    /// `/proc/meminfo`
    Meminfo,
    /// How much a control group may use.
    Limit,
    /// How much a control group uses.
    Usage,
    /// `memory.stat` of a control group.
    Stat,
}

impl Figures {
    /// A limit that is below the size of RAM is told as that size.
    fn limit(&self, bytes: u64) -> u64 {
        bytes.max(self.total)
    }

    /// What is in use, with what is swapped out. That alone brings it to the size of RAM at most.
    fn usage(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.out).min(bytes.max(self.total))
    }

    /// What is not free, in bytes.
    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }

    /// The kibibytes of a line of `meminfo`. No part of what is in use is larger than all of it: programs add up what
    /// is free and what could become free.
    fn kib(&self, name: &[u8], kib: u64) -> u64 {
        match name {
            b"MemTotal" => self.total >> 10,
            b"MemFree" | b"MemAvailable" => self.free >> 10,
            b"SwapTotal" | b"SwapFree" | b"SwapCached" => 0,
            // It counts addresses.
            b"VmallocTotal" => kib,
            b"CommitLimit" | b"Committed_AS" => kib.min(self.total >> 10),
            name if name.starts_with(b"DirectMap") => kib.min(self.total >> 10),
            _ => kib.min(self.used() >> 10),
        }
    }

    /// Appends to `out` what the file tells in place of `text`. What is not understood stays as it is.
    pub fn tell(&self, file: File, text: &[u8], out: &mut Text) {
        for line in text.split_inclusive(|&c| c == b'\n') {
            let told = match file {
                File::Meminfo => self.meminfo_line(line, out),
                File::Limit => replaced(line, 0, |bytes| self.limit(bytes), out),
                File::Usage => replaced(line, 0, |bytes| self.usage(bytes), out),
                File::Stat => self.stat_line(line, out),
            };
            if told.is_none() {
                out.put(line);
            }
        }
    }

    /// `NAME:    KIB kB`
    fn meminfo_line(&self, line: &[u8], out: &mut Text) -> Option<()> {
        let colon = line.iter().position(|&c| c == b':')?;
        line.strip_suffix(b" kB\n")?;
        replaced(line, colon + 1, |kib| self.kib(&line[..colon], kib), out)
    }

    /// `NAME BYTES`
    fn stat_line(&self, line: &[u8], out: &mut Text) -> Option<()> {
        let blank = line.iter().position(|&c| c == b' ')?;
        match &line[..blank] {
            b"anon" | b"rss" | b"total_rss" => replaced(line, blank, |bytes| self.usage(bytes), out),
            b"hierarchical_memory_limit" | b"hierarchical_memsw_limit" => {
                replaced(line, blank, |bytes| self.limit(bytes), out)
            }
            _ => None,
        }
    }
}

/// Appends the line with another number in place of the one that stands, perhaps after blanks, at `at`. The number ends
/// where the old one did as long as the blanks before it leave room for that. None, and nothing is appended, if no
/// number is there.
fn replaced(line: &[u8], at: usize, new: impl FnOnce(u64) -> u64, out: &mut Text) -> Option<()> {
    let blanks = line[at..].iter().take_while(|&&c| c == b' ').count();
    let start = at + blanks;
    let digits = line[start..].iter().take_while(|c| c.is_ascii_digit()).count();
    let end = start + digits;
    let value = number(&line[start..end])?;
    let mut text = [0; DIGITS_MAX];
    let text = decimal(new(value), &mut text);
    // Of several blanks, one stays.
    let width = (blanks + digits).saturating_sub(text.len());
    let blanks = if blanks > 1 { width.max(1) } else { blanks };
    out.put(&line[..at]);
    (0..blanks).for_each(|_| out.put(b" "));
    out.put(text);
    out.put(&line[end..]);
    Some(())
}

/// Digits of the largest number.
const DIGITS_MAX: usize = 20;

/// Parses a number; none for one that is empty or too large.
fn number(text: &[u8]) -> Option<u64> {
    crate::base::contract::number(text)
}

/// Writes a number into the end of `out`. Returns its digits.
fn decimal(mut value: u64, out: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let mut at = DIGITS_MAX;
    loop {
        at -= 1;
        out[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &out[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const G: u64 = 1 << 30;
    const FIGURES: Figures = Figures { total: 3 * G, free: 2 * G, out: G / 2 };

    fn told(figures: Figures, file: File, text: &str) -> String {
        let mut out = Text::new();
        figures.tell(file, text.as_bytes(), &mut out);
        String::from_utf8(out.as_bytes().to_vec()).expect("ASCII")
    }

    #[test]
    fn meminfo_tells_the_shown_size_and_no_swap_and_nothing_larger() {
        let text = "MemTotal:       24683636 kB\n\
                    MemFree:        22211028 kB\n\
                    MemAvailable:   23852244 kB\n\
                    Cached:            12345 kB\n\
                    Active:          4000000 kB\n\
                    Committed_AS:    4000000 kB\n\
                    DirectMap2M:      999999 kB\n\
                    SwapTotal:       1048576 kB\n\
                    SwapFree:        1048000 kB\n\
                    Zswap:                 0 kB\n\
                    VmallocTotal:   34359738367 kB\n\
                    HugePages_Total:       7\n";
        let expected = "MemTotal:        3145728 kB\n\
                        MemFree:         2097152 kB\n\
                        MemAvailable:    2097152 kB\n\
                        Cached:            12345 kB\n\
                        Active:          1048576 kB\n\
                        Committed_AS:    3145728 kB\n\
                        DirectMap2M:      999999 kB\n\
                        SwapTotal:             0 kB\n\
                        SwapFree:              0 kB\n\
                        Zswap:                 0 kB\n\
                        VmallocTotal:   34359738367 kB\n\
                        HugePages_Total:       7\n";
        assert_eq!(told(FIGURES, File::Meminfo, text), expected);
        let large = Figures { total: 1 << 60, ..FIGURES };
        let line = "MemTotal:       24683636 kB\n";
        assert_eq!(told(large, File::Meminfo, line), "MemTotal: 1125899906842624 kB\n");
    }

    #[test]
    fn a_limit_below_the_shown_size_is_told_as_that_and_others_as_they_are() {
        let limit = |text| told(FIGURES, File::Limit, text);
        assert_eq!(limit("1073741824\n"), "3221225472\n");
        assert_eq!((limit("0\n"), limit("max\n")), ("3221225472\n".to_owned(), "max\n".to_owned()));
        assert_eq!(limit("9223372036854771712\n"), "9223372036854771712\n");
        assert_eq!(
            (limit(""), limit("-1\n"), limit("99999999999999999999\n")),
            ("".into(), "-1\n".into(), "99999999999999999999\n".into())
        );
    }

    #[test]
    fn usage_includes_what_is_swapped_out_but_not_beyond_the_shown_size() {
        let usage = |text| told(FIGURES, File::Usage, text);
        assert_eq!(usage("1073741824\n"), "1610612736\n");
        assert_eq!(usage("3000000000\n"), "3221225472\n");
        // It may be more with what others in the group hold.
        assert_eq!(usage("5000000000\n"), "5000000000\n");
    }

    #[test]
    fn statistics_tell_anonymous_memory_and_limits() {
        let text = "cache 4096\nrss 1073741824\nrss_huge 0\nhierarchical_memory_limit 2147483648\n\
                    hierarchical_memsw_limit 9223372036854771712\ntotal_rss 1073741824\nanon 1\nanon_thp 1\n";
        let expected = "cache 4096\nrss 1610612736\nrss_huge 0\nhierarchical_memory_limit 3221225472\n\
                        hierarchical_memsw_limit 9223372036854771712\ntotal_rss 1610612736\nanon 536870913\nanon_thp 1\n";
        assert_eq!(told(FIGURES, File::Stat, text), expected);
    }

    #[test]
    fn the_kernels_own_text_keeps_its_lines_and_their_lengths() {
        let text = std::fs::read_to_string("/proc/meminfo").expect("procfs");
        let new = told(FIGURES, File::Meminfo, &text);
        let lengths = |text: &str| text.lines().map(str::len).collect::<Vec<_>>();
        assert_eq!(lengths(&new), lengths(&text));
        assert!(new.starts_with("MemTotal:        3145728 kB\n"), "{new}");
    }

    proptest! {
        #[test]
        fn any_text_keeps_its_lines(text in "[a-zA-Z: 0-9kB\n-]{0,200}", total in 4096u64..1 << 60, out in 0..u64::MAX) {
            let figures = Figures { total, free: total / 2, out };
            for file in [File::Meminfo, File::Limit, File::Usage, File::Stat] {
                let new = told(figures, file, &text);
                prop_assert_eq!(new.matches('\n').count(), text.matches('\n').count());
                let without = |text: &str| text.chars().filter(|c| !c.is_ascii_digit() && *c != ' ').collect::<String>();
                prop_assert_eq!(without(&new), without(&text));
            }
        }

        #[test]
        fn no_line_of_memory_is_larger_than_the_total(kib in 0..u64::MAX, total in 4096u64..1 << 60, free in 0..u64::MAX) {
            let figures = Figures { total, free: free.min(total), out: 0 };
            for name in ["MemTotal", "MemFree", "MemAvailable", "Cached", "SwapTotal", "DirectMap1G"] {
                let new = told(figures, File::Meminfo, &format!("{name}:{kib:>16} kB\n"));
                let value: u64 = new.split_whitespace().nth_back(1).expect("a number").rsplit(':').next().expect("it").parse().expect("digits");
                prop_assert!(value <= total >> 10);
                prop_assert!(name != "MemTotal" || value == total >> 10);
            }
        }

        #[test]
        fn limits_and_usage_never_shrink(bytes: u64, total in 4096u64..1 << 60, out: u64) {
            let figures = Figures { total, free: 0, out };
            let (limit, usage) = (figures.limit(bytes), figures.usage(bytes));
            prop_assert!(limit >= bytes && limit >= total && usage >= bytes && usage <= limit);
        }
    }
}
