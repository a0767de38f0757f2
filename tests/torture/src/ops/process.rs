//! Children: forked ones that check all they inherited and write to their copies; executed ones.

use crate::model::{Area, Page};
use crate::ops::coroutine::Coroutine;
use crate::ops::{program_break, shared};
use crate::report::{COUNTS, add, exit_now, fail};
use crate::sys;
use crate::worker::Worker;
use core::ffi::c_char;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::ffi::CString;
use std::io::Error;
use std::time::{Duration, Instant};

/// A child that was not waited for yet.
pub struct Child {
    pid: i32,
    kind: &'static str,
    started: Instant,
}

/// Children of the whole process, so that memory stays bounded.
static ALIVE: AtomicUsize = AtomicUsize::new(0);
const ALIVE_MAX: usize = 4;
/// After so long a child counts as hung.
const CHILD_S_MAX: u64 = 240;

fn admit() -> bool {
    ALIVE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < ALIVE_MAX).then_some(n + 1)).is_ok()
}

fn remember(worker: &mut Worker, pid: i32, kind: &'static str) {
    if pid < 0 {
        fail(format_args!("{kind}: {}", Error::last_os_error()));
    }
    worker.children.push(Child { pid, kind, started: Instant::now() });
}

/// Forks. The child checks everything; the parent goes on at once, or waits.
pub fn fork(worker: &mut Worker) {
    if worker.children.len() >= 2 || !admit() {
        return reap(worker);
    }
    // SAFETY: the child uses no lock and allocates nothing until it ends with _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: the default action ends a child that hangs.
        unsafe { libc::alarm(CHILD_S_MAX as u32) };
        child(worker);
    }
    remember(worker, pid, "fork");
    add(&COUNTS.forks, 1);
    if worker.rng.one_in(4) {
        reap_all(worker);
    }
}

/// A forked child's life. Allocates nothing: another thread may have held the heap's lock.
fn child(worker: &mut Worker) -> ! {
    inherit(worker, 0x80);
    // The order of reading and writing differs, so that either side may be the first to touch a shared page.
    match worker.rng.below(3) {
        0 => {
            worker.check_all();
            write_some(worker);
        }
        1 => {
            write_some(worker);
            worker.check_all();
        }
        _ => {
            write_some(worker);
            drop_some(worker);
        }
    }
    shared::check_groups_in_child(worker);
    worker.coroutines.iter_mut().for_each(Coroutine::resume);
    if worker.rng.one_in(4) {
        grandchild(worker);
    }
    move_one(worker);
    worker.check_all();
    exit_now(0)
}

/// The models become those of a forked child, whose writings carry a mark.
fn inherit(worker: &mut Worker, mark: usize) {
    worker.become_child(mark);
    worker.areas.iter_mut().for_each(Area::enter_child);
    if let Some(program_break) = &mut worker.program_break {
        program_break.area().enter_child();
    }
}

fn write_some(worker: &mut Worker) {
    for area in 0..worker.areas.len() {
        for page in (area % 3..worker.areas[area].pages.len()).step_by(3) {
            if worker.areas[area].page(page).is_writable() {
                worker.write(area, page);
            }
        }
    }
    program_break::write_in_child(worker);
}

fn drop_some(worker: &mut Worker) {
    for _ in 0..6 {
        if let Some(run) = worker.run_of(32, Page::is_mapped) {
            let error = sys::advise(worker.addr(run), run.len, libc::MADV_DONTNEED);
            if error != 0 {
                fail(format_args!("MADV_DONTNEED in a child: error {error}"));
            }
            worker.areas[run.area].update(run.start, run.len, Page::wiped);
        }
    }
}

/// Moves one run in the child, into a hole its own area has from then on elsewhere: checked at the new place at once.
fn move_one(worker: &mut Worker) {
    let Some(run) = worker.uniform_run(64) else { return };
    let Ok(to) = sys::remap(worker.addr(run), run.len, run.len, libc::MREMAP_MAYMOVE | 4, 0) else { return };
    for i in 0..run.len {
        let page = worker.areas[run.area].page(run.start + i);
        if page.is_readable() {
            crate::model::check_in_place("a page moved in a child", to + i * crate::content::PAGE, page.expect());
        }
    }
    worker.areas[run.area].update(run.start, run.len, Page::wiped);
    sys::unmap(to, run.len);
}

