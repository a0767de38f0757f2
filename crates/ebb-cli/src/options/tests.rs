//! What the command line means, and what is wrong with it.

use super::*;
use crate::base::size::Amount;
use crate::host::shown;
use crate::host::spill::Options;
use crate::options::sources::Source;
use crate::run::request::Verbosity;
use crate::running::advice::Wish;
use std::time::Duration;

fn of(words: &[&str]) -> Result<Command, Failure> {
    of_all(&[], words)
}

/// Likewise, with options in other places.
fn of_all(places: &[(&str, &[&str])], words: &[&str]) -> Result<Command, Failure> {
    let source = |(name, words): &(&str, &[&str])| Source {
        name: (*name).to_owned(),
        words: words.iter().map(OsString::from).collect(),
    };
    let sources = || Ok(places.iter().map(source).collect());
    parse_with(std::iter::once("ebb").chain(words.iter().copied()).map(OsString::from), sources)
}

#[test]
fn options_elsewhere_yield_to_later_ones_and_to_the_command_line() {
    let file: (&str, &[&str]) = ("/etc/ebb.conf", &["--ram=1G", "--swap", "file:/a", "--swap=file:/b", "-q"]);
    let variable: (&str, &[&str]) = ("EBB_OPTIONS", &["--ram", "50%", "-v"]);
    let run = |places: &[(&str, &[&str])], words: &[&str]| match of_all(places, words) {
        Ok(Command::Run(run)) => run,
        other => panic!("{other:?}"),
    };
    let both = run(&[file, variable], &["run", "--idle", "1m", "x"]);
    assert_eq!((both.ram, both.idle_ms), (Ram::Amount(Amount::Share { millionths: 500_000 }), 60_000));
    assert_eq!((both.swap.len(), both.verbosity), (2, Verbosity::Verbose));
    // Devices are not added to those of another place.
    assert_eq!(run(&[file], &["run", "--swap", "none", "x"]).swap, [Device::None]);
    // Other commands do not look there.
    assert!(matches!(of_all(&[("EBB_OPTIONS", &["--no"])], &["ps"]), Ok(Command::Ps(_))));
}

#[test]
fn what_makes_no_sense_elsewhere_is_said_with_the_place() {
    let said = |words: &[&str]| of_all(&[("EBB_OPTIONS", words)], &["run", "x"]).unwrap_err().to_string();
    assert!(said(&["--ram", "much"]).starts_with("ebb: EBB_OPTIONS: --ram much: "), "{}", said(&["--ram", "much"]));
    assert_eq!(said(&["--fast"]), "ebb: EBB_OPTIONS: --fast: unknown option; see `ebb run --help`");
    assert_eq!(
        said(&["-q", "make"]),
        "ebb: EBB_OPTIONS: a word: only options can be given there, and this is none; see `ebb run --help`"
    );
    assert!(said(&["--name=web"]).contains("--name: this can only be given on the command line"));
    assert!(said(&["--stats", "f"]).contains("--stats: this can only be given on the command line"));
    let help = of_all(&[("EBB_OPTIONS", &["--fast"])], &["run", "--help"]);
    assert_eq!(help, Ok(Command::Print(asked(&["run", "--help"]))));
    assert!(said(&["-h"]).contains("--help: this can only be given on the command line"));
}

fn run_of(words: &[&str]) -> Run {
    match of(words) {
        Ok(Command::Run(run)) => run,
        other => panic!("{other:?}"),
    }
}

fn line(words: &[&str]) -> String {
    of(words).unwrap_err().to_string()
}

#[test]
fn every_option_of_run_arrives() {
    let run = run_of(&[
        "run",
        "--ram=64M",
        "--name",
        "web",
        "--swap",
        "none",
        "--stats",
        "s.json",
        "--idle=30s",
        "--show-ram=300%",
        "--allow-unmanaged",
        "-v",
        "--",
        "prog",
        "-x",
        "--",
        "y",
    ]);
    assert_eq!(run.ram, Ram::Amount(Amount::Bytes(64 << 20)));
    assert_eq!(run.name.as_deref(), Some("web"));
    assert_eq!(run.swap, vec![Device::None]);
    assert_eq!(run.idle_ms, 30_000);
    assert_eq!(run.show_ram, Some(shown::Show::Amount(Amount::Share { millionths: 3_000_000 })));
    assert_eq!(run.stats, Some(PathBuf::from("s.json")));
    assert!(run.allow_unmanaged);
    assert_eq!(run.verbosity, Verbosity::Verbose);
    assert_eq!(run.program, "prog");
    assert_eq!(run.args, ["-x", "--", "y"]);
}

