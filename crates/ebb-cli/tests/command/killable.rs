//! Signals to a program whose threads all wait in Ebb, for a write budget that is spent: one that ends or stops the program by default
//! does so at once, and every other one waits.

use crate::common::{self, House, code, err, has_ended, kill, out, state, wait_until};
use std::fs::{self, File, create_dir};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// `wait WAY SIGTERM THREADS MIB PROGRESS NOISE`: fills so many MiB with noise in so many threads, and checks them. WAY says how:
/// `fault` by touching them, `trap` by a system call that Ebb catches, `call` by a function of libc that Ebb replaces, `handler` in a
/// signal handler that blocks SIGTERM, `vfork` first in a child of vfork. SIGTERM says what becomes of that signal. The file
/// PROGRESS has the number of blocks that are full.
const WAIT: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
enum { BLOCK = 1 << 16, NOISE = 1 << 20 };
static const char *way;
static char *memory, *noise;
static int file, threads, blocks, is_lost;
static unsigned *progress;
static volatile sig_atomic_t handled;
static void say(const char *line) { if (write(1, line, strlen(line)) < 0) _exit(2); }
static void *fill(void *first) {
    for (long i = (long)first; i < blocks; i += threads) {
        char *to = memory + i * BLOCK;
        long from = i * BLOCK % NOISE;
        long n = BLOCK;
        if (!strcmp(way, "trap")) n = syscall(SYS_pread64, file, to, BLOCK, from);
        else if (!strcmp(way, "call")) n = pread(file, to, BLOCK, from);
        else memcpy(to, noise + from, BLOCK);
        if (n != BLOCK) is_lost = 1;
        __atomic_fetch_add(progress, 1, __ATOMIC_RELAXED);
    }
    return 0;
}
static void check(void) {
    for (long i = 0; i < blocks; i++) is_lost |= memcmp(memory + i * BLOCK, noise + i * BLOCK % NOISE, BLOCK) != 0;
    say(is_lost ? "lost\n" : "whole\n");
}
static void on_term(int sig) { (void)sig; handled++; say("handled\n"); }
static void on_usr1(int sig) { (void)sig; fill(0); check(); }
int main(int count, char **words) {
    if (count != 7) return 3;
    way = words[1];
    threads = atoi(words[3]);
    blocks = atoi(words[4]) << 4;
    progress = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[5], O_RDWR), 0);
    file = open(words[6], O_RDONLY);
    noise = mmap(0, NOISE, PROT_READ, MAP_SHARED, file, 0);
    memory = mmap(0, (size_t)blocks * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED || noise == MAP_FAILED || memory == MAP_FAILED) return 4;
    sigset_t term, pending;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    if (!strcmp(words[2], "handled")) signal(SIGTERM, on_term);
    else if (!strcmp(words[2], "ignored")) signal(SIGTERM, SIG_IGN);
    else signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    signal(SIGTSTP, SIG_DFL);
    sigprocmask(strcmp(words[2], "blocked") ? SIG_UNBLOCK : SIG_BLOCK, &term, 0);
    if (!strcmp(way, "handler")) {
        struct sigaction action = {.sa_handler = on_usr1, .sa_mask = term};
        sigaction(SIGUSR1, &action, 0);
        raise(SIGUSR1);
        return 5;
    }
    if (!strcmp(way, "vfork")) {
        // As a small process it would answer nobody.
        int status;
        memset(memory, 1, 16 << 20);
        pid_t child = vfork();
        if (child == 0) { fill(0); _exit(0); }
        if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) || WTERMSIG(status) != SIGTERM) return 6;
        say("child\n");
    }
    pthread_t others[16];
    for (long i = 1; i < threads; i++) if (pthread_create(&others[i], 0, fill, (void *)i)) return 7;
    fill(0);
    for (long i = 1; i < threads; i++) pthread_join(others[i], 0);
    check();
    if (handled > 1) say("handled twice\n");
    sigpending(&pending);
    if (sigismember(&pending, SIGTERM)) say("pending\n");
    return 0;
}
"#;

/// A program that waits.
struct Waiting {
    house: House,
    dir: String,
    ebb: Child,
    program: libc::pid_t,
}

