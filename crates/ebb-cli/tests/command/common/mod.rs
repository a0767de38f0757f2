//! A private place with `ebb` and an agent in it, and small C programs to run there.
//!
//! The agent of these tests is a stand-in that only counts: they are about the command, and must fail only for it.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ebb::stats::Shared;

/// Longest wait for something that takes milliseconds, where the machine has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(200);

/// Counts its process, and fails as it is told by `TEST_AGENT_ERROR`.
const STAND_IN: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
__attribute__((constructor)) static void count(void) {
    const char *fd = getenv("EBB_STATS_FD"), *ram = getenv("EBB_RAM"), *error = getenv("TEST_AGENT_ERROR");
    if (!fd || !ram) return;
    char *page = mmap(0, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(fd), 0);
    if (page == MAP_FAILED) abort();
    __atomic_fetch_add((uint64_t *)(page + AT_PROCESSES), 1, __ATOMIC_RELAXED);
    __atomic_store_n((uint64_t *)(page + AT_LIMIT), strtoull(ram, 0, 10), __ATOMIC_RELAXED);
    if (error) { strcpy(page + AT_ERROR, error); exit(125); }
}
"#;

/// The agent of this build, built if it is not: nothing that cargo builds for a test depends on it. `EBB_TEST_AGENT` names one that
/// has just been built: cargo would wait here for as long as another cargo builds anything in the same directory.
pub fn built_agent() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let dir = Path::new(env!("CARGO_BIN_EXE_ebb")).parent().unwrap();
        let built = dir.join("libebb_agent.so");
        if std::env::var_os("EBB_TEST_AGENT").is_some_and(|agent| Path::new(&agent) == built) {
            return built;
        }
        let profile = match dir.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            name => name,
        };
        let cargo = Command::new(env!("CARGO"))
            .args(["build", "-q", "-p", "ebb-agent", "--profile", profile, "--target-dir"])
            .arg(dir.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(cargo.unwrap().success(), "the agent cannot be built");
        built
    })
}

/// Holds memory and checks it. `hold MIB CHILDREN`: forks so many children; each process fills so many MiB, says `ready`,
/// checks them and says `whole` for each line that it reads, and ends at the end of its input, with 1 if anything is lost.
/// `hold MIB CHILDREN close` closes every descriptor from 3 on first; `hold MIB CHILDREN share` forks when it has filled its own,
/// so that all share that.
pub const HOLD: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static void say(const char *line) { if (write(1, line, strlen(line)) < 0) _exit(2); }
int main(int count, char **words) {
    size_t words_count = (size_t)atol(words[1]) << 18;
    int children = atoi(words[2]), failed = 0, status;
    int shares = count > 3 && strcmp(words[3], "share") == 0;
    if (count > 3 && !shares) for (int fd = 3; fd < 4096; fd++) close(fd);
    volatile unsigned *memory = malloc(words_count * 4);
    if (shares) for (size_t i = 0; i < words_count; i++) memory[i] = i / 7;
    for (int i = 0; i < children; i++) if (fork() == 0) { children = 0; break; }
    if (!shares) for (size_t i = 0; i < words_count; i++) memory[i] = i / 7;
    say("ready\n");
    for (char byte; read(0, &byte, 1) == 1;) {
        for (size_t i = 0; i < words_count; i++) failed |= memory[i] != i / 7;
        say(failed ? "lost\n" : "whole\n");
    }
    for (size_t i = 0; i < words_count; i++) failed |= memory[i] != i / 7;
    while (children > 0 && wait(&status) > 0) failed |= WIFEXITED(status) && WEXITSTATUS(status);
    return failed;
}
"#;

/// What the tests share: see the file's head.
pub struct House {
    dir: tempfile::TempDir,
}

impl House {
    pub fn new() -> Self {
        let house = Self::without_agent();
        let offsets = [
            format!("-DMAP_BYTES={}", Shared::MAP_BYTES),
            format!("-DAT_PROCESSES={}", std::mem::offset_of!(Shared, processes)),
            format!("-DAT_LIMIT={}", std::mem::offset_of!(Shared, ram_limit_bytes)),
            format!("-DAT_ERROR={}", std::mem::offset_of!(Shared, error)),
        ];
        let flags: Vec<&str> = ["-shared", "-fPIC"].into_iter().chain(offsets.iter().map(String::as_str)).collect();
        house.compile("bin/libebb_agent.so", STAND_IN, &flags);
        house
    }

