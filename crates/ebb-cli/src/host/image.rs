//! What will run when PROGRAM is executed, and whether the agent can be loaded into it.
//!
//! The agent is a library that glibc's dynamic loader puts into the program. So the question is which ELF image the
//! kernel ends up with, through any number of `#!` lines, and whether that image has a loader that heeds `LD_PRELOAD`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};

use crate::base::path;
use crate::base::sys;

/// How much of a file the kernel reads to recognise its format.
const HEAD_BYTES: usize = 256;

/// How many `#!` lines the kernel follows.
const INTERPRETERS_MAX: usize = 5;

/// The only machine that the agent is built for.
const MACHINE: u16 = elf::EM_X86_64;

/// Why the agent cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    Static,
    SetUser {
        owner: u32,
    },
    SetGroup {
        group: u32,
    },
    Capabilities,
    ThirtyTwoBit,
    ForeignMachine {
        machine: u16,
    },
    Musl {
        loader: String,
    },
    UnknownLoader {
        loader: String,
    },
    Unreadable {
        error: String,
    },
    Malformed,
    TooManyInterpreters,
    /// Lies in the program's environment, not in the program.
    Sanitizer {
        library: String,
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => write!(f, "it is statically linked, so no library can be preloaded into it"),
            Self::SetUser { owner } => {
                write!(f, "it is set-user-ID (user {owner}), so the loader ignores preloaded libraries")
            }
            Self::SetGroup { group } => {
                write!(f, "it is set-group-ID (group {group}), so the loader ignores preloaded libraries")
            }
            Self::Capabilities => write!(f, "it has file capabilities, so the loader ignores preloaded libraries"),
            Self::ThirtyTwoBit => write!(f, "it is a 32-bit program, but Ebb's agent is a 64-bit library"),
            Self::ForeignMachine { machine } => {
                write!(f, "it is built for another machine (ELF machine {machine}), but Ebb's agent for x86-64")
            }
            Self::Musl { loader } => write!(f, "it is linked with musl ({loader}), but Ebb's agent with glibc"),
            Self::UnknownLoader { loader } => {
                write!(f, "its loader {loader} is not the glibc loader, which Ebb's agent needs")
            }
            Self::Unreadable { error } => {
                write!(f, "it can be executed but not read ({error}), so Ebb cannot tell what it is")
            }
            Self::Malformed => write!(f, "its ELF header is damaged"),
            Self::TooManyInterpreters => {
                write!(f, "its #! lines form a chain of more than {INTERPRETERS_MAX} interpreters")
            }
            Self::Sanitizer { library } => {
                write!(f, "LD_PRELOAD loads {library}, a sanitizer runtime, and Ebb is not known to work with it")
            }
        }
    }
}

impl Obstacle {
    /// What a user can do about it, other than running the program unmanaged.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Static | Self::Musl { .. } | Self::UnknownLoader { .. } => {
                "use a build that is dynamically linked with glibc"
            }
            Self::SetUser { .. } | Self::SetGroup { .. } | Self::Capabilities => {
                "copy it without these rights, and run the copy as the user it needs"
            }
            Self::ThirtyTwoBit | Self::ForeignMachine { .. } => "use its x86-64 build",
            Self::Unreadable { .. } => "give yourself read permission",
            Self::Malformed => "reinstall it",
            Self::TooManyInterpreters => "start the last interpreter directly",
            Self::Sanitizer { .. } => "use a build without the sanitizer",
        }
    }
}

/// What the kernel will execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// PROGRAM's file, followed by each interpreter that a `#!` line names.
    pub chain: Vec<PathBuf>,
    /// What keeps the last file of the chain from being managed.
    pub obstacle: Option<Obstacle>,
}

/// Who executes the program: that decides what a set-user-ID bit means.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    pub user: u32,
    pub group: u32,
    pub no_new_privileges: bool,
}

impl Identity {
    /// The identity of this process.
    pub fn current() -> Self {
        let (user, group) = sys::identity();
        Self { user, group, no_new_privileges: sys::no_new_privileges() }
    }
}

/// A `#!` line: the interpreter and its one argument.
#[derive(Debug, PartialEq, Eq)]
struct Shebang {
    interpreter: PathBuf,
    argument: Option<OsString>,
}

