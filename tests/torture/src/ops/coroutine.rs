//! Coroutines on stacks in memory under test: between two steps a stack may be moved out entirely.

use crate::content::PAGE;
use crate::report::fail;
use crate::rng::{GOLDEN, mix};
use crate::sys::{self, RW};
use crate::worker::Worker;

/// Pages of a coroutine's stack.
const STACK_PAGES: usize = 20;
/// Coroutines a worker keeps.
const COROUTINES_MAX: usize = 4;

/// A suspended computation.
pub struct Coroutine(Box<State>);

/// Boxed: the saved contexts hold addresses of themselves.
struct State {
    caller: libc::ucontext_t,
    own: libc::ucontext_t,
    stack: usize,
    seed: u64,
    steps: u64,
}

extern "C" fn entry(low: u32, high: u32) {
    let this = (u64::from(high) << 32 | u64::from(low)) as *mut State;
    let mut depth = 0;
    loop {
        descend(this, depth % 6);
        depth += 1;
    }
}

/// Fills a frame, goes deeper, suspends at the bottom, and checks the frame on the way back.
#[inline(never)]
fn descend(this: *mut State, depth: u64) {
    // SAFETY: the coroutine is resumed by its owner alone, who does nothing else with it meanwhile.
    let seed = unsafe { (*this).seed } ^ depth;
    let mut frame = [0u64; 700];
    for (i, word) in frame.iter_mut().enumerate() {
        *word = mix(seed.wrapping_add((i as u64).wrapping_mul(GOLDEN)));
    }
    std::hint::black_box(&mut frame);
    if depth == 0 {
        // SAFETY: both contexts are valid: `own` is this one, `caller` was saved by `resume`.
        unsafe {
            (*this).steps += 1;
            libc::swapcontext(&raw mut (*this).own, &raw const (*this).caller);
        }
    } else {
        descend(this, depth - 1);
    }
    for (i, word) in frame.iter().enumerate() {
        let expected = mix(seed.wrapping_add((i as u64).wrapping_mul(GOLDEN)));
        if *word != expected {
            fail(format_args!("a coroutine's stack at {word:p} holds {word:#x}, not {expected:#x}"));
        }
    }
}

impl Coroutine {
    fn new(seed: u64) -> Self {
        // SAFETY: zero is a valid context to be filled by getcontext.
        let (caller, own) = unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
        let mut this = Box::new(State { caller, own, stack: sys::map(STACK_PAGES, RW, 0), seed, steps: 0 });
        let at = &raw mut *this as u64;
        // SAFETY: the context is initialised in its final place; `entry` takes two 32-bit arguments.
        unsafe {
            libc::getcontext(&mut this.own);
            this.own.uc_stack.ss_sp = this.stack as *mut libc::c_void;
            this.own.uc_stack.ss_size = STACK_PAGES * PAGE;
            this.own.uc_link = core::ptr::null_mut();
            let function = core::mem::transmute::<extern "C" fn(u32, u32), extern "C" fn()>(entry);
            libc::makecontext(&mut this.own, function, 2, at as u32, (at >> 32) as u32);
        }
        Self(this)
    }

    /// Runs the coroutine to its next suspension.
    pub fn resume(&mut self) {
        let state = &raw mut *self.0;
        // SAFETY: `own` is a suspended or a fresh context with its stack mapped; the coroutine changes the state only
        // while this waits for it.
        let (before, after) = unsafe {
            let before = (*state).steps;
            libc::swapcontext(&raw mut (*state).caller, &raw const (*state).own);
            (before, (&raw const (*state).steps).read_volatile())
        };
        if after != before + 1 {
            fail(format_args!("a coroutine made {after} steps, not {}", before + 1));
        }
    }

    fn end(self) {
        sys::unmap(self.0.stack, STACK_PAGES);
    }
}

/// Makes a coroutine, resumes one, or ends one.
pub fn step(worker: &mut Worker) {
    let count = worker.coroutines.len();
    if count < COROUTINES_MAX && worker.rng.one_in(4) || count == 0 {
        let seed = worker.rng.next();
        worker.coroutines.push(Coroutine::new(seed));
        return;
    }
    let i = worker.rng.below(count);
    if worker.rng.one_in(40) {
        worker.coroutines.swap_remove(i).end();
    } else {
        worker.coroutines[i].resume();
    }
}

/// Resumes every coroutine once more and ends it.
pub fn finish(worker: &mut Worker) {
    for mut coroutine in worker.coroutines.drain(..) {
        coroutine.resume();
        coroutine.end();
    }
}
