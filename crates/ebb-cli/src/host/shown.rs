//! The size of RAM that the programs are shown: what `--show-ram` says.

use ebb::RAM_BYTES_MIN;

use crate::base::failure::Failure;
use crate::base::size::{Amount, human_bytes, parse_multiple, short_bytes};
use crate::base::text::printable;

/// The environment variable by which the agent learns the size.
pub const VARIABLE: &str = "EBB_SHOW_RAM";

/// More than any machine has: the user half of a 48-bit address space.
const BYTES_MAX: u64 = 1 << 47;
/// What `auto` shows, in budgets: at least the first, since pages are compressed, and at most the second, because a
/// program that uses much more than its budget becomes slow.
const AUTO_TIMES: [u64; 2] = [2, 3];
/// Ebb's tables are in the budget. They leave no room in it for a program that uses as many budgets as this.
const TIMES_MAX: u64 = 50;

const REMEDY: &str = "write a size such as 3G, a percentage of the budget such as 300%, auto or off";

/// What `--show-ram` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    Off,
    Auto,
    Amount(Amount),
}

/// Parses what stands after `--show-ram`.
pub fn parse(text: &str) -> Result<Show, Failure> {
    match text {
        "off" => return Ok(Show::Off),
        "auto" => return Ok(Show::Auto),
        _ => {}
    }
    let refused = |why: &dyn std::fmt::Display| Failure::ebb(format!("--show-ram {}", printable(text)), why, REMEDY);
    match parse_multiple(text).map_err(|error| refused(&error))? {
        Amount::Bytes(bytes) if bytes < RAM_BYTES_MIN => Err(refused(&too_small(bytes))),
        amount => Ok(Show::Amount(amount)),
    }
}

fn too_small(bytes: u64) -> String {
    format!("{} is too little: no program can be shown less than {}", human_bytes(bytes), short_bytes(RAM_BYTES_MIN))
}

/// The size in bytes, in whole pages; none for the true one. `ram_bytes` is the budget, `room_bytes` what the swap files
/// may hold.
pub fn bytes(show: Show, ram_bytes: u64, room_bytes: u64) -> Result<Option<u64>, Failure> {
    let share = |millionths: u64| u128::from(ram_bytes) * u128::from(millionths) / 1_000_000;
    let [least, most] = AUTO_TIMES.map(|times| ram_bytes.saturating_mul(times));
    let bytes = match show {
        Show::Off => return Ok(None),
        Show::Auto => ram_bytes.saturating_add(room_bytes).clamp(least, most).min(BYTES_MAX).into(),
        Show::Amount(Amount::Bytes(bytes)) => bytes.into(),
        Show::Amount(Amount::Share { millionths }) => share(millionths),
    };
    let refused = |why: String| Failure::ebb("--show-ram", why, REMEDY);
    match u64::try_from(bytes) {
        Ok(bytes) if bytes < RAM_BYTES_MIN => Err(refused(too_small(bytes))),
        Ok(bytes) if bytes <= BYTES_MAX => Ok(Some(bytes & !0xfff)),
        _ => Err(refused(format!("it comes to more than {}, which no machine has", short_bytes(BYTES_MAX)))),
    }
}

/// What the outer `ebb run` shows to this process.
pub fn inherited() -> Option<u64> {
    std::env::var(VARIABLE).ok()?.parse().ok().filter(|bytes| *bytes > 0)
}

/// A line for the user where a program that uses all that it is shown is ended for it.
pub fn warning(bytes: u64, ram_bytes: u64) -> Option<String> {
    (bytes / TIMES_MAX > ram_bytes).then(|| {
        format!(
            "--show-ram: {} are more than {TIMES_MAX} times the budget of {}; Ebb ends a program that uses so much, so \
             show less, or give more with --ram",
            human_bytes(bytes),
            human_bytes(ram_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    fn of(text: &str) -> u64 {
        bytes(parse(text).unwrap(), 64 * M, 0).unwrap().unwrap()
    }

    fn refused(text: &str) -> String {
        parse(text).and_then(|show| bytes(show, 64 * M, 0)).unwrap_err().to_string()
    }

    #[test]
    fn sizes_are_absolute_and_percentages_are_of_the_budget() {
        assert_eq!((of("1G"), of("300%"), of("150%")), (1024 * M, 192 * M, 96 * M));
        // Less than the budget is a way to have modest programs.
        assert_eq!((of("50%"), of("4M"), of("100M")), (32 * M, 4 * M, 100 * M));
        assert_eq!(of("5000001"), 5_000_001 & !0xfff);
        assert_eq!(bytes(parse("off").unwrap(), 64 * M, 0), Ok(None));
    }

    #[test]
    fn auto_is_the_budget_and_the_swap_within_two_and_three_budgets() {
        let auto = |room| bytes(Show::Auto, 64 * M, room).unwrap().unwrap() / M;
        assert_eq!([0, 64 * M, 100 * M, 128 * M, 1 << 40, u64::MAX].map(auto), [128, 128, 164, 192, 192, 192]);
        assert_eq!(bytes(Show::Auto, 1 << 46, 1 << 50), Ok(Some(1 << 47)));
    }

    #[test]
    fn what_no_program_can_be_shown_is_refused_with_what_to_write() {
        for (text, why) in [
            ("", "--show-ram : the size is empty; "),
            ("much", "--show-ram much: it does not begin with a number; "),
            ("0", "--show-ram 0: it is zero; "),
            ("0%", "--show-ram 0%: it is zero; "),
            ("1K", "--show-ram 1K: 1.0 KiB is too little: no program can be shown less than 4M; "),
            ("1%", "--show-ram: 655.4 KiB is too little"),
            ("2000000T", "--show-ram 2000000T: it is more than a 64-bit machine can address; "),
            ("1152921504606846977", "it is more than a 64-bit machine can address; "),
            ("99999999999999%", "--show-ram: it comes to more than 128T, which no machine has; "),
            ("-1G", "it does not begin with a number; "),
            ("3GB", "powers of 1000 or of 1024; "),
        ] {
            let said = refused(text);
            assert!(said.contains(why) && said.ends_with(REMEDY), "{text}: {said}");
        }
    }

    #[test]
    fn far_more_than_the_budget_is_a_warning() {
        assert_eq!(warning(64 * M * 50, 64 * M), None);
        let said = warning(1 << 40, 64 * M).unwrap();
        assert!(said.starts_with("--show-ram: 1.0 TiB are more than 50 times the budget of 64.0 MiB; "), "{said}");
    }
}
