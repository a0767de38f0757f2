//! What a run leaves behind: the summary and the JSON file.

use crate::common::{House, code, err, json, out, signal};

#[test]
fn the_summary_is_short_and_on_standard_error() {
    let house = House::new();
    let output = house.run(["run", "--ram", "64M", "--", "/bin/sh", "-c", "echo hello"]);
    assert_eq!(out(&output), "hello\n");
    let text = err(&output);
    assert!((1..=6).contains(&text.lines().count()), "{text}");
    assert!(text.lines().all(|line| line.starts_with("ebb: ")), "{text}");
    assert!(text.starts_with("ebb: sh: wanted up to 0 B, held up to 0 B of 64.0 MiB; 1 process, "), "{text}");
}

#[test]
fn quiet_means_silence() {
    let house = House::new();
    assert_eq!(err(&house.run(["run", "-q", "--", "/bin/true"])), "");
    assert_eq!(err(&house.run(["run", "-q", "--swap", "file:/dev/shm", "--", "/bin/true"])), "");
}

#[test]
fn verbose_tells_budget_swap_and_agent() {
    let house = House::new();
    let text = err(&house.run(["run", "-v", "--ram", "50%", "--swap", "none", "--", "/bin/true"]));
    assert!(text.contains("ebb: budget ") && text.contains("iB (50% of "), "{text}");
    assert!(text.contains("ebb: swap none\n") && text.contains("ebb: agent /"), "{text}");
    assert!(text.contains("ebb:   processes 1\n"), "{text}");
}

#[test]
fn a_spill_directory_in_memory_is_warned_of() {
    let house = House::new();
    let text = err(&house.run(["run", "--swap", "file:/dev/shm", "--", "/bin/true"]));
    assert!(text.contains("ebb: spill directory /dev/shm: it is on a file system in memory"), "{text}");
}

#[test]
fn a_budget_beyond_the_machine_is_warned_of_unless_quiet() {
    let house = House::new();
    let text = err(&house.run(["run", "--ram", "64T", "--", "/bin/true"]));
    let warnings = text.lines().filter(|line| line.starts_with("ebb: --ram 64T: the budget is more than the ")).count();
    assert_eq!(warnings, 1, "{text}");
    let output = house.run(["run", "-q", "--ram", "64T", "--", "/bin/true"]);
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
    let text = err(&house.run(["run", "--ram", "64M", "--", "/bin/true"]));
    assert!(!text.contains("--ram"), "{text}");
}

/// Fills 60 MiB with what does not compress.
const NOISE: &str = r#"
#include <stdlib.h>
int main(void) {
    size_t words = 60 << 17;
    unsigned long *memory = malloc(words * 8), x = 88172645463325252UL;
    for (size_t i = 0; i < words; i++) x ^= x << 13, x ^= x >> 7, x ^= x << 17, memory[i] = x;
    return memory[words / 2] == 1;
}
"#;

#[test]
fn what_ran_out_is_one_line_first_and_the_account_of_it_only_with_v() {
    let house = House::with_agent();
    let program = house.compile("noise", NOISE, &[]);
    let start = |option: &str| {
        let words = ["run", option, "--ram", "16M", "--swap", "none", "--", program.to_str().unwrap()];
        house.ebb(words).spawn().unwrap()
    };
    let (quiet, verbose) = (start("-q"), start("-v"));
    let (quiet, verbose) = (quiet.wait_with_output().unwrap(), verbose.wait_with_output().unwrap());
    let begin = "ebb: out of swap: the RAM budget of 16.0 MiB is full (";
    let end = " of it compressed memory), and there is no swap file; give more than --ram 16M, or a --swap with room";
    let text = err(&quiet);
    assert_eq!((signal(&quiet), text.lines().count()), (Some(libc::SIGKILL), 1), "{text}");
    assert!(text.starts_with(begin) && text.trim_end().ends_with(end), "{text}");
    let text = err(&verbose);
    let told = text.lines().position(|line| line.starts_with(begin) && line.ends_with(end)).expect(&text);
    assert!(text.lines().nth(told + 1).unwrap().starts_with("ebb: this process holds "), "{text}");
}

