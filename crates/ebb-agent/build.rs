//! Link arguments of the preloaded library.
//!
//! `now`: no symbol is bound lazily, because binding one inside a signal handler would enter the dynamic linker.
//! `initfirst`: the constructor runs before every other library's, so that no thread or handler exists before it.
//! `nodelete`: signal handlers point into the library for as long as the process lives.
//! `init`: the constructor, which the loader calls by its offset (`start::start`).
//! `Bsymbolic-functions`: what this library calls of its own functions is not looked up while it is loaded.
//! `norelro`: no change of protection, while every small program loads this. `agent.ld`: where everything lies, and why.
//! `nostartfiles`: without the C compiler's own start and end, which do nothing here, but in pages of their own.
//! `defsym`: zstd would call its hooks if the program happens to have functions of these names. It finds none, and the loader need not
//! look for them. Nor does it find an allocator: it never allocates for contexts in the caller's memory.
//!
//! [`LATER`]: the library relocates itself, as soon as it needs to (`base::relocations`). LLD can do this, which rustc brings
//! along from 1.90 on. With another linker the loader relocates the library in every small program: slower, nothing else.

use std::path::Path;
use std::process::{Command, Stdio};

/// Relative relocations go to a table of their own, under tags that glibc passes over.
const LATER: [&str; 2] = ["-Wl,--pack-dyn-relocs=relr", "-Wl,--use-android-relr-tags"];

/// Whether the linker that rustc uses understands `args`.
fn links_with(args: &[&str]) -> bool {
    let var = |name| std::env::var(name).unwrap_or_default();
    let source = Path::new(&var("OUT_DIR")).join("nothing.rs");
    if std::fs::write(
        &source,
        "#![no_std]\n#[panic_handler]\nfn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }\n",
    )
    .is_err()
    {
        return false;
    }
    let flags = var("CARGO_ENCODED_RUSTFLAGS");
    let mut rustc = Command::new(var("RUSTC"));
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    let linker = var("RUSTC_LINKER");
    if !linker.is_empty() {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc.args([
        "--edition=2024",
        "--crate-type=cdylib",
        "-Cpanic=abort",
        "--cap-lints=allow",
        "--target",
        &var("TARGET"),
    ]);
    rustc.args(args.iter().map(|arg| format!("-Clink-arg={arg}"))).arg("-Clink-arg=-nostartfiles");
    rustc.arg("-o").arg(source.with_extension("so")).arg(&source);
    rustc.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=agent.ld");
    let layout = concat!("-Wl,-T,", env!("CARGO_MANIFEST_DIR"), "/agent.ld");
    let args = [
        "-Wl,-z,now",
        "-Wl,-z,initfirst",
        "-Wl,-z,nodelete",
        "-Wl,-init,ebb_init",
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
    ];
    let later: &[&str] = if links_with(&LATER) { &LATER } else { &[] };
    for arg in args.iter().chain(later) {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
}
