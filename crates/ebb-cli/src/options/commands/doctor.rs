//! `ebb doctor`.

use clap::Command;

use super::parts::{choice, flag, help};

pub(super) fn doctor(command: Command) -> Command {
    command
        .long_about(DOCTOR)
        .override_usage(
            "ebb doctor [--json]\n       \
             ebb doctor --seccomp-profile docker|podman|k8s",
        )
        .after_long_help(DOCTOR_AFTER)
        .arg(flag("json").help("Print the same as JSON"))
        .arg(
            choice("seccomp-profile", "ENGINE", &["docker", "podman", "k8s"])
                .help("Print a seccomp profile for containers of docker, podman or k8s")
                .long_help(DOCTOR_PROFILE),
        )
        .arg(help())
}

const DOCTOR: &str = "\
Tries everything that Ebb needs on this host. For each need, it says ok, limited or blocked, what
Ebb would use, and how to fix a problem.";

const DOCTOR_PROFILE: &str = "\
Instead, print a seccomp profile for a container in which Ebb works: the default profile
of that engine (docker, podman or k8s), and two system calls that Ebb makes (userfaultfd
for faults in user mode, and process_madvise)";

const DOCTOR_AFTER: &str = "\
Exit status:
  0  `ebb run` works here
  1  it does not

Examples:
    ebb doctor
    ebb doctor --seccomp-profile docker > ebb.json";