impl Waiting {
    /// Starts `wait` and waits until all its threads wait.
    fn start(way: &str, sigterm: &str, threads: usize) -> Self {
        let house = House::with_agent();
        create_dir(house.path("a")).unwrap();
        let dir = house.path("a").canonicalize().unwrap().display().to_string();
        let binary = house.compile("wait", WAIT, &["-pthread"]);
        let (progress, noise) = (house.path("progress"), house.path("noise"));
        File::create(&progress).unwrap().set_len(4096).unwrap();
        let mut random = vec![0; 1 << 20];
        std::io::Read::read_exact(&mut File::open("/dev/urandom").unwrap(), &mut random).unwrap();
        fs::write(&noise, random).unwrap();
        let device = format!("file:{dir},size=1G,writes=256K/week");
        let words = ["run", "-q", "--ram", "32M", "--swap", &device, "--", binary.to_str().unwrap(), way, sigterm];
        let ebb = house
            .ebb(words)
            // No thread's part fits in the budget.
            .args([threads, 48 * threads].map(|n| n.to_string()))
            .args([&progress, &noise])
            // A group of its own has its parent in another, so that the kernel stops it.
            .process_group(0)
            .stdout(File::create(house.path("out")).unwrap())
            .stderr(File::create(house.path("err")).unwrap())
            .spawn()
            .unwrap();
        let mut waiting = Self { house, dir, ebb, program: 0 };
        waiting.wait_until_all_wait();
        waiting
    }

    fn progress(&self) -> u32 {
        u32::from_ne_bytes(fs::read(self.house.path("progress")).unwrap()[..4].try_into().unwrap())
    }

    fn said(&self, stream: &str) -> String {
        let path: PathBuf = self.house.path(stream);
        fs::read_to_string(path).unwrap()
    }

    /// The program, if its device is held.
    fn held(&self) -> Option<libc::pid_t> {
        let all = out(&self.house.run(["swapon", "--show", "--noheadings"]));
        let mut rows = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.find(|row| row[1] == self.dir && row[2] == "held").map(|row| row[0].parse().unwrap())
    }

    /// Waits until the budget is spent and no thread has gone on for a second.
    fn wait_until_all_wait(&mut self) {
        let mut seen = (0, Instant::now());
        wait_until("all wait", || {
            self.expect_running();
            let now = self.progress();
            if now != seen.0 {
                seen = (now, Instant::now());
            }
            if now > 0 && seen.1.elapsed() > Duration::from_secs(1) {
                self.program = self.held().unwrap_or_default();
            }
            self.program > 0
        });
    }

    fn expect_running(&mut self) {
        let ended = self.ebb.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}{}", self.said("out"), self.said("err"));
    }

    /// Waits for the end. Returns the status, and how long it took.
    fn end(&mut self) -> (ExitStatus, Duration) {
        let (begun, mut status) = (Instant::now(), None);
        wait_until("the end", || {
            status = self.ebb.try_wait().unwrap();
            status.is_some()
        });
        (status.unwrap(), begun.elapsed())
    }

    /// Raises the budget, and waits for the end. Returns the status, and what the program said.
    fn go_on(&mut self) -> (ExitStatus, String) {
        let greater =
            self.house.run(["swapon", &self.program.to_string(), &format!("file:{},writes=1T/hour", self.dir)]);
        assert_eq!((code(&greater), err(&greater)), (Some(0), String::new()));
        let (status, _) = self.end();
        (status, self.said("out"))
    }
}

impl Drop for Waiting {
    /// Takes the program along that a test has left.
    fn drop(&mut self) {
        // SAFETY: the group is that of a child that is still to be waited for.
        unsafe { libc::kill(-common::pid(&self.ebb), libc::SIGKILL) };
        let _ = self.ebb.wait();
    }
}

/// Sends a signal to `ebb` or to the program, which waits, and expects it to end both.
fn ends(way: &str, threads: usize, signal: i32, to_ebb: bool) {
    let mut waiting = Waiting::start(way, "default", threads);
    kill(if to_ebb { common::pid(&waiting.ebb) } else { waiting.program }, signal);
    let (status, took) = waiting.end();
    assert_eq!((status.signal(), waiting.said("out")), (Some(signal), String::new()), "{}", waiting.said("err"));
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(has_ended(waiting.program));
}

