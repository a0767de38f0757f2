//! What this host allows. Each check tries one need of Ebb, and says what blocks it and how to fix that.
//!
//! `ebb doctor` shows all checks. `ebb run` makes only the essential ones.

use std::io;
use std::path::Path;

use crate::base::failure::Failure;
use crate::base::size::human_bytes;
use crate::base::sys;
use crate::host::agent;
use crate::host::limit::Bounds;
use crate::host::place::Place;
use crate::host::probe::{self, Maker};
use crate::host::spill;
use crate::host::thp;

/// How well a need is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok,
    /// Ebb works, but is slower or has less than it could have.
    Limited,
    /// `ebb run` refuses to start.
    Blocked,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Blocked => "blocked",
        }
    }
}

/// One need and how it is met.
#[derive(Debug)]
pub struct Check {
    pub name: &'static str,
    pub status: Status,
    /// What was found.
    pub found: String,
    /// The mechanism that Ebb uses, where it has a choice.
    pub mechanism: Option<&'static str>,
    /// What to do if the status is not `Ok`.
    pub remedy: Option<String>,
}

impl Check {
    fn new(name: &'static str, status: Status, found: impl Into<String>) -> Self {
        Self { name, status, found: found.into(), mechanism: None, remedy: None }
    }

    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Status::Ok, found)
    }

    fn using(self, mechanism: &'static str) -> Self {
        Self { mechanism: Some(mechanism), ..self }
    }

    fn mend(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// Fails if the check is a reason not to start.
    fn failure(self) -> Result<(), Failure> {
        match self.status {
            Status::Ok | Status::Limited => Ok(()),
            Status::Blocked => Err(Failure::ebb(
                self.name,
                self.found,
                self.remedy.unwrap_or_else(|| "run `ebb doctor` for details".to_owned()),
            )),
        }
    }
}

/// Reads a kernel parameter by its path below `/proc/sys`.
fn sysctl(name: &str) -> Option<String> {
    std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok().map(|text| text.trim().to_owned())
}

/// Whether a seccomp filter watches this process.
fn filtered() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
}

/// Guesses from the error who refuses a system call. Returns that, and what to do about it.
fn refusal(call: &str, since: &str, error: &io::Error) -> (String, String) {
    let (release, _) = sys::kernel();
    let newer = format!("run on Linux {since} or newer");
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) if filtered() => (
            format!("a seccomp filter refuses {call} ({error})"),
            format!("allow {call} in the seccomp profile of the container, or of whatever started this process"),
        ),
        Some(libc::EPERM | libc::EACCES) => (
            format!("a security module refuses {call} ({error})"),
            format!("allow {call} in the SELinux or AppArmor policy of this process"),
        ),
        Some(libc::ENOSYS) => {
            (format!("kernel {release} has no {call} ({error})"), format!("{newer}, built with CONFIG_USERFAULTFD=y"))
        }
        Some(libc::EINVAL) => (format!("kernel {release} is too old for {call} ({error})"), newer),
        Some(libc::EMFILE | libc::ENFILE) => {
            (format!("no descriptor is free for {call} ({error})"), "raise the limit with `ulimit -n 1024`".to_owned())
        }
        _ => (format!("{call} fails: {error}"), newer),
    }
}

fn userfaultfd() -> Check {
    const NAME: &str = "userfaultfd";
    match probe::maker() {
        Ok(Maker::SystemCall) => Check::ok(NAME, "the system call works for user-mode faults, without privileges")
            .using("userfaultfd(UFFD_USER_MODE_ONLY)"),
        Ok(Maker::Device) => {
            Check::ok(NAME, "the system call is refused, and the device works for programs that run as this user")
                .using(probe::DEVICE)
        }
        Err(error) => {
            let (found, remedy) = refusal("userfaultfd", "5.11", &error);
            let place = Place::here();
            let remedy = match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES | libc::ENOSYS) if filtered() => {
                    let remedy = place.userfaultfd_remedy();
                    match sys::access(Path::new(probe::DEVICE), libc::R_OK | libc::W_OK) {
                        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                            format!("{remedy}. {} is here, but this user may not open it", probe::DEVICE)
                        }
                        _ => remedy.to_owned(),
                    }
                }
                Some(libc::ENOSYS) => place.kernel_remedy().map_or(remedy, str::to_owned),
                _ => remedy,
            };
            Check::new(NAME, Status::Blocked, found).mend(remedy)
        }
    }
}

