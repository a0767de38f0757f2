//! What the program under `ebb run` sees, and what its starter sees of it: no difference.

use crate::common::{
    House, children, code, err, has_ended, json, kill, out, pid, program_of, signal, state, wait_for_line, wait_until,
};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

#[test]
fn the_exit_status_is_the_programs() {
    let house = House::new();
    for status in [0, 1, 3, 125, 255] {
        assert_eq!(code(&house.shell(&format!("exit {status}")).output().unwrap()), Some(status));
    }
}

#[test]
fn a_death_by_signal_is_repeated_without_a_core_of_the_commands() {
    let house = House::new();
    for number in
        [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGABRT, libc::SIGPIPE, libc::SIGUSR1, libc::SIGRTMIN() + 3]
    {
        let output = house.shell(&format!("ulimit -c 0; kill -{number} $$")).output().unwrap();
        assert_eq!(signal(&output), Some(number));
        use std::os::unix::process::ExitStatusExt;
        assert!(!output.status.core_dumped());
    }
}

#[test]
fn standard_streams_pass_untouched() {
    let house = House::new();
    let mut child = house.shell("cat; echo err >&2").stdin(Stdio::piped()).spawn().unwrap();
    let data: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
    let mut stdin = child.stdin.take().unwrap();
    let sent = data.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.stdout == data);
    assert_eq!(err(&output), "err\n");
}

#[test]
fn closed_standard_streams_stay_closed() {
    let house = House::new();
    let script = format!(
        "{} run -q --stats {} -- /bin/sh -c 'test ! -e /proc/$$/fd/0 -a ! -e /proc/$$/fd/1' <&- >&-",
        house.path("bin/ebb").display(),
        house.path("s.json").display()
    );
    let output = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
    assert_eq!(json(&house.path("s.json"))["exit"]["code"], 0);
}

#[test]
fn the_program_inherits_the_descriptors_and_three_more_far_away() {
    let house = House::new();
    let list = ["/bin/ls", "/proc/self/fd"];
    let numbers = |output: std::process::Output| -> Vec<u32> {
        let mut numbers: Vec<u32> = out(&output).split_whitespace().map(|word| word.parse().unwrap()).collect();
        numbers.sort();
        numbers
    };
    let plain = numbers(std::process::Command::new(list[0]).arg(list[1]).stdin(Stdio::null()).output().unwrap());
    let mut under = numbers(house.run(["run", "-q", "--", list[0], list[1]]));
    let far = under.split_off(plain.len());
    assert_eq!(under, plain);
    assert!(far.len() == 3 && far[0] >= 900, "{far:?}");
}

#[test]
fn the_contracts_variables_reach_the_program() {
    let house = House::new();
    let script = "echo $EBB_RAM; echo $EBB_SWAP; echo $EBB_VERBOSE; echo $LD_PRELOAD; echo $KEPT";
    let dir = house.path("").canonicalize().unwrap();
    let swap = format!("file:{},size=1M,kind=hdd,discard=none", dir.display());
    let output = house
        .ebb(["run", "-q", "--ram", "4.5M", "--swap", &swap, "--", "sh", "-c", script])
        .env("KEPT", "kept")
        .output()
        .unwrap();
    let agent = dir.join("bin/libebb_agent.so");
    let device = format!("file:{},size=1048576,kind=hdd,discard=none", dir.display());
    let expected = format!("4718592\n{device}\n0\n{}\nkept\n", agent.display());
    assert_eq!(out(&output), expected);
}