    /// With the real agent, and in a place that every user can reach.
    pub fn with_agent() -> Self {
        let built = built_agent();
        let dir = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        let house = Self { dir };
        // By a process of its own, as in `file`.
        let both = [Path::new(env!("CARGO_BIN_EXE_ebb")), built];
        assert!(Command::new("cp").args(both).arg(house.path("bin")).status().unwrap().success());
        house
    }

    pub fn without_agent() -> Self {
        // Beside the build, so that the executable can be linked to instead of copied.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        fs::hard_link(env!("CARGO_BIN_EXE_ebb"), dir.path().join("bin/ebb")).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file through a process of its own: this one must never have open for writing what is to be executed,
    /// because a child that another test forks at that moment would have it open too, and the kernel would refuse.
    pub fn file(&self, name: &str, content: &str, mode: u32) -> PathBuf {
        use std::io::Write;
        let path = self.path(name);
        let script = format!("cat >\"$0\" && chmod {mode:o} \"$0\"");
        let mut shell = Command::new("sh").args(["-c", &script]).arg(&path).stdin(Stdio::piped()).spawn().unwrap();
        shell.stdin.take().unwrap().write_all(content.as_bytes()).unwrap();
        assert!(shell.wait().unwrap().success());
        path
    }

    pub fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let out = self.path(name);
        let file = self.path(&format!("{}.c", name.replace('/', "-")));
        fs::write(&file, source).unwrap();
        let status = Command::new("cc").args(["-O1", "-o"]).arg(&out).arg(&file).args(flags).status().unwrap();
        assert!(status.success(), "cc failed on {name}");
        out
    }

    /// `ebb` with its standard streams piped.
    pub fn ebb<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(self.path("bin/ebb"));
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_remove("EBB_TMPDIR").env_remove("LD_PRELOAD");
        command
    }

    /// Runs `ebb` to its end.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.ebb(args).output().unwrap()
    }

    /// The shell script `script` under `ebb run -q`.
    pub fn shell(&self, script: &str) -> Command {
        let mut command = self.ebb(["run", "-q", "--ram", "64M", "--", "/bin/sh", "-c", script]);
        // nohup ignores the first and a shell's background job the others, and a shell cannot trap what it inherits ignored.
        // SAFETY: signal(2) may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                Ok(())
            });
        }
        command
    }
}

pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The exit status, when there is one.
pub fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// The signal that ended the process, when one did.
pub fn signal(output: &Output) -> Option<i32> {
    output.status.signal()
}

/// Reads lines of a running child until one is `wanted`.
pub fn wait_for_line(child: &mut Child, wanted: &str) {
    let lines = BufReader::new(child.stdout.as_mut().unwrap());
    for line in lines.lines() {
        if line.unwrap() == wanted {
            return;
        }
    }
    panic!("the program ended without printing {wanted}");
}

/// Waits until `done` says so.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "it did not come to pass: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn pid(child: &Child) -> libc::pid_t {
    child.id() as libc::pid_t
}

pub fn kill(pid: libc::pid_t, signal: i32) {
    // SAFETY: the process is a child of this test, or a child of one, that runs.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// The letter of a process's state; `None` when it is gone.
pub fn state(pid: libc::pid_t) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Whether a process has ended with all its threads: the first is a zombie while others still hold what they share.
pub fn has_ended(pid: libc::pid_t) -> bool {
    state(pid).is_none_or(|state| state == 'Z')
        && fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) <= 1
}

/// The children of a process with one thread.
pub fn children(pid: libc::pid_t) -> Vec<libc::pid_t> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// The program under a running `ebb`.
pub fn program_of(ebb: &Child) -> libc::pid_t {
    wait_until("ebb has a child", || !children(pid(ebb)).is_empty());
    children(pid(ebb))[0]
}

