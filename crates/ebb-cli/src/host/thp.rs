//! Large folios: what the user asks for, and what the host allows.

use std::ffi::OsStr;

use ebb::stats::Thp;

use crate::base::failure::Failure;
use crate::base::sys;

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// What `--thp` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// As the host has it.
    Host,
    Never,
    Advise,
    Always,
}

/// Parses the value of `--thp`.
pub fn parse(value: &OsStr) -> Result<Choice, Failure> {
    match value.to_str() {
        Some("host") => Ok(Choice::Host),
        Some("never") => Ok(Choice::Never),
        Some("advise" | "madvise") => Ok(Choice::Advise),
        Some("always") => Ok(Choice::Always),
        _ => Err(Failure::ebb(
            format!("--thp {}", value.to_string_lossy()),
            "there is no such policy",
            "write never, advise, always or host",
        )),
    }
}

/// The policy that results on this host, and what to tell the user if it is not what was chosen.
pub fn policy(choice: Choice) -> (Thp, Option<String>) {
    resolve(choice, std::fs::read_to_string(ENABLED).ok().as_deref(), is_new_enough())
}

/// Whether the kernel moves and splits huge pages as Ebb needs it: see `ebb::places::folios`.
pub fn is_new_enough() -> bool {
    is_new(&sys::kernel().0)
}

fn is_new(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|text| text.parse::<u32>().ok());
    matches!((numbers.next().flatten(), numbers.next().flatten()), (Some(major), Some(minor)) if (major, minor) >= (6, 18))
}

/// `enabled` is the text of the kernel's switch; none if the kernel has none.
fn resolve(choice: Choice, enabled: Option<&str>, is_new: bool) -> (Thp, Option<String>) {
    let host = match enabled.and_then(|text| text.split_once('[')?.1.split_once(']')).map(|(word, _)| word) {
        Some("always") => Thp::Always,
        Some("madvise") => Thp::Advise,
        _ => Thp::Never,
    };
    let chosen = match choice {
        Choice::Host => host,
        Choice::Never => Thp::Never,
        Choice::Advise => Thp::Advise,
        Choice::Always => Thp::Always,
    };
    if chosen == Thp::Never || host != Thp::Never && is_new {
        return (chosen, None);
    }
    if choice == Choice::Host {
        return (Thp::Never, None);
    }
    let why = match enabled {
        _ if !is_new => "Ebb moves huge pages on Linux 6.18 or newer only".to_owned(),
        Some(_) => format!("the host has huge pages switched off; write `madvise` to {ENABLED} as root"),
        None => "this kernel has no transparent huge pages".to_owned(),
    };
    (Thp::Never, Some(format!("--thp: {why}; the program runs with small pages")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_decides_if_the_user_does_not() {
        let host = |text| resolve(Choice::Host, Some(text), true);
        assert_eq!(host("[always] madvise never\n"), (Thp::Always, None));
        assert_eq!(host("always [madvise] never\n"), (Thp::Advise, None));
        assert_eq!(host("always madvise [never]\n"), (Thp::Never, None));
        assert_eq!(resolve(Choice::Host, None, true), (Thp::Never, None));
    }

    #[test]
    fn the_user_decides_where_the_host_has_huge_pages() {
        for enabled in ["[always] madvise never", "always [madvise] never"] {
            for (choice, thp) in
                [(Choice::Never, Thp::Never), (Choice::Advise, Thp::Advise), (Choice::Always, Thp::Always)]
            {
                assert_eq!(resolve(choice, Some(enabled), true), (thp, None));
            }
        }
        for enabled in [Some("always madvise [never]"), Some("nonsense"), None] {
            for choice in [Choice::Advise, Choice::Always] {
                let (thp, said) = resolve(choice, enabled, true);
                assert!(thp == Thp::Never && said.is_some_and(|said| said.starts_with("--thp: ")), "{enabled:?}");
            }
            assert_eq!(resolve(Choice::Never, enabled, true), (Thp::Never, None));
        }
    }

    #[test]
    fn an_old_kernel_has_none() {
        assert!(is_new("6.18.44-fc-v657") && is_new("6.18") && is_new("7.0-rc1"));
        assert!(!is_new("6.17.12") && !is_new("5.15") && !is_new("six"));
        let enabled = Some("[always] madvise never");
        assert_eq!(resolve(Choice::Host, enabled, false), (Thp::Never, None));
        assert_eq!(resolve(Choice::Never, enabled, false), (Thp::Never, None));
        let (thp, said) = resolve(Choice::Advise, enabled, false);
        assert!(thp == Thp::Never && said.is_some_and(|said| said.contains("6.18")));
    }

    #[test]
    fn only_policies_are_understood() {
        let of = |text: &str| parse(OsStr::new(text));
        assert_eq!(of("madvise"), Ok(Choice::Advise));
        assert_eq!((of("never"), of("always"), of("host")), (Ok(Choice::Never), Ok(Choice::Always), Ok(Choice::Host)));
        let said = of("sometimes").expect_err("no policy").to_string();
        assert_eq!(said, "ebb: --thp sometimes: there is no such policy; write never, advise, always or host");
    }
}
