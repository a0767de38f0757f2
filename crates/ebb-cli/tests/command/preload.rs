//! The agent beside other preloaded libraries, and before programs whose loader cannot load it.

use crate::common::{House, code, err, is_root, out};
use std::path::Path;
use std::process::{Command, Output};

/// Answers for `/faked`, and passes everything else on. When it is initialized it looks whether SIGBUS has a handler: the
/// agent's.
const WRAPPER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int managed_at_start = -1;
__attribute__((constructor)) static void begin(void) {
    char text[4096] = { 0 };
    int fd = open("/proc/self/status", O_RDONLY);
    if (fd >= 0 && read(fd, text, sizeof text - 1) > 0 && strstr(text, "SigCgt:"))
        managed_at_start = strtoull(strstr(text, "SigCgt:") + 7, NULL, 16) >> (SIGBUS - 1) & 1;
    close(fd);
}
int access(const char *path, int mode) {
    int (*next)(const char *, int) = (int (*)(const char *, int))dlsym(RTLD_NEXT, "access");
    Dl_info of;
    if (!strcmp(path, "/next")) return dladdr((void *)next, &of) && strstr(of.dli_fname, "libebb_agent") ? 0 : -1;
    return strcmp(path, "/faked") ? next(path, mode) : 0;
}
"#;

/// Says what `access` answers, and what the wrapper found at its start.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    int *managed = dlsym(RTLD_DEFAULT, "managed_at_start");
    printf("%d %d %d %d %d\n", access("/faked", F_OK), access("/next", F_OK), access("/", F_OK), access("/no such", F_OK),
           managed ? *managed : -2);
    return 0;
}
"#;

/// Prints its `LD_PRELOAD`, without any library.
const SHOW: &str = include_str!("common/show_preload.c");

/// What `EBB_FORCE` is: a process is managed from its start, or as users get it.
const FORCES: [&str; 2] = ["no-dormant", ""];

fn with_force<'a>(command: &'a mut Command, force: &str) -> &'a mut Command {
    if force.is_empty() { command.env_remove("EBB_FORCE") } else { command.env("EBB_FORCE", force) }
}

/// Runs the shell script with `$W` and `$P` for the wrapper and the program.
fn shell(house: &House, force: &str, script: &str) -> Output {
    let mut command = house.ebb(["run", "-q", "--ram", "64M", "--", "/bin/sh", "-c", script]);
    command.env("W", house.path("w.so")).env("P", house.path("program"));
    with_force(&mut command, force).output().unwrap()
}

fn wrapped() -> House {
    let house = House::with_agent();
    house.compile("w.so", WRAPPER, &["-shared", "-fPIC"]);
    house.compile("program", PROGRAM, &[]);
    house
}

#[test]
fn a_wrapper_that_ebb_is_started_with_comes_before_the_agent() {
    let house = wrapped();
    for force in FORCES {
        let mut command = house.ebb(["run", "-q", "--ram", "64M", "--"].map(String::from));
        command.arg(house.path("program")).env("LD_PRELOAD", house.path("w.so"));
        let output = with_force(&mut command, force).output().unwrap();
        // The agent begins before the wrapper does, whatever their order in the list.
        let managed = u8::from(!force.is_empty());
        assert_eq!(out(&output), format!("0 0 0 -1 {managed}\n"), "{force}: {}", err(&output));
    }
}

#[test]
fn a_wrapper_that_the_program_asks_for_comes_before_the_agent() {
    let house = wrapped();
    for force in FORCES {
        let managed = u8::from(!force.is_empty());
        for list in ["$W", "$W:$LD_PRELOAD", "$W $LD_PRELOAD", "$W libm.so.6"] {
            let output = shell(&house, force, &format!("LD_PRELOAD=\"{list}\" $P"));
            assert_eq!(out(&output), format!("0 0 0 -1 {managed}\n"), "{force} {list}: {}", err(&output));
        }
        // As the program has it: the agent comes first, and there is nothing behind the wrapper but libc.
        let output = shell(&house, force, "LD_PRELOAD=$LD_PRELOAD:$W $P");
        assert_eq!(out(&output), format!("-1 -1 0 -1 {managed}\n"), "{force}: {}", err(&output));
    }
}

#[test]
fn what_is_asked_for_anew_stays_where_it_is_in_further_programs() {
    let house = wrapped();
    let agent = house.path("bin/libebb_agent.so").canonicalize().unwrap();
    let (agent, wrapper) = (agent.display(), house.path("w.so"));
    let wrapper = wrapper.display();
    for force in FORCES {
        for (list, expected) in [
            ("$W", format!("{wrapper}:{agent}")),
            ("$LD_PRELOAD:$W", format!("{agent}:{wrapper}")),
            ("$W $LD_PRELOAD", format!("{wrapper} {agent}")),
            ("", format!("{agent}")),
        ] {
            let script = format!("LD_PRELOAD=\"{list}\" sh -c 'sh -c \"echo \\\"\\$LD_PRELOAD\\\"\"'");
            let output = shell(&house, force, &script);
            assert_eq!(out(&output), format!("{expected}\n"), "{force} {list}: {}", err(&output));
        }
    }
}

