//! Where this process runs, as far as that decides how Ebb is allowed: the container engine, or who else stands between the process
//! and the kernel.

use std::ffi::OsString;
use std::path::Path;

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nobody that is known.
    Host,
    Docker,
    Podman,
    Kubernetes,
    Apptainer,
    Slurm,
    /// A kernel of its own, written in Go.
    Gvisor,
    /// Windows Subsystem for Linux.
    Wsl,
}

/// The version line of gVisor's kernel, which never changes.
const GVISOR: &str = "#1 SMP Sun Jan 10 15:06:54 PST 2016";

impl Place {
    /// Looks at the files below `root`, and at the environment.
    pub fn find(root: &Path, env: impl Fn(&str) -> Option<OsString>) -> Self {
        let has = |path: &str| root.join(path).exists();
        let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let is_set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
        if text("proc/version").contains(GVISOR) {
            Self::Gvisor
        } else if is_set("KUBERNETES_SERVICE_HOST") || has("var/run/secrets/kubernetes.io") {
            // Before the engine below it, whose files are there as well.
            Self::Kubernetes
        } else if has("run/.containerenv") || env("container").is_some_and(|engine| engine == "podman") {
            Self::Podman
        } else if has(".dockerenv") {
            Self::Docker
        } else if has(".singularity.d") || is_set("APPTAINER_CONTAINER") || is_set("SINGULARITY_CONTAINER") {
            Self::Apptainer
        } else if is_set("SLURM_JOB_ID") {
            Self::Slurm
        } else if text("proc/sys/kernel/osrelease").to_ascii_lowercase().contains("microsoft") {
            Self::Wsl
        } else {
            Self::Host
        }
    }

    /// Where this process runs.
    pub fn here() -> Self {
        Self::find(Path::new("/"), |name| std::env::var_os(name))
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "no container that is known",
            Self::Docker => "a Docker container",
            Self::Podman => "a Podman container",
            Self::Kubernetes => "a Kubernetes pod",
            Self::Apptainer => "an Apptainer container",
            Self::Slurm => "a Slurm job",
            Self::Gvisor => "gVisor",
            Self::Wsl => "WSL",
        }
    }

    /// The least that has to change where a filter refuses the system call userfaultfd.
    pub fn userfaultfd_remedy(self) -> &'static str {
        match self {
            Self::Docker => {
                "start the container with `--device /dev/userfaultfd` (Linux 6.1 or newer, for programs that begin as \
                 root), or write a profile with `ebb doctor --seccomp-profile docker > ebb.json` and start the container \
                 with `--security-opt seccomp=ebb.json`"
            }
            Self::Podman => {
                "write a profile with `ebb doctor --seccomp-profile podman > ebb.json` and start the container with \
                 `--security-opt seccomp=ebb.json`; or, where podman runs as root, with `--device /dev/userfaultfd`"
            }
            Self::Kubernetes => {
                "have the nodes keep the output of `ebb doctor --seccomp-profile k8s` as \
                 /var/lib/kubelet/seccomp/ebb.json, and give the container the securityContext `seccompProfile: {type: \
                 Localhost, localhostProfile: ebb.json}`"
            }
            Self::Apptainer | Self::Slurm => {
                "ask the administrators of the cluster to allow the system call userfaultfd with the flag \
                 UFFD_USER_MODE_ONLY in the filter that they apply to jobs"
            }
            Self::Gvisor => {
                "gVisor does not have it; run the container with the runtime runc (`docker run --runtime runc`, or a pod \
                 without gVisor's RuntimeClass)"
            }
            Self::Wsl | Self::Host => {
                "allow userfaultfd with the flag UFFD_USER_MODE_ONLY in the seccomp filter of whatever started this \
                 process, or let it open /dev/userfaultfd"
            }
        }
    }

    /// What to do where the kernel has no userfaultfd at all. None if it takes a newer kernel.
    pub fn kernel_remedy(self) -> Option<&'static str> {
        match self {
            Self::Gvisor => Some(self.userfaultfd_remedy()),
            Self::Wsl => Some("use WSL 2 and update its kernel: `wsl --update` in Windows"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(files: &[(&str, &str)], variables: &[(&str, &str)]) -> Place {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            std::fs::write(path, text).expect("a file");
        }
        let env = |name: &str| variables.iter().find(|(var, _)| *var == name).map(|(_, value)| value.into());
        Place::find(root.path(), env)
    }

    #[test]
    fn each_place_leaves_its_marks() {
        assert_eq!(find(&[], &[]), Place::Host);
        assert_eq!(find(&[(".dockerenv", "")], &[]), Place::Docker);
        assert_eq!(find(&[("run/.containerenv", "engine=\"podman-5.4.2\"\n")], &[]), Place::Podman);
        assert_eq!(find(&[], &[("container", "podman")]), Place::Podman);
        assert_eq!(find(&[], &[("container", "systemd-nspawn")]), Place::Host);
        let token = ("var/run/secrets/kubernetes.io/serviceaccount/token", "");
        assert_eq!(find(&[(".dockerenv", ""), token], &[]), Place::Kubernetes);
        assert_eq!(find(&[], &[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]), Place::Kubernetes);
        assert_eq!(find(&[], &[("KUBERNETES_SERVICE_HOST", "")]), Place::Host);
        assert_eq!(find(&[(".singularity.d/runscript", "")], &[("SLURM_JOB_ID", "7")]), Place::Apptainer);
        assert_eq!(find(&[], &[("SLURM_JOB_ID", "7")]), Place::Slurm);
        let gvisor = ("proc/version", "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n");
        assert_eq!(find(&[gvisor, (".dockerenv", "")], &[]), Place::Gvisor);
        let wsl = ("proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n");
        assert_eq!(find(&[wsl], &[]), Place::Wsl);
        assert_eq!(find(&[wsl, (".dockerenv", "")], &[]), Place::Docker);
    }

    #[test]
    fn no_remedy_opens_more_than_it_must() {
        let all = [
            Place::Host,
            Place::Docker,
            Place::Podman,
            Place::Kubernetes,
            Place::Apptainer,
            Place::Slurm,
            Place::Gvisor,
            Place::Wsl,
        ];
        for place in all {
            let remedy = place.userfaultfd_remedy();
            assert!(!remedy.contains("unconfined") && !remedy.contains("privileged"), "{remedy}");
        }
    }
}
