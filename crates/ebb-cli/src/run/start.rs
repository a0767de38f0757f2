//! `ebb run`: checks everything that can go wrong before the program starts, runs the program, and accounts for it.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use ebb::stats::Thp;
use ebb::tree;

use crate::base::end::{self, End};
use crate::base::failure::{Failure, STATUS_CANNOT_EXECUTE, STATUS_NOT_FOUND};
use crate::base::path::{self, ResolveError};
use crate::base::size::human_bytes;
use crate::base::sys;
use crate::host::agent;
use crate::host::budget::{self, budget};
use crate::host::checks;
use crate::host::image::{self, Identity, Image, Obstacle};
use crate::host::shown;
use crate::host::sites;
use crate::host::spill::{self, Device};
use crate::host::thp;
use crate::host::trap;
use crate::run::govern::Governor;
use crate::run::launch::{Environment, Launch, LaunchError};
use crate::run::lifeline::Lifeline;
use crate::run::record::Recorder;
use crate::run::report::{self, Outcome};
use crate::run::request::{Run, Verbosity};
use crate::run::supervise;
use crate::run::unmanaged::Unmanaged;
use crate::run::watch::{Watch, Words};
use crate::running::advice::{self, Advice};
use crate::running::counters::Counters;
use crate::running::curve::Lack;
use crate::running::trees;