#[test]
fn fakeroot_works_around_ebb_and_under_it() {
    if Command::new("fakeroot").arg("true").output().is_err() {
        println!("skipped: fakeroot is not installed");
        return;
    }
    let house = House::with_agent();
    let script = "touch a && chown 12:34 a && stat -c %u:%g a && id -u && rm a";
    let dir = tempfile::tempdir().unwrap();
    let ebb = house.path("bin/ebb");
    let run = [ebb.to_str().unwrap(), "run", "-q", "--ram", "64M", "--"];
    for force in FORCES {
        for words in [[&["fakeroot"][..], &run].concat(), [&run[..], &["fakeroot"]].concat()] {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).args(["sh", "-c", script]).current_dir(dir.path()).env_remove("LD_PRELOAD");
            let output = with_force(&mut command, force).output().unwrap();
            assert_eq!(out(&output), "12:34\n0\n", "{force} {words:?}: {}", err(&output));
        }
    }
}

#[test]
fn a_program_with_another_loader_does_not_find_the_agent() {
    let house = wrapped();
    let bare = ["-static", "-nostdlib", "-fno-stack-protector", "-fno-pie", "-no-pie"];
    let musl = house.compile("ld-musl-x86_64.so.1", SHOW, &bare);
    house.compile("musl", PROGRAM, &[&format!("-Wl,--dynamic-linker={}", musl.display())]);
    let glibc = house.compile("ld-linux-x86-64.so.2", SHOW, &bare);
    house.compile("glibc", PROGRAM, &[&format!("-Wl,--dynamic-linker={}", glibc.display())]);
    let agent = house.path("bin/libebb_agent.so").canonicalize().unwrap();
    let (agent, wrapper, dir) = (agent.display(), house.path("w.so"), house.path(""));
    let (wrapper, dir) = (wrapper.display(), dir.display());
    for force in FORCES {
        for (script, expected) in [
            (format!("{dir}/musl; :"), ".\n".to_owned()),
            (format!("exec {dir}/musl"), ".\n".to_owned()),
            (format!("env -i {dir}/musl"), ".\n".to_owned()),
            (format!("LD_PRELOAD=$LD_PRELOAD:$W:x.so {dir}/musl"), format!("LD_PRELOAD={wrapper}:x.so.\n")),
            (format!("{dir}/glibc; :"), format!("LD_PRELOAD={agent}.\n")),
            (format!("{dir}/ld-musl-x86_64.so.1; :"), format!("LD_PRELOAD={agent}.\n")),
        ] {
            let output = shell(&house, force, &script);
            let found = out(&output);
            assert_eq!((found, code(&output)), (expected, Some(0)), "{force} {script}: {}", err(&output));
        }
    }
}

#[test]
fn a_program_for_32_bits_does_not_find_the_agent() {
    let house = wrapped();
    let flags = ["-m32", "-static", "-nostdlib", "-fno-stack-protector", "-fno-pie", "-no-pie"];
    let program = house.compile("small", SHOW, &flags);
    if Command::new(&program).output().is_err() {
        println!("skipped: this kernel runs no 32-bit programs");
        return;
    }
    for force in FORCES {
        let output = shell(&house, force, &format!("{}; :", program.display()));
        assert_eq!(out(&output), ".\n", "{force}: {}", err(&output));
    }
}

#[test]
fn a_program_in_another_root_does_not_look_for_the_agent() {
    if !is_root() {
        println!("skipped: only root may change the root");
        return;
    }
    let house = wrapped();
    let root = house.path("root");
    let files = ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/env"];
    if !files.iter().all(|file| Path::new(file).exists()) {
        println!("skipped: the files for another root are not where they are looked for");
        return;
    }
    for file in files {
        let to = root.join(&file[1..]);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        assert!(Command::new("cp").arg("-L").arg(file).arg(to).status().unwrap().success());
    }
    for force in FORCES {
        let output = shell(&house, force, &format!("/usr/sbin/chroot {} /usr/bin/env; :", root.display()));
        assert_eq!((err(&output), code(&output)), (String::new(), Some(0)), "{force}");
        assert!(out(&output).contains("EBB_RAM=") && !out(&output).contains("LD_PRELOAD"), "{force}: {}", out(&output));
    }
}
