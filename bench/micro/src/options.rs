//! The command line.

use crate::content::Data;
use crate::pattern::Workload;
use crate::team::PROCESSES_MAX;
use std::path::PathBuf;

pub const HELP: &str = "\
Usage: ebb-bench-micro [OPTIONS] WORKLOAD

Fills memory, uses it, checks what it reads, and prints what that cost as one line of JSON.

Workloads:
  random-read    any page, each as likely as the others
  random-write   the same, and changes it
  zipf-read      few pages often, many seldom (exponent 0.99)
  seq-read       all pages in order, again and again
  seq-write      the same, and changes them
  swap-out       the filling alone: what is beyond --resident is timed by itself
  swap-out-random  the same in an order without a pattern
  swap-in        fills, drops all but the first fifth, and reads that in order
  page-out       fills, has everything swapped out by MADV_PAGEOUT, and reads it in order
  free           fills, has everything swapped out by MADV_PAGEOUT, and unmaps it: what an access takes is a page's part
  cow            fills and forks; the child changes every page once, in order, and reports
  random-rw      copies whole pages, as many in as out; each thread has pages of its own

Options:
  --mib N            memory (256)
  --seconds S        time that is measured (1)
  --warm S           time before that, not measured (half as much), until each page could have been used once
  --threads T        threads (1); each writes only pages of its own
  --processes N      processes (1) that share --mib and --resident, each with so many threads
  --data KIND        zero, same, mixed (like a heap) or hard (random) (mixed)
  --zipf S           exponent of zipf-read (0.99), and of random-rw, where 0 is uniform (0)
  --resident MIB     so much of the filling is not swap-out (a quarter of --mib)
  --seed N           of contents and order (1)
  --verify all       at the end, compare every byte, instead of those of 2,048 pages
  --in-process RAM   manage the memory with a space of Ebb in this process, of this budget (400M)
  --swap DIR|none    where that space spills (/var/tmp)
";

/// What to measure.
#[derive(Debug)]
pub struct Options {
    pub workload: Workload,
    pub pages: usize,
    pub seconds: f64,
    pub warm_seconds: f64,
    pub threads: usize,
    pub processes: usize,
    pub data: Data,
    pub resident_pages: usize,
    /// Exponent of Zipf's law; none where all pages are alike.
    pub zipf: Option<f64>,
    pub seed: u64,
    pub verify_all: bool,
    pub in_process: Option<InProcess>,
}

/// The space to make in this process.
#[derive(Debug)]
pub struct InProcess {
    pub ram_bytes: u64,
    pub spill_dir: Option<PathBuf>,
}

const PAGES_PER_MIB: usize = 256;