#[test]
fn sigterm_ends_a_program_that_waits_in_a_fault() {
    ends("fault", 1, libc::SIGTERM, false);
}

#[test]
fn sigint_ends_a_program_whose_threads_all_wait_in_faults() {
    ends("fault", 4, libc::SIGINT, true);
}

#[test]
fn sigint_ends_a_program_that_waits_in_a_system_call() {
    ends("trap", 1, libc::SIGINT, false);
}

#[test]
fn sigterm_ends_a_program_whose_threads_all_wait_in_system_calls() {
    ends("trap", 3, libc::SIGTERM, true);
}

#[test]
fn sighup_ends_a_program_that_waits_in_a_function_of_libc() {
    ends("call", 2, libc::SIGHUP, false);
}

#[test]
fn a_signal_to_one_thread_that_waits_ends_the_program() {
    let mut waiting = Waiting::start("fault", "default", 3);
    let tasks = fs::read_dir(format!("/proc/{}/task", waiting.program)).unwrap();
    let tids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse::<libc::pid_t>().unwrap());
    // Ebb's own threads have names of their own.
    let is_programs = |tid: &libc::pid_t| {
        let name = fs::read_to_string(format!("/proc/{}/task/{tid}/comm", waiting.program)).unwrap();
        *tid != waiting.program && name == "wait\n"
    };
    let tid = tids.filter(is_programs).last().unwrap();
    // SAFETY: the program runs.
    assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, waiting.program, tid, libc::SIGTERM) }, 0);
    assert_eq!(waiting.end().0.signal(), Some(libc::SIGTERM));
}

/// Sends SIGTERM to a program that waits, and expects it to go on waiting, and to be whole when it goes on.
fn goes_on(way: &str, sigterm: &str, threads: usize) -> (ExitStatus, String) {
    let mut waiting = Waiting::start(way, sigterm, threads);
    kill(waiting.program, libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(500));
    waiting.expect_running();
    assert_eq!(waiting.said("out"), "");
    waiting.go_on()
}

#[test]
fn a_signal_with_a_handler_waits_for_the_wait_to_end() {
    for (way, threads) in [("fault", 1), ("trap", 3), ("call", 1)] {
        let (status, said) = goes_on(way, "handled", threads);
        assert_eq!((status.code(), &said[..]), (Some(0), "handled\nwhole\n"), "{way}");
    }
}

#[test]
fn a_signal_that_is_blocked_or_ignored_ends_nothing() {
    for (way, sigterm, last) in
        [("fault", "blocked", "pending\n"), ("trap", "blocked", "pending\n"), ("fault", "ignored", "")]
    {
        let (status, said) = goes_on(way, sigterm, 2);
        assert_eq!((status.code(), said), (Some(0), format!("whole\n{last}")), "{way} {sigterm}");
    }
}

#[test]
fn a_signal_that_a_handler_blocks_ends_nothing_before_the_handler_returns() {
    let (status, said) = goes_on("handler", "default", 1);
    assert_eq!((status.signal(), &said[..]), (Some(libc::SIGTERM), "whole\n"));
}

#[test]
fn a_child_of_vfork_ends_when_its_wait_is_over() {
    let mut waiting = Waiting::start("vfork", "default", 1);
    let child = common::children(waiting.program)[0];
    kill(child, libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(500));
    assert!(!has_ended(child));
    let (status, said) = waiting.go_on();
    assert_eq!((status.code(), &said[..]), (Some(0), "child\nwhole\n"), "{}", waiting.said("err"));
}

#[test]
fn a_program_that_waits_stops_and_continues() {
    let mut waiting = Waiting::start("fault", "default", 2);
    kill(waiting.program, libc::SIGTSTP);
    wait_until("the stop", || state(waiting.program) == Some('T'));
    wait_until("the stop of ebb", || state(common::pid(&waiting.ebb)) == Some('T'));
    kill(common::pid(&waiting.ebb), libc::SIGCONT);
    wait_until("it goes on", || state(waiting.program) != Some('T'));
    let (status, said) = waiting.go_on();
    assert_eq!((status.code(), &said[..]), (Some(0), "whole\n"), "{}", waiting.said("err"));
}
