//! The budget of a tree in bytes, computed from `--ram`.

use std::path::Path;

use ebb::RAM_BYTES_MIN;

use crate::base::failure::Failure;
use crate::base::size::{Amount, human_bytes, is_unitless, parse_amount, short_bytes};
use crate::base::text::printable;
use crate::host::limit::{self, Bounds, Sourced};

/// What `--ram` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ram {
    Auto,
    Amount(Amount),
}

/// Parses what stands after `--ram`. A size that nothing can run in is refused here, where it is known how it was written.
pub fn parse(text: &str) -> Result<Ram, Failure> {
    if text == "auto" {
        return Ok(Ram::Auto);
    }
    let what = || format!("--ram {}", printable(text));
    let amount = parse_amount(text).map_err(|error| {
        Failure::ebb(what(), error, "write a size such as 64M, 1.5G or 1GiB, a percentage such as 50%, or auto")
    })?;
    match amount {
        Amount::Bytes(bytes) if bytes < RAM_BYTES_MIN => {
            let (why, remedy) = too_small(text.trim(), bytes);
            Err(Failure::ebb(what(), why, remedy))
        }
        amount => Ok(Ram::Amount(amount)),
    }
}

/// Why a size is no budget, and what to write in its place. A small number without a unit lacks its unit.
fn too_small(text: &str, bytes: u64) -> (String, String) {
    let least = short_bytes(RAM_BYTES_MIN);
    let why = format!("a budget is at least {least}");
    if !is_unitless(text) {
        return (why, format!("give at least --ram {least}"));
    }
    let meant = match bytes {
        0..4 => format!("such as --ram {text}G"),
        4..64 => format!("such as --ram {text}M or --ram {text}G"),
        64..65536 => format!("such as --ram {text}M"),
        _ => format!("at least --ram {least}"),
    };
    (format!("a number without a unit counts bytes, and {why}"), format!("give a unit, {meant}"))
}

/// A line for the user where a budget of `bytes` is more than the kernel lets the tree have. Ebb then evicts too late.
pub fn warning(ram: Ram, bytes: u64, running: Option<Running>) -> Option<String> {
    // A percentage and auto are within the limits.
    let Ram::Amount(Amount::Bytes(_)) = ram else { return None };
    let limit = limit::tightest(Path::new("/"), &process_of(running))?;
    warning_beyond(bytes, &limit)
}

fn warning_beyond(bytes: u64, limit: &Sourced) -> Option<String> {
    (bytes > limit.bytes).then(|| {
        format!(
            "ebb: --ram {}: the budget is more than the {} that it can get ({}), so the kernel may swap or kill the program \
             before Ebb does anything; give less, or --ram auto",
            short_bytes(bytes),
            human_bytes(limit.bytes),
            limit.source
        )
    })
}

/// The name in /proc of the process whose limits count.
fn process_of(running: Option<Running>) -> String {
    running.map_or_else(|| "self".to_owned(), |running| running.pid.to_string())
}

/// A tree that is already running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// One of its processes. Its cgroups bound the tree.
    pub pid: i32,
    pub held_bytes: u64,
}