#[test]
fn counters_come_as_json_with_program_and_exit_status() {
    let house = House::new();
    let file = house.path("s.json");
    let output =
        house.run(["run", "-q", "--stats", file.to_str().unwrap(), "--", "/bin/sh", "-c", "/bin/true; exit 3"]);
    assert_eq!(code(&output), Some(3));
    let value = json(&file);
    assert_eq!(value["exit"]["code"], 3);
    assert_eq!(value["program"]["file"], "/bin/sh");
    assert_eq!(value["program"]["arguments"][1], "/bin/true; exit 3");
    assert_eq!(value["program"]["managed"], true);
    assert_eq!(value["counters"]["processes"], 2);
    assert!(value["usage"]["max_rss_bytes"].as_u64().unwrap() > 0);
    assert_eq!(value["versions"]["ebb"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn waits_of_a_running_program_are_shown_to_its_owner() {
    let house = House::new();
    let script = format!("{} locks $$", house.path("bin/ebb").display());
    let output = house.run(["run", "-q", "--", "/bin/sh", "-c", &script]);
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
    assert_eq!(out(&output), "no thread has had to wait inside Ebb so far\n");
    let name = format!("waits-{}", std::process::id());
    let script = format!("{} locks {name}", house.path("bin/ebb").display());
    let output = house.run(["run", "-q", "--name", &name, "--", "/bin/sh", "-c", &script]);
    assert_eq!((code(&output), err(&output)), (Some(0), String::new()));
    assert_eq!(out(&output), "no thread has had to wait inside Ebb so far\n");
    let refused = house.run(["locks", &name]);
    assert_eq!(code(&refused), Some(125));
    assert!(err(&refused).contains("no running tree of this user has this name"), "{}", err(&refused));
    let refused = house.run(["locks", &std::process::id().to_string()]);
    assert_eq!(code(&refused), Some(125));
    assert!(err(&refused).contains("it does not run under Ebb"), "{}", err(&refused));
}

#[test]
fn counters_are_written_when_the_program_dies_of_a_signal_too() {
    let house = House::new();
    let file = house.path("s.json");
    house.run(["run", "-q", "--stats", file.to_str().unwrap(), "--", "/bin/sh", "-c", "kill -9 $$"]);
    assert_eq!(json(&file)["exit"]["signal"], 9);
}

#[test]
fn the_counters_of_an_unmanaged_program_say_so() {
    let house = House::new();
    let file = house.path("s.json");
    let program = house.compile("static", "int main(void) { return 0; }", &["-static"]);
    let args = ["run", "--allow-unmanaged", "--stats", file.to_str().unwrap(), "--", program.to_str().unwrap()];
    assert_eq!(err(&house.run(args)), "");
    let value = json(&file);
    assert_eq!(value["program"]["managed"], false);
    assert_eq!(value["counters"]["unmanaged_programs"], 1);
}

#[test]
fn counters_can_go_into_a_pipe() {
    let house = House::new();
    let output = house.run(["run", "-q", "--stats", "/dev/stdout", "--", "/bin/true"]);
    let value: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(value["exit"]["code"], 0);
}

#[test]
fn an_error_of_the_agent_is_shown_and_kept() {
    let house = House::new();
    let file = house.path("s.json");
    let output = house
        .ebb(["run", "--stats", file.to_str().unwrap(), "--", "/bin/true"])
        .env("TEST_AGENT_ERROR", "ebb: space: no room; raise --ram")
        .output()
        .unwrap();
    assert_eq!(code(&output), Some(125));
    assert!(err(&output).ends_with("ebb: failed: space: no room; raise --ram\n"), "{}", err(&output));
    assert_eq!(json(&file)["error"], "space: no room; raise --ram");
}

#[test]
fn an_agent_that_the_loader_leaves_out_is_noticed() {
    let house = House::new();
    std::fs::write(house.path("bin/libebb_agent.so"), b"\x7fELFnothing").unwrap();
    let output = house.run(["run", "--", "/bin/true"]);
    assert!(
        err(&output).contains("ebb: true: it ran without Ebb: the loader did not start the agent"),
        "{}",
        err(&output)
    );
}

#[test]
fn a_report_is_a_page_that_stands_alone() {
    let house = House::with_agent();
    let program = house.compile("noise", NOISE, &[]);
    let file = house.path("run.html");
    let args =
        ["run", "-q", "--ram", "24M", "--report", file.to_str().unwrap(), "--", program.to_str().unwrap(), "<b>"];
    assert_eq!(code(&house.run(args)), Some(0));
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "{page}");
    assert!(page.contains("<h1>noise under Ebb</h1>") && page.contains("noise &lt;b&gt;</code>"), "{page}");
    assert!(page.contains("<dt>Budget</dt><dd>24.0 MiB</dd>") && page.contains("Ended with status 0"), "{page}");
    assert_eq!(page.matches("<svg ").count(), 4, "{page}");
    assert!(page.contains("ebb: swapped out ") && !page.contains("NaN"), "{page}");
    // A program that ends at once has a page, too.
    house.run(["run", "-q", "--report", file.to_str().unwrap(), "--", "/bin/false"]);
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains("Ended with status 1") && page.contains("What it cost"), "{page}");
    let text = err(&house.run(["run", "--report", "/nowhere/run.html", "--", "/bin/true"]));
    assert!(text.starts_with("ebb: --report /nowhere/run.html: "), "{text}");
}
