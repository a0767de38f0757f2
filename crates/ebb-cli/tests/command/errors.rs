//! What keeps a program from starting: exit status and the one line that says so.

use crate::common::{House, code, err, out};
use std::process::Command;

/// The one line that `ebb` says, with exit status 125.
fn refusal(house: &House, args: &[&str]) -> String {
    let output = house.run(args);
    let text = err(&output);
    assert_eq!(code(&output), Some(125), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(out(&output), "");
    text.trim_end().to_owned()
}

#[test]
fn no_command_and_unknown_commands_are_refused() {
    let house = House::new();
    let output = house.run::<&str>([]);
    assert_eq!((code(&output), out(&output)), (Some(125), String::new()));
    assert!(err(&output).contains("Usage: ebb run [OPTIONS] -- PROGRAM"), "{}", err(&output));
    let last = "\nebb: command line: no command given; run a program with `ebb run -- PROGRAM`\n";
    assert!(err(&output).ends_with(last), "{}", err(&output));
    assert!(refusal(&house, &["rnu"]).starts_with("ebb: rnu: unknown command; see `ebb --help`"));
}

/// Sets the mode of a directory. Returns the one that it had.
fn fs_mode(path: &std::path::Path, mode: u32) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    let before = std::fs::metadata(path).unwrap().permissions().mode();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    before
}

