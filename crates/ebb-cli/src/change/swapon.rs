//! `ebb swapon` and `ebb swapoff`: give a running process another device, or take one from it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::base::end::{self, End};
use crate::base::failure::Failure;
use crate::base::interrupt::{Event, Interrupts};
use crate::base::name::Target;
use crate::base::progress::Progress;
use crate::base::size::short_bytes;
use crate::base::sys;
use crate::base::text::printable;
use crate::host::spill::{self, Device};
use crate::running::control::{Answer, Control, Refusal, attempt, request};
use crate::running::trees;

/// How long a process may take to add a device. It may have to wait for a disk, or for a server.
const PATIENCE: Duration = Duration::from_secs(60);

/// Gives the process that `target` means another device.
pub fn on(target: &Target, device: &Device) -> Result<i32, Failure> {
    let pid = trees::one_process(target)?;
    let plan = spill::plan(std::slice::from_ref(device))
        .map_err(|failure| Failure { remedy: "name a writable directory as file:DIR".into(), ..failure })?;
    for warning in &plan.warnings {
        sys::complain(&format!("ebb: {warning}"));
    }
    attempt(|_| {
        let control = Control::open(pid)?;
        control.set_patience(PATIENCE)?;
        control.ask(&request("swapon", OsStr::from_bytes(&plan.devices)))?;
        match control.answer()? {
            Answer::Done => Ok(0),
            Answer::Refused(refusal) => {
                let name = String::from_utf8_lossy(&plan.devices).into_owned();
                Err(refusal.of(format!("swapon {name} in process {pid}")))
            }
            Answer::Row(_) | Answer::Left(_) | Answer::Given(_) => Err(control.misunderstood()),
        }
    })
}

/// Takes a device from the process that `target` means, and waits until its content is back in memory or on other devices. The first
/// SIGINT or SIGTERM makes the process give up. Then `ebb` ends by that signal.
pub fn off(target: &Target, device: &Path) -> Result<i32, Failure> {
    let pid = trees::one_process(target)?;
    // Even if the path is gone or never existed here, the process may know it.
    let name = std::fs::canonicalize(device).unwrap_or_else(|_| device.to_owned());
    let what = format!("swapoff {} in process {pid}", printable(&name.to_string_lossy()));
    let of_signals = |error| Failure::ebb("waiting for signals", error, "raise the limit with `ulimit -n 1024`");
    let interrupts = Interrupts::hold().map_err(of_signals)?;
    let mut interrupted = None;
    let refusal = attempt(|answered| {
        let control = Control::open(pid)?;
        control.ask(&request("swapoff", name.as_path()))?;
        let mut progress = Progress::new("swapoff");
        // The signal may have arrived in an earlier attempt, whose connection was lost. Do not wait for another signal.
        if interrupted.is_some() {
            control.cancel();
        }
        loop {
            if interrupted.is_none()
                && let Event::Signal(signal) = interrupts.wait(&control, None).map_err(of_signals)?
            {
                interrupted = Some(signal);
                control.cancel();
                interrupts.release();
            }
            let answer = control.answer()?;
            *answered = true;
            match answer {
                Answer::Left(bytes) => progress.show(&format!("{} left", short_bytes(bytes))),
                Answer::Done => return Ok(None),
                Answer::Refused(refusal) => return Ok(Some(refusal)),
                Answer::Row(_) | Answer::Given(_) => return Err(control.misunderstood()),
            }
        }
    })?;
    let Some(refusal) = refusal else { return Ok(0) };
    match (interrupted, refusal) {
        (Some(signal), Refusal { errno: libc::EINTR, .. }) => {
            sys::complain(&format!("ebb: {what}: interrupted, and the device stays in use; run it again to finish"));
            Ok(end::end_likewise(End::Signaled(signal)))
        }
        (_, refusal) => Err(refusal.of(what)),
    }
}
