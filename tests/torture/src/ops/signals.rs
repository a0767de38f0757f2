//! Signals: storms of timers whose handler uses memory under test, and jumps out of a handler.

use crate::content::PAGE;
use crate::model::read_page;
use crate::report::{COUNTS, add, fail};
use crate::sys::{self, JumpBuffer, RW};
use crate::worker::Worker;
use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::c_void;
use std::io::Error;

const STORM_PAGES: usize = 24;
const ALT_STACK_PAGES: usize = 16;

/// What a storm's handler works on. Boxed: the timer carries its address.
pub struct Storm {
    timer: libc::timer_t,
    base: usize,
    expected: [u64; STORM_PAGES],
    turn: u64,
    alt_stack: usize,
    sink: i32,
}

fn storm_signal() -> i32 {
    libc::SIGRTMIN() + 1
}

fn jump_signal() -> i32 {
    libc::SIGRTMIN() + 2
}

/// Installs the handlers; once, before any worker starts.
pub fn install() {
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
        sys::on_signal(signal, sys::guard_handler, libc::SA_ONSTACK);
    }
    // Whoever jumps out of a handler must not leave a storm's half done.
    let flags = libc::SA_ONSTACK | libc::SA_RESTART;
    sys::on_signal_without(storm_signal(), storm_handler, flags, Some(jump_signal()));
    sys::on_signal(jump_signal(), jump_handler, libc::SA_ONSTACK);
}

extern "C" fn storm_handler(_signal: i32, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel hands a valid siginfo; a timer's value is the address of this thread's storm, which outlives
    // the timer; the handler does not interrupt itself.
    let (storm, errno) = unsafe {
        if (*info).si_code != libc::SI_TIMER {
            return;
        }
        (&mut *(*info).si_value().sival_ptr.cast::<Storm>(), *libc::__errno_location())
    };
    storm.turn += 1;
    let page = (storm.turn as usize * 7) % STORM_PAGES;
    for word in [0, 511] {
        let at = (storm.base + page * PAGE + word * 8) as *mut u64;
        // SAFETY: inside the storm's own mapping.
        let found = unsafe { at.read_volatile() };
        if found != storm.expected[page] {
            fail(format_args!("in a handler: word at {at:p} holds {found:#x}, not {:#x}", storm.expected[page]));
        }
        // SAFETY: as above.
        unsafe { at.write_volatile(storm.turn) };
    }
    storm.expected[page] = storm.turn;
    let next = storm.base + (page + 3) % STORM_PAGES * PAGE;
    // SAFETY: reads memory of the storm; errno is put back as it was.
    unsafe {
        if libc::write(storm.sink, next as *const c_void, 64) != 64 {
            fail(format_args!("write in a handler: {}", Error::last_os_error()));
        }
        *libc::__errno_location() = errno;
    }
    add(&COUNTS.signals, 1);
}

/// Arms a timer that signals this thread; `value` comes back in the handler.
fn arm(signal: i32, value: *mut c_void, first_us: u64, every_us: u64) -> libc::timer_t {
    // SAFETY: zero is valid for the structures; their fields are set as timer_create wants them.
    unsafe {
        let mut event: libc::sigevent = core::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = libc::syscall(libc::SYS_gettid) as i32;
        event.sigev_value.sival_ptr = value;
        let mut timer = core::ptr::null_mut();
        if libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) != 0 {
            fail(format_args!("timer_create: {}", Error::last_os_error()));
        }
        let time = |us: u64| libc::timespec { tv_sec: 0, tv_nsec: (us * 1000) as i64 };
        let spec = libc::itimerspec { it_interval: time(every_us), it_value: time(first_us) };
        if libc::timer_settime(timer, 0, &spec, core::ptr::null_mut()) != 0 {
            fail(format_args!("timer_settime: {}", Error::last_os_error()));
        }
        timer
    }
}

/// Gives this thread a stack for handlers: room for several frames with all vector registers, one within the other,
/// which the standard library's own is too small for.
pub fn new_alt_stack() -> usize {
    let addr = sys::map(ALT_STACK_PAGES, RW, 0);
    set_alt_stack(addr);
    addr
}

fn set_alt_stack(addr: usize) {
    let stack = libc::stack_t { ss_sp: addr as *mut c_void, ss_flags: 0, ss_size: ALT_STACK_PAGES * PAGE };
    // SAFETY: the stack is mapped as long as it is set.
    if unsafe { libc::sigaltstack(&stack, core::ptr::null_mut()) } != 0 {
        fail(format_args!("sigaltstack: {}", Error::last_os_error()));
    }
}

/// Starts a storm, or ends the one that blows.
pub fn toggle_storm(worker: &mut Worker) {
    if worker.storm.is_some() {
        stop(worker);
        return;
    }
    let alt_stack = if worker.rng.one_in(2) { new_alt_stack() } else { 0 };
    // SAFETY: a constant path.
    let sink = sys::must("open /dev/null", || unsafe {
        libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) as isize
    });
    let mut storm = Box::new(Storm {
        timer: core::ptr::null_mut(),
        base: sys::map(STORM_PAGES, RW, 0),
        expected: [0; STORM_PAGES],
        turn: 0,
        alt_stack,
        sink: sink as i32,
    });
    let every = worker.rng.between(700, 8000) as u64;
    storm.timer = arm(storm_signal(), (&raw mut *storm).cast(), every, every);
    worker.storm = Some(storm);
}

