//! `ebb set`: changes the budget of a running tree, which of its memory gets huge pages, and its idle period.
//!
//! The budget is a word that the tree's processes read whenever they want memory, so a larger budget takes effect at
//! once. Under a smaller one they get no more memory, but they would keep what they have until they want more. So they
//! are asked for it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ebb::tree::ages::OfShared;
use ebb::tree::{self, Kind, said};

use crate::base::end::{self, End};
use crate::base::failure::Failure;
use crate::base::interrupt::Interrupts;
use crate::base::name::Target;
use crate::base::progress::Progress;
use crate::base::size::{human_bytes, short_bytes};
use crate::base::sys;
use crate::base::text::printable;
use crate::host::budget::{self, Ram, Running, budget};
use crate::host::thp;
use crate::running::counters::PAGE_BYTES;
use crate::running::outside::Table;
use crate::running::process;
use crate::running::squeeze;
use crate::running::trees::{self, Holder, RunningTree};

/// Time between two looks.
const STEP: Duration = Duration::from_millis(10);
/// After so long without progress, none is expected.
const PATIENCE: Duration = Duration::from_secs(5);
/// Only a fall by more than this part (1 / 4096) of what was held at first counts as progress.
const STEPS_MAX: i64 = 4096;
/// The exit status if the tree still holds more than the budget.
const STATUS_ABOVE: i32 = 1;
/// How many of the largest holders are named.
const NAMED_MAX: usize = 3;

/// How the wait for the smaller budget ended.
enum Reached {
    Below,
    Above,
    Interrupted(libc::c_int),
}

/// What is to change in the tree that `target` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub target: Target,
    pub ram: Option<Ram>,
    pub thp: Option<thp::Choice>,
    /// The idle period in milliseconds; 0 for none.
    pub idle_ms: Option<u64>,
}

/// Sets the budget of a tree, and waits until the tree holds no more than that. Or says which of its memory gets huge pages, and
/// after how long without use it leaves RAM.
pub fn set(change: &Change) -> Result<i32, Failure> {
    let tree = trees::find(&change.target)?;
    if let Some(choice) = change.thp {
        let (policy, said) = thp::policy(choice);
        said.iter().for_each(|said| sys::complain(&format!("ebb: {said}")));
        tree.counters.page().thp.store(policy as u32, Relaxed);
    }
    if let Some(idle_ms) = change.idle_ms {
        tree.counters.page().idle_ms.store(idle_ms, Relaxed);
        // Who sleeps for longer than the new period looks now.
        tree.counters.tree().wake_all(sys::futex_wake_all);
    }
    change.ram.map_or(Ok(0), |ram| set_budget(&tree, ram))
}

fn set_budget(tree: &RunningTree, ram: Ram) -> Result<i32, Failure> {
    let held = tree.counters.tree().sum().held.max(0) as u64 * PAGE_BYTES;
    let running = Some(Running { pid: tree.supervisor(), held_bytes: held });
    let (bytes, _) = budget(ram, running)?;
    budget::warning(ram, bytes, running).iter().for_each(|warning| sys::complain(warning));
    let of_signals = |error| Failure::ebb("waiting for signals", error, "raise the limit with `ulimit -n 1024`");
    let interrupts = Interrupts::hold().map_err(of_signals)?;
    tree.counters.set_budget(bytes);
    let what = || format!("set {} --ram {}", tree.label(), short_bytes(bytes));
    match shrink(tree, &interrupts).map_err(of_signals)? {
        Reached::Below => Ok(0),
        Reached::Above => Err(Failure::with_status(
            STATUS_ABOVE,
            what(),
            format!(
                "the budget is set, but the tree still holds {} and gives up no more: {}",
                human_bytes(tree.counters.tree().sum().held.max(0) as u64 * PAGE_BYTES),
                holders(tree)
            ),
            format!("continue or end these processes (see `ebb ps {}`), or set a larger budget", tree.label()),
        )),
        Reached::Interrupted(signal) => {
            sys::complain(&format!(
                "ebb: {}: interrupted; the budget is set, and takes effect as processes ask for memory",
                what()
            ));
            interrupts.release();
            Ok(end::end_likewise(End::Signaled(signal)))
        }
    }
}

/// Asks the tree's processes for memory until they hold no more than the budget, or give none.
fn shrink(tree: &RunningTree, interrupts: &Interrupts) -> std::io::Result<Reached> {
    let (page, fd) = (tree.counters.tree(), tree.counters.fd());
    let mut progress = Progress::new("set");
    let own = tree.own();
    // Take back what dead processes held: it belongs to nobody.
    tree::reap(page, fd, &own);
    // Also watch the charges: memory that several processes share leaves the sum only when the last of them has given
    // it.
    let charged = || page.members().map(|(_, member)| said(&member.charged) as i64).sum::<i64>();
    // Count only new minima as progress: a process that writes to the tree's shared file must not keep this loop
    // running for ever.
    let mut least = [page.sum().held, charged()];
    let steps = least.map(|pages| (pages / STEPS_MAX).max(1));
    let mut since = Instant::now();
    loop {
        let sum = page.sum();
        let lacking = -sum.free();
        if lacking <= 0 {
            return Ok(Reached::Below);
        }
        tree::reap(page, fd, &own);
        let held = [sum.held, charged()];
        let falls = [0, 1].map(|i| held[i] < least[i] - steps[i]);
        if falls.contains(&true) {
            least = [0, 1].map(|i| if falls[i] { held[i] } else { least[i] });
            since = Instant::now();
        } else if since.elapsed() > PATIENCE {
            return Ok(Reached::Above);
        }
        progress.show(&format!("{} above the budget", short_bytes(lacking as u64 * PAGE_BYTES)));
        squeeze::ask(page, lacking, OfShared::Give);
        if let Some(signal) = interrupts.wait_for(STEP)? {
            return Ok(Reached::Interrupted(signal));
        }
    }
}

/// Names the processes that hold most, as text for people.
fn holders(tree: &RunningTree) -> String {
    let page = tree.counters.tree();
    let own = tree.own();
    let mut all: Vec<(i64, u32)> = page.members().map(|(index, member)| (page.held_by(member), index)).collect();
    all.sort_unstable_by_key(|(held, _)| std::cmp::Reverse(*held));
    let table = Table(std::path::Path::new(process::PROC));
    let named = all.into_iter().take(NAMED_MAX).filter(|(held, _)| *held > 0).map(|(held, index)| {
        let who = match tree.holder(index, &own) {
            Holder::Process(pid) => {
                let command = table.command(pid).map_or_else(String::new, |name| format!(" ({})", printable(&name)));
                format!("process {pid}{command}")
            }
            Holder::Unseen => "a process of another pid namespace".to_owned(),
            Holder::Nobody => "a process that has ended".to_owned(),
        };
        let kind = if page.member(index).kind() == Kind::Outside { ", not managed" } else { "" };
        format!("{who} {}{kind}", human_bytes(held as u64 * PAGE_BYTES))
    });
    named.collect::<Vec<_>>().join(", ")
}
