//! A space of Ebb's engine in this process, served by a SIGBUS handler of ours instead of the agent.

use crate::options::InProcess;
use ebb::{Config, Fault, Force, Space, SwapSpec, ThreadCtx};
use std::cell::Cell;
use std::ffi::CString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::OnceLock;

/// Of the signal stack that the handler runs on.
const STACK_BYTES: usize = 128 << 10;

static SPACE: OnceLock<&'static Space> = OnceLock::new();

thread_local! {
    static CTX: Cell<Option<&'static ThreadCtx>> = const { Cell::new(None) };
}

extern "C" fn on_sigbus(_signo: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let (Some(space), Some(ctx)) = (SPACE.get(), CTX.get()) else { std::process::abort() };
    // SAFETY: the kernel hands a siginfo and a ucontext to the handler.
    let (addr, error) = unsafe {
        ((*info).si_addr() as usize, (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize])
    };
    if space.fault(ctx, addr, error & 2 != 0) != Fault::Resolved {
        std::process::abort();
    }
}

/// The fallbacks that `EBB_FORCE` names, and always strict.
fn force() -> Force {
    let list = std::env::var_os("EBB_FORCE").unwrap_or_default();
    Force { strict: true, ..Force::of_list(list.as_bytes()) }
}

/// Makes the space.
pub fn create(options: &InProcess) -> &'static Space {
    let dir = options.spill_dir.clone().and_then(|dir| CString::new(dir.into_os_string().into_vec()).ok());
    let swap = dir.as_deref().map(|dir| SwapSpec { dir, bytes: 64 << 30, priority: None, ..SwapSpec::DEFAULT });
    let config =
        Config { ram_bytes: options.ram_bytes, swap: swap.as_slice(), stats: None, stats_fd: None, force: force() };
    let space = Space::create(&config).unwrap_or_else(|error| {
        eprintln!("ebb-bench-micro: no space: {error:?}");
        std::process::exit(125);
    });
    // SAFETY: installs a handler with the matching signature.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
    SPACE.get_or_init(|| space)
}

/// The calling thread's context, which it gets the first time.
pub fn ctx(space: &'static Space) -> &'static ThreadCtx {
    CTX.get().unwrap_or_else(|| {
        let ctx = space.attach_thread().expect("a thread context");
        // The standard library's own signal stack is too small; the threads live as long as the process.
        let stack = Box::leak(vec![0u8; STACK_BYTES].into_boxed_slice());
        let stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: STACK_BYTES };
        // SAFETY: the stack is leaked, so it outlives the thread.
        assert_eq!(unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) }, 0, "sigaltstack");
        CTX.set(Some(ctx));
        ctx
    })
}