impl Options {
    /// Reads the arguments; none when they ask for help.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut workload = None;
        let (mut mib, mut seconds, mut warm, mut threads, mut resident) = (256usize, 1.0f64, None, 1usize, None);
        let (mut data, mut seed, mut verify_all) = (Data::Mixed, 1u64, false);
        let (mut zipf, mut processes) = (None, 1usize);
        let (mut ram, mut spill) = (None, Some(PathBuf::from("/var/tmp")));
        while let Some(arg) = args.next() {
            if !arg.starts_with('-') {
                let found = Workload::named(&arg).ok_or(format!("{arg}: there is no such workload"))?;
                if workload.replace(found).is_some() {
                    return Err(format!("{arg}: one workload a process"));
                }
                continue;
            }
            if arg == "-h" || arg == "--help" {
                return Ok(None);
            }
            let value = args.next().ok_or(format!("{arg}: it needs a value, or there is no such option"))?;
            match arg.as_str() {
                "--mib" => mib = number(&arg, &value)?,
                "--seconds" => seconds = number(&arg, &value)?,
                "--warm" => warm = Some(number(&arg, &value)?),
                "--threads" => threads = number(&arg, &value)?,
                "--processes" => processes = number(&arg, &value)?,
                "--resident" => resident = Some(number::<usize>(&arg, &value)?),
                "--zipf" => zipf = Some(number::<f64>(&arg, &value)?),
                "--seed" => seed = number(&arg, &value)?,
                "--data" => data = Data::named(&value).ok_or(format!("{arg} {value}: there is no such data"))?,
                "--verify" => verify_all = value == "all",
                "--in-process" => ram = Some(size(&value).ok_or(format!("{arg} {value}: not a size such as 400M"))?),
                "--swap" => spill = Some(value).filter(|dir| dir != "none").map(PathBuf::from),
                _ => return Err(format!("{arg}: there is no such option")),
            }
        }
        if processes == 0 || processes > PROCESSES_MAX || processes > mib {
            return Err(format!("--processes: 1 to {PROCESSES_MAX}, and each needs a MiB"));
        }
        if processes > 1 && ram.is_some() {
            return Err("--in-process: a space is one process's; give --processes 1".to_owned());
        }
        let (mib, resident) = (mib / processes, resident.map(|mib| mib / processes));
        if mib == 0 || threads == 0 || threads > mib || !(seconds > 0.0 && seconds < 1e6) {
            return Err("--mib, --threads and --seconds have to be positive, and a thread needs a MiB".to_owned());
        }
        let workload = workload.ok_or("no workload")?;
        if workload == Workload::Cow && threads > 1 {
            return Err("cow: fork takes one thread along; give --threads 1".to_owned());
        }
        let zipf = match workload {
            Workload::ZipfRead => Some(zipf.unwrap_or(0.99)),
            Workload::RandomRw => zipf.filter(|exponent| *exponent != 0.0),
            _ => None,
        };
        if zipf.is_some_and(|exponent| !(exponent > 0.0 && exponent < 10.0 && exponent != 1.0)) {
            return Err("--zipf: an exponent between 0 and 10, but not 1".to_owned());
        }
        Ok(Some(Self {
            workload,
            zipf,
            pages: mib * PAGES_PER_MIB,
            seconds,
            warm_seconds: warm.unwrap_or(seconds / 2.0),
            threads,
            processes,
            data,
            resident_pages: resident
                .map_or(mib * PAGES_PER_MIB / 4, |mib| mib * PAGES_PER_MIB)
                .min(mib * PAGES_PER_MIB),
            seed,
            verify_all,
            in_process: ram.map(|ram_bytes| InProcess { ram_bytes, spill_dir: spill }),
        }))
    }
}

fn number<T: std::str::FromStr>(arg: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{arg} {value}: not a number"))
}

/// Bytes of `400M`, `1G`, `65536K` or `4194304`.
fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'K') => (&text[..at], 10),
        (at, 'M') => (&text[..at], 20),
        (at, 'G') => (&text[..at], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Options>, String> {
        Options::parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_resident_part_is_a_quarter_unless_given() {
        let options = parse("swap-out --mib 64").expect("valid").expect("no help");
        assert_eq!((options.pages, options.resident_pages), (64 * 256, 16 * 256));
    }

    #[test]
    fn a_second_workload_is_refused() {
        assert_eq!(parse("seq-read seq-write").expect_err("two"), "seq-write: one workload a process");
    }

    #[test]
    fn processes_share_the_memory() {
        let options = parse("swap-in --mib 64 --resident 16 --processes 4").expect("valid").expect("no help");
        assert_eq!((options.pages, options.resident_pages, options.processes), (16 * 256, 4 * 256, 4));
        assert!(parse("swap-in --mib 4 --processes 5").is_err());
        assert!(parse("swap-in --processes 2 --in-process 64M").is_err());
    }

    #[test]
    fn exponents_are_for_those_that_have_one() {
        let zipf = |text: &str| parse(text).expect("valid").expect("no help").zipf;
        assert_eq!(zipf("zipf-read"), Some(0.99));
        assert_eq!(zipf("random-rw --zipf 1.2"), Some(1.2));
        assert_eq!((zipf("random-rw"), zipf("seq-read")), (None, None));
        assert!(parse("random-rw --zipf 1").is_err());
        assert!(parse("cow --threads 2").is_err());
    }

    #[test]
    fn sizes_have_binary_suffixes() {
        assert_eq!(
            [size("400M"), size("1G"), size("4096"), size("M")],
            [Some(400 << 20), Some(1 << 30), Some(4096), None]
        );
    }
}
