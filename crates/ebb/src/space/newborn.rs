//! Children that were killed at birth.
//!
//! Fork reserves a child's place in the tree, and the child takes a lock there as its first act. A child that is killed before
//! that leaves a place without a lock, which looks like one whose child has not run yet. Others wait some seconds for such a
//! child (`tree::claim`), and meanwhile it counts for all that its parent has given up since. The parent need not wait: the
//! child has had its life (`device::lives`) from the start, and the kernel ends that with the process.

use crate::base::uapi;
use crate::device::lives;
use crate::protocols::gate::Exclusive;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::tree::MemberId;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Children that this process remembers at once. Of further ones it does not know when they die at birth.
const NEWBORNS_MAX: usize = 16;
/// How often a process looks whether they live.
const LOOK_EVERY_NS: u64 = 5_000_000;

/// A child that had not taken its place when somebody last looked. Set with the gate closed; read, and made nobody, inside it.
struct Newborn {
    /// Zero for nobody.
    life: AtomicU64,
    index: AtomicU32,
    generation: AtomicU32,
}

impl Newborn {
    const fn nobody() -> Self {
        Self { life: AtomicU64::new(lives::NONE), index: AtomicU32::new(0), generation: AtomicU32::new(0) }
    }

    fn id(&self) -> MemberId {
        MemberId { index: self.index.load(Relaxed), generation: self.generation.load(Relaxed) }
    }
}

/// The children of this process that may not have taken their places yet.
pub(crate) struct Newborns {
    children: [Newborn; NEWBORNS_MAX],
    look_after_ns: AtomicU64,
}

impl Newborns {
    pub(crate) const fn new() -> Self {
        Self { children: [const { Newborn::nobody() }; NEWBORNS_MAX], look_after_ns: AtomicU64::new(0) }
    }

    /// After fork, in the parent.
    pub(crate) fn note(&self, space: &Space, _exclusive: &Exclusive<'_>, id: MemberId, life: u64) {
        let page = space.tree().page();
        let is_free = |child: &&Newborn| child.life.load(Relaxed) == lives::NONE || !page.is_reserved(child.id());
        if let Some(place) = self.children.iter().find(is_free).filter(|_| life != lives::NONE) {
            place.index.store(id.index, Relaxed);
            place.generation.store(id.generation, Relaxed);
            place.life.store(life, Relaxed);
        }
    }

    /// After fork, in the child: they are its parent's.
    pub(crate) fn reset(&self, _exclusive: &Exclusive<'_>) {
        self.children.iter().for_each(|child| child.life.store(lives::NONE, Relaxed));
    }

    fn has_any(&self) -> bool {
        self.children.iter().any(|child| child.life.load(Relaxed) != lives::NONE)
    }

    /// True once for each time that it is due, in whichever thread asks first.
    fn is_due(&self) -> bool {
        let (now, after) = (uapi::now_ns(), self.look_after_ns.load(Relaxed));
        // A much later time is by the clock of another time namespace.
        let is_due = now >= after || after - now > LOOK_EVERY_NS;
        is_due && self.look_after_ns.compare_exchange(after, now + LOOK_EVERY_NS, Relaxed, Relaxed).is_ok()
    }
}

/// Takes back what children held that died at birth, but not too often. Returns how many there were. Outside the gate.
pub(crate) fn reap_sometimes(space: &Space, ctx: &ThreadCtx) -> usize {
    let newborns = &space.family.newborns;
    // A process that only shares the memory (vfork) may have other files behind the descriptors, and holds nobody up.
    if !newborns.has_any() || !space.tree().is_owner() || !newborns.is_due() {
        return 0;
    }
    newborns.children.iter().filter(|child| has_died(space, ctx, child)).count()
}

/// Whether a child died at birth, and what it held is taken back.
fn has_died(space: &Space, ctx: &ThreadCtx, child: &Newborn) -> bool {
    if child.life.load(Relaxed) == lives::NONE {
        return false;
    }
    let inside = space.threads.enter(ctx);
    let (life, id) = (child.life.load(Relaxed), child.id());
    let is_dead = life != lives::NONE
        && if space.tree().page().is_reserved(id) {
            !space.swap.devices.lives().is_alive(life)
        } else {
            // It has its place, or somebody else has taken back what it held. Others may be looking at it too.
            let _ = child.life.compare_exchange(life, lives::NONE, Relaxed, Relaxed);
            false
        };
    drop(inside);
    // Without the gate, because it may take long. Nobody else gets this generation of the place.
    is_dead && space.tree().reap_child(id)
}