#[test]
fn signal_mask_and_dispositions_are_inherited_as_they_were() {
    let house = House::new();
    let show = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    let prepared = |mut command: std::process::Command| {
        // SAFETY: only async-signal-safe calls.
        unsafe {
            command.pre_exec(|| {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, libc::SIGUSR2);
                libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                libc::signal(libc::SIGHUP, libc::SIG_IGN);
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
                Ok(())
            });
        }
        out(&command.output().unwrap())
    };
    let mut plain = std::process::Command::new(show[0]);
    plain.args(&show[1..]);
    let expected = prepared(plain);
    assert!(expected.contains("SigBlk:\t0000000000000800"), "{expected}");
    let ignored = expected.split("SigIgn:\t").nth(1).unwrap().trim();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    assert_eq!(ignored & (1 << (libc::SIGCHLD - 1)), 1 << (libc::SIGCHLD - 1));
    assert_eq!(ignored & (1 << (libc::SIGPIPE - 1)), 0);
    assert_eq!(prepared(house.ebb(["run", "-q", "--"].into_iter().chain(show))), expected);
}

#[test]
fn a_signal_to_the_command_reaches_the_program() {
    let house = House::new();
    for (name, number) in [
        ("TERM", libc::SIGTERM),
        ("HUP", libc::SIGHUP),
        ("INT", libc::SIGINT),
        ("QUIT", libc::SIGQUIT),
        ("USR1", libc::SIGUSR1),
        ("WINCH", libc::SIGWINCH),
    ] {
        let script = format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child = house.shell(&script).spawn().unwrap();
        wait_for_line(&mut child, "ready");
        kill(pid(&child), number);
        wait_for_line(&mut child, &format!("got {name}"));
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
}

#[test]
fn a_program_that_cannot_take_sigterm_is_named_and_given_up_at_the_second() {
    let house = House::new();
    let source = r#"
        #define _GNU_SOURCE
        #include <signal.h>
        #include <stdio.h>
        #include <time.h>
        #include <unistd.h>
        static void on_term(int signal) {}
        int main(void) {
            struct timespec rest = { 20, 0 };
            signal(SIGTERM, on_term);
            puts("ready"); fflush(stdout);
            /* The parent waits for the child's exec, and nothing but SIGKILL wakes it. */
            if (vfork() == 0) { nanosleep(&rest, 0); _exit(0); }
            return 0;
        }
    "#;
    let program = house.compile("waits", source, &[]);
    let mut child = house
        .ebb(["run", "-q", "--ram", "64M", "--"].map(OsStr::new).into_iter().chain([program.as_os_str()]))
        .spawn()
        .unwrap();
    wait_for_line(&mut child, "ready");
    let program = program_of(&child);
    wait_until("it waits for its child", || state(program) == Some('D'));
    let [sleeper] = children(program)[..] else { panic!("one child") };
    kill(pid(&child), libc::SIGTERM);
    let mut said = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with(&format!("ebb: SIGTERM: process {program} waits in the kernel (state D)")), "{said}");
    assert_eq!((child.try_wait().unwrap(), state(program)), (None, Some('D')));
    kill(pid(&child), libc::SIGTERM);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    // It ended by itself long before its child did.
    kill(sleeper, libc::SIGKILL);
    wait_until("the program is gone", || has_ended(program));
}

#[test]
fn a_queued_signal_keeps_its_value() {
    let house = House::new();
    let source = r#"
        #include <signal.h>
        #include <stdio.h>
        int main(void) {
            sigset_t set; siginfo_t info;
            sigemptyset(&set); sigaddset(&set, SIGRTMIN); sigprocmask(SIG_BLOCK, &set, 0);
            puts("ready"); fflush(stdout);
            sigwaitinfo(&set, &info);
            return info.si_value.sival_int;
        }
    "#;
    let program = house.compile("waiter", source, &[]);
    let mut child = house.ebb(["run", "-q", "--", program.to_str().unwrap()]).spawn().unwrap();
    wait_for_line(&mut child, "ready");
    let value = libc::sigval { sival_ptr: 77 as *mut libc::c_void };
    // SAFETY: the child runs.
    assert_eq!(unsafe { libc::sigqueue(pid(&child), libc::SIGRTMIN(), value) }, 0);
    assert_eq!(child.wait().unwrap().code(), Some(77));
}