/// Runs the program and returns its exit status. If the program died of a signal, so does this process.
/// `ignored_children` says whether SIGCHLD was ignored when `ebb` started.
pub fn run(options: &Run, ignored_children: bool) -> Result<i32, Failure> {
    let file = find_program(&options.program)?;
    let image = image::inspect(&file, std::env::var_os("PATH").as_deref(), Identity::current());
    let managed = is_managed(options, &image)?;
    let mut stats = options.stats.as_deref().map(|path| create("--stats", path)).transpose()?;
    let mut page = options.report.as_deref().map(|path| create("--report", path)).transpose()?;
    let json = options.advice.as_ref().and_then(|wish| wish.json.as_deref());
    let mut json = json.map(advice::create).transpose()?;
    let counters = Counters::create()
        .map_err(|error| Failure::ebb("shared counters", error, "allow memfd_create and raise `ulimit -n`"))?;
    let counters = Arc::new(counters);
    // Cannot fail: no other process has the file yet.
    tree::supervise(counters.fd());
    if let Some(name) = &options.name {
        counters.page().set_name(name.as_bytes());
        trees::check_unique(name, &counters)?;
    }
    let mut environment = Environment::inherited();
    let mut kept = Vec::new();
    let mut numbers = Vec::new();
    let mut held = None;
    if managed {
        let plan = prepare(options)?;
        let fd = out_of_the_way(counters.file())?;
        let ([line, keeper], rest) = Lifeline::create().map_err(descriptors_exhausted)?.split();
        let (line, keeper) = (out_of_the_way(&line)?, out_of_the_way(&keeper)?);
        counters.set_budget(plan.ram_bytes);
        counters.page().thp.store(plan.thp as u32, Relaxed);
        counters.page().idle_ms.store(options.idle_ms, Relaxed);
        let show_ram_bytes = plan.show_ram_bytes.unwrap_or(0);
        if show_ram_bytes > 0 || std::env::var_os(shown::VARIABLE).is_some() {
            // An outer agent adds its own value where there is none.
            environment.set(shown::VARIABLE, show_ram_bytes.to_string().as_bytes());
        }
        counters.page().show_ram_bytes.store(show_ram_bytes, Relaxed);
        environment.preload(&plan.agent);
        environment.set("EBB_RAM", plan.ram_bytes.to_string().as_bytes());
        environment.set("EBB_SWAP", &plan.swap);
        environment.set("EBB_STATS_FD", fd.as_raw_fd().to_string().as_bytes());
        let inode = |fd| sys::inode(fd).map_err(|error| Failure::ebb("lifeline", error, "report this as a bug in Ebb"));
        let holder = [std::process::id().into(), rest.number() as u64];
        let ends = [line.as_raw_fd() as u64, keeper.as_raw_fd() as u64, inode(&line)?, inode(&keeper)?];
        environment.set(
            "EBB_LIFE_FDS",
            [&ends[..], &holder].concat().iter().map(u64::to_string).collect::<Vec<_>>().join(",").as_bytes(),
        );
        match sites::table() {
            Some(table) => environment.set("EBB_SITES", table.as_bytes()),
            // There is no table if an outer agent has patched libc here. Then the outer one's table in the environment
            // still matches the file.
            None if checks::outer_budget().is_some() => {}
            None => environment.remove("EBB_SITES"),
        }
        let stderr = sys::file_identity(&io::stderr()).ok().map(|(device, inode)| format!("{device},{inode}"));
        environment.set("EBB_STDERR", stderr.as_deref().unwrap_or("none").as_bytes());
        environment.set("EBB_VERBOSE", (options.verbosity as u8).to_string().as_bytes());
        held = Some(rest);
        numbers = vec![fd.as_raw_fd(), line.as_raw_fd(), keeper.as_raw_fd()];
        kept.extend([line, keeper]);
        // Closing it would release this process's record locks on the file.
        std::mem::forget(fd);
    } else {
        if options.show_ram.is_some() && options.verbosity > Verbosity::Quiet {
            sys::complain("ebb: --show-ram: Ebb does not manage this program, so it sees the true size of RAM");
        }
        counters.page().unmanaged_programs.store(1, Relaxed);
    }
    let launch = Launch {
        file: argument(file.as_os_str())?,
        arguments: std::iter::once(&options.program)
            .chain(&options.args)
            .map(|text| argument(text))
            .collect::<Result<_, _>>()?,
        environment,
        kept: numbers,
        ignored_children,
    };
    // Before there is another thread, and a program that would be disturbed.
    let trap_ns = if options.advice.is_some() || options.report.is_some() { trap::cost_ns() } else { 0 };
    let taken = supervise::taken_signals();
    let started = Instant::now();
    let child = launch.start(&taken).map_err(|error| not_started(&file, &image, error))?;
    drop(kept);
    let watch = if managed { start_watch(options, &counters) } else { None };
    let governor = options.advice.as_ref().filter(|_| managed).map(|_| Governor::start(&counters, trap_ns)).transpose();
    let governor = governor.unwrap_or_else(|error| {
        sys::complain(&Failure::ebb("ebb advise", error, "raise `ulimit -u` or the limit pids.max").to_string());
        None
    });
    let recorder = options.report.as_ref().filter(|_| managed).map(|_| Recorder::start(&counters, trap_ns)).transpose();
    let recorder = recorder.unwrap_or_else(|error| {
        sys::complain(&Failure::ebb("--report", error, "raise `ulimit -u` or the limit pids.max").to_string());
        None
    });
    let (end, usage) = supervise::supervise(child, &taken)
        .map_err(|error| Failure::ebb("waiting for the program", error, "report this as a bug in Ebb"))?;
    let curve = governor.map(Governor::end).unwrap_or_default();
    let record = recorder.map(Recorder::end).unwrap_or_default();
    match held {
        // The lifeline ends the tree together with this process.
        Some(_) if matches!(end, End::GivenUp(_)) => {
            sys::complain(&format!(
                "ebb: SIGTERM: process {child} still waits in the kernel, so the whole tree gets SIGKILL; \
                 /proc/{child}/wchan shows what it waits for"
            ));
        }
        // If Ebb ended the program for lack of memory, the rest of the tree ends with it: nobody waits for the rest,
        // and it may be just as short of memory.
        Some(_) if end == End::Signaled(libc::SIGKILL) && counters.page().has_ended_first.load(Relaxed) != 0 => {}
        Some(held) => held.let_go(),
        None => {}
    }
    let cost = watch.as_ref().and_then(|watch| watch.summary(counters.tree().limit()));
    let outcome = Outcome {
        file: &file,
        arguments: options.args.iter().map(|text| text.to_string_lossy().into_owned()).collect(),
        managed,
        end,
        usage,
        wall: started.elapsed(),
        counters: &counters,
        unmanaged: watch.map_or_else(Unmanaged::default, |watch| watch.found()),
    };
    tell(options.verbosity, &outcome);
    // Nothing was taken in if nobody wants to know.
    if let Some(line) = &cost {
        sys::complain(line);
    }
    let lack = options.advice.as_ref().and_then(|_| curve.lack());
    if let Some(wish) = &options.advice {
        let (name, has_device) = (outcome.name(), has_device(options));
        let advice = Advice { name: &name, curve: &curve, has_device, goal: wish.goal, lack };
        sys::complain(advice.text().trim_end());
        if let Some(Err(failure)) = json.as_mut().map(|file| wish.write(file, &advice)) {
            sys::complain(&failure.to_string());
        }
    }
    if let (Some(path), Some(file)) = (&options.report, &mut page)
        && let Err(error) = file.write_all(outcome.page(&record, cost, has_device(options)).as_bytes())
    {
        let failure =
            Failure::ebb(format!("--report {}", path.display()), error, "make room there, or name another file");
        sys::complain(&failure.to_string());
    }
    if let (Some(path), Some(file)) = (&options.stats, &mut stats)
        && let Err(error) = report::write_json(file, &outcome.json())
    {
        let failure =
            Failure::ebb(format!("--stats {}", path.display()), error, "make room there, or name another file");
        sys::complain(&failure.to_string());
    }
    Ok(match end::end_likewise(end) {
        0 if lack.is_some() => Lack::STATUS,
        status => status,
    })
}