#[test]
fn options_of_the_program_are_its_own_without_a_separator_too() {
    let run = run_of(&["run", "-q", "prog", "--ram", "1G", "--", "-v"]);
    assert_eq!(run.ram, Ram::Auto);
    assert_eq!(run.args, ["--ram", "1G", "--", "-v"]);
}

/// What a command line prints that asks for help or the version.
fn asked(words: &[&str]) -> String {
    match of(words) {
        Ok(Command::Print(text)) => text,
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn help_is_printed_for_each_command() {
    assert!(asked(&["--help"]).contains("Usage: ebb run [OPTIONS] -- PROGRAM [ARGS...]\n       ebb COMMAND"));
    let ebb = commands::ebb();
    for command in ebb.get_subcommands().map(clap::Command::get_name).filter(|name| *name != "help") {
        let long = asked(&[command, "--help"]);
        assert!(long.contains(&format!("Usage: ebb {command}")) && long.contains("\nExit status:\n"), "{long}");
        assert_eq!(asked(&["help", command]), long);
        let short = asked(&[command, "-h"]);
        assert!(short.contains(&format!("Usage: ebb {command}")) && !short.contains("Exit status"), "{short}");
        for line in short.lines().chain(long.lines()) {
            assert!(line.chars().count() <= 100, "{command}: {line}");
            assert_eq!(line, line.trim_end(), "{command}");
        }
    }
    assert_eq!(asked(&["help"]), asked(&["--help"]));
    assert!(asked(&["help", "-h"]).contains("Usage: ebb help [COMMAND]"));
    assert!(line(&["help", "walk"]).starts_with("ebb: walk: unknown command; see `ebb --help`"));
    // At once, whatever comes later.
    assert_eq!(asked(&["run", "--ram", "1G", "--help", "--fast"]), asked(&["run", "--help"]));
    assert_eq!(asked(&["swapon", "12", "-h"]), asked(&["swapon", "-h"]));
    assert_eq!(asked(&["-V"]), asked(&["--version"]));
    assert_eq!(asked(&["--version"]), format!("ebb {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(of(&["doctor", "--seccomp-profile=podman"]), Ok(Command::Print(Profile::Podman.json().to_owned())));
    assert_eq!(of(&[]), Ok(Command::Usage));
    let (text, failure) = usage();
    assert_eq!((text, failure.to_string().lines().count()), (asked(&["-h"]), 1));
}

#[test]
fn the_description_is_one_that_the_parser_takes() {
    commands::ebb().debug_assert();
    commands::run_elsewhere().debug_assert();
    let mut ebb = commands::ebb();
    ebb.build();
    let helped = ebb.find_subcommand("help").and_then(|help| help.get_positionals().next()).expect("its argument");
    let helped: Vec<_> = helped.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let others: Vec<_> = ebb.get_subcommands().map(clap::Command::get_name).filter(|name| *name != "help").collect();
    assert_eq!(helped, others);
}

#[test]
fn what_a_place_switches_on_the_command_line_switches_off() {
    let run = |places: &[&str], words: &[&str]| match of_all(&[("/etc/ebb.conf", places)], words) {
        Ok(Command::Run(run)) => (run.allow_unmanaged, run.verbosity),
        other => panic!("{other:?}"),
    };
    assert_eq!(run(&["--allow-unmanaged", "-q"], &["run", "x"]), (true, Verbosity::Quiet));
    let off = ["run", "--no-allow-unmanaged", "--no-quiet", "x"];
    assert_eq!(run(&["--allow-unmanaged", "-q"], &off), (false, Verbosity::Normal));
    assert_eq!(run(&["-v"], &["run", "--no-verbose", "x"]).1, Verbosity::Normal);
    assert_eq!(run(&["-v"], &["run", "--no-quiet", "x"]).1, Verbosity::Verbose);
    assert_eq!(run(&["-v"], &["run", "-q", "x"]).1, Verbosity::Quiet);
    // The last one wins within a place too.
    assert_eq!(run(&["-vq"], &["run", "x"]).1, Verbosity::Quiet);
    assert_eq!(run(&["-q", "-v"], &["run", "x"]).1, Verbosity::Verbose);
    assert!(run(&["--no-allow-unmanaged", "--allow-unmanaged"], &["run", "x"]).0);
    assert!(!run(&["--allow-unmanaged", "--no-allow-unmanaged"], &["run", "x"]).0);
    // Nobody looks at the places, not even at what is wrong there.
    assert_eq!(run(&["--fast"], &["run", "--no-config", "x"]), (false, Verbosity::Normal));
    let here = of_all(&[("EBB_OPTIONS", &["--no-config"])], &["run", "x"]).unwrap_err().to_string();
    assert!(here.starts_with("ebb: EBB_OPTIONS: --no-config: this can only be given on the command line"), "{here}");
}

#[test]
fn words_of_any_bytes_arrive_and_options_are_not_abbreviated() {
    use std::os::unix::ffi::OsStringExt;
    let odd = || OsString::from_vec(b"a\xffb".to_vec());
    let words = ["ebb".into(), "run".into(), odd(), "-5".into(), odd()];
    let Ok(Command::Run(run)) = parse_with(words.into_iter(), || Ok(Vec::new())) else { panic!("it is a program") };
    assert_eq!((run.program, run.args), (odd(), vec!["-5".into(), odd()]));
    let words = ["ebb".into(), odd()];
    let failure = parse_with(words.into_iter(), || Ok(Vec::new())).unwrap_err().to_string();
    assert!(failure.starts_with("ebb: a\u{fffd}b: unknown command; see `ebb --help`"), "{failure}");
    assert_eq!(line(&["run", "--qui", "x"]), "ebb: --qui: unknown option; see `ebb run --help`");
    assert_eq!(line(&["run", "-x"]), "ebb: -x: unknown option; see `ebb run --help`");
    assert_eq!(line(&["--ram", "1G", "run", "x"]), "ebb: --ram: unknown option; see `ebb --help`");
    assert!(line(&["ru", "x"]).starts_with("ebb: ru: unknown command; "));
    // What looks like an option is the value of one that needs a value; the last of several wins.
    assert!(
        line(&["run", "--ram", "-5", "x"]).starts_with("ebb: --ram -5: "),
        "{}",
        line(&["run", "--ram", "-5", "x"])
    );
    assert!(line(&["run", "--ram=", "x"]).starts_with("ebb: --ram : "), "{}", line(&["run", "--ram=", "x"]));
    assert_eq!(run_of(&["run", "--ram", "1G", "--ram=2G", "x"]).ram, Ram::Amount(Amount::Bytes(2 << 30)));
    assert_eq!(run_of(&["run", "--", "-x", "--"]).args, ["--"]);
    assert_eq!(run_of(&["run", "-"]).program, "-");
}

#[test]
fn a_name_that_is_none_is_refused_with_what_one_is() {
    assert_eq!(
        line(&["run", "--name", "12", "x"]),
        "ebb: --name 12: a name of digits alone could be mistaken for a PID; use at most 63 letters, digits, `.`, `_` \
         and `-`, not digits alone"
    );
    assert!(line(&["run", "--name", "a\x1bb", "x"]).starts_with("ebb: --name a\\x1bb: `\\u{1b}` is not allowed"));
}

#[test]
fn ps_shows_all_or_what_is_named() {
    let all = Ps {
        targets: Vec::new(),
        json: false,
        bytes: false,
        headings: true,
        verbose: false,
        validate: false,
        columns: Vec::new(),
    };
    assert_eq!(of(&["ps"]), Ok(Command::Ps(all.clone())));
    let targets = vec![Target::Named("web".into()), Target::Of(12)];
    let some = Ps { targets, json: true, bytes: true, headings: false, verbose: true, ..all.clone() };
    assert_eq!(of(&["ps", "--json", "web", "--bytes", "12", "--noheadings", "-v"]), Ok(Command::Ps(some)));
    assert_eq!(of(&["ps", "--validate"]), Ok(Command::Ps(Ps { validate: true, ..all })));
    assert!(line(&["ps", "--validate", "--json"]).contains("cannot be used with --validate"));
    assert!(line(&["ps", "a/b"]).starts_with("ebb: a/b: this is neither a name given to `ebb run --name` nor a PID; "));
}

#[test]
fn metrics_go_to_one_place() {
    let metrics = |targets, to| Ok(Command::Metrics(Metrics { targets, to }));
    assert_eq!(of(&["metrics"]), metrics(Vec::new(), Destination::Output));
    let inet = Destination::Listen(Address::Inet("127.0.0.1:9841".parse().unwrap()));
    let web = vec![Target::Named("web".into())];
    assert_eq!(of(&["metrics", "--listen", "127.0.0.1:9841", "web"]), metrics(web, inet));
    let unix = Destination::Listen(Address::Unix("/run/ebb".into()));
    assert_eq!(of(&["metrics", "--listen=unix:/run/ebb"]), metrics(Vec::new(), unix));
    assert_eq!(of(&["metrics", "--textfile", "/d"]), metrics(Vec::new(), Destination::Directory("/d".into())));
    assert_eq!(
        line(&["metrics", "--listen", "9841"]),
        "ebb: --listen 9841: this is no address; write an IP address and a port such as 127.0.0.1:9841, or unix:PATH"
    );
    assert!(line(&["metrics", "--listen", "unix:"]).contains("this is no address"));
    assert!(line(&["metrics", "--textfile=/d", "--listen=127.0.0.1:1"]).contains("more than one of"));
}

#[test]
fn set_names_a_tree_and_a_budget() {
    let change = Change {
        target: Target::Named("web".into()),
        ram: Some(Ram::Amount(Amount::Bytes(1 << 30))),
        thp: None,
        idle_ms: None,
    };
    assert_eq!(of(&["set", "web", "--ram", "1G"]), Ok(Command::Set(change.clone())));
    let change = Change { target: Target::Of(12), ram: Some(Ram::Auto), ..change };
    assert_eq!(of(&["set", "--ram=auto", "12"]), Ok(Command::Set(change.clone())));
    let change = Change { ram: None, idle_ms: Some(600_000), ..change };
    assert_eq!(of(&["set", "12", "--idle", "10m"]), Ok(Command::Set(change.clone())));
    let change = Change { idle_ms: Some(0), ..change };
    assert_eq!(of(&["set", "12", "--idle=off"]), Ok(Command::Set(change)));
    assert_eq!(
        line(&["set", "--ram", "1G"]),
        "ebb: ebb set: no NAME or PID of a running program given; see `ebb set --help`"
    );
    assert_eq!(
        line(&["set", "web"]),
        "ebb: ebb set: nothing to change: none of --ram, --thp and --idle is given; see `ebb set --help`"
    );
    assert!(line(&["set", "web", "12", "--ram", "1G"]).starts_with("ebb: 12: unexpected argument; "));
}

#[test]
fn reclaim_names_a_tree_and_how_much() {
    let demand = |amount, to| Ok(Command::Reclaim(Demand { target: Target::Named("web".into()), amount, to }));
    assert_eq!(of(&["reclaim", "web", "100M"]), demand(Amount::Bytes(100 << 20), None));
    assert_eq!(of(&["reclaim", "--to=pool", "web", "1G"]), demand(Amount::Bytes(1 << 30), Some(To::Pool)));
    let quarter = Amount::Share { millionths: 250_000 };
    assert_eq!(of(&["reclaim", "web", "25%", "--to", "device"]), demand(quarter, Some(To::Device)));
    assert_eq!(of(&["reclaim", "web", "25%", "--to", "cold"]), demand(quarter, Some(To::Cold)));
    assert_eq!(
        line(&["reclaim"]),
        "ebb: ebb reclaim: no NAME or PID of a running program given; see `ebb reclaim --help`"
    );
    assert_eq!(line(&["reclaim", "web"]), "ebb: ebb reclaim: no size given; see `ebb reclaim --help`");
    let remedy = "write how much to take as a size such as 100M, 1.5G or 1GiB, or as a percentage such as 25%";
    assert_eq!(line(&["reclaim", "web", "0"]), format!("ebb: ebb reclaim 0: it is zero; {remedy}"));
    assert!(line(&["reclaim", "web", "much"]).starts_with("ebb: ebb reclaim much: it does not begin with a number; "));
    assert!(line(&["reclaim", "web", "101%"]).contains(": a percentage must be more than 0% and at most 100%; "));
    assert!(line(&["reclaim", "web", "1M", "2M"]).starts_with("ebb: 2M: unexpected argument; "));
    assert_eq!(
        line(&["reclaim", "web", "1M", "--to", "tape"]),
        "ebb: --to tape: memory cannot go there; write pool, cold or device, or leave --to out"
    );
    assert_eq!(
        line(&["reclaim", "web", "1M", "--to"]),
        "ebb: --to: this option needs a value; see `ebb reclaim --help`"
    );
}

#[test]
fn swapon_names_a_process_and_a_device() {
    let options = Options { size_bytes: Some(1 << 30), prio: Some(5), ..Options::default() };
    let device = Device::File { dir: Some("/x".into()), options };
    assert_eq!(of(&["swapon", "12", "file:/x,prio=5,size=1G"]), Ok(Command::SwapOn { target: Target::Of(12), device }));
    let device = Device::File { dir: None, options: Options::default() };
    let target = Target::Named("web".into());
    assert_eq!(of(&["swapon", "web", "file"]), Ok(Command::SwapOn { target, device }));
    assert_eq!(
        line(&["swapon"]),
        "ebb: ebb swapon: no NAME or PID of a running program given; see `ebb swapon --help`"
    );
    assert_eq!(
        line(&["swapon", "12"]),
        "ebb: ebb swapon: nothing says where to put a swap file; \
         name a directory, such as file:/var/tmp, after the program's NAME or PID"
    );
    assert_eq!(
        line(&["swapon", "12", "none"]),
        "ebb: ebb swapon none: `none` adds nothing to swap to; name a directory, such as file:/var/tmp"
    );
    assert!(line(&["swapon", "12", "zram"]).starts_with("ebb: ebb swapon zram: Ebb can swap only to files; "));
    assert!(
        line(&["swapon", "/x", "file"])
            .starts_with("ebb: /x: this is neither a name given to `ebb run --name` nor a PID; ")
    );
    assert!(line(&["swapon", "12", "file", "--bytes"]).contains("can only be used with --show"));
}

#[test]
fn swapon_shows_one_process_or_all() {
    let all = Show { target: None, bytes: false, headings: true };
    assert_eq!(of(&["swapon", "--show"]), Ok(Command::Show(all.clone())));
    let one = Show { target: Some(Target::Of(12)), ..all.clone() };
    assert_eq!(of(&["swapon", "--show", "12"]), Ok(Command::Show(one)));
    let named = Show { target: Some(Target::Named("web".into())), ..all };
    assert_eq!(of(&["swapon", "web", "--show"]), Ok(Command::Show(named)));
    let plain = Show { target: Some(Target::Of(12)), bytes: true, headings: false };
    assert_eq!(of(&["swapon", "--noheadings", "12", "--bytes", "--show"]), Ok(Command::Show(plain)));
    assert!(line(&["swapon", "--show", "12", "file"]).contains("file: this argument cannot be used with --show"));
    assert!(line(&["swapon", "--show=NAME"]).contains("--show: this option takes no value"));
}

#[test]
fn swapoff_names_a_process_and_a_device() {
    for (text, target) in [("12", Target::Of(12)), ("web", Target::Named("web".into()))] {
        assert_eq!(of(&["swapoff", text, "/x"]), Ok(Command::SwapOff { target, device: "/x".into() }));
    }
    assert_eq!(
        line(&["swapoff"]),
        "ebb: ebb swapoff: no NAME or PID of a running program given; see `ebb swapoff --help`"
    );
    assert_eq!(
        line(&["swapoff", "12"]),
        "ebb: ebb swapoff: nothing says which swap file to remove; \
         name its directory, as `ebb swapon --show` prints it, after the program's NAME or PID"
    );
    assert!(line(&["swapoff", "12", "/x", "/y"]).starts_with("ebb: /y: unexpected argument; "));
}

#[test]
fn every_mistake_is_one_line_with_a_remedy() {
    assert_eq!(
        line(&["walk"]),
        "ebb: walk: unknown command; see `ebb --help`, or run a program with `ebb run -- PROGRAM`"
    );
    assert_eq!(line(&["run"]), "ebb: ebb run: no program given; see `ebb run --help`");
    assert_eq!(line(&["run", "--"]), "ebb: ebb run: no program given; see `ebb run --help`");
    assert_eq!(line(&["run", "--ram"]), "ebb: --ram: this option needs a value; see `ebb run --help`");
    assert_eq!(
        line(&["run", "--stats", "--", "x"]),
        "ebb: --stats: `--` is not the name of a file; give the file's name after --stats, or `./--` if that is its name"
    );
    assert_eq!(line(&["run", "--fast", "x"]), "ebb: --fast: unknown option; see `ebb run --help`");
    assert_eq!(line(&["run", "--quiet=1", "x"]), "ebb: --quiet: this option takes no value; see `ebb run --help`");
    assert_eq!(of(&["locks", "12"]), Ok(Command::Locks { target: Target::Of(12) }));
    assert_eq!(of(&["locks", "me"]), Ok(Command::Locks { target: Target::Named("me".into()) }));
    assert_eq!(line(&["locks"]), "ebb: ebb locks: no NAME or PID of a running program given; see `ebb locks --help`");
    assert_eq!(line(&["locks", "-3"]), "ebb: -3: unknown option; see `ebb locks --help`");
    assert_eq!(
        line(&["locks", "m/e"]),
        "ebb: m/e: this is neither a name given to `ebb run --name` nor a PID; see `ebb locks --help`"
    );
    assert_eq!(
        line(&["doctor", "--seccomp-profile", "lxc"]),
        "ebb: --seccomp-profile lxc: there is no profile for this engine; \
         write docker, podman or k8s; what reads the OCI format, as containerd does, takes that of k8s"
    );
    assert!(line(&["doctor", "--json", "--seccomp-profile", "k8s"]).contains("cannot be used with --seccomp-profile"));
    assert_eq!(line(&["doctor", "now"]), "ebb: now: unexpected argument; see `ebb doctor --help`");
    assert_eq!(
        line(&["run", "--ram", "much", "x"]),
        "ebb: --ram much: it does not begin with a number; \
         write a size such as 64M, 1.5G or 1GiB, a percentage such as 50%, or auto"
    );
}

#[test]
fn top_shows_all_or_what_is_named_at_its_pace() {
    assert_eq!(of(&["top"]), Ok(Command::Top(Top::new())));
    let top = Top {
        targets: vec![Target::Named("web".into())],
        interval: Duration::from_millis(500),
        frames: Some(3),
        is_batch: true,
        has_color: false,
        is_ascii: true,
    };
    assert_eq!(of(&["top", "-b", "-n3", "-d", "0.5", "web", "--no-color", "--ascii"]), Ok(Command::Top(top)));
    assert!(line(&["top", "-d", "soon"]).starts_with("ebb: -d soon: this is no interval; "));
    assert_eq!(line(&["top", "-n"]), "ebb: --iterations: this option needs a value; see `ebb top --help`");
    assert!(line(&["top", "--kill"]).contains("unknown option"));
}

#[test]
fn columns_of_ps_are_chosen_by_name() {
    let Ok(Columns::Columns(columns)) = columns::parse("pid,held") else { panic!("refused") };
    let Ok(Command::Ps(chosen)) = of(&["ps", "-opid", "--no-headers", "--columns=held"]) else { panic!("refused") };
    assert_eq!((chosen.columns, chosen.headings), (columns, false));
    assert_eq!(of(&["ps", "-o", "help"]), Ok(Command::Print(columns::help())));
    assert!(line(&["ps", "-o", "rss"]).starts_with("ebb: -o rss: there is no such column; "));
    assert!(line(&["ps", "-o", "pid", "--json"]).contains("cannot be used with --json"));
    assert!(line(&["ps", "-o", "pid", "--validate"]).contains("cannot be used with --validate"));
}

#[test]
fn advice_is_about_a_program_or_a_running_tree() {
    let Ok(Command::Run(run)) = of(&["advise", "--goal", "20%", "--ram", "1G", "--", "make", "-j2"]) else {
        panic!("refused")
    };
    assert_eq!((run.program, run.args), ("make".into(), vec!["-j2".into()]));
    assert_eq!(run.advice, Some(Wish { goal: Some(1.2), json: None }));
    assert_eq!(run.ram, Ram::Amount(Amount::Bytes(1 << 30)));
    let Ok(Command::Advise(watching)) = of(&["advise", "web", "--for", "1m", "--json", "a.json"]) else {
        panic!("refused")
    };
    assert_eq!((watching.target, watching.time), (Target::Named("web".into()), Duration::from_secs(60)));
    assert_eq!(watching.wish, Wish { goal: None, json: Some("a.json".into()) });
    assert!(line(&["advise"]).starts_with("ebb: ebb advise: no program given; write `ebb advise -- PROGRAM`"));
    assert!(line(&["advise", "web", "--", "make"]).contains("both a running program and one to run are given"));
    assert!(line(&["advise", "--for", "1m", "--", "make"]).contains("a program is watched until it ends"));
    assert!(line(&["advise", "--goal", "fast", "web"]).starts_with("ebb: --goal fast: this is not a number; "));
    // What another word would be for `ebb run` is one too many here.
    assert!(line(&["advise", "make", "-j2"]).contains("unknown option"));
}
