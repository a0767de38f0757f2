//! seccomp profiles for container engines: their defaults, and what Ebb needs beside. `profiles/README.md` says where they are
//! from.

/// Whose format and defaults a profile has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    Docker,
    Podman,
    /// As the kubelet reads it.
    Kubernetes,
}

impl Profile {
    /// What `--seccomp-profile` names.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "docker" => Some(Self::Docker),
            "podman" => Some(Self::Podman),
            "k8s" | "kubernetes" => Some(Self::Kubernetes),
            _ => None,
        }
    }

    /// The profile, as JSON.
    pub fn json(self) -> &'static str {
        match self {
            Self::Docker => include_str!("../../profiles/docker.json"),
            Self::Podman => include_str!("../../profiles/podman.json"),
            Self::Kubernetes => include_str!("../../profiles/kubernetes.json"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The rules that name a system call.
    fn rules(profile: Profile, call: &str) -> Vec<Value> {
        let profile: Value = serde_json::from_str(profile.json()).expect("JSON");
        let rules = profile["syscalls"].as_array().expect("rules");
        let names = |rule: &&Value| rule["names"].as_array().expect("names").contains(&json!(call));
        rules.iter().filter(names).cloned().collect()
    }

    #[test]
    fn each_allows_a_userfaultfd_for_user_mode_and_no_other() {
        for profile in [Profile::Docker, Profile::Podman, Profile::Kubernetes] {
            let rules = rules(profile, "userfaultfd");
            assert_eq!(rules.len(), 1);
            assert_eq!(rules[0]["action"], "SCMP_ACT_ALLOW");
            assert_eq!(
                rules[0]["args"],
                json!([{ "index": 0, "value": 1, "valueTwo": 1, "op": "SCMP_CMP_MASKED_EQ" }])
            );
        }
    }

    #[test]
    fn that_of_kubernetes_has_no_conditions() {
        // Its runtimes read the format of the OCI, which has none: what is bound to a capability elsewhere would be allowed.
        let value: Value = serde_json::from_str(Profile::Kubernetes.json()).expect("JSON");
        let top = ["defaultAction", "defaultErrnoRet", "architectures", "syscalls"];
        assert!(value.as_object().expect("an object").keys().all(|key| top.contains(&key.as_str())));
        for rule in value["syscalls"].as_array().expect("rules") {
            let known = ["names", "action", "errnoRet", "args"];
            assert!(rule.as_object().expect("an object").keys().all(|key| known.contains(&key.as_str())), "{rule}");
        }
        let refused = ["unshare", "setns", "mount", "bpf", "perf_event_open", "open_by_handle_at", "process_madvise"];
        let nr_rules = refused.map(|call| rules(Profile::Kubernetes, call).len());
        assert_eq!(nr_rules, [0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(rules(Profile::Kubernetes, "clone3")[0]["errnoRet"], 38);
    }

    #[test]
    fn that_of_kubernetes_is_dockers_as_it_holds_for_a_container() {
        const CAPABILITIES: [&str; 14] = [
            "CHOWN",
            "DAC_OVERRIDE",
            "FSETID",
            "FOWNER",
            "MKNOD",
            "NET_RAW",
            "SETGID",
            "SETUID",
            "SETFCAP",
            "SETPCAP",
            "NET_BIND_SERVICE",
            "SYS_CHROOT",
            "KILL",
            "AUDIT_WRITE",
        ];
        let is_one = |value: &Value, key: &str, holds: &dyn Fn(&str) -> bool| {
            let all = value[key].as_array().map_or(&[][..], Vec::as_slice);
            (
                all.iter().all(|one| one.as_str().is_some_and(holds)),
                all.iter().any(|one| one.as_str().is_some_and(holds)),
            )
        };
        let has = |cap: &str| cap.strip_prefix("CAP_").is_some_and(|cap| CAPABILITIES.contains(&cap));
        let here = |arch: &str| arch == "amd64";
        let applies = |rule: &&Value| {
            let (includes, excludes) = (&rule["includes"], &rule["excludes"]);
            (includes["arches"].is_null() || is_one(includes, "arches", &here).1)
                && is_one(includes, "caps", &has).0
                && !is_one(excludes, "arches", &here).1
                && !is_one(excludes, "caps", &has).1
        };
        let plain = |rule: &Value| ["names", "action", "errnoRet", "args"].map(|key| rule[key].clone());
        let of = |profile: Profile| serde_json::from_str::<Value>(profile.json()).expect("JSON")["syscalls"].clone();
        let (docker, kubernetes) = (of(Profile::Docker), of(Profile::Kubernetes));
        let docker: Vec<_> = docker.as_array().expect("rules").iter().filter(applies).map(plain).collect();
        assert_eq!(docker, kubernetes.as_array().expect("rules").iter().map(plain).collect::<Vec<_>>());
    }

    #[test]
    fn each_refuses_what_its_engine_refuses() {
        for profile in [Profile::Docker, Profile::Podman, Profile::Kubernetes] {
            let value: Value = serde_json::from_str(profile.json()).expect("JSON");
            assert_eq!(value["defaultAction"], "SCMP_ACT_ERRNO");
            for call in ["bpf", "init_module", "kexec_load", "open_by_handle_at", "settimeofday"] {
                let allowed = |rule: &Value| rule["action"] == "SCMP_ACT_ALLOW";
                let bound = |rule: &Value| rule["includes"]["caps"].is_array();
                assert!(rules(profile, call).iter().filter(|rule| allowed(rule)).all(bound), "{call}");
            }
        }
    }
}
