"""Tests of tools/tidy: each check finds its fault, and leaves what is right alone."""

import importlib.machinery
import importlib.util
import os
import unittest

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tidy")
LOADER = importlib.machinery.SourceFileLoader("tidy", PATH)
SPEC = importlib.util.spec_from_loader("tidy", LOADER)
tidy = importlib.util.module_from_spec(SPEC)
LOADER.exec_module(tidy)

HEAD = "//! What it is for.\n"


def found(path, text):
    return [(finding.line, finding.what) for finding in tidy.check_file(path, text)]


class Tidy(unittest.TestCase):
    def test_an_unsafe_block_without_a_comment_is_found(self):
        text = HEAD + "fn f() {\n    let x = unsafe { g() };\n}\n"
        self.assertEqual(found("crates/ebb/src/a.rs", text), [(3, "unsafe without a SAFETY comment above it")])

    def test_an_explained_unsafe_block_passes(self):
        text = HEAD + "fn f() {\n    // SAFETY: g has no\n    // conditions.\n    let x = unsafe { g() };\n}\n"
        self.assertEqual(found("crates/ebb/src/a.rs", text), [])

    def test_a_blank_line_cuts_a_comment_off(self):
        text = HEAD + "// SAFETY: of something else.\n\nfn f() { unsafe { g() } }\n"
        self.assertEqual(len(found("crates/ebb/src/a.rs", text)), 1)

    def test_an_unsafe_function_needs_a_section(self):
        bare = HEAD + "/// Does it.\npub unsafe fn f() {}\n"
        said = HEAD + "/// Does it.\n///\n/// # Safety\n/// Only once.\npub unsafe fn f() {}\n"
        self.assertEqual(len(found("crates/ebb/src/a.rs", bare)), 1)
        self.assertEqual(found("crates/ebb/src/a.rs", said), [])

    def test_the_word_unsafe_in_texts_is_no_finding(self):
        text = HEAD + '// unsafe { }\nconst A: &str = "unsafe {";\n'
        self.assertEqual(found("crates/ebb/src/a.rs", text), [])

    def test_a_long_file_is_found(self):
        self.assertEqual(len(found("a.py", "x\n" * (tidy.LINES_MAX + 1))), 1)
        self.assertEqual(found("a.py", "x\n" * tidy.LINES_MAX), [])

    def test_open_work_is_found_everywhere(self):
        for text in ["// TO" + "DO: more", "# FIX" + "ME", "to" + "do!()", "#[ign" + "ore]"]:
            self.assertEqual(len(found("tests/a.py", text)), 1, text)

    def test_a_raw_system_call_belongs_in_uapi_or_entry(self):
        text = HEAD + 'core::arch::asm!("syscall", in("rax") 1);\n'
        self.assertEqual(found("crates/ebb/src/fault.rs", text), [(2, "raw system call outside uapi")])
        self.assertEqual(found("crates/ebb/src/base/uapi/mod.rs", text), [])
        self.assertEqual(found("crates/ebb-agent/src/threads/entry.rs", text), [])

    def test_the_engine_does_not_call_the_c_library_outside_tests(self):
        text = HEAD + "fn f() { libc::getpid(); }\n#[cfg(test)]\nmod tests { fn g() { libc::getpid(); } }\n"
        self.assertEqual(found("crates/ebb/src/a.rs", text), [(2, "the C library in code that runs without it")])
        self.assertEqual(found("crates/ebb/src/pages/tests.rs", HEAD + "use libc::getpid;\n"), [])

    def test_an_import_upwards_is_found(self):
        text = "[dependencies]\nebb.workspace = true\n"
        self.assertEqual(found("crates/ebb-pool/Cargo.toml", text), [(1, "ebb-pool imports ebb, which is above it")])
        self.assertEqual(found("crates/ebb-agent/Cargo.toml", text), [])
        self.assertEqual(len(found("crates/new/Cargo.toml", text)), 1)

    def test_the_command_knows_only_the_counters_and_the_tree(self):
        self.assertEqual(len(found("crates/ebb-cli/src/a.rs", HEAD + "use ebb::space::Space;\n")), 1)
        self.assertEqual(found("crates/ebb-cli/src/a.rs", HEAD + "use ebb::stats::Shared;\nuse ebb::tree::Page;\n"), [])

    def test_a_source_file_has_a_head(self):
        self.assertEqual(len(found("crates/ebb/src/a.rs", "use core::fmt;\n")), 1)
        self.assertEqual(found("crates/ebb/src/a.rs", "#![no_std]\n" + HEAD), [])

    def test_rooms_import_downwards_only(self):
        def whats(path, code):
            return [what for _, what in found(path, HEAD + code)]
        self.assertEqual(whats("crates/ebb-cli/src/show/a.rs", "use crate::base::sys;\nuse crate::show::b;\nuse crate::{host, running};\n"), [])
        self.assertEqual(whats("crates/ebb-cli/src/lib.rs", "use crate::run::start;\n"), [])
        self.assertEqual(
            whats("crates/ebb-cli/src/base/a.rs", "use crate::run::start;\n"),
            ["`base` imports from `run`, which is above it: move what is imported down, or what imports it up"],
        )
        self.assertEqual(len(whats("crates/ebb-cli/src/host/a.rs", "fn f() { crate::change::set::set(); }\n")), 1)
        self.assertEqual(len(whats("crates/ebb-cli/src/host/a.rs", "use crate::{base, run};\n")), 1)
        self.assertEqual(len(whats("crates/ebb-cli/src/run/a.rs", "use crate::options::X;\n")), 1)
        self.assertEqual(len(whats("crates/ebb-cli/src/run/a.rs", "use super::super::options;\n")), 1)
        self.assertEqual(len(whats("crates/ebb-cli/src/attic/a.rs", "")), 1)

    def test_a_circle_of_more_than_three_files_is_found(self):
        def circle(names):
            after = names[1:] + names[:1]
            files = [(name, f"use crate::show::{other};\n") for name, other in zip(names, after)]
            return [what for _, _, what in tidy.check_circles({f"crates/ebb-cli/src/show/{name}.rs": text for name, text in files})]
        self.assertEqual(circle(["a", "b", "c"]), [])
        names = "show::a, show::b, show::c, show::d"
        self.assertEqual(circle(["a", "b", "c", "d"]), [f"a circle of 4 files ({names}): take out what they share"])

    def test_imports_are_read_however_they_are_written(self):
        def names(path, code):
            return [found for _, found in tidy.imports_of(path, code.split("\n"))]
        nested = "use crate::base::{\n    self, size::{Size, parse},\n    sys as system,\n};"
        self.assertEqual(
            names("crates/ebb-cli/src/run/a.rs", nested),
            [["base", "self"], ["base", "size", "Size"], ["base", "size", "parse"], ["base", "sys"]],
        )
        self.assertEqual(names("crates/ebb-cli/src/run/a.rs", "use super::b::C;"), [["run", "b", "C"]])
        self.assertEqual(names("crates/ebb-cli/src/run/a/mod.rs", "use super::b::C;"), [["run", "b", "C"]])
        self.assertEqual(names("crates/ebb-cli/src/run/a.rs", "mod tests {\n    use super::*;\n}"), [])
        self.assertEqual(names("crates/ebb-cli/src/run/a.rs", "fn f() { crate::host::limit::read(); }"), [["host", "limit", "read"]])

    def test_a_circle_over_neighbours_and_groups_is_found(self):
        files = {
            "crates/ebb/src/tree/a.rs": "use super::b::B;\n",
            "crates/ebb/src/tree/b.rs": "use crate::{tree::{c::C}, base::PAGE};\n",
            "crates/ebb/src/tree/c.rs": "use crate::tree::d;\n",
            "crates/ebb/src/tree/d.rs": "use super::a;\n",
        }
        self.assertEqual(len(list(tidy.check_circles(files))), 1)
        files["crates/ebb/src/tree/d.rs"] = "#[cfg(test)]\nmod tests { use crate::tree::a; }\n"
        self.assertEqual(list(tidy.check_circles(files)), [])

    def test_a_method_is_not_called_from_below_the_room_that_defines_it(self):
        files = {
            "crates/ebb/src/space/mod.rs": "impl Space {\n    pub fn stats(&self) {\n        self.mmap();\n    }\n}\n",
            "crates/ebb/src/calls/mmap.rs": "impl Space {\n    pub fn mmap(&self) {\n        self.stats();\n    }\n}\n",
            "crates/ebb/src/way_in/fault.rs": "fn fault(space: &Space) {\n    space.stats();\n}\nimpl Other {\n    fn f(&self) {\n        self.mmap();\n    }\n}\n",
        }
        whats = [(path, line) for path, line, _ in tidy.check_methods(files)]
        self.assertEqual(whats, [("crates/ebb/src/space/mod.rs", 3)])
        files["crates/ebb/src/way_in/fault.rs"] = "fn fault(space: &Space) {\n    space.mmap();\n}\n"
        whats = [what for path, _, what in tidy.check_methods(files) if "fault" in path]
        self.assertEqual(whats, ["`way_in` calls Space::mmap of `calls`, which is above it: move it down, or what calls it up"])

    def test_markdown_is_wrapped_but_for_code_and_tables(self):
        long = "word " * 25
        for text in [f"```sh\n{long}\n```\n", f"| {long} |\n", "x" * tidy.COLUMNS_MAX + "\n"]:
            self.assertEqual(found("docs/a.md", text), [])
        self.assertEqual(found("docs/a.md", f"```sh\n```\n{long}\n"), [(3, "125 columns: wrap Markdown at 100")])

    def test_a_link_leads_somewhere(self):
        tree = {"README.md": "# Ebb\n", "docs/b.md": "# B\n\n## What it `needs`\n", "tests": ""}
        def links(*targets):
            text = "# A\n" + "\n".join(f"[x]({target})" for target in targets)
            return [what for _, _, what in tidy.check_file("docs/a.md", text, tree.get)]
        right = ["b.md", "../README.md", "b.md#what-it-needs", "#a", "../tests", "https://example.org/c.md"]
        self.assertEqual(links(*right), [])
        self.assertEqual(links("c.md"), ["a link to c.md, which is not there"])
        self.assertEqual(links("b.md#why"), ["a link to b.md#why: no heading has that name"])
        self.assertEqual(len(links("#b")), 1)

    def test_a_source_file_that_is_named_is_there(self):
        def whats(name):
            has = {"way_in/fault.rs", "fault.rs"}.__contains__
            return [what for _, _, what in tidy.check_file("docs/a.md", f"# A\nsee `{name}`\n", lambda path: "", has)]
        self.assertEqual(whats("way_in/fault.rs"), [])
        self.assertEqual(whats("way_out/fault.rs"), ["a source file way_out/fault.rs, which is not there"])


if __name__ == "__main__":
    unittest.main()