/// Whether there is something to swap to beside the pool.
fn has_device(options: &Run) -> bool {
    options.swap.iter().all(|device| *device != Device::None)
}

/// Starts looking at the tree from outside. If that fails, the program, which is running already, goes on without.
fn start_watch(options: &Run, counters: &Arc<Counters>) -> Option<Watch> {
    // `ebb advise` has the program wait on purpose.
    let are_wanted = options.verbosity > Verbosity::Quiet && options.advice.is_none();
    match Watch::start(counters, Words { are_wanted, has_device: has_device(options) }) {
        Ok(watch) => Some(watch),
        Err(error) => {
            if options.verbosity > Verbosity::Quiet {
                let what = "counting unmanaged programs";
                sys::complain(&Failure::ebb(what, error, "raise `ulimit -u` or the limit pids.max").to_string());
            }
            None
        }
    }
}

fn tell(verbosity: Verbosity, outcome: &Outcome) {
    if verbosity == Verbosity::Quiet {
        return;
    }
    for line in outcome.summary() {
        sys::complain(&line);
    }
    if verbosity == Verbosity::Verbose {
        for line in outcome.details() {
            sys::complain(&line);
        }
    }
}

fn argument(text: &OsStr) -> Result<CString, Failure> {
    sys::c_string(text).ok_or_else(|| Failure::ebb("command line", "an argument contains a NUL", "leave it out"))
}

fn find_program(program: &OsStr) -> Result<PathBuf, Failure> {
    path::resolve(program, std::env::var_os("PATH").as_deref()).map_err(|error| {
        let name = program.to_string_lossy();
        match error {
            ResolveError::NotFound { searched: true } => {
                Failure::with_status(STATUS_NOT_FOUND, name, "not found in PATH", "check the name, or give a path")
            }
            ResolveError::NotFound { searched: false } => {
                Failure::with_status(STATUS_NOT_FOUND, name, "there is no such file", "check the path")
            }
            ResolveError::NotExecutable { path, why } => Failure::with_status(
                STATUS_CANNOT_EXECUTE,
                path.display(),
                why,
                "name a program, or make this one executable with chmod +x",
            ),
        }
    })
}

/// Whether the agent can be loaded. Fails if it cannot and the user did not allow that.
fn is_managed(options: &Run, image: &Image) -> Result<bool, Failure> {
    let list = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let Some(obstacle) = &image.obstacle.clone().or_else(|| sanitizer(&list)) else { return Ok(true) };
    let what = image.chain.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" -> ");
    if !options.allow_unmanaged {
        return Err(Failure::ebb(
            what,
            obstacle,
            format!("{}, or run it without Ebb with --allow-unmanaged", obstacle.remedy()),
        ));
    }
    if options.verbosity == Verbosity::Verbose {
        sys::complain(&format!("ebb: {what}: {obstacle}; it runs without Ebb"));
    }
    Ok(false)
}

/// Finds a sanitizer's runtime among the preloaded libraries. Ebb is not known to work beside one.
fn sanitizer(preloaded: &OsStr) -> Option<Obstacle> {
    const NAMES: [&str; 5] = ["libasan.", "libtsan.", "libmsan.", "libhwasan.", "libclang_rt."];
    let list = preloaded.to_string_lossy();
    let mut libraries = list.split([':', ' ']);
    let is_one =
        |path: &&str| NAMES.iter().any(|name| path.rsplit('/').next().is_some_and(|file| file.starts_with(name)));
    libraries.find(is_one).map(|library| Obstacle::Sanitizer { library: library.to_owned() })
}

/// Creates the file that an option names before the start: it is better not to start than to run without the figures that
/// the run is for.
fn create(option: &str, path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| {
        Failure::ebb(format!("{option} {}", path.display()), error, "name a file in a writable directory")
    })
}

struct Plan {
    agent: PathBuf,
    ram_bytes: u64,
    thp: Thp,
    swap: Vec<u8>,
    /// The size of RAM that the programs are shown; none for the true size.
    show_ram_bytes: Option<u64>,
}

