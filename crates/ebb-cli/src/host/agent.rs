//! Finds the preloaded library that belongs to this executable.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::base::failure::Failure;

/// The library's file name.
pub const FILE_NAME: &str = "libebb_agent.so";

/// Where the agent of the executable at `executable` may be, best place first: beside it, as in a build, or where
/// `make install` puts it.
fn places(executable: &Path) -> Vec<PathBuf> {
    let Some(dir) = executable.parent() else { return Vec::new() };
    let installed = dir.parent().map(|prefix| prefix.join("lib/ebb").join(FILE_NAME));
    std::iter::once(dir.join(FILE_NAME)).chain(installed).collect()
}

fn search(executable: &Path) -> Result<PathBuf, Failure> {
    let places = places(executable);
    let Some(found) = places.iter().find(|place| place.exists()) else {
        let list: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        return Err(Failure::ebb(
            "the agent",
            format!("not found at {}", list.join(" or at ")),
            "build it with `make build`, or install it and `ebb` with `make install`",
        ));
    };
    let what = format!("the agent {}", found.display());
    let text = found.to_str().unwrap_or_default();
    // The loader splits LD_PRELOAD at such characters, and has no way to quote them.
    if text.is_empty() || text.contains([':', ' ', '\t', '\n', ';']) {
        return Err(Failure::ebb(
            what,
            "its path contains a space, a colon, a semicolon or a byte that is not UTF-8, which LD_PRELOAD cannot carry",
            "move ebb to a directory whose path has none of these",
        ));
    }
    let mut magic = [0; 4];
    match std::fs::File::open(found).and_then(|mut file| file.read_exact(&mut magic)) {
        Ok(()) if magic == object::elf::ELFMAG => Ok(found.clone()),
        Ok(()) => Err(Failure::ebb(what, "it is not a shared library", "build it again with `make build`")),
        Err(error) => Err(Failure::ebb(what, error, "make it readable, or build it again with `make build`")),
    }
}

/// The agent's absolute path.
pub fn find() -> Result<PathBuf, Failure> {
    let executable = std::env::current_exe().map_err(|error| {
        Failure::ebb("the agent", format!("/proc/self/exe cannot be read ({error})"), "mount /proc")
    })?;
    search(&executable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn install(path: &Path, content: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    #[test]
    fn the_agent_beside_the_executable_comes_before_the_installed_one() {
        let root = tempfile::tempdir().unwrap();
        let (beside, installed) =
            (root.path().join("bin/libebb_agent.so"), root.path().join("lib/ebb/libebb_agent.so"));
        install(&installed, b"\x7fELF");
        assert_eq!(search(&root.path().join("bin/ebb")), Ok(installed));
        install(&beside, b"\x7fELF");
        assert_eq!(search(&root.path().join("bin/ebb")), Ok(beside));
    }

    #[test]
    fn a_missing_agent_names_the_places_and_the_remedy() {
        let failure = search(Path::new("/nowhere/bin/ebb")).unwrap_err();
        assert_eq!(
            failure.to_string(),
            "ebb: the agent: not found at /nowhere/bin/libebb_agent.so or at /nowhere/lib/ebb/libebb_agent.so; \
             build it with `make build`, or install it and `ebb` with `make install`"
        );
    }

    #[test]
    fn a_path_that_ld_preload_cannot_carry_is_refused() {
        let root = tempfile::tempdir().unwrap();
        install(&root.path().join("my bin/libebb_agent.so"), b"\x7fELF");
        assert!(search(&root.path().join("my bin/ebb")).unwrap_err().why.contains("LD_PRELOAD"));
    }

    #[test]
    fn a_file_that_is_no_library_is_refused() {
        let root = tempfile::tempdir().unwrap();
        install(&root.path().join("bin/libebb_agent.so"), b"text");
        assert_eq!(search(&root.path().join("bin/ebb")).unwrap_err().why, "it is not a shared library");
    }
}
