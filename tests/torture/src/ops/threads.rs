//! Threads: of the standard library, on stacks of the program's own, by the bare clone system call, and cancelled ones.

use crate::content::{PAGE, Stamp};
use crate::model::{Area, Page, check_in_place, write_page};
use crate::report::{COUNTS, add, fail};
use crate::sys::{self, NONE, RW};
use crate::worker::Worker;
use core::sync::atomic::{AtomicU32, Ordering};
use std::ffi::c_void;
use std::io::Error;

/// A thread with memory of its own, joined before the operation ends.
pub fn thread(worker: &mut Worker) {
    let pages = worker.rng.between(4, 64);
    let seed = worker.rng.next();
    let threads = worker.rng.between(1, 3);
    let handles: Vec<_> = (0..threads)
        .map(|n| {
            std::thread::Builder::new().spawn(move || {
                let mut area = Area { id: n as u32, base: sys::map(pages, RW, 0), pages: vec![Page::zero(RW); pages] };
                for round in 0..3 {
                    for page in 0..pages {
                        area.write(page, Stamp(seed ^ (round << 40 | n << 20 | page) as u64));
                    }
                    area.check_all();
                }
                area.unmap_all();
            })
        })
        .collect();
    add(&COUNTS.threads, threads);
    for handle in handles {
        match handle.map(std::thread::JoinHandle::join) {
            Ok(Ok(())) => {}
            Ok(Err(_)) => fail(format_args!("a thread panicked")),
            Err(error) => fail(format_args!("a thread could not start: {error}")),
        }
    }
}

/// What a small thread works on.
struct Task {
    base: usize,
    pages: usize,
    seed: u64,
}

/// Writes and checks pages with a frame on every stack page it can reach.
fn work(task: &Task) {
    for round in 0..2 {
        for page in 0..task.pages {
            write_page(task.base + page * PAGE, Stamp(task.seed ^ (round << 20 | page) as u64));
        }
        for page in 0..task.pages {
            let expect = crate::content::Expect::Data(Stamp(task.seed ^ (round << 20 | page) as u64));
            check_in_place("a thread's page", task.base + page * PAGE, expect);
        }
    }
}

extern "C" fn posix_entry(argument: *mut c_void) -> *mut c_void {
    // SAFETY: the creator keeps the task alive until it has joined this thread.
    work(unsafe { &*argument.cast::<Task>() });
    argument
}

/// A thread on a stack that lies in the heap or in a mapping of this worker.
pub fn own_stack(worker: &mut Worker) {
    let pages = 32;
    let heap = worker.rng.one_in(2);
    let stack = if heap {
        // SAFETY: plain allocation.
        unsafe { libc::memalign(PAGE, pages * PAGE) as usize }
    } else {
        sys::map(pages, RW, 0)
    };
    let task = Task { base: sys::map(16, RW, 0), pages: 16, seed: worker.rng.next() };
    // SAFETY: attributes are initialised before use; stack and task outlive the thread, which is joined here.
    unsafe {
        let mut attributes = core::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstack(&mut attributes, stack as *mut c_void, pages * PAGE);
        let mut id = 0;
        let argument = &raw const task as *mut c_void;
        let error = libc::pthread_create(&mut id, &attributes, posix_entry, argument);
        let mut result = core::ptr::null_mut();
        if error != 0 || libc::pthread_join(id, &mut result) != 0 || result != argument {
            fail(format_args!("a thread on its own stack: error {error}"));
        }
        libc::pthread_attr_destroy(&mut attributes);
        if heap {
            libc::free(stack as *mut c_void);
        }
    }
    if !heap {
        sys::unmap(stack, pages);
    }
    sys::unmap(task.base, task.pages);
    add(&COUNTS.threads, 1);
}

extern "C" fn raw_entry(argument: usize) {
    // SAFETY: the creator keeps the task alive until the kernel has cleared this thread's id.
    work(unsafe { &*(argument as *const Task) });
}

/// A thread made by the clone system call with a thread-local block of its own.
pub fn raw_clone(worker: &mut Worker) {
    const STACK: usize = 32;
    const LOCAL: usize = 32;
    let stack = sys::map(STACK, RW, 0);
    let local = sys::map(LOCAL, RW, 0);
    let task = Box::new(Task { base: sys::map(16, RW, 0), pages: 16, seed: worker.rng.next() });
    let id = Box::new(AtomicU32::new(1));
    // Thread-local variables lie below the thread pointer, the thread's descriptor above; it begins with its address.
    let pointer = local + (LOCAL - 4) * PAGE;
    for offset in [0, 16] {
        // SAFETY: inside the block just mapped.
        unsafe { ((pointer + offset) as *mut usize).write(pointer) };
    }
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let at = id.as_ptr() as u64;
    let args = [
        flags as u64,
        (stack + STACK * PAGE) as u64,
        at,
        at,
        pointer as u64,
        raw_entry as *const () as u64,
        &raw const *task as u64,
    ];
    // SAFETY: stack, block, task and id are kept until the id is cleared, which the kernel does last.
    let tid = unsafe { sys::clone_thread(&args) };
    if tid < 0 {
        fail(format_args!("clone: {}", Error::from_raw_os_error(-tid as i32)));
    }
    loop {
        let now = id.load(Ordering::Acquire);
        if now == 0 {
            break;
        }
        // SAFETY: the word is valid; the kernel wakes it as a shared futex.
        unsafe {
            libc::syscall(libc::SYS_futex, id.as_ptr(), libc::FUTEX_WAIT, now, core::ptr::null::<libc::timespec>())
        };
    }
    sys::unmap(stack, STACK);
    sys::unmap(local, LOCAL);
    sys::unmap(task.base, task.pages);
    add(&COUNTS.threads, 1);
}

extern "C" fn reading_entry(argument: *mut c_void) -> *mut c_void {
    let argument = argument as *const [usize; 2];
    // SAFETY: the creator keeps descriptor and buffer until it has joined this thread.
    unsafe {
        let [pipe, buffer] = *argument;
        loop {
            libc::read(pipe as i32, buffer as *mut c_void, PAGE);
        }
    }
}

/// Cancels a thread that waits in a read whose buffer is memory under test.
pub fn cancel(worker: &mut Worker) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    sys::must("pipe2", || unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } as isize);
    // The guard behind the buffer shows a read that goes too far.
    let buffer = sys::map(2, RW, 0);
    sys::protect(buffer + PAGE, 1, NONE);
    let argument = Box::new([ends[0] as usize, buffer]);
    // SAFETY: everything the thread uses is kept until it is joined.
    unsafe {
        let mut id = 0;
        let error =
            libc::pthread_create(&mut id, core::ptr::null(), reading_entry, &raw const *argument as *mut c_void);
        if error != 0 {
            fail(format_args!("pthread_create: {}", Error::from_raw_os_error(error)));
        }
        if worker.rng.one_in(2) {
            let words = [worker.rng.next(); 8];
            sys::must("write", || libc::write(ends[1], words.as_ptr().cast(), 64));
            Worker::wait_for("a read by another thread", || (buffer as *const u64).read_volatile() == words[0]);
        }
        std::thread::sleep(std::time::Duration::from_micros(worker.rng.between(0, 1500) as u64));
        libc::pthread_cancel(id);
        let mut result = core::ptr::null_mut();
        let error = libc::pthread_join(id, &mut result);
        if error != 0 || result as isize != -1 {
            fail(format_args!("joining a cancelled thread: error {error}, result {result:p}"));
        }
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
    sys::unmap(buffer, 2);
    add(&COUNTS.threads, 1);
}
