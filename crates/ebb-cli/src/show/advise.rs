//! `ebb advise NAME`: watches a running tree, and says what other budgets would do.

use std::time::{Duration, Instant};

use crate::base::failure::Failure;
use crate::base::interrupt::Interrupts;
use crate::base::name::Target;
use crate::host::trap;
use crate::running::advice::{self, Advice, Wish};
use crate::running::curve::Curve;
use crate::running::sample::Sample;
use crate::running::trees::{self, Access};

/// Time between two samples.
const EVERY: Duration = Duration::from_millis(200);

/// What `ebb advise NAME` is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watching {
    pub target: Target,
    pub wish: Wish,
    pub time: Duration,
}

/// Watches for as long as was asked, or until the tree or the user ends it. The text to print.
pub fn watch(watching: &Watching) -> Result<String, Failure> {
    let tree = trees::find_for(&watching.target, Access::Look)?;
    let mut file = watching.wish.json.as_deref().map(advice::create).transpose()?;
    let of_signals = |error| Failure::ebb("waiting for signals", error, "raise the limit with `ulimit -n 1024`");
    let interrupts = Interrupts::hold().map_err(of_signals)?;
    let (began, mut curve) = (Instant::now(), Curve::new(trap::cost_ns()));
    loop {
        curve.add(Sample::take(&tree.counters), true);
        let left = watching.time.saturating_sub(began.elapsed());
        if left.is_zero() || !tree.is_running() || interrupts.wait_for(EVERY.min(left)).map_err(of_signals)?.is_some() {
            break;
        }
    }
    curve.add(Sample::take(&tree.counters), true);
    let label = tree.label();
    let has_device = tree.counters.page().devices.iter().next().is_some();
    let advice = Advice { name: &label, curve: &curve, has_device, goal: watching.wish.goal, lack: None };
    if let Some(file) = &mut file {
        watching.wish.write(file, &advice)?;
    }
    Ok(advice.text())
}