/// The budget in bytes, in whole pages, and a text that says where it comes from. `running` is the tree; none for a
/// tree that this process is about to start.
pub fn budget(ram: Ram, running: Option<Running>) -> Result<(u64, String), Failure> {
    let process = process_of(running);
    let bounds = || {
        Bounds::read_of(Path::new("/"), &process).ok_or_else(|| {
            Failure::ebb(
                "--ram",
                "/proc/meminfo cannot be read, so Ebb cannot work out a percentage or auto",
                "give a size such as --ram 1G",
            )
        })
    };
    let (bytes, source) = match ram {
        Ram::Amount(Amount::Bytes(bytes)) => (bytes, "as given".to_owned()),
        Ram::Amount(Amount::Share { millionths }) => {
            let limit = bounds()?.limit();
            let bytes = (u128::from(limit.bytes) * u128::from(millionths) / 1_000_000) as u64;
            (bytes, format!("{}% of {} ({})", millionths as f64 / 10_000.0, human_bytes(limit.bytes), limit.source))
        }
        Ram::Auto => {
            let auto = bounds()?.auto_with(running.map_or(0, |running| running.held_bytes));
            (auto.bytes, auto.source)
        }
    };
    let bytes = bytes & !0xfff;
    if bytes < RAM_BYTES_MIN {
        return Err(Failure::ebb(
            "--ram",
            format!("a budget of {} ({source}) is too small to run in", human_bytes(bytes)),
            format!("give at least {}", human_bytes(RAM_BYTES_MIN)),
        ));
    }
    Ok((bytes, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_size_below_the_least_is_refused_as_it_was_given() {
        assert_eq!(refused("1K"), "ebb: --ram 1K: a budget is at least 4M; give at least --ram 4M");
        assert_eq!(refused("3.9M"), "ebb: --ram 3.9M: a budget is at least 4M; give at least --ram 4M");
        assert_eq!(parse("4M"), Ok(Ram::Amount(Amount::Bytes(4 << 20))));
        assert_eq!(parse("auto"), Ok(Ram::Auto));
    }

    #[test]
    fn a_small_number_without_a_unit_lacks_its_unit() {
        let why = "a number without a unit counts bytes, and a budget is at least 4M";
        for (text, remedy) in [
            ("5", "give a unit, such as --ram 5M or --ram 5G"),
            ("2", "give a unit, such as --ram 2G"),
            ("1.5", "give a unit, such as --ram 1.5G"),
            ("512", "give a unit, such as --ram 512M"),
            ("1000000", "give a unit, at least --ram 4M"),
        ] {
            assert_eq!(refused(text), format!("ebb: --ram {text}: {why}; {remedy}"));
        }
        assert_eq!(parse("4194304"), Ok(Ram::Amount(Amount::Bytes(4 << 20))));
    }

    #[test]
    fn a_number_with_two_points_is_told_so() {
        assert!(
            refused("1.5.5G").starts_with("ebb: --ram 1.5.5G: `1.5.5` is not a number: it has more than one point; ")
        );
    }

    #[test]
    fn a_budget_beyond_the_limit_is_a_warning() {
        let limit = Sourced { bytes: 24 << 30, source: "MemTotal".to_owned() };
        assert_eq!(warning_beyond(24 << 30, &limit), None);
        assert_eq!(
            warning_beyond(1 << 40, &limit).unwrap(),
            "ebb: --ram 1T: the budget is more than the 24.0 GiB that it can get (MemTotal), so the kernel may swap or kill \
             the program before Ebb does anything; give less, or --ram auto"
        );
        assert_eq!(warning(Ram::Auto, 1 << 46, None), None);
        assert!(warning(Ram::Amount(Amount::Bytes(1 << 46)), 1 << 46, None).is_some());
    }

    #[test]
    fn a_budget_is_whole_pages() {
        assert_eq!(budget(Ram::Amount(Amount::Bytes((64 << 20) + 5)), None).unwrap().0, 64 << 20);
    }

    #[test]
    fn a_budget_too_small_to_run_in_is_refused() {
        let failure = budget(Ram::Amount(Amount::Bytes(4096)), None).unwrap_err();
        assert_eq!(failure.why, "a budget of 4.0 KiB (as given) is too small to run in");
        assert_eq!(failure.remedy, "give at least 4.0 MiB");
    }

    #[test]
    fn a_share_is_of_the_tightest_limit() {
        let limit = Bounds::read(Path::new("/")).unwrap().limit().bytes;
        let running = Running { pid: std::process::id() as i32, held_bytes: 1 << 30 };
        for running in [None, Some(running)] {
            let (half, source) = budget(Ram::Amount(Amount::Share { millionths: 500_000 }), running).unwrap();
            assert_eq!(half, (limit / 2) & !0xfff);
            assert!(source.starts_with("50% of "), "{source}");
        }
    }

    #[test]
    fn what_a_running_tree_holds_is_room_to_it() {
        let running = Running { pid: std::process::id() as i32, held_bytes: 100 << 20 };
        let (_, source) = budget(Ram::Auto, Some(running)).unwrap();
        assert!(source.contains(", plus 100.0 MiB already held, "), "{source}");
    }
}
