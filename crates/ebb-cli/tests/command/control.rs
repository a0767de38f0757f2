//! `ebb swapon` and `ebb swapoff` against a process whose agent is a stand-in that only talks.

use crate::common::{House, code, err, kill, out, pid, program_of, signal, terminal};
use std::fs::File;
use std::io::Read;
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use ebb::stats::Shared;

/// Opens a control socket when it is asked to, as the agent does, and answers by the name of the directory:
/// `full` is refused, `slow` waits to be cancelled, `gone` is never answered, anything else works.
const STAND_IN: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static uint32_t *asked;

static void say(int to, const char *text) { send(to, text, strlen(text), MSG_NOSIGNAL); }

static void answer(int to, const char *request) {
    if (!strcmp(request, "show")) {
        say(to, "file 536870912 4096 -1 ssd 0 0 0 0 - /var/a directory");
        say(to, "file 1610612736 0 100 hdd 8000000 12 3 1610612736 21474836480/day /x");
        say(to, "ok");
    } else if (strstr(request, "gone")) {
        return;
    } else if (strstr(request, "full")) {
        say(to, "error 28 the disk is full; make room there");
    } else if (strstr(request, "slow")) {
        struct pollfd cancelled = { to, POLLIN, 0 };
        char byte;
        do say(to, "left 1572864"); while (poll(&cancelled, 1, 10) == 0);
        if (recv(to, &byte, 1, 0) == 0) say(to, "error 4 it was interrupted; try again");
    } else if (!strncmp(request, "swapon file:/", 13) || !strncmp(request, "swapoff /", 9)) {
        if (request[5] == 'f') say(to, "left 4096");
        say(to, "ok");
    }
}

static void *serve(void *unused) {
    struct sockaddr_un at = { AF_UNIX, "" };
    char request[1024];
    pthread_setname_np(pthread_self(), "ebb-reclaim");
    uint32_t before = *asked;
    write(1, "ready\n", 6);
    while (getenv("TEST_DEAF") || __atomic_load_n(asked, __ATOMIC_ACQUIRE) == before)
        syscall(SYS_futex, asked, FUTEX_WAIT, before, 0, 0, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s/.ebb-control-%d", getenv("TEST_SOCKET_DIR"), getpid());
    int in = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (bind(in, (struct sockaddr *)&at, sizeof at) || chmod(at.sun_path, 0600)) _exit(97);
    if (open(at.sun_path, O_PATH | O_CLOEXEC) < 0 || unlink(at.sun_path) || listen(in, 4)) _exit(98);
    for (;;) {
        int to = accept(in, 0, 0);
        ssize_t len = recv(to, request, sizeof request - 1, 0);
        request[len < 0 ? 0 : len] = 0;
        answer(to, request);
        close(to);
    }
}

__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    const char *fd = getenv("EBB_STATS_FD");
    if (!fd) return;
    char *page = mmap(0, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(fd), 0);
    if (page == MAP_FAILED || syscall(SYS_userfaultfd, O_CLOEXEC | 1) < 0) _exit(96);
    asked = (uint32_t *)(page + AT_ASKED);
    if (getenv("TEST_SMALL")) write(1, "ready\n", 6);
    else pthread_create(&thread, 0, serve, 0);
    if (getenv("TEST_ENDED")) syscall(SYS_exit, 0);
}
"#;

/// A program under `ebb run` with that stand-in; both end with it.
struct Running {
    house: House,
    ebb: Child,
    pid: i32,
}

impl Running {
    fn new(variables: &[(&str, &str)]) -> Self {
        Self::of(variables, &["/bin/sleep", "600"])
    }

    /// Likewise, but runs `program`, whose process is then the first of its tree.
    fn of(variables: &[(&str, &str)], program: &[&str]) -> Self {
        let house = House::without_agent();
        let map_bytes = format!("-DMAP_BYTES={}", Shared::MAP_BYTES);
        let at_asked = format!("-DAT_ASKED={}", std::mem::offset_of!(Shared, asked));
        house.compile("bin/libebb_agent.so", STAND_IN, &["-shared", "-fPIC", "-pthread", &map_bytes, &at_asked]);
        for name in ["full", "slow", "gone", "fine"] {
            std::fs::create_dir(house.path(name)).unwrap();
        }
        let name = Self::name_of(&house);
        let options = ["run", "-q", "--ram", "64M", "--swap", "none", "--name", &name, "--"];
        let mut command = house.ebb(options.iter().chain(program));
        // Short: the address of a socket has 108 bytes.
        let mut ebb = command.envs(variables.iter().copied()).env("TEST_SOCKET_DIR", "/tmp").spawn().unwrap();
        crate::common::wait_for_line(&mut ebb, "ready");
        let pid = program_of(&ebb);
        Self { house, ebb, pid }
    }

    /// The name of the tree, which no other test has.
    fn name_of(house: &House) -> String {
        format!("control{}", house.path("").file_name().unwrap().to_str().unwrap())
    }

    /// Runs `ebb` with `PID` standing for the process, `NAME` for its tree, and a name after `@` for a directory.
    fn ask(&self, words: &[&str]) -> Output {
        self.house.run(self.words(words))
    }

