//! The budget of a tree in bytes, computed from `--ram`.

use std::path::Path;

use ebb::RAM_BYTES_MIN;

use crate::base::failure::Failure;
use crate::base::size::{Amount, human_bytes};
use crate::host::limit::Bounds;

/// What `--ram` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ram {
    Auto,
    Amount(Amount),
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
    let process = running.map_or_else(|| "self".to_owned(), |running| running.pid.to_string());
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
