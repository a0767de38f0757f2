//! Link arguments of the preloaded library.
//!
//! `now`: no symbol is bound lazily, because binding one inside a signal handler would enter the dynamic linker.
//! `initfirst`: the constructor runs before every other library's, so that no thread or handler exists before it.
//! `nodelete`: signal handlers point into the library for as long as the process lives.
//! `Bsymbolic-functions`: what this library calls of its own functions is not looked up while it is loaded.
//! `norelro`: no change of protection, while every small program loads this. `agent.ld`: where everything lies, and why.
//! `nostartfiles`: without the C compiler's own start and end, which do nothing here, but in pages of their own.
//! `defsym`: zstd would call its hooks if the program happens to have functions of these names. It finds none, and the loader need not
//! look for them. Nor does it find an allocator: it never allocates for contexts in the caller's memory.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=agent.ld");
    let layout = concat!("-Wl,-T,", env!("CARGO_MANIFEST_DIR"), "/agent.ld");
    for arg in [
        "-Wl,-z,now",
        "-Wl,-z,initfirst",
        "-Wl,-z,nodelete",
        "-nostartfiles",
        layout,
        "-Wl,-z,norelro",
        "-Wl,-Bsymbolic-functions",
        "-Wl,--hash-style=gnu",
        "-Wl,-soname,libebb_agent.so",
        "-Wl,--defsym=malloc=0",
        "-Wl,--defsym=free=0",
        "-Wl,--defsym=ZSTD_trace_compress_begin=0",
        "-Wl,--defsym=ZSTD_trace_compress_end=0",
        "-Wl,--defsym=ZSTD_trace_decompress_begin=0",
        "-Wl,--defsym=ZSTD_trace_decompress_end=0",
    ] {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
}