/// Splits a `#!` line as the kernel does (fs/binfmt_script.c). None if there is no such line, or if it names nothing.
fn shebang(head: &[u8]) -> Option<Shebang> {
    let blank = |byte: &u8| *byte == b' ' || *byte == b'\t';
    let rest = head.strip_prefix(b"#!")?;
    let line = rest.split(|byte| *byte == b'\n' || *byte == 0).next().unwrap_or(rest);
    let line = line.trim_ascii();
    let end = line.iter().position(blank).unwrap_or(line.len());
    let (interpreter, argument) = line.split_at(end);
    let argument = argument.trim_ascii();
    (!interpreter.is_empty()).then(|| Shebang {
        interpreter: PathBuf::from(OsStr::from_bytes(interpreter)),
        argument: (!argument.is_empty()).then(|| OsStr::from_bytes(argument).to_owned()),
    })
}

/// The program that `env NAME` on a `#!` line would run. Most scripts find their interpreter through env(1).
fn behind_env(line: &Shebang, search_path: Option<&OsStr>) -> Option<PathBuf> {
    if line.interpreter.file_name() != Some(OsStr::new("env")) {
        return None;
    }
    let argument = line.argument.as_deref()?.as_bytes();
    let words: Vec<&[u8]> = argument.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty()).collect();
    let name = match words.as_slice() {
        // The kernel hands the rest of the line to env as one word. Without -S, env looks for a program of exactly that
        // name.
        [b"-S", name, ..] => name,
        [name] => name,
        _ => return None,
    };
    if name.starts_with(b"-") || name.contains(&b'=') {
        return None;
    }
    path::resolve(OsStr::from_bytes(name), search_path).ok()
}

/// Inspects the file at `program`, and the files that its `#!` lines lead to. A missing file ends the chain without an
/// obstacle: execve(2) itself gives the better error.
pub fn inspect(program: &Path, search_path: Option<&OsStr>, identity: Identity) -> Image {
    let mut chain = vec![program.to_owned()];
    loop {
        let current = chain[chain.len() - 1].clone();
        let next = match look_at(&current, identity) {
            Ok(Kind::Script(line)) => {
                let behind = behind_env(&line, search_path);
                chain.push(line.interpreter);
                behind
            }
            Ok(Kind::ShellScript) => {
                chain.push(PathBuf::from("/bin/sh"));
                None
            }
            Ok(Kind::Managed | Kind::Absent) => return Image { chain, obstacle: None },
            Err(obstacle) => return Image { chain, obstacle: Some(obstacle) },
        };
        if let Some(behind) = next {
            // env(1) must be manageable, too: otherwise the agent is gone before env gets to the interpreter.
            if let Err(obstacle) = look_at(&chain[chain.len() - 1], identity) {
                return Image { chain, obstacle: Some(obstacle) };
            }
            chain.push(behind);
        }
        // Each `#!` line may add env(1) beside the interpreter.
        if chain.len() > 2 * INTERPRETERS_MAX {
            return Image { chain, obstacle: Some(Obstacle::TooManyInterpreters) };
        }
    }
}

/// What keeps a running program from being managed. `executable` is the process's `/proc/PID/exe`, which is never a
/// script.
pub fn obstacle(executable: &Path, identity: Identity) -> Option<Obstacle> {
    look_at(executable, identity).err()
}

enum Kind {
    Managed,
    Script(Shebang),
    /// Neither ELF nor `#!`: execvp(3) hands the file to the shell.
    ShellScript,
    Absent,
}

fn look_at(path: &Path, identity: Identity) -> Result<Kind, Obstacle> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Obstacle::Unreadable { error: error.to_string() });
        }
        Err(_) => return Ok(Kind::Absent),
    };
    let mut head = Vec::with_capacity(HEAD_BYTES);
    if let Err(error) = (&mut file).take(HEAD_BYTES as u64).read_to_end(&mut head) {
        return Err(Obstacle::Unreadable { error: error.to_string() });
    }
    if !head.starts_with(&elf::ELFMAG) {
        return Ok(shebang(&head).map_or(Kind::ShellScript, Kind::Script));
    }
    loaded_by(&head, file)?;
    let Ok(meta) = std::fs::metadata(path) else { return Ok(Kind::Absent) };
    let nosuid = sys::file_system(path).is_ok_and(|file_system| file_system.nosuid);
    let rights = Rights {
        mode: meta.mode(),
        owner: meta.uid(),
        group: meta.gid(),
        capabilities: sys::has_attribute(path, c"security.capability"),
    };
    if !nosuid && !identity.no_new_privileges {
        rights.check(identity)?;
    }
    Ok(Kind::Managed)
}