fn grandchild(worker: &mut Worker) {
    // SAFETY: as in `fork`; the bare system call, because the C library's fork takes locks.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
    if pid == 0 {
        inherit(worker, 0x40);
        worker.check_all();
        write_some(worker);
        worker.check_all();
        exit_now(0);
    }
    if pid < 0 {
        fail(format_args!("fork in a child: {}", Error::last_os_error()));
    }
    write_some(worker);
    let mut status = 0;
    // SAFETY: room for a status.
    sys::must("waitpid in a child", || unsafe { libc::waitpid(pid, &mut status, 0) } as isize);
    if status != 0 {
        fail(format_args!("a grandchild ended with wait status {status:#x}"));
    }
}

unsafe extern "C" {
    static environ: *const *mut c_char;
}

/// Executes this program for a short run of its own: by fork, by posix_spawn, by vfork, or by the standard library.
pub fn exec(worker: &mut Worker) {
    if worker.children.len() >= 2 || !admit() {
        return reap(worker);
    }
    let seed = worker.rng.next().to_string();
    // Without `brk` the heap of the child's only worker lies at the program break.
    let list = worker.rng.pick(&[
        "map,check,write,copy,unmap,dontneed,mremap-move,protect,brk,heap,fork,reap,file",
        "map,check,write,copy,unmap,dontneed,mremap-move,protect,heap,fork,reap,file",
    ]);
    let words = ["torture", "--quiet", "--threads", "1", "--megabytes", "2", "--operations", "150"];
    let tail = ["--seconds", "200", "--seed", &seed, "--ops", list];
    let path = c"/proc/self/exe";
    let strings: Vec<CString> = words.iter().chain(&tail).map(|word| CString::new(*word).unwrap_or_default()).collect();
    let mut argv: Vec<*const c_char> = strings.iter().map(|string| string.as_ptr()).collect();
    argv.push(core::ptr::null());
    let empty = [core::ptr::null()];
    let full = worker.rng.one_in(2);
    // SAFETY: the environment is never changed after start.
    let envp: *const *const c_char = if full { unsafe { environ.cast() } } else { empty.as_ptr() };
    add(&COUNTS.execs, 1);
    match worker.rng.below(4) {
        0 => {
            // SAFETY: the child calls execve at once.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: strings and arrays were made before the fork.
                unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp) };
                exit_now(126);
            }
            remember(worker, pid, "fork and exec");
        }
        1 => {
            let mut pid = 0;
            // SAFETY: strings and arrays outlive the call; no attributes, no file actions.
            let error = unsafe {
                let none = core::ptr::null();
                libc::posix_spawn(&mut pid, path.as_ptr(), none, none.cast(), argv.as_ptr().cast(), envp.cast())
            };
            if error != 0 {
                fail(format_args!("posix_spawn: {}", Error::from_raw_os_error(error)));
            }
            remember(worker, pid, "posix_spawn");
        }
        2 => {
            let pid = sys::vfork_exec(path.as_ptr(), argv.as_ptr(), envp);
            remember(worker, pid as i32, "vfork and exec");
        }
        _ => {
            let mut command = std::process::Command::new("/proc/self/exe");
            command.args(&words[1..]).args(tail);
            if !full {
                command.env_clear();
            }
            match command.output() {
                Ok(output) if output.status.success() => {}
                other => fail(format_args!("a spawned child: {other:?}")),
            }
            ALIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn check_status(child: &Child, status: i32) {
    ALIVE.fetch_sub(1, Ordering::Relaxed);
    if status != 0 {
        fail(format_args!(
            "the child {} made by {} ended with wait status {status:#x} (exit {}, signal {})",
            child.pid,
            child.kind,
            status >> 8 & 0xff,
            status & 0x7f
        ));
    }
}

/// Collects the children that have ended.
pub fn reap(worker: &mut Worker) {
    worker.children.retain(|child| {
        let mut status = 0;
        // SAFETY: room for a status.
        let pid = sys::must("waitpid", || unsafe { libc::waitpid(child.pid, &mut status, libc::WNOHANG) } as isize);
        if pid == 0 {
            if child.started.elapsed() > Duration::from_secs(CHILD_S_MAX + 30) {
                fail(format_args!("the child {} made by {} hangs", child.pid, child.kind));
            }
            return true;
        }
        check_status(child, status);
        false
    });
}

/// Waits for every child.
pub fn reap_all(worker: &mut Worker) {
    for child in std::mem::take(&mut worker.children) {
        let mut status = 0;
        // SAFETY: room for a status.
        sys::must("waitpid", || unsafe { libc::waitpid(child.pid, &mut status, 0) } as isize);
        check_status(&child, status);
    }
}