#[test]
fn options_of_a_file_and_a_variable_are_taken_and_yield_to_the_command_line() {
    let house = House::new();
    let home = house.path("home");
    std::fs::create_dir_all(home.join(".config/ebb")).unwrap();
    std::fs::write(home.join(".config/ebb/config"), "# little\n--ram 40M --swap none\n-v\n").unwrap();
    let said = |variable: Option<&str>, args: &[&str]| {
        let mut command = house.ebb(args);
        command.env("HOME", &home).env_remove("XDG_CONFIG_HOME").env_remove("EBB_OPTIONS");
        variable.map(|text| command.env("EBB_OPTIONS", text));
        let output = command.output().unwrap();
        (code(&output), err(&output))
    };
    let (status, text) = said(None, &["run", "--", "true"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("ebb: budget 40.0 MiB (as given)\n") && text.contains("ebb: swap none\n"), "{text}");
    assert!(said(Some("--ram=48M"), &["run", "true"]).1.contains("ebb: budget 48.0 MiB"));
    assert!(said(Some("--ram=48M"), &["run", "--ram", "56M", "true"]).1.contains("ebb: budget 56.0 MiB"));
    // What the file switches on is off again, or nobody looks there, not even at mistakes.
    assert_eq!(said(None, &["run", "--no-verbose", "-q", "true"]), (Some(0), String::new()));
    let (status, text) = said(None, &["run", "--no-verbose", "true"]);
    assert!(status == Some(0) && !text.contains("ebb: budget"), "{text}");
    assert_eq!(said(Some("--nonsense"), &["run", "--no-config", "-q", "true"]), (Some(0), String::new()));
    let (status, text) = said(Some("--nonsense"), &["run", "--no-config", "-v", "true"]);
    assert!(status == Some(0) && text.contains("ebb: budget") && !text.contains("ebb: budget 40.0 MiB"), "{text}");
    let mistake = said(Some("--name web"), &["run", "true"]);
    assert_eq!(mistake.0, Some(125));
    assert!(
        mistake.1.starts_with("ebb: EBB_OPTIONS: --name: this can only be given on the command line"),
        "{}",
        mistake.1
    );
    // Another user may have this home, as after setpriv.
    let closed = fs_mode(&home, 0o700);
    let mut command = house.ebb(["run", "-v", "--", "true"]);
    command.env("HOME", &home).env_remove("EBB_OPTIONS");
    // SAFETY: as root, the test runs the program as somebody else.
    if unsafe { libc::geteuid() } == 0 {
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
        let output = command.output().unwrap();
        assert_eq!(code(&output), Some(0), "{}", err(&output));
        assert!(!err(&output).contains("budget 40.0 MiB"), "{}", err(&output));
    }
    fs_mode(&home, closed);
    // Only `ebb run` looks there.
    assert_eq!(said(Some("--nonsense"), &["--version"]).0, Some(0));
}

#[test]
fn bad_options_are_refused_before_the_program_starts() {
    let house = House::new();
    for (args, start) in [
        (vec!["run", "--ram", "64MB", "--", "true"], "ebb: --ram 64MB: `MB` could mean"),
        (vec!["run", "--ram", "0", "--", "true"], "ebb: --ram 0: it is zero; "),
        (vec!["run", "--ram", "120%", "--", "true"], "ebb: --ram 120%: a percentage must be"),
        (vec!["run", "--ram", "4K", "--", "true"], "ebb: --ram 4K: a budget is at least 4M; give at least"),
        (
            vec!["run", "--ram", "5", "--", "true"],
            "ebb: --ram 5: a number without a unit counts bytes, and a budget is at least 4M; give a unit, such as --ram 5M or",
        ),
        (vec!["set", "web", "--ram", "1K"], "ebb: --ram 1K: a budget is at least 4M; give at least"),
        (
            vec!["run", "--ram", "1.5.5G", "--", "true"],
            "ebb: --ram 1.5.5G: `1.5.5` is not a number: it has more than one",
        ),
        (
            vec!["run", "--swap", "file:/tmp,size=1K", "--", "true"],
            "ebb: --swap file:/tmp,size=1K: a swap file holds at least 1M; give at least size=1M",
        ),
        (
            vec!["run", "--swap", "file:/tmp,foo=1", "--", "true"],
            "ebb: --swap file:/tmp,foo=1: `foo=1` is not an option of a swap file; use file, file:DIR or none; ",
        ),
        (vec!["run", "--swap", "/tmp", "--", "true"], "ebb: --swap /tmp: a directory needs `file:` before it; write"),
        (vec!["run", "--swap", "zram", "--", "true"], "ebb: --swap zram: Ebb can swap only to files; use file"),
        (
            vec!["run", "--swap", "file,kind=floppy", "--", "true"],
            "ebb: --swap file,kind=floppy: `floppy` is not a kind of disk; write kind=ssd, kind=hdd or",
        ),
        (
            vec!["run", "--swap", "file,discard=twice", "--", "true"],
            "ebb: --swap file,discard=twice: `twice` is not a discard policy; write discard=pages, discard=once or",
        ),
        (
            vec!["run", "--swap", "file,writes=20G", "--", "true"],
            "ebb: --swap file,writes=20G: the write budget has no period; write a size and a period, such as writes=20G/day",
        ),
        (
            vec!["run", "--swap", "file,writes=4K/day", "--", "true"],
            "ebb: --swap file,writes=4K/day: a write budget of 4K is less than one write, which has up to 256K; allow at",
        ),
        (vec!["run", "--swap", "file:/no/such", "--", "true"], "ebb: spill directory /no/such: No such file"),
        (vec!["run", "--swap", "none", "--swap", "file", "--", "true"], "ebb: --swap none: it cannot be combined"),
        (vec!["run", "--stats", "/no/such/s.json", "--", "true"], "ebb: --stats /no/such/s.json: No such file"),
        (vec!["run", "--frob", "--", "true"], "ebb: --frob: unknown option; see `ebb run --help`"),
        (vec!["run"], "ebb: ebb run: no program given; see `ebb run --help`"),
    ] {
        let line = refusal(&house, &args);
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn a_fallback_that_there_is_not_is_named() {
    let house = House::with_agent();
    let output = house.ebb(["run", "--", "true"]).env("EBB_FORCE", "no-dormant,nonsense,strict").output().unwrap();
    assert_eq!(code(&output), Some(125));
    assert_eq!(err(&output), "ebb: EBB_FORCE: there is no `nonsense`; docs/contract.md lists what there is\n");
}

#[test]
fn a_program_that_is_nowhere_is_127() {
    let house = House::new();
    let output = house.run(["run", "--", "no-such-program-at-all"]);
    assert_eq!(code(&output), Some(127));
    assert_eq!(err(&output), "ebb: no-such-program-at-all: not found in PATH; check the name, or give a path\n");
    let output = house.run(["run", "--", "./no-such-program"]);
    assert_eq!(code(&output), Some(127));
    assert_eq!(err(&output), "ebb: ./no-such-program: there is no such file; check the path\n");
}

#[test]
fn a_file_that_is_not_executable_is_126() {
    let house = House::new();
    let plain = house.file("plain", "text", 0o644);
    let output = house.run(["run", "--", plain.to_str().unwrap()]);
    assert_eq!(code(&output), Some(126));
    assert!(err(&output).contains("it has no execute permission; "), "{}", err(&output));
    let output = house.run(["run", "--", "/"]);
    assert_eq!(code(&output), Some(126));
}

#[test]
fn a_script_whose_interpreter_is_missing_is_127_and_names_it() {
    let house = House::new();
    let script = house.file("script", "#!/no/such/interpreter\n", 0o755);
    let output = house.run(["run", "--", script.to_str().unwrap()]);
    assert_eq!(code(&output), Some(127));
    assert!(err(&output).contains("its interpreter /no/such/interpreter is missing"), "{}", err(&output));
}

#[test]
fn a_program_that_the_kernel_refuses_to_execute_is_126() {
    let house = House::new();
    let program = house.compile("busy", "int main(void) { return 0; }", &[]);
    let _open = std::fs::OpenOptions::new().append(true).open(&program).unwrap();
    let output = house.run(["run", "--", program.to_str().unwrap()]);
    assert_eq!(code(&output), Some(126));
    assert!(err(&output).contains(": Text file busy (os error 26); "), "{}", err(&output));
}

#[test]
fn a_static_program_is_refused_unless_that_is_allowed() {
    let house = House::new();
    let program = house.compile("static", "int main(void) { return 7; }", &["-static"]);
    let program = program.to_str().unwrap();
    let line = refusal(&house, &["run", "--", program]);
    assert!(line.contains("it is statically linked"), "{line}");
    assert!(line.ends_with("or run it without Ebb with --allow-unmanaged"), "{line}");
    let output = house.run(["run", "--allow-unmanaged", "--", program]);
    assert_eq!((code(&output), err(&output)), (Some(7), String::new()));
    let output = house.run(["run", "-v", "--allow-unmanaged", "--", program]);
    assert_eq!(code(&output), Some(7));
    assert!(err(&output).contains("it runs without Ebb"), "{}", err(&output));
}

#[test]
fn an_unmanaged_program_has_the_environment_untouched() {
    let house = House::new();
    let source = r#"
        #include <stdio.h>
        extern char **environ;
        int main(void) { for (char **e = environ; *e; e++) puts(*e); }
    "#;
    let program = house.compile("static", source, &["-static"]);
    let output = house
        .ebb(["run", "--allow-unmanaged", "--", program.to_str().unwrap()])
        .env_clear()
        .env("A", "1")
        .output()
        .unwrap();
    assert_eq!(out(&output), "A=1\n");
}

#[test]
fn a_script_is_judged_by_its_interpreter() {
    let house = House::new();
    let interpreter = house.compile("static", "int main(void) { return 0; }", &["-static"]);
    let script = house.file("script", &format!("#!{}\n", interpreter.display()), 0o755);
    let line = refusal(&house, &["run", "--", script.to_str().unwrap()]);
    assert!(
        line.starts_with(&format!("ebb: {} -> {}: it is statically", script.display(), interpreter.display())),
        "{line}"
    );
}

#[test]
fn a_32_bit_or_musl_program_is_refused() {
    let house = House::new();
    let program =
        house.compile("musl", "int main(void) { return 0; }", &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]);
    let line = refusal(&house, &["run", "--", program.to_str().unwrap()]);
    assert!(line.contains("it is linked with musl (/lib/ld-musl-x86_64.so.1), but Ebb's agent with glibc"), "{line}");
    let mut image = std::fs::read(&program).unwrap();
    image[4] = 1;
    std::fs::write(&program, image).unwrap();
    let line = refusal(&house, &["run", "--", program.to_str().unwrap()]);
    assert!(line.contains("it is a 32-bit program"), "{line}");
}

#[test]
fn a_missing_agent_is_named_with_its_places() {
    let house = House::without_agent();
    let line = refusal(&house, &["run", "--", "/bin/true"]);
    assert!(line.contains(house.path("bin/libebb_agent.so").to_str().unwrap()), "{line}");
    assert!(line.contains(house.path("lib/ebb/libebb_agent.so").to_str().unwrap()), "{line}");
}

#[test]
fn an_address_space_limit_shows_in_the_doctors_report() {
    let house = House::new();
    let under = |kib: &str, args: &str| {
        let script = format!("ulimit -v {kib}; exec {} {args}", house.path("bin/ebb").display());
        Command::new("/bin/sh").args(["-c", &script]).output().unwrap()
    };
    let output = under("1200000", "doctor");
    assert_eq!(code(&output), Some(1));
    assert!(out(&output).contains("blocked  address space"), "{}", out(&output));
    // Enough for a small budget.
    let output = under("4000000", "doctor");
    assert_eq!(code(&output), Some(0), "{}", out(&output));
    assert!(out(&output).contains("limited  address space"), "{}", out(&output));
}

#[test]
fn the_doctor_reports_the_same_as_text_and_json() {
    let house = House::new();
    let (text, json) = (house.run(["doctor"]), house.run(["doctor", "--json"]));
    assert_eq!(code(&text), code(&json));
    let value: serde_json::Value = serde_json::from_str(&out(&json)).unwrap();
    assert_eq!(value["works"], code(&json) == Some(0));
    let names: Vec<&str> =
        value["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    for name in ["userfaultfd", "UFFDIO_MOVE", "system-call dispatch", "process_madvise", "memory", "spill directory"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
        assert!(out(&text).contains(name));
    }
}

#[test]
fn help_and_version_go_to_standard_output() {
    let house = House::without_agent();
    for args in [
        vec!["--help"],
        vec!["run", "--help"],
        vec!["doctor", "-h"],
        vec!["--version"],
        vec!["help"],
        vec!["help", "run"],
    ] {
        let output = house.run(&args);
        assert_eq!((code(&output), err(&output)), (Some(0), String::new()), "{args:?}");
        assert!(out(&output).ends_with('\n') && !out(&output).ends_with("\n\n"), "{args:?}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_of_the_command_not_a_panic() {
    let house = House::without_agent();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = house.ebb(["--help"]).stdout(full).output().unwrap();
    assert_eq!(code(&output), Some(125));
    assert!(err(&output).starts_with("ebb: standard output: No space left"), "{}", err(&output));
}