/// What makes the kernel start a program in secure mode (security/commoncap.c). In secure mode the loader ignores
/// `LD_PRELOAD`.
struct Rights {
    mode: u32,
    owner: u32,
    group: u32,
    capabilities: bool,
}

impl Rights {
    fn check(&self, identity: Identity) -> Result<(), Obstacle> {
        // Without execute permission for the group, the bit does not set the group. It once meant mandatory locking.
        let set_group = libc::S_ISGID | libc::S_IXGRP;
        if self.mode & libc::S_ISUID != 0 && self.owner != identity.user {
            Err(Obstacle::SetUser { owner: self.owner })
        } else if self.mode & set_group == set_group && self.group != identity.group {
            Err(Obstacle::SetGroup { group: self.group })
        } else if self.capabilities && identity.user != 0 {
            Err(Obstacle::Capabilities)
        } else {
            Ok(())
        }
    }
}

/// Fails unless the ELF file will be loaded by a glibc loader that heeds `LD_PRELOAD`.
fn loaded_by(head: &[u8], file: File) -> Result<(), Obstacle> {
    let (Some(class), Some(machine)) = (head.get(4), head.get(18..20)) else { return Err(Obstacle::Malformed) };
    let machine = match head[5] {
        elf::ELFDATA2LSB => u16::from_le_bytes([machine[0], machine[1]]),
        elf::ELFDATA2MSB => u16::from_be_bytes([machine[0], machine[1]]),
        _ => return Err(Obstacle::Malformed),
    };
    match (*class, machine) {
        (elf::ELFCLASS32, MACHINE | elf::EM_386) => return Err(Obstacle::ThirtyTwoBit),
        (elf::ELFCLASS64, MACHINE) => {}
        _ => return Err(Obstacle::ForeignMachine { machine }),
    }
    let data = ReadCache::new(file);
    match loader(&data).ok_or(Obstacle::Malformed)? {
        Loader::None => Err(Obstacle::Static),
        Loader::Itself => Ok(()),
        Loader::At(loader) => {
            let name = loader.rsplit('/').next().unwrap_or(&loader);
            if name.starts_with("ld-musl") {
                Err(Obstacle::Musl { loader })
            } else if is_glibc_loader(name) {
                Ok(())
            } else {
                Err(Obstacle::UnknownLoader { loader })
            }
        }
    }
}

fn is_glibc_loader(name: &str) -> bool {
    name.starts_with("ld-linux") || (name.starts_with("ld-2.") && name.ends_with(".so"))
}

enum Loader {
    /// Statically linked.
    None,
    /// The file is glibc's loader, started by hand with a program as its argument.
    Itself,
    At(String),
}

/// Finds the loader that the file names. None if the file is malformed.
fn loader(data: &ReadCache<File>) -> Option<Loader> {
    let header = elf::FileHeader64::<object::Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?;
    for segment in segments {
        if let Some(name) = segment.interpreter(endian, data).ok()? {
            return Some(Loader::At(String::from_utf8_lossy(name).into_owned()));
        }
    }
    // The loader itself names no loader, but has a name of its own (DT_SONAME).
    for segment in segments {
        let Some(dynamic) = segment.dynamic(endian, data).ok()? else { continue };
        let strings = dynamic_strings(endian, data, segments, dynamic)?;
        for entry in dynamic {
            use object::read::elf::Dyn;
            if entry.tag32(endian) == Some(elf::DT_SONAME) {
                let name = strings.get(u32::try_from(entry.d_val(endian)).ok()?).ok()?;
                if is_glibc_loader(&String::from_utf8_lossy(name)) {
                    return Some(Loader::Itself);
                }
            }
        }
    }
    Some(Loader::None)
}

