//! Finds the agent of Ebb in this process. It is looked for once: it is there from the start, or never.

/// The agent's function.
pub type Agent = unsafe extern "C" fn(what: u32, a: u64, b: u64, c: u64) -> i64;

#[cfg(all(target_os = "linux", target_arch = "x86_64", target_pointer_width = "64"))]
pub fn find() -> Option<Agent> {
    use core::ffi::c_void;
    use core::ptr::null_mut;
    use core::sync::atomic::AtomicPtr;
    use core::sync::atomic::Ordering::Relaxed;

    /// Null before the first look, and its own address if there is no agent.
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let none = (&raw const FOUND).cast_mut().cast::<c_void>();
    let mut at = FOUND.load(Relaxed);
    if at.is_null() {
        // SAFETY: a name that ends with NUL.
        at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__ebb_call".as_ptr()) };
        if at.is_null() {
            // The program's next dlerror() is not about this.
            // SAFETY: the message is not looked at.
            unsafe { libc::dlerror() };
            at = none;
        }
        FOUND.store(at, Relaxed);
    }
    // SAFETY: the name is the agent's own, and this is its signature.
    (at != none).then(|| unsafe { core::mem::transmute::<*mut c_void, Agent>(at) })
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64", target_pointer_width = "64")))]
pub fn find() -> Option<Agent> {
    None
}
