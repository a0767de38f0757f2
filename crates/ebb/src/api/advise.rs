//! Advice for another process of the tree: `process_madvise`. The background thread of that process follows it
//! (`background::errand`).
//!
//! Advice is a hint. So a process that does not answer is not waited for long, and a process without a background thread, which
//! is small, is not asked at all.

use crate::base::{PAGE, killable, uapi};
use crate::memory::table::ADDR_END;
use crate::protocols::errand::{Request, Stage, What};
use crate::space::Space;
use crate::tree::{Kind, Member, MemberId, said};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Pages that a process is asked to page out at a time. It has other things to do in between.
const PIECE_PAGES: u64 = (32 << 20) / PAGE as u64;
/// How long a process may take to begin with a piece, and then to end it.
const BEGIN_NS: u64 = 500_000_000;
const END_NS: u64 = 2_000_000_000;
/// How long to wait at a time.
const STEP_NS: u64 = 20_000_000;

impl Space {
    /// The member whose process is `pid`, as this process's pid namespace numbers it, and `own_pid`, as its own does.
    pub fn member_of(&self, pid: i32, own_pid: u32) -> Option<MemberId> {
        self.tree().member_of(pid, own_pid).filter(|id| *id != self.tree().id())
    }

    /// Has the process of member `id` follow advice for the pages from `start` to `end`. Returns once that is done, or false if
    /// the process does not answer. The caller must not be inside.
    pub fn advise_other(&self, id: MemberId, what: What, start: usize, end: usize) -> bool {
        let (mut first, end) = ((start / PAGE) as u64, (end.min(ADDR_END) / PAGE) as u64);
        let piece = if what == What::Cold { Request::PAGES_MAX } else { PIECE_PAGES };
        while first < end {
            let request = Request { what, first, pages: piece.min(end - first) };
            let grown = self.budget.grown_pages();
            let member = self.tree().page().find(id).filter(|member| member.kind() == Kind::Managed);
            let Some(member) = member.filter(|member| said(&member.charged) > grown) else { return false };
            if !ask(member, request) {
                return false;
            }
            first += request.pages;
        }
        true
    }
}

/// Asks a member, and waits until it has done so. False if it does not answer.
fn ask(member: &Member, request: Request) -> bool {
    let errand = &member.errand;
    let began_ns = uapi::now_ns();
    // Another process may have asked.
    let offer = loop {
        let ended = errand.ended().load(Relaxed);
        if let Some(offer) = errand.offer(request) {
            break offer;
        }
        if uapi::now_ns() - began_ns > END_NS {
            return false;
        }
        killable::wait(|| uapi::futex_wait_shared(errand.ended(), ended, STEP_NS));
    };
    member.asked.fetch_add(1, SeqCst);
    uapi::futex_wake_shared(&member.asked);
    let began_ns = uapi::now_ns();
    loop {
        let ended = errand.ended().load(Relaxed);
        let waited_ns = uapi::now_ns() - began_ns;
        match errand.stage(offer) {
            Stage::Done => return true,
            Stage::Lost => return false,
            Stage::Taken if waited_ns > END_NS => return false,
            Stage::Offered if waited_ns > BEGIN_NS && errand.withdraw(offer) => return false,
            Stage::Taken | Stage::Offered => {}
        }
        killable::wait(|| uapi::futex_wait_shared(errand.ended(), ended, STEP_NS));
    }
}