#[test]
fn an_interrupt_from_the_terminal_reaches_the_program_once() {
    let house = House::new();
    let (mut master, slave) = crate::common::terminal();
    // A second one would come at once.
    let script = "n=0; trap 'n=$((n+1))' INT; echo ready; while [ $n = 0 ]; do sleep 0.05; done; sleep 1; echo $n";
    let mut command = house.shell(script);
    command.stdin(slave);
    // SAFETY: only async-signal-safe calls.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            libc::ioctl(0, libc::TIOCSCTTY, 0);
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    wait_for_line(&mut child, "ready");
    master.write_all(b"\x03").unwrap();
    wait_for_line(&mut child, "1");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_program_that_signals_its_whole_group_gets_its_signal_once() {
    let house = House::new();
    let script = "n=0; trap 'n=$((n+1))' USR1; kill -USR1 0; sleep 0.3; echo $n";
    let output = house.shell(script).process_group(0).output().unwrap();
    assert_eq!((out(&output), code(&output)), ("1\n".to_owned(), Some(0)));
}

#[test]
fn the_command_stops_and_continues_with_the_program() {
    let house = House::new();
    let mut child = house.shell("echo ready; while :; do sleep 0.05; done").spawn().unwrap();
    wait_for_line(&mut child, "ready");
    let (ebb, program) = (pid(&child), program_of(&child));
    kill(program, libc::SIGSTOP);
    let mut status = 0;
    // SAFETY: `status` is a whole int; the child is this test's own.
    assert_eq!(unsafe { libc::waitpid(ebb, &mut status, libc::WUNTRACED) }, ebb);
    assert!(libc::WIFSTOPPED(status));
    assert_eq!(libc::WSTOPSIG(status), libc::SIGSTOP);
    assert_eq!((state(ebb), state(program)), (Some('T'), Some('T')));
    kill(ebb, libc::SIGCONT);
    wait_until("both run again", || state(ebb) == Some('S') && state(program) == Some('S'));
    kill(ebb, libc::SIGTERM);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn a_stop_from_the_terminal_keys_shows_as_the_same_signal() {
    let house = House::new();
    let mut child = house.shell("echo ready; while :; do sleep 0.05; done").process_group(0).spawn().unwrap();
    wait_for_line(&mut child, "ready");
    let ebb = pid(&child);
    for _ in 0..3 {
        kill(ebb, libc::SIGTSTP);
        let mut status = 0;
        // SAFETY: `status` is a whole int; the child is this test's own.
        assert_eq!(unsafe { libc::waitpid(ebb, &mut status, libc::WUNTRACED) }, ebb);
        assert!(libc::WIFSTOPPED(status));
        assert_eq!(libc::WSTOPSIG(status), libc::SIGTSTP);
        kill(ebb, libc::SIGCONT);
        let program = program_of(&child);
        wait_until("both run again", || state(ebb) == Some('S') && state(program) == Some('S'));
    }
    kill(ebb, libc::SIGKILL);
    child.wait().unwrap();
}

#[test]
fn continuing_the_whole_group_runs_the_programs_handler_once() {
    let house = House::new();
    let source = r#"
        #include <signal.h>
        #include <stdio.h>
        #include <time.h>
        static volatile sig_atomic_t continued;
        static void on_cont(int signal) { continued++; }
        int main(void) {
            struct timespec tick = { 0, 20000000 };
            signal(SIGCONT, on_cont);
            puts("ready"); fflush(stdout);
            while (!continued) nanosleep(&tick, 0);
            for (int i = 0; i < 10; i++) nanosleep(&tick, 0);
            return continued;
        }
    "#;
    let program = house.compile("counter", source, &[]);
    let mut child = house.ebb(["run", "-q", "--", program.to_str().unwrap()]).process_group(0).spawn().unwrap();
    wait_for_line(&mut child, "ready");
    let (ebb, program) = (pid(&child), program_of(&child));
    kill(program, libc::SIGSTOP);
    wait_until("both are stopped", || state(ebb) == Some('T') && state(program) == Some('T'));
    kill(-ebb, libc::SIGCONT);
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn the_program_dies_with_the_command() {
    let house = House::new();
    let mut child = house.shell("echo ready; while :; do sleep 0.05; done").spawn().unwrap();
    wait_for_line(&mut child, "ready");
    let program = program_of(&child);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the program is gone", || has_ended(program));
}

#[test]
fn orphans_of_the_program_are_no_business_of_the_commands() {
    let house = House::new();
    let output = house.shell("(sleep 0.2 >/dev/null 2>&1 &) ; exit 4").output().unwrap();
    assert_eq!(code(&output), Some(4));
}

#[test]
fn the_program_stays_in_the_process_group() {
    let house = House::new();
    let mut child = house.shell("echo ready; sleep 500").process_group(0).spawn().unwrap();
    wait_for_line(&mut child, "ready");
    let program = program_of(&child);
    // SAFETY: asks about a process that runs.
    assert_eq!(unsafe { libc::getpgid(program) }, pid(&child));
    assert_eq!(children(pid(&child)), [program]);
    kill(-pid(&child), libc::SIGKILL);
    child.wait().unwrap();
}

#[test]
fn a_shell_script_without_a_shebang_runs_as_execvp_runs_it() {
    let house = House::new();
    let script = house.file("script", "echo \"$1 of $0\"\n", 0o755);
    let output = house.run(["run", "-q", "--", script.to_str().unwrap(), "one"]);
    assert_eq!(out(&output), format!("one of {}\n", script.display()));
}

#[test]
fn the_programs_name_stays_as_it_was_typed() {
    let house = House::new();
    let program = house.compile("bin/teller", "#include <stdio.h>\nint main(int n, char **v) { puts(v[0]); }", &[]);
    let output = house.ebb(["run", "-q", "--", "teller"]).env("PATH", program.parent().unwrap()).output().unwrap();
    assert_eq!(out(&output), "teller\n");
}

/// Has the program's starter load a filter that answers these calls with `action`.
fn filter(command: &mut std::process::Command, calls: [libc::c_long; 3], action: u32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, equal, end) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::BPF_RET);
    let [first, second, third] = calls.map(|call| call as u32);
    let steps = [
        step(load, 0, 0, 0),
        step(equal, 2, 0, first),
        step(equal, 1, 0, second),
        step(equal, 0, 1, third),
        step(end, 0, 0, action),
        step(end, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    // SAFETY: only system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let mut steps = steps;
            let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
            let filter = libc::SECCOMP_MODE_FILTER;
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, filter, &raw const program) == 0
            {
                return Ok(());
            }
            Err(std::io::Error::last_os_error())
        });
    }
}

#[test]
fn a_sandbox_around_the_command_may_kill_for_transfers_in_flight_or_lie_about_them() {
    let house = House::with_agent();
    let program = "import os; d = os.urandom(1 << 20); a = [bytes(d) + bytes([i]) for i in range(120)]; \
                   assert all(x[:-1] == d and x[-1] == i for i, x in enumerate(a))";
    let (kill, lie) = (libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_ERRNO);
    let all = [libc::SYS_io_setup, libc::SYS_io_submit, libc::SYS_io_getevents];
    for (action, calls) in [
        (kill, all),
        (kill, [libc::SYS_io_getevents; 3]),
        (lie, all),
        (lie, [libc::SYS_io_submit; 3]),
        (lie | libc::ENOSYS as u32, [libc::SYS_io_getevents; 3]),
    ] {
        let mut command = house.ebb(["run", "--ram", "80M", "--", "python3", "-c", program]);
        filter(&mut command, calls, action);
        let output = command.output().unwrap();
        assert_eq!((code(&output), signal(&output)), (Some(0), None), "{action:#x} {calls:?}: {}", err(&output));
    }
}