    fn words(&self, words: &[&str]) -> Vec<String> {
        let house = format!("{}/", self.house.path("").canonicalize().unwrap().display());
        words
            .iter()
            .map(|word| {
                word.replace("PID", &self.pid.to_string())
                    .replace("NAME", &Self::name_of(&self.house))
                    .replace('@', &house)
            })
            .collect()
    }

    /// The one line that `ebb` says, with `status`.
    fn refusal(&self, status: i32, words: &[&str]) -> String {
        let output = self.ask(words);
        assert_eq!((code(&output), out(&output)), (Some(status), String::new()), "{}", err(&output));
        err(&output)
    }

    /// What `ebb` says itself, with names as `ask` takes them.
    fn line(&self, text: &str) -> String {
        format!("ebb: {}\n", self.words(&[text])[0])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its child, which the stand-in does not end.
        kill(self.pid, libc::SIGKILL);
        let _ = self.ebb.kill();
        let _ = self.ebb.wait();
    }
}

/// Starts `ebb` with a terminal as its standard error, and reads there until `wanted` comes.
fn on_terminal(running: &Running, words: &[&str], wanted: &str) -> (Child, File, String) {
    let (mut screen, end) = terminal();
    let child = running.house.ebb(running.words(words)).stderr(end).spawn().unwrap();
    let text = read_until(&mut screen, |text| text.contains(wanted));
    (child, screen, text)
}

/// What comes on a screen until `is_all` says so of it, or nobody writes there any more.
fn read_until(screen: &mut File, is_all: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    while !is_all(&text) {
        let mut some = [0; 256];
        match screen.read(&mut some) {
            Ok(len) if len > 0 => text += &String::from_utf8_lossy(&some[..len]),
            _ => break,
        }
    }
    text
}

#[test]
fn the_devices_of_a_process_are_shown() {
    let running = Running::new(&[]);
    let output = running.ask(&["swapon", "--show", "PID"]);
    let table = "NAME             TYPE SIZE USED PRIO KIND READ-US AHEAD-HIT AHEAD-MISS WRITTEN  WRITES\n\
                 /var/a directory file 512M   4K   -1 ssd        -         0          0      0B       -\n\
                 /x               file 1.5G   0B  100 hdd     8000        12          3    1.5G 20G/day\n";
    assert_eq!((code(&output), out(&output), err(&output)), (Some(0), table.to_owned(), String::new()));
    let output = running.ask(&["swapon", "--show", "PID", "--bytes", "--noheadings"]);
    let table = "/var/a directory file  536870912 4096  -1 ssd    -  0 0          0               -\n\
                 /x               file 1610612736    0 100 hdd 8000 12 3 1610612736 21474836480/day\n";
    assert_eq!(out(&output), table);
}

#[test]
fn a_device_is_given_and_taken_without_a_word() {
    let running = Running::new(&[]);
    for words in [["swapon", "PID", "file:@fine,prio=3"], ["swapoff", "PID", "@fine/."]] {
        let output = running.ask(&words);
        assert_eq!((code(&output), out(&output), err(&output)), (Some(0), String::new(), String::new()));
    }
}

#[test]
fn the_name_of_a_tree_with_one_process_means_that_process() {
    let running = Running::new(&[]);
    for words in [["swapon", "NAME", "file:@fine,prio=3"], ["swapoff", "NAME", "@fine/."]] {
        let output = running.ask(&words);
        assert_eq!((code(&output), out(&output), err(&output)), (Some(0), String::new(), String::new()));
    }
    let output = running.ask(&["swapon", "--show", "NAME", "--noheadings"]);
    let pids: Vec<String> = out(&output).lines().map(|line| line.split_whitespace().next().unwrap().into()).collect();
    assert_eq!((code(&output), pids), (Some(0), vec![running.pid.to_string(); 2]), "{}", err(&output));
    let line = running.refusal(125, &["swapon", "no-such-NAME", "file:@fine"]);
    assert!(line.ends_with(": no running tree of this user has this name; list the running trees with `ebb ps`\n"));
}

#[test]
fn of_a_tree_with_several_processes_one_has_to_be_named() {
    let running = Running::of(&[], &["/bin/sh", "-c", "/bin/sleep 600 & wait"]);
    let children = || out(&running.ask(&["swapon", "--show", "NAME", "--noheadings"])).lines().count() / 2;
    crate::common::wait_until("both can be asked", || children() == 2);
    for words in [["swapon", "NAME", "file:@fine"], ["swapoff", "NAME", "@fine"]] {
        let line = running.refusal(125, &words);
        let start = running.line("tree NAME: it has 2 managed processes: PID, ");
        assert!(line.starts_with(start.trim_end()), "{line}");
        assert!(line.ends_with("; name one of them by its PID\n"), "{line}");
    }
}

#[test]
fn a_directory_is_checked_before_the_process_is_asked() {
    let running = Running::new(&[]);
    assert_eq!(
        running.refusal(125, &["swapon", "PID", "file:@none"]),
        running.line(
            "spill directory @none: No such file or directory (os error 2); \
             name a writable directory as file:DIR"
        )
    );
}