fn feature(name: &'static str, mask: u64, since: &str, offered: &io::Result<u64>) -> Option<Check> {
    let offered = offered.as_ref().ok()?;
    if offered & mask != 0 {
        return Some(Check::ok(name, "offered"));
    }
    let (release, machine) = sys::kernel();
    Some(
        Check::new(name, Status::Blocked, format!("kernel {release} on {machine} does not offer it"))
            .mend(format!("run on Linux {since} or newer for x86-64")),
    )
}

/// The budget, in bytes, of the `ebb` that this one runs under; none if it runs under no other.
pub fn outer_budget() -> Option<u64> {
    let preloaded = std::env::var_os("LD_PRELOAD")?;
    let has_agent = preloaded.to_string_lossy().contains("libebb_agent.so");
    std::env::var("EBB_RAM").ok().filter(|_| has_agent)?.parse().ok()
}

fn dispatch() -> Check {
    const NAME: &str = "system-call dispatch";
    if outer_budget().is_some() {
        // The outer agent refuses dispatch to this process, because it manages it. It does not refuse dispatch to what
        // this process starts.
        return Check::ok(NAME, "in use: this ebb runs under another `ebb run`").using("Syscall User Dispatch");
    }
    match probe::syscall_user_dispatch() {
        Ok(()) => Check::ok(NAME, "a test call was intercepted").using("Syscall User Dispatch"),
        Err(error) => {
            let (found, remedy) = refusal("prctl(PR_SET_SYSCALL_USER_DISPATCH)", "5.11", &error);
            Check::new(NAME, Status::Blocked, found).mend(remedy)
        }
    }
}

/// Checks what must work before a program can be managed. Fails with the first need that is blocked.
pub fn preflight() -> Result<(), Failure> {
    userfaultfd().failure()?;
    let offered = probe::features();
    for check in essential_features(&offered) {
        check.failure()?;
    }
    dispatch().failure()
}

