//! The manual pages in `man` and the completions of shells in `completions` are what the description of the command line
//! says. `make man completions` writes them, with the date of that day in what has changed.

mod manual;

use std::path::{Path, PathBuf};

use clap_complete::Shell;
use ebb_cli::options::commands;

/// Has the date, if the files are to be written rather than compared.
const WRITE: &str = "EBB_WRITE_PAGES";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares a file with what it should be, or writes it. `text` may depend on the date that the file has.
fn settle(path: &str, date_of: impl Fn(&str) -> Option<String>, text: impl Fn(&str) -> String) {
    let file = root().join(path);
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    let today = std::env::var(WRITE).ok();
    let date = date_of(&there).or(today.clone()).unwrap_or_default();
    if text(&date) == there {
        return;
    }
    let today = today.unwrap_or_else(|| panic!("{path} is not what `ebb --help` says: run `make man completions`"));
    std::fs::write(&file, text(&today)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// The names of the files in a directory.
fn names(path: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(path)).expect("a directory");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

#[test]
fn every_command_has_its_manual_page() {
    let mut ebb = commands::ebb();
    ebb.build();
    let date_of = |page: &str| {
        let title = page.lines().find(|line| line.starts_with(".TH "))?;
        title.split(' ').nth(3).map(str::to_owned)
    };
    for command in manual::commands(&ebb) {
        let path = format!("man/{}.1", manual::name(command, &ebb));
        settle(&path, date_of, |date| manual::page(command, &ebb, date));
    }
    let mut expected: Vec<_> =
        manual::commands(&ebb).map(|command| format!("{}.1", manual::name(command, &ebb))).collect();
    expected.sort();
    assert_eq!(names("man"), expected);
}

/// After `ebb run -- ` bash completes the program and its arguments as it would without Ebb.
const BASH_PROGRAM: &str = r#"
_ebb_or_program() {
    local i
    if [[ ${COMP_WORDS[1]} == run ]]; then
        for ((i = 2; i < COMP_CWORD; i++)); do
            if [[ ${COMP_WORDS[i]} == -- ]]; then
                if declare -F _command_offset >/dev/null; then
                    _command_offset $((i + 1))
                elif ((COMP_CWORD == i + 1)); then
                    COMPREPLY=($(compgen -c -- "$2"))
                fi
                return
            fi
        done
    fi
    _ebb "$@"
}
complete -F _ebb_or_program -o nosort -o bashdefault -o default ebb
"#;

#[test]
fn each_shell_has_its_completions() {
    let none = |_: &str| None;
    for (shell, path) in
        [(Shell::Bash, "completions/ebb.bash"), (Shell::Fish, "completions/ebb.fish"), (Shell::Zsh, "completions/_ebb")]
    {
        settle(path, none, |_| {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut commands::ebb(), commands::NAME, &mut text);
            let added = if shell == Shell::Bash { BASH_PROGRAM } else { "" };
            String::from_utf8(text).expect("text") + added
        });
    }
    assert_eq!(names("completions"), ["_ebb", "ebb.bash", "ebb.fish"]);
}