/// The string table of the dynamic section; empty if the section has none.
fn dynamic_strings<'data>(
    endian: object::Endianness,
    data: &'data ReadCache<File>,
    segments: &[elf::ProgramHeader64<object::Endianness>],
    dynamic: &[elf::Dyn64<object::Endianness>],
) -> Option<object::StringTable<'data, &'data ReadCache<File>>> {
    use object::read::elf::Dyn;
    let value = |tag| dynamic.iter().find(|entry| entry.tag32(endian) == Some(tag)).map(|entry| entry.d_val(endian));
    let (Some(address), Some(len)) = (value(elf::DT_STRTAB), value(elf::DT_STRSZ)) else {
        return Some(object::StringTable::default());
    };
    let segment = segments.iter().find(|segment| {
        let start = segment.p_vaddr(endian);
        segment.p_type(endian) == elf::PT_LOAD
            && (start..start.saturating_add(segment.p_filesz(endian))).contains(&address)
    })?;
    let start = address - segment.p_vaddr(endian) + segment.p_offset(endian);
    Some(object::StringTable::new(data, start, start.checked_add(len)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const NOBODY: Identity = Identity { user: 65534, group: 65534, no_new_privileges: false };

    /// A minimal 64-bit ELF file with one program header.
    fn elf_file(class: u8, machine: u16, interpreter: Option<&str>) -> Vec<u8> {
        let mut out = vec![0u8; 64 + 56];
        out[..4].copy_from_slice(&elf::ELFMAG);
        (out[4], out[5], out[6]) = (class, elf::ELFDATA2LSB, 1);
        out[16..18].copy_from_slice(&elf::ET_DYN.to_le_bytes());
        out[18..20].copy_from_slice(&machine.to_le_bytes());
        out[20] = 1;
        out[32..40].copy_from_slice(&64u64.to_le_bytes());
        out[52..54].copy_from_slice(&64u16.to_le_bytes());
        out[54..56].copy_from_slice(&56u16.to_le_bytes());
        out[56..58].copy_from_slice(&1u16.to_le_bytes());
        let (kind, name) = interpreter.map_or((elf::PT_LOAD, ""), |name| (elf::PT_INTERP, name));
        out[64..68].copy_from_slice(&kind.to_le_bytes());
        out[72..80].copy_from_slice(&120u64.to_le_bytes());
        let len = if interpreter.is_some() { name.len() as u64 + 1 } else { 0 };
        out[96..104].copy_from_slice(&len.to_le_bytes());
        out.extend_from_slice(name.as_bytes());
        out.push(0);
        out
    }

    struct Dir(tempfile::TempDir);

    impl Dir {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
            let path = self.0.path().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        }
    }

    fn obstacle(path: &Path) -> Option<Obstacle> {
        inspect(path, None, NOBODY).obstacle
    }

    #[test]
    fn a_program_loaded_by_glibc_can_be_managed() {
        let file = elf_file(elf::ELFCLASS64, MACHINE, Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(obstacle(&Dir::new().file("a", file)), None);
    }

    #[test]
    fn a_real_program_of_this_system_can_be_managed() {
        assert_eq!(obstacle(Path::new("/bin/sh")), None);
    }

    #[test]
    fn the_glibc_loader_started_by_hand_can_be_managed() {
        assert_eq!(obstacle(Path::new("/lib64/ld-linux-x86-64.so.2")), None);
    }

    #[test]
    fn a_statically_linked_program_cannot_be_managed() {
        let dir = Dir::new();
        assert_eq!(obstacle(&dir.file("a", elf_file(elf::ELFCLASS64, MACHINE, None))), Some(Obstacle::Static));
    }

    #[test]
    fn musl_is_told_from_other_loaders() {
        let dir = Dir::new();
        let musl = "/lib/ld-musl-x86_64.so.1";
        let file = dir.file("a", elf_file(elf::ELFCLASS64, MACHINE, Some(musl)));
        assert_eq!(obstacle(&file), Some(Obstacle::Musl { loader: musl.to_owned() }));
        let bionic = "/system/bin/linker64";
        let file = dir.file("b", elf_file(elf::ELFCLASS64, MACHINE, Some(bionic)));
        assert_eq!(obstacle(&file), Some(Obstacle::UnknownLoader { loader: bionic.to_owned() }));
    }

    #[test]
    fn programs_of_other_machines_cannot_be_managed() {
        let dir = Dir::new();
        let file = dir.file("a", elf_file(elf::ELFCLASS32, elf::EM_386, Some("/lib/ld-linux.so.2")));
        assert_eq!(obstacle(&file), Some(Obstacle::ThirtyTwoBit));
        let file = dir.file("b", elf_file(elf::ELFCLASS32, MACHINE, Some("/libx32/ld-linux-x32.so.2")));
        assert_eq!(obstacle(&file), Some(Obstacle::ThirtyTwoBit));
        let file = dir.file("c", elf_file(elf::ELFCLASS64, elf::EM_AARCH64, Some("/lib/ld-linux-aarch64.so.1")));
        assert_eq!(obstacle(&file), Some(Obstacle::ForeignMachine { machine: elf::EM_AARCH64 }));
    }

    #[test]
    fn a_damaged_header_is_no_panic() {
        let dir = Dir::new();
        assert_eq!(obstacle(&dir.file("a", b"\x7fELF\x02\x01")), Some(Obstacle::Malformed));
        let mut file = elf_file(elf::ELFCLASS64, MACHINE, None);
        file[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(obstacle(&dir.file("b", file)), Some(Obstacle::Malformed));
    }

    #[test]
    fn rights_of_another_user_keep_the_agent_out() {
        let plain = Rights { mode: 0o755, owner: 0, group: 0, capabilities: false };
        let me = Identity { user: 1000, group: 1000, no_new_privileges: false };
        let root = Identity { user: 0, group: 0, no_new_privileges: false };
        assert_eq!(plain.check(me), Ok(()));
        assert_eq!(Rights { mode: 0o4755, ..plain }.check(me), Err(Obstacle::SetUser { owner: 0 }));
        assert_eq!(Rights { mode: 0o4755, ..plain }.check(root), Ok(()));
        assert_eq!(Rights { mode: 0o2755, ..plain }.check(me), Err(Obstacle::SetGroup { group: 0 }));
        assert_eq!(Rights { mode: 0o2745, ..plain }.check(me), Ok(()));
        assert_eq!(Rights { capabilities: true, ..plain }.check(me), Err(Obstacle::Capabilities));
        assert_eq!(Rights { capabilities: true, ..plain }.check(root), Ok(()));
    }

    #[test]
    fn a_shebang_line_is_split_as_the_kernel_does() {
        let line = |text: &str| shebang(text.as_bytes());
        let of = |interpreter: &str, argument: Option<&str>| {
            Some(Shebang { interpreter: interpreter.into(), argument: argument.map(OsString::from) })
        };
        assert_eq!(line("#!/bin/sh\necho"), of("/bin/sh", None));
        assert_eq!(line("#! \t/bin/sh -e -x  \necho"), of("/bin/sh", Some("-e -x")));
        assert_eq!(line("#!/bin/sh"), of("/bin/sh", None));
        assert_eq!(line("#!\n/bin/sh"), None);
        assert_eq!(line("echo"), None);
    }

    #[test]
    fn interpreters_are_followed_to_the_image_that_runs() {
        let dir = Dir::new();
        let real = dir.file("real", elf_file(elf::ELFCLASS64, MACHINE, None));
        let inner = dir.file("inner", format!("#!{}\n", real.display()));
        let outer = dir.file("outer", format!("#!{} -x\n", inner.display()));
        let image = inspect(&outer, None, NOBODY);
        assert_eq!(image.chain, vec![outer, inner, real]);
        assert_eq!(image.obstacle, Some(Obstacle::Static));
    }

    #[test]
    fn a_script_that_interprets_itself_ends() {
        let dir = Dir::new();
        let path = dir.0.path().join("loop");
        let file = dir.file("loop", format!("#!{}\n", path.display()));
        assert_eq!(obstacle(&file), Some(Obstacle::TooManyInterpreters));
    }

    #[test]
    fn a_script_that_goes_through_env_is_judged_by_what_env_finds() {
        let dir = Dir::new();
        dir.file("tool", elf_file(elf::ELFCLASS64, MACHINE, None));
        for (name, line) in [("a", "#!/usr/bin/env tool\n"), ("b", "#!/usr/bin/env -S tool -u\n")] {
            let script = dir.file(name, line);
            let image = inspect(&script, Some(dir.0.path().as_os_str()), NOBODY);
            assert_eq!(image.obstacle, Some(Obstacle::Static), "{line}");
        }
    }

    #[test]
    fn a_script_without_a_shebang_is_the_shells() {
        let dir = Dir::new();
        let script = dir.file("a", "echo hello\n");
        let image = inspect(&script, None, NOBODY);
        assert_eq!(image.chain, vec![script, PathBuf::from("/bin/sh")]);
        assert_eq!(image.obstacle, None);
    }

    #[test]
    fn a_missing_interpreter_is_left_for_the_kernel_to_report() {
        let dir = Dir::new();
        let script = dir.file("a", "#!/no/such/interpreter\n");
        assert_eq!(obstacle(&script), None);
    }
}