fn essential_features(offered: &io::Result<u64>) -> Vec<Check> {
    [
        feature("userfaultfd SIGBUS", probe::FEATURE_SIGBUS, "4.14", offered),
        feature("userfaultfd write-protect", probe::FEATURE_WRITE_PROTECT, "5.7", offered),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn kernel() -> Check {
    let (release, machine) = sys::kernel();
    if machine == "x86_64" {
        Check::ok("kernel", format!("Linux {release}, {machine}"))
    } else {
        Check::new("kernel", Status::Blocked, format!("Linux {release}, {machine}")).mend("run on x86-64")
    }
}

fn place() -> Check {
    Check::ok("place", Place::here().name())
}

fn seccomp() -> Check {
    let found = if filtered() { "a filter applies to this process" } else { "no filter" };
    Check::ok("seccomp", found)
}

fn device_and_sysctl() -> Check {
    let sysctl = sysctl("vm/unprivileged_userfaultfd").unwrap_or_else(|| "absent".to_owned());
    let device = match sys::access(Path::new("/dev/userfaultfd"), libc::R_OK | libc::W_OK) {
        Ok(()) => "/dev/userfaultfd can be opened".to_owned(),
        Err(error) => format!("/dev/userfaultfd: {error}"),
    };
    Check::ok(
        "privileged userfaultfd",
        format!("vm.unprivileged_userfaultfd = {sysctl}; {device}; Ebb needs neither where the system call works"),
    )
}

const COPYING: &str = "write-protect, copy, then MADV_DONTNEED";

fn moving(offered: &io::Result<u64>) -> Option<Check> {
    const NAME: &str = "UFFDIO_MOVE";
    let offered = offered.as_ref().ok()?;
    let check = if offered & probe::FEATURE_MOVE == 0 {
        let (release, _) = sys::kernel();
        Check::new(NAME, Status::Limited, format!("kernel {release} does not offer it, so swapping out costs more"))
            .using(COPYING)
            .mend("run on Linux 6.8 or newer")
    } else {
        match probe::move_page() {
            Ok(()) => Check::ok(NAME, "a page was moved").using(NAME),
            Err(error) => Check::new(NAME, Status::Limited, format!("offered, but moving a page failed: {error}"))
                .using(COPYING)
                .mend("report this, with the kernel version"),
        }
    };
    Some(check)
}

fn copying(offered: &io::Result<u64>) -> Option<Check> {
    const NAME: &str = "UFFDIO_COPY, _WRITEPROTECT";
    offered.as_ref().ok()?;
    Some(match probe::copy_and_protect() {
        Ok(()) => Check::ok(NAME, "a page was filled and protected"),
        Err(error) => Check::new(NAME, Status::Blocked, format!("filling and protecting a page failed: {error}"))
            .mend("run on Linux 5.11 or newer"),
    })
}

fn vectored_drop() -> Check {
    const NAME: &str = "process_madvise";
    match probe::process_madvise() {
        Ok(()) => Check::ok(NAME, "MADV_DONTNEED on this process works").using("many ranges dropped in one call"),
        Err(error) => {
            let is_refused = matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) && filtered();
            let found = match is_refused {
                true => format!("a seccomp filter refuses it ({error})"),
                false => format!("MADV_DONTNEED on this process fails: {error}"),
            };
            Check::new(NAME, Status::Limited, found).using("madvise(MADV_DONTNEED), one range per call").mend(
                match is_refused {
                    true => "none is needed; the profiles that `ebb doctor --seccomp-profile` prints allow it",
                    false => "run on Linux 6.13 or newer",
                },
            )
        }
    }
}

fn memory(bounds: Option<&Bounds>) -> Check {
    const NAME: &str = "memory";
    let Some(bounds) = bounds else {
        return Check::new(NAME, Status::Limited, "/proc/meminfo cannot be read")
            .mend("mount /proc, or give --ram SIZE");
    };
    let limit = bounds.limit();
    let auto = bounds.auto();
    let groups: Vec<String> = bounds
        .cgroups
        .iter()
        .map(|group| format!("{} = {}", group.file.display(), human_bytes(group.limit_bytes)))
        .collect();
    let groups = if groups.is_empty() { "no cgroup limit".to_owned() } else { groups.join(", ") };
    Check::ok(
        NAME,
        format!(
            "{groups}; limit {} ({}); --ram auto = {} ({})",
            human_bytes(limit.bytes),
            limit.source,
            human_bytes(auto.bytes),
            auto.source
        ),
    )
}

/// Roughly how much address space Ebb reserves for its tables. It costs no memory until it is used.
const RESERVATION_BYTES: usize = 16 << 30;
/// Under a limit the tables are smaller. Less than this is too little for any budget: see docs/compatibility.md.
const LIMITED_BYTES: usize = 1400 << 20;

fn address_space() -> Check {
    const NAME: &str = "address space";
    let (limit, _) = sys::resource_limit(libc::RLIMIT_AS);
    let shown = shown_limit(limit, true);
    let bytes = if limit == u64::MAX { RESERVATION_BYTES } else { LIMITED_BYTES };
    match probe::reserve(bytes) {
        Ok(()) if limit == u64::MAX => Check::ok(NAME, format!("RLIMIT_AS {shown}")),
        Ok(()) => Check::new(
            NAME,
            Status::Limited,
            format!(
                "RLIMIT_AS {shown}: Ebb's tables count against it, 1.4 GiB with a small --ram, 3.4 times a large one"
            ),
        )
        .mend("`ulimit -v unlimited`"),
        Err(error) => Check::new(
            NAME,
            Status::Blocked,
            format!("RLIMIT_AS {shown}; {} cannot be reserved: {error}", human_bytes(bytes as u64)),
        )
        .mend("`ulimit -v unlimited`; if vm.overcommit_memory is 2, `sysctl vm.overcommit_memory=0`"),
    }
}

fn shown_limit(limit: u64, bytes: bool) -> String {
    match limit {
        u64::MAX => "unlimited".to_owned(),
        limit if bytes => human_bytes(limit),
        limit => limit.to_string(),
    }
}

/// Fewest descriptors with which Ebb's own fit in beside the program's.
const DESCRIPTORS_MIN: u64 = 64;

fn descriptors() -> Check {
    const NAME: &str = "descriptors";
    let (limit, _) = sys::resource_limit(libc::RLIMIT_NOFILE);
    let found = format!("RLIMIT_NOFILE {}", shown_limit(limit, false));
    if limit < DESCRIPTORS_MIN {
        Check::new(NAME, Status::Limited, found).mend("`ulimit -n 1024`")
    } else {
        Check::ok(NAME, found)
    }
}

fn other_limits() -> Check {
    let (memlock, _) = sys::resource_limit(libc::RLIMIT_MEMLOCK);
    let (stack, _) = sys::resource_limit(libc::RLIMIT_STACK);
    Check::ok(
        "other limits",
        format!(
            "RLIMIT_MEMLOCK {}; RLIMIT_STACK {}; Ebb does not manage stacks and does not evict locked memory",
            shown_limit(memlock, true),
            shown_limit(stack, true)
        ),
    )
}

fn huge_pages() -> Check {
    const NAME: &str = "huge pages";
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let mode = text.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("not available");
    let needs = if thp::is_new_enough() { "" } else { "; Ebb needs Linux 6.18 to have them, and uses small pages" };
    Check::ok(NAME, format!("transparent_hugepage/enabled = {mode}{needs}"))
}

fn overcommit() -> Check {
    const NAME: &str = "overcommit";
    let mode = sysctl("vm/overcommit_memory").unwrap_or_else(|| "unknown".to_owned());
    let found = format!("vm.overcommit_memory = {mode}");
    if mode == "2" {
        Check::new(NAME, Status::Limited, format!("{found}: the kernel refuses memory that Ebb could make room for"))
            .mend("`sysctl vm.overcommit_memory=0`")
    } else {
        Check::ok(NAME, found)
    }
}

/// With less free space than this, the spill directory is reported as limited.
const SPILL_FREE_BYTES_MIN: u64 = 1 << 30;

fn spill_directory() -> Check {
    const NAME: &str = "spill directory";
    const ELSEWHERE: &str = "name another directory with --swap file:DIR or EBB_TMPDIR=DIR";
    match spill::examine(&spill::default_directory()) {
        Ok(dir) => {
            let found = format!("{}: {} free", dir.path.display(), human_bytes(dir.free_bytes));
            if dir.in_memory {
                Check::new(
                    NAME,
                    Status::Limited,
                    format!("{found}, but this file system is in memory: spilling there saves no RAM"),
                )
                .mend(ELSEWHERE)
            } else if dir.free_bytes < SPILL_FREE_BYTES_MIN {
                Check::new(NAME, Status::Limited, found).mend(ELSEWHERE)
            } else {
                Check::ok(NAME, found).using("an unlinked, encrypted file")
            }
        }
        Err(failure) => {
            Check::new(NAME, Status::Blocked, format!("{}: {}", failure.what, failure.why)).mend(failure.remedy)
        }
    }
}

fn agent_library() -> Check {
    const NAME: &str = "agent";
    match agent::find() {
        Ok(path) => Check::ok(NAME, path.display().to_string()),
        Err(failure) => Check::new(NAME, Status::Blocked, failure.why).mend(failure.remedy),
    }
}

/// Every check, in the order in which they are shown.
pub fn checks() -> Vec<Check> {
    let offered = probe::features();
    let bounds = Bounds::read(Path::new("/"));
    let mut checks = vec![kernel(), agent_library(), userfaultfd()];
    checks.extend(essential_features(&offered));
    checks.extend(copying(&offered));
    checks.extend(moving(&offered));
    checks.extend([
        dispatch(),
        vectored_drop(),
        device_and_sysctl(),
        place(),
        seccomp(),
        memory(bounds.as_ref()),
        spill_directory(),
        address_space(),
        overcommit(),
        descriptors(),
        other_limits(),
        huge_pages(),
    ]);
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_need_is_a_failure_and_a_limited_one_is_not() {
        let blocked = Check::new("userfaultfd", Status::Blocked, "refused").mend("allow it");
        assert_eq!(blocked.failure().unwrap_err().to_string(), "ebb: userfaultfd: refused; allow it");
        assert_eq!(Check::new("x", Status::Limited, "slow").mend("hurry").failure(), Ok(()));
    }

    #[test]
    fn an_old_kernel_is_named_with_the_version_that_is_needed() {
        let (found, remedy) = refusal("userfaultfd", "5.11", &io::Error::from_raw_os_error(libc::EINVAL));
        assert!(found.contains("is too old for userfaultfd"), "{found}");
        assert_eq!(remedy, "run on Linux 5.11 or newer");
    }

    #[test]
    fn every_need_that_is_not_met_has_a_remedy() {
        let missing: Vec<Check> =
            checks().into_iter().filter(|check| check.status != Status::Ok && check.remedy.is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_missing_feature_blocks() {
        let check = feature("userfaultfd SIGBUS", probe::FEATURE_SIGBUS, "4.14", &Ok(0)).unwrap();
        assert_eq!(check.status, Status::Blocked);
        assert!(check.remedy.unwrap().contains("4.14"));
    }

    #[test]
    fn a_kernel_without_move_is_limited_to_copying() {
        let check = moving(&Ok(probe::FEATURE_SIGBUS)).unwrap();
        assert_eq!(check.status, Status::Limited);
        assert_eq!(check.mechanism, Some(COPYING));
    }
}