/// Finds and checks everything that a managed run needs.
fn prepare(options: &Run) -> Result<Plan, Failure> {
    let agent = agent::find()?;
    let (mut ram_bytes, mut source) = budget(options.ram, None)?;
    // The outer `ebb` counts what this tree holds in its own budget.
    if let Some(outer) = checks::outer_budget().filter(|outer| *outer < ram_bytes) {
        (ram_bytes, source) = (outer, "from the outer `ebb run`".into());
    }
    let swap = spill::plan(&options.swap)?;
    let show_ram_bytes = match options.show_ram {
        Some(show) => shown::bytes(show, ram_bytes, swap.room_bytes)?,
        // What the outer `ebb run` shows to its programs.
        None => checks::outer_budget().and_then(|_| shown::inherited()),
    };
    checks::preflight()?;
    let (thp, said) = thp::policy(options.thp);
    if options.verbosity > Verbosity::Quiet {
        budget::warning(options.ram, ram_bytes, None).iter().for_each(|warning| sys::complain(warning));
        let shown = show_ram_bytes.and_then(|bytes| shown::warning(bytes, ram_bytes));
        for warning in said.iter().chain(&swap.warnings).chain(&shown) {
            sys::complain(&format!("ebb: {warning}"));
        }
    }
    if options.verbosity == Verbosity::Verbose {
        sys::complain(&format!("ebb: budget {} ({source})", human_bytes(ram_bytes)));
        sys::complain(&format!("ebb: huge pages {thp:?}").to_lowercase());
        if let Some(bytes) = show_ram_bytes {
            sys::complain(&format!("ebb: programs are shown {} of RAM", human_bytes(bytes)));
        }
        sys::complain(&format!("ebb: swap {}", String::from_utf8_lossy(&swap.devices)));
        sys::complain(&format!("ebb: agent {}", agent.display()));
    }
    Ok(Plan { agent, ram_bytes, thp, swap: swap.devices, show_ram_bytes })
}

/// Duplicates the descriptor of `file` to a high number.
fn out_of_the_way(file: &impl AsRawFd) -> Result<OwnedFd, Failure> {
    /// Highest soft limit above which descriptors are placed, the same as in the agent. The kernel's table is as long
    /// as its highest number.
    const TABLE_MAX: u64 = 4096;
    let (soft, hard) = sys::resource_limit(libc::RLIMIT_NOFILE);
    // Above the soft limit the program never gets to the number. Otherwise leave a few numbers above it for what the
    // agent opens.
    let lowest = if soft < hard && soft <= TABLE_MAX { soft } else { soft.min(1024).saturating_sub(40) };
    let raise = |lowest: u64| sys::raise_descriptor(file, lowest as i32);
    sys::with_hard_limit(libc::RLIMIT_NOFILE, || raise(lowest).or_else(|_| raise(3))).map_err(descriptors_exhausted)
}

fn descriptors_exhausted(error: io::Error) -> Failure {
    Failure::ebb("descriptors", error, "raise the limit with `ulimit -n 1024`")
}

fn not_started(file: &Path, image: &Image, error: LaunchError) -> Failure {
    match error {
        LaunchError::Fork(error) => {
            Failure::ebb("starting a process", error, "raise `ulimit -u` or the limit pids.max of the cgroup")
        }
        LaunchError::Exec(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            let missing = image.chain.iter().find(|path| !path.exists());
            let why = missing.map_or_else(
                || "its loader is missing".to_owned(),
                |missing| format!("its interpreter {} is missing", missing.display()),
            );
            Failure::with_status(STATUS_NOT_FOUND, file.display(), why, "install the missing file")
        }
        LaunchError::Exec(error) => Failure::with_status(
            STATUS_CANNOT_EXECUTE,
            file.display(),
            error,
            "check its format and permissions, and the size of arguments and environment",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sanitizer_among_preloaded_libraries_is_found() {
        let of = |list: &str| sanitizer(OsStr::new(list));
        let library = |path: &str| Some(Obstacle::Sanitizer { library: path.to_owned() });
        assert_eq!(of("/x/libother.so:/usr/lib/libasan.so.8 libthird.so"), library("/usr/lib/libasan.so.8"));
        assert_eq!(of("libclang_rt.asan-x86_64.so"), library("libclang_rt.asan-x86_64.so"));
        assert_eq!((of(""), of("/libasan.d/libother.so:libubsan.so.1")), (None, None));
    }
}