/// A new terminal: the end of its keyboard and screen, and the end of its programs. No program that another test starts meanwhile
/// inherits them.
pub fn terminal() -> (fs::File, fs::File) {
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    let mut name: [libc::c_char; 64] = [0; 64];
    // SAFETY: the descriptor is new, and there is room for the name.
    let master = unsafe {
        let master = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(master >= 0);
        assert_eq!(libc::grantpt(master) | libc::unlockpt(master), 0);
        assert_eq!(libc::ptsname_r(master, name.as_mut_ptr(), name.len()), 0);
        fs::File::from_raw_fd(master)
    };
    // SAFETY: the call above has ended the name with a zero.
    let name = unsafe { std::ffi::CStr::from_ptr(name.as_ptr()) }.to_str().unwrap();
    let slave = fs::File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(name).unwrap();
    (master, slave)
}

pub fn json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A program under `ebb run --name`, with the real agent; it ends with this.
pub struct Tree {
    pub house: House,
    pub name: String,
    pub ebb: Child,
    user: u32,
    /// Lines of the program, as they come.
    lines: Receiver<String>,
}

impl Tree {
    /// Runs `script`, in which `@` stands for the directory of the house, in `ram`, and waits until it has said `ready` so
    /// often. By a user other than root where `user` is not 0.
    pub fn start(house: House, user: u32, ram: &str, script: &str, ready: usize) -> Self {
        Self::start_with(&[], house, user, ram, script, ready)
    }

    /// The same, with more options of `ebb run`.
    pub fn start_with(options: &[&str], house: House, user: u32, ram: &str, script: &str, ready: usize) -> Self {
        let name = format!("t{}", house.dir.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.'));
        let script = script.replace('@', &format!("{}/", house.dir.path().display()));
        let swap = format!("file:{}", std::env::temp_dir().display());
        let args = ["--name", &name, "--ram", ram, "--swap", &swap, "--", "/bin/sh", "-c", &script];
        let mut command = house.ebb(["run"].iter().chain(options).chain(&args));
        command.stdin(Stdio::piped());
        if user != 0 {
            command.uid(user).gid(user);
        }
        let mut ebb = command.spawn().unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(ebb.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let this = Self { house, name, ebb, user, lines };
        this.expect("ready", ready);
        this
    }

    /// Waits until so many processes have said `word`, and nothing else.
    pub fn expect(&self, word: &str, count: usize) {
        for _ in 0..count {
            assert_eq!(self.lines.recv_timeout(PATIENCE).as_deref(), Ok(word));
        }
    }

    /// Has one process check its memory.
    pub fn check(&mut self) {
        use std::io::Write;
        self.ebb.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        self.expect("whole", 1);
    }

    /// Ends the input of the program, and with it the program: what `ebb` says at the end. It must have lost nothing.
    pub fn finish(mut self) -> String {
        drop(self.ebb.stdin.take());
        let mut text = String::new();
        self.ebb.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(self.ebb.wait().unwrap().code(), Some(0), "{text}");
        text
    }

    /// Runs another `ebb` as the same user.
    pub fn ask(&self, words: &[&str]) -> Output {
        let mut command = self.house.ebb(words);
        if self.user != 0 {
            command.uid(self.user).gid(self.user);
        }
        command.output().unwrap()
    }

    /// What `ebb ps --json` tells of the tree.
    pub fn shown(&self) -> serde_json::Value {
        let output = self.ask(&["ps", "--json", &self.name]);
        assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
        let value: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
        value[0].clone()
    }

    /// The same of the processes that run a program called `command`.
    pub fn processes(&self, command: &str) -> Vec<serde_json::Value> {
        let shown = self.shown();
        let all = shown["processes"].as_array().unwrap().iter();
        all.filter(|process| process["command"] == command).cloned().collect()
    }

    /// What processes called `command` hold, in MiB.
    pub fn held_mib(&self, command: &str) -> u64 {
        self.processes(command).iter().map(|process| process["held_bytes"].as_u64().unwrap()).sum::<u64>() >> 20
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.ebb.kill();
        let _ = self.ebb.wait();
    }
}

/// Whether this test runs as root, and can be another user too.
pub fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}
