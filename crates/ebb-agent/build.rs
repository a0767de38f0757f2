//! Link arguments of the preloaded library.
//!
//! `now`: no symbol is bound lazily, because binding one inside a signal handler would enter the dynamic linker.
//! `initfirst`: the constructor runs before every other library's, so that no thread or handler exists before it.
//! `nodelete`: signal handlers point into the library for as long as the process lives.
//! `Bsymbolic-functions`: what this library calls of its own functions is not looked up while it is loaded.
//! `noseparate-code`, `norelro`: fewer segments, and no change of protection, while every small program loads this.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for arg in [
        "-Wl,-z,now",
        "-Wl,-z,initfirst",
        "-Wl,-z,nodelete",
        "-Wl,-z,noseparate-code",
        "-Wl,-z,norelro",
        "-Wl,-Bsymbolic-functions",
        "-Wl,--hash-style=gnu",
        "-Wl,-soname,libebb_agent.so",
    ] {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
}
