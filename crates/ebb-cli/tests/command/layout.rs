//! How the preloaded library is laid out: what every small program pays for it depends on that (`ebb-agent`, `agent.ld`).

use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Object, ObjectSection, ObjectSymbol, Relocation};

/// A page fault maps so much of a file.
const FAULT_AROUND_BYTES: u64 = 64 << 10;
const PAGE_BYTES: u64 = 4096;
/// An entry of `.rela.dyn`.
const RELOCATION_BYTES: u64 = 24;

/// Looks at the library that users get, where it is built: how functions are named and cut depends on the optimisation. The
/// tests' own one beside it, so that something is looked at in any case; `test` is told which is that.
fn with_agents_and_own(test: impl Fn(&ElfFile64, bool)) {
    let own = crate::common::built_agent();
    let release = own.ancestors().nth(2).map(|target| target.join("release/libebb_agent.so"));
    for path in [Some(own.to_owned()), release.filter(|path| path.exists())].into_iter().flatten() {
        println!("{}", path.display());
        let bytes = std::fs::read(&path).unwrap();
        test(&ElfFile64::parse(&*bytes).unwrap(), path == own);
    }
}

fn with_agents(test: impl Fn(&ElfFile64)) {
    with_agents_and_own(|agent, _| test(agent));
}

/// Address and end of the section `name`.
fn section(agent: &ElfFile64, name: &str) -> (u64, u64) {
    let section = agent.section_by_name(name).unwrap_or_else(|| panic!("no section {name}"));
    (section.address(), section.address() + section.size())
}

/// How many `core::panic::Location`s the loader relocates: each begins with the address and the length of a file's name.
fn named_places(agent: &ElfFile64) -> u64 {
    let bytes = agent.data();
    let at = |address: u64, length: u64| {
        let start = usize::try_from(address).ok()?;
        bytes.get(start..start.checked_add(usize::try_from(length).ok()?)?)
    };
    // An address in the library is an offset in its file (`the_agent_is_one_mapping_of_code_and_one_of_data`).
    let is_place = |(offset, relocation): &(u64, Relocation)| {
        let length = at(offset + 8, 8).map(|length| u64::from_le_bytes(length.try_into().unwrap()));
        let name =
            length.filter(|&length| length < PAGE_BYTES).and_then(|length| at(relocation.addend() as u64, length));
        name.is_some_and(|name| name.ends_with(b".rs"))
    };
    agent.dynamic_relocations().unwrap().filter(is_place).count() as u64
}

/// Addresses of the symbols that have `part` in their names.
fn symbols(agent: &ElfFile64, part: &str) -> Vec<u64> {
    let named = agent.symbols().filter(|symbol| symbol.name().is_ok_and(|name| name.contains(part)));
    named.map(|symbol| symbol.address()).collect()
}

#[test]
fn the_agent_is_one_mapping_of_code_and_one_of_data() {
    with_agents(|agent| {
        let e = agent.endian();
        let loaded: Vec<_> = agent.elf_program_headers().iter().filter(|h| h.p_type(e) == elf::PT_LOAD).collect();
        assert_eq!(
            loaded.iter().map(|h| h.p_flags(e)).collect::<Vec<_>>(),
            [elf::PF_R | elf::PF_X, elf::PF_R | elf::PF_W]
        );
        // Nothing is left for a third mapping of zeroes, or for a change of protection.
        assert!(loaded.iter().all(|h| h.p_filesz(e) == h.p_memsz(e) && h.p_vaddr(e) == h.p_offset(e)));
        assert!(agent.elf_program_headers().iter().all(|h| h.p_type(e) != elf::PT_GNU_RELRO));
    });
}

#[test]
fn the_code_of_the_dormant_life_lies_with_what_the_loader_reads() {
    with_agents_and_own(|agent, is_own| {
        let (start, end) = section(agent, ".text.dormant");
        // In the tests' own one each check of an overflow has a place in the source to name, which the loader relocates:
        // 2,258 places, where the library that users get has 620.
        let of_checks = if is_own { named_places(agent) * 3 / 4 * RELOCATION_BYTES } else { 0 };
        assert!(end - of_checks <= FAULT_AROUND_BYTES, "{end:#x}, {of_checks:#x} of them for checks");
        for part in [
            "5start5start11constructor",
            "8lifeline3arm",
            "5sites5patch",
            "ebb_gate_call",
            "7growing7on_call",
            "ebb_memmove",
        ] {
            let found = symbols(agent, part);
            assert!(found.iter().all(|at| (start..end).contains(at)) && !found.is_empty(), "{part}: {found:x?}");
        }
    });
}

#[test]
fn the_data_of_the_dormant_life_lies_with_what_the_loader_writes() {
    with_agents(|agent| {
        let (dynamic, _) = section(agent, ".dynamic");
        for part in ["7dormant10trampoline10TRAMPOLINE", "8lifeline4LINE", "5owner5OWNER", "11environment4KEPT"] {
            let found = symbols(agent, part);
            let is_near = |at: &u64| (dynamic..dynamic + PAGE_BYTES).contains(at);
            assert!(found.iter().all(is_near) && !found.is_empty(), "{part}: {found:x?}");
        }
    });
}

#[test]
fn unwinders_find_the_agents_frames() {
    with_agents(|agent| {
        let e = agent.endian();
        let mut headers = agent.elf_program_headers().iter();
        let unwind = headers.find(|h| h.p_type(e) == elf::PT_GNU_EH_FRAME).expect("a table for unwinding");
        let (start, end) = section(agent, ".eh_frame_hdr");
        assert_eq!((unwind.p_vaddr(e), unwind.p_vaddr(e) + unwind.p_memsz(e)), (start, end));
        let (start, end) = section(agent, ".eh_frame");
        assert!(start < end);
    });
}

#[test]
fn the_agent_asks_other_libraries_for_no_memory_function() {
    // Those of others read what the program may write over, or are the program's. Asked for is nothing but what the functions of
    // libc's do themselves in whose place the agent's are, and where the loader tells what it has loaded.
    let needed = [
        "__chk_fail",
        "__errno_location",
        "__libc_single_threaded",
        "_r_debug",
        "pthread_setcanceltype",
        "pthread_testcancel",
    ];
    let named = ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen", "malloc", "free"];
    with_agents(|agent| {
        let undefined = agent.dynamic_symbols().filter(|s| s.is_undefined());
        let mut asked: Vec<_> = undefined.filter_map(|s| s.name().ok()).filter(|name| !name.is_empty()).collect();
        asked.sort_unstable();
        assert_eq!(asked, needed);
        // Nobody else gets these.
        let given: Vec<_> =
            agent.dynamic_symbols().filter(|s| !s.is_undefined()).filter_map(|s| s.name().ok()).collect();
        assert!(!given.iter().any(|name| named.contains(name)), "{given:?}");
    });
}