/// Ends the storm, if one blows.
pub fn stop(worker: &mut Worker) {
    let Some(storm) = worker.storm.take() else { return };
    // A pending signal is delivered before timer_delete returns to this thread, or dropped.
    // SAFETY: the timer is this storm's.
    unsafe { libc::timer_delete(storm.timer) };
    let storm = std::hint::black_box(storm);
    for page in 0..STORM_PAGES {
        let found = read_page(storm.base + page * PAGE);
        if found[0] != storm.expected[page] || found[511] != storm.expected[page] {
            fail(format_args!(
                "a handler's page at {:#x} holds {:#x}, not {:#x}",
                storm.base + page * PAGE,
                found[0],
                storm.expected[page]
            ));
        }
    }
    sys::unmap(storm.base, STORM_PAGES);
    // SAFETY: opened by the storm.
    unsafe { libc::close(storm.sink) };
    if storm.alt_stack != 0 {
        set_alt_stack(worker.alt_stack);
        sys::unmap(storm.alt_stack, ALT_STACK_PAGES);
    }
}

/// What the function that is jumped out of works on.
struct Jump {
    buffer: JumpBuffer,
    armed: AtomicBool,
    pages: *const (usize, crate::content::Expect),
    count: usize,
    pipe: i32,
}

extern "C" fn jump_handler(_signal: i32, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the timer's value is the `Jump` of a `jump_out` that is still running on this thread: it returns only
    // after this handler has jumped.
    unsafe {
        if (*info).si_code == libc::SI_TIMER {
            let jump = (*info).si_value().sival_ptr.cast::<Jump>();
            if (*jump).armed.swap(false, Ordering::Relaxed) {
                sys::jump(&raw mut (*jump).buffer);
            }
        }
    }
}

/// Runs until the handler jumps out: checks pages, or waits in a read that never ends.
extern "C" fn linger(argument: usize) {
    let jump = argument as *const Jump;
    // SAFETY: `jump_out` keeps the structure and what it points to alive.
    let (pages, pipe) = unsafe { (core::slice::from_raw_parts((*jump).pages, (*jump).count), (*jump).pipe) };
    loop {
        for &(addr, expect) in pages {
            crate::model::check_in_place("a page", addr, expect);
        }
        if pipe >= 0 {
            let mut byte = 0u8;
            // SAFETY: a buffer of one byte. Nothing is ever written to this pipe.
            unsafe { libc::read(pipe, (&raw mut byte).cast(), 1) };
        }
    }
}

/// Lets a signal's handler jump out of whatever this thread is doing at that moment.
pub fn jump_out(worker: &mut Worker) {
    let run = worker.run_of(64, crate::model::Page::is_readable);
    let pages: Vec<_> = run.map_or_else(Vec::new, |run| {
        let area = &worker.areas[run.area];
        (run.start..run.start + run.len).map(|page| (area.addr(page), area.page(page).expect())).collect()
    });
    let mut ends = [-1; 2];
    let block = worker.rng.one_in(2);
    if block {
        // SAFETY: room for two descriptors.
        sys::must("pipe2", || unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } as isize);
    }
    let mut jump = Box::new(Jump {
        buffer: JumpBuffer::new(),
        armed: AtomicBool::new(false),
        pages: pages.as_ptr(),
        count: pages.len(),
        pipe: ends[0],
    });
    let delay = worker.rng.between(100, 4000) as u64;
    let this = &raw mut *jump;
    // The buffer is filled by call_with_jump before the function it calls arms anything.
    let mut setting = Setting { jump: this, delay, timer: core::ptr::null_mut() };
    let jumped = sys::call_with_jump(&raw mut jump.buffer, arm_and_linger, &raw mut setting as usize);
    if !jumped {
        fail(format_args!("the function to be jumped out of returned"));
    }
    // SAFETY: the timer was armed by `arm_and_linger`; the descriptors are this function's.
    unsafe {
        libc::timer_delete(core::ptr::read_volatile(&raw const setting.timer));
        if block {
            libc::close(ends[0]);
            libc::close(ends[1]);
        }
    }
    add(&COUNTS.signals, 1);
}

struct Setting {
    jump: *mut Jump,
    delay: u64,
    timer: libc::timer_t,
}

extern "C" fn arm_and_linger(argument: usize) {
    let setting = argument as *mut Setting;
    // SAFETY: `jump_out` waits for this function with the structure on its frame.
    unsafe {
        let jump = (*setting).jump;
        (*setting).timer = arm(jump_signal(), jump.cast(), (*setting).delay, 3000);
        // From here the handler jumps; a signal that came before this comes again.
        (*jump).armed.store(true, Ordering::Relaxed);
        linger(jump as usize);
    }
}