#[test]
fn what_the_process_refuses_is_told_with_its_reason_and_status_1() {
    let running = Running::new(&[]);
    assert_eq!(
        running.refusal(1, &["swapon", "PID", "file:@full,size=1M,kind=ssd"]),
        running.line("swapon file:@full,size=1048576 in process PID: the disk is full; make room there")
    );
    assert_eq!(
        running.refusal(1, &["swapoff", "PID", "@full"]),
        running.line("swapoff @full in process PID: the disk is full; make room there")
    );
}

#[test]
fn a_process_that_closes_the_connection_is_told() {
    let running = Running::new(&[]);
    let line = running.refusal(125, &["swapoff", "PID", "@gone"]);
    assert!(line.contains("the process ended or closed the connection; "), "{line}");
}

#[test]
fn a_terminal_shows_what_is_left_and_an_interrupt_takes_it_back() {
    let running = Running::new(&[]);
    let (child, mut screen, text) = on_terminal(&running, &["swapoff", "PID", "@slow"], " left");
    assert!(text.starts_with("\rebb: swapoff: 1.5M left"), "{text:?}");
    kill(pid(&child), libc::SIGTERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(signal(&output), Some(libc::SIGTERM));
    let line =
        running.line("swapoff @slow in process PID: interrupted, and the device stays in use; run it again to finish");
    let wanted = format!("\r\x1b[K{}", line.replace('\n', "\r\n"));
    let rest = read_until(&mut screen, |rest| rest.ends_with(&wanted));
    assert!(rest.ends_with(&wanted), "{rest:?}");
    assert_eq!(code(&running.ask(&["swapon", "--show", "PID"])), Some(0));
}

#[test]
fn a_process_that_does_not_hear_is_told_after_a_while() {
    let running = Running::new(&[("TEST_DEAF", "1")]);
    let line = running.refusal(125, &["swapon", "--show", "PID"]);
    assert_eq!(
        line,
        running.line(
            "process PID: it opened no control socket within 12 s; check that it has a free descriptor (ulimit -n) and \
             can write to /dev/shm, /tmp or /var/tmp, or try again"
        )
    );
    kill(running.pid, libc::SIGSTOP);
    crate::common::wait_until("the program stops", || crate::common::state(running.pid) == Some('T'));
    let line = running.refusal(125, &["swapon", "--show", "PID"]);
    assert!(line.contains(&format!("it is stopped; continue it with `kill -CONT {}`", running.pid)), "{line}");
}

#[test]
fn a_process_with_too_little_memory_is_told_at_once_and_passed_over_where_all_are_asked() {
    let running = Running::new(&[("TEST_SMALL", "1")]);
    /// Where a process does not hear at all `ebb` waits longer than that, each time.
    const AT_ONCE: Duration = Duration::from_secs(4);
    for words in [&["swapon", "--show", "PID"][..], &["swapon", "PID", "file:@fine"], &["swapoff", "PID", "@fine"]] {
        crate::common::wait_until("it is told at once, unless the machine has no time", || {
            let begin = Instant::now();
            assert_eq!(
                running.refusal(125, words),
                running.line(
                    "process PID: it has never held the 8 MiB at which Ebb starts to manage a process, so none of \
                     its memory is swapped; try again when it has grown"
                )
            );
            begin.elapsed() < AT_ONCE
        });
    }
    assert_eq!(
        running.refusal(125, &["swapon", "NAME", "file:@fine"]),
        running.line(
            "tree NAME: none of its processes has ever held the 8 MiB at which Ebb starts to manage a process, so none of \
             its memory is swapped; try again when it has grown"
        )
    );
    let all = running.ask(&["swapon", "--show"]);
    // There may be processes of others.
    let about = format!("process {}:", running.pid);
    assert!(code(&all) == Some(0) && !err(&all).contains(&about), "{}", err(&all));
}

#[test]
fn a_process_whose_first_thread_has_ended_answers() {
    let running = Running::new(&[("TEST_ENDED", "1")]);
    crate::common::wait_until("the first thread ends", || crate::common::state(running.pid) == Some('Z'));
    let output = running.ask(&["swapon", "--show", "PID", "--noheadings"]);
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
    assert_eq!(out(&output).lines().count(), 2);
    let output = running.ask(&["locks", "PID"]);
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
}

#[test]
fn processes_that_are_not_managed_are_left_alone() {
    let running = Running::new(&[]);
    let ebb = pid(&running.ebb).to_string();
    let line = running.refusal(125, &["swapon", "--show", &ebb]);
    assert!(line.contains("it belongs to a tree under Ebb, but Ebb does not manage it; "), "{line}");
    let this = std::process::id().to_string();
    for words in [["swapon", this.as_str(), "file:@fine"], ["swapoff", this.as_str(), "@fine"]] {
        assert_eq!(
            running.refusal(125, &words),
            format!("ebb: process {this}: it does not run under Ebb; name a process started by `ebb run`\n")
        );
    }
}
