//! What a space tells its tree, and what it learns from it: sizes, the age of its pages, how much of the budget is its own.

use crate::clock;
use crate::ctx::ThreadCtx;
use crate::group;
use crate::sharing;
use crate::space::Space;
use crate::tree::{AGES, Kind, ages, now_ms, said};
use core::sync::atomic::Ordering::Relaxed;

/// How often ages are looked at: so often that who is asked for memory knows its own.
const AGES_EVERY_MS: u64 = 50;
/// Evicted pages that say something of those that are needed again.
const EVICTED_MIN: u64 = 256;

/// Units in which one round looks for pages that others have left to this process; the next ones take their turn in the next round.
const LOOKS_MAX: usize = 64;

impl Space {
    /// Tells the tree how much this process holds where, and divides its budget between pool, staging and pages. Inside the
    /// gate, or with it closed.
    pub(crate) fn publish_sizes(&self) {
        let shared = self.look_at_sharing();
        if self.group.hold_if_lost() {
            let member = self.tree().member();
            member.charged.store(self.group.charged() as u64, Relaxed);
            member.shared.store(shared as u64, Relaxed);
            member.wanted.store(self.group.wanted() as u64, Relaxed);
            member.pool.store(self.swap.pool_pages() as u64, Relaxed);
            member.staged.store(self.staging.staged() as u64, Relaxed);
            member.on_device.store(self.swap.device_pages(), Relaxed);
        }
        let (limit, share) = (self.group.limit(), self.group.share());
        self.sweep_pages.store(group::sweep_max(share), Relaxed);
        let in_memory = self.group.charged().saturating_sub(self.swap.pool_pages() + self.group.meta_pages());
        self.staging.set_target(group::staging_target(share, self.group.wanted().saturating_sub(in_memory)));
        // The pools of the others are in the same budget. A pool may always have its part of what the process has itself.
        let page = self.tree().page();
        let managed = || page.members().filter(|(_, m)| m.kind() == Kind::Managed).map(|(_, m)| m);
        let pools = managed().map(|m| said(&m.pool) as usize).sum::<usize>();
        let others = pools.saturating_sub(self.swap.pool_pages());
        // What was evicted would be here still if all had the same.
        let grown = managed().filter(|m| said(&m.charged) >= self.grown_pages()).count();
        self.even_share.store(limit / grown.max(1), Relaxed);
        // What is shared since a fork is in this process's own pool, too.
        let others = others.saturating_sub(self.shared_pool_pages.load(Relaxed));
        let (of_limit, of_share) = (group::pool_max(limit), group::pool_max(share));
        let [with_file, alone] = [0, 1].map(|i| of_limit[i].saturating_sub(others).max(of_share[i] / 2));
        // Where there is no file nothing else gets smaller than by compressing it. Many that have much in common, and no longer
        // share it, may hold more than the budget together: then what is left for each is nothing, and all would wait for all.
        let of_own = group::pool_max(self.group.charged());
        self.swap.set_pool_max([with_file, alone.max(of_own[1])]);
    }

    /// Tells the tree how old this process's pages are, if it has not for some time. Outside the gate.
    pub(crate) fn publish_ages(&self, ctx: &ThreadCtx) {
        let now = now_ms();
        let is_member = self.group.hold_if_lost();
        if !is_member || now.saturating_sub(self.tree().member().published_ms.load(Relaxed)) < AGES_EVERY_MS {
            return;
        }
        self.look_at_shared_pool();
        if self.group.hold().is_err() {
            return;
        }
        let member = self.tree().member();
        let mut histogram = [0; AGES];
        let mut youngest_ms = u64::MAX;
        let is_sharing = self.shares_much();
        self.gate.enter(&ctx.gate);
        let units = self.units.len();
        self.gate.leave(&ctx.gate);
        let mut looks = 0;
        // Once around the ring, which stays in its order.
        for _ in 0..units {
            self.gate.enter(&ctx.gate);
            if let Some(addr) = self.units.pop() {
                if let Some(unit) = self.table.unit(addr as usize) {
                    let age_ms = clock::ms_since(unit.touched.load(Relaxed));
                    looks += (looks < LOOKS_MAX && self.look_for_deserted(addr as usize, unit)) as usize;
                    // What is shared since a fork is not this process's to give.
                    let shared = if is_sharing { sharing::in_common(unit) } else { 0 };
                    histogram[ages::class_of(age_ms)] += unit.present.load(Relaxed).saturating_sub(shared);
                    youngest_ms = youngest_ms.min(age_ms);
                }
                self.queue_unit(addr as usize);
            }
            self.gate.leave(&ctx.gate);
        }
        // When its objects were last used the pool does not know: no later than the process used anything.
        let pool_ms =
            if youngest_ms == u64::MAX { now.saturating_sub(member.since_ms.load(Relaxed)) } else { youngest_ms };
        // Without a device nothing can be had from the pool, nor from one that is shared.
        if self.swap.has_file() && !self.pool_is_shared() {
            histogram[ages::class_of(pool_ms)] += self.swap.pool_pages() as u32;
        }
        member.publish_ages(&histogram, now);
        // Another thread may be at the same: what one takes the other does not have.
        let evicted = self.nr_evicted.swap(0, Relaxed);
        if evicted < EVICTED_MIN {
            self.nr_evicted.fetch_add(evicted, Relaxed);
            return;
        }
        member.publish_needed_again(self.nr_needed_again.swap(0, Relaxed), evicted, now);
    }
}
