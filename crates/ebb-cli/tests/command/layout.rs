//! How the preloaded library is laid out: what every small program pays for it depends on that (`ebb-agent`, `agent.ld`).

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Object, ObjectSection, ObjectSymbol, Relocation};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

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

/// The word at `address` of the file.
fn word(agent: &ElfFile64, address: u64) -> u64 {
    // An address in the library is an offset in its file (`the_agent_is_one_mapping_of_code_and_one_of_data`).
    let at = usize::try_from(address).unwrap();
    u64::from_le_bytes(agent.data()[at..at + 8].try_into().unwrap())
}

/// Whether `address` and `length` are those of a source file's name.
fn is_source_name(agent: &ElfFile64, address: u64, length: u64) -> bool {
    let range = usize::try_from(address).ok().zip(usize::try_from(length).ok());
    let text = range.and_then(|(start, length)| agent.data().get(start..start.checked_add(length)?));
    length < PAGE_BYTES && text.is_some_and(|text| text.ends_with(b".rs"))
}

/// How many `core::panic::Location`s the loader relocates: each begins with the address and the length of a file's name.
fn named_places(agent: &ElfFile64) -> u64 {
    let is_place = |(offset, relocation): &(u64, Relocation)| {
        is_source_name(agent, relocation.addend() as u64, word(agent, offset + 8))
    };
    agent.dynamic_relocations().unwrap().filter(is_place).count() as u64
}

/// Addresses of the words that the agent relocates by itself (RELR).
fn own_words(agent: &ElfFile64) -> BTreeSet<u64> {
    let mut words = BTreeSet::new();
    let Some(table) = agent.section_by_name(".relr.dyn") else { return words };
    let mut next = 0;
    for entry in table.data().unwrap().chunks_exact(8).map(|entry| u64::from_le_bytes(entry.try_into().unwrap())) {
        if entry % 2 == 0 {
            words.insert(entry);
            next = entry + 8;
        } else {
            words.extend((0..63).filter(|bit| entry >> (bit + 1) & 1 == 1).map(|bit| next + bit * 8));
            next += 63 * 8;
        }
    }
    words
}

/// The global offset table, which is relocated before anything else.
fn calls(agent: &ElfFile64) -> Range<u64> {
    let at = |name| agent.symbols().find(|symbol| symbol.name() == Ok(name)).expect(name).address();
    at("ebb_calls_start")..at("ebb_calls_end")
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
        for part in ["8contract8identity", "4uapi2fd12beyond_limit17"] {
            let found = symbols(agent, part);
            assert!(found.iter().all(|at| (start..end).contains(at)), "{part}: {found:x?}");
        }
    });
}

/// What code that cannot be reached in the dormant life is called: it ends the process, or begins a managed life.
fn ends_the_dormant_life(name: &str) -> bool {
    let ends = [
        "5start5start13begin_managed",
        "5start5start4fail",
        "5start5start14not_understood",
        "11relocations5apply17",
        "7growing7on_call",
    ];
    ends.iter().any(|part| name.contains(part))
        || ["9panicking", "6option13expect_failed", "6result13unwrap_failed", "16slice_index_fail"]
            .iter()
            .any(|part| name.contains(part))
}

/// Instructions of the function at `start`: up to its end, as its symbol says.
fn instructions(agent: &ElfFile64, start: u64, bytes: u64) -> Vec<Instruction> {
    let at = usize::try_from(start).unwrap();
    let code = &agent.data()[at..at + usize::try_from(bytes).unwrap()];
    Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter().collect()
}

/// What the instruction names of the library by its own address; none if nothing.
fn named(instruction: &Instruction) -> Option<u64> {
    let names = (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::Memory)
        && instruction.memory_base() == Register::RIP;
    names.then(|| instruction.ip_rel_memory_address())
}

#[test]
fn a_dormant_process_reads_nothing_that_is_relocated_later() {
    with_agents(|agent| {
        let (calls, mut later) = (calls(agent), own_words(agent));
        if later.is_empty() {
            println!("the linker made no table: the loader relocates all");
            return;
        }
        later.retain(|at| !calls.contains(at));
        let functions: BTreeMap<u64, (&str, u64)> = agent
            .symbols()
            .filter(|symbol| symbol.kind() == object::SymbolKind::Text)
            .filter_map(|symbol| Some((symbol.address(), (symbol.name().ok()?, symbol.size()))))
            .collect();
        let (mut seen, mut open) = (BTreeSet::new(), symbols(agent, "5start5start11constructor"));
        open.extend(symbols(agent, "11relocations14apply_to_calls"));
        assert!(open.len() >= 2, "{open:x?}");
        let mut wrong = Vec::new();
        while let Some(start) = open.pop() {
            let Some(&(name, bytes)) = functions.get(&start) else { continue };
            if ends_the_dormant_life(name) || !seen.insert(start) {
                continue;
            }
            for instruction in instructions(agent, start, bytes) {
                let target = named(&instruction);
                if instruction.op_count() > 0 && instruction.op_kind(0) == OpKind::NearBranch64 {
                    open.push(instruction.near_branch_target());
                }
                let Some(target) = target else { continue };
                if calls.contains(&target) {
                    // A call through the table, or the address of a function.
                    open.push(word(agent, target));
                }
                // Two words at once, or at most one.
                let is_wide = [Mnemonic::Movups, Mnemonic::Movaps, Mnemonic::Movdqu, Mnemonic::Movdqa]
                    .contains(&instruction.mnemonic());
                let end = if is_wide { target + 16 } else { target + 1 };
                let is_read = later.range(target.saturating_sub(7)..end).next().is_some();
                // A place in the source, which a panic will name.
                let is_place = instruction.mnemonic() == Mnemonic::Lea
                    && is_source_name(agent, word(agent, target), word(agent, target + 8));
                if is_read && !is_place {
                    wrong.push(format!(
                        "{name}: {:?} at {:#x} reads {target:#x}",
                        instruction.mnemonic(),
                        instruction.ip()
                    ));
                }
            }
        }
        // Those that the constructor calls are among them.
        for part in ["5sites5patch", "8lifeline3arm", "11environment4Kept"] {
            let found = symbols(agent, part);
            assert!(found.iter().any(|at| seen.contains(at)), "{part} was not looked at");
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn the_data_of_the_dormant_life_lies_with_what_the_loader_writes() {
    with_agents(|agent| {
        let (dynamic, _) = section(agent, ".dynamic");
        let is_near = |at: &u64| (dynamic..dynamic + PAGE_BYTES).contains(at);
        for part in ["7dormant10trampoline10TRAMPOLINE", "8lifeline4LINE", "5owner5OWNER", "11environment4KEPT"] {
            let found = symbols(agent, part);
            assert!(found.iter().all(is_near) && !found.is_empty(), "{part}: {found:x?}");
        }
        // Those of the engine, and what the compiler may have put elsewhere.
        for part in ["4uapi6stderr4FILE", "4uapi6stderr5WHICH", "6thread5CHECK", "6thread12HAS_FSGSBASE"] {
            let found = symbols(agent, part);
            assert!(found.iter().all(is_near), "{part}: {found:x?}");
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
