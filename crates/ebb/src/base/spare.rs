//! Whether there is processor time to spare for work that can wait.
//!
//! A thread that only computes, and takes longer by the clock than it ran, had to share its processor: with the program, with another
//! process, or with a limit of its cgroup. That is measured over each small piece of work. The program itself may leave no processor idle
//! and still not be seen so, where threads of it wait for others. So what it used between two pieces counts, too.

use crate::base::idle::Done;
use crate::base::uapi;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// A thread had to share its processor if it waited for it for one part in so many of the time that it ran, and so long.
const WAITED_PART: u64 = 4;
const WAITED_NS: u64 = 100_000;
/// The program leaves time to spare if it leaves idle one part in so many of a processor's time.
const IDLE_PART: u64 = 2;
/// A look at the program from longer ago, or from just now, tells nothing.
pub(crate) const LOOK_NS_MAX: u64 = 5_000_000_000;
const LOOK_NS_MIN: u64 = 500_000;

/// A piece of work that computes and waits for nothing.
pub(crate) struct Piece {
    began_ns: u64,
    ran_ns: u64,
}

/// What a piece of work took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    pub wall_ns: u64,
    pub ran_ns: u64,
}

impl Piece {
    pub fn begin() -> Self {
        Self { began_ns: uapi::now_ns(), ran_ns: uapi::thread_time_ns() }
    }

    pub fn end(self) -> Took {
        let ran_ns = uapi::thread_time_ns().saturating_sub(self.ran_ns);
        Took { wall_ns: uapi::now_ns().saturating_sub(self.began_ns), ran_ns }
    }
}

impl Took {
    /// True if the thread had to wait for its processor.
    pub fn had_to_share(self) -> bool {
        self.wall_ns.saturating_sub(self.ran_ns) > self.ran_ns / WAITED_PART + WAITED_NS
    }
}

/// What the last look at the program found. Used by one thread only.
#[derive(Default)]
pub(crate) struct Program {
    at_ns: AtomicU64,
    ran_ns: AtomicU64,
}

impl Program {
    /// Whether the program has left time to spare on `cpus` processors since the last look; none if that was too long ago or just
    /// now. True where nobody can tell what the program uses.
    pub fn leaves_time(&self, cpus: usize) -> Option<bool> {
        let Some(done) = Done::by_program(0) else { return Some(true) };
        self.look(uapi::now_ns(), done.ran_ns, cpus as u64)
    }

    pub(crate) fn look(&self, now_ns: u64, ran_ns: u64, cpus: u64) -> Option<bool> {
        let since_ns = now_ns.saturating_sub(self.at_ns.swap(now_ns, Relaxed));
        let used_ns = ran_ns.saturating_sub(self.ran_ns.swap(ran_ns, Relaxed));
        let tells = (LOOK_NS_MIN..=LOOK_NS_MAX).contains(&since_ns);
        tells.then_some(used_ns + since_ns / IDLE_PART <= cpus * since_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waited_for_long_had_to_share() {
        let took = |wall_us: u64, ran_us: u64| Took { wall_ns: wall_us * 1000, ran_ns: ran_us * 1000 };
        assert!(!took(500, 500).had_to_share());
        assert!(!took(700, 500).had_to_share());
        assert!(took(800, 500).had_to_share());
        assert!(!took(150, 60).had_to_share());
        assert!(took(4500, 500).had_to_share());
    }

    #[test]
    fn a_program_that_uses_all_processors_leaves_no_time() {
        let program = Program::default();
        let ms = |ms: u64| ms * 1_000_000;
        // The first look tells nothing.
        assert_eq!(program.look(ms(50_000), ms(3000), 2), None);
        assert_eq!(program.look(ms(50_100), ms(3100), 2), Some(true));
        assert_eq!(program.look(ms(50_200), ms(3250), 2), Some(true));
        assert_eq!(program.look(ms(50_300), ms(3410), 2), Some(false));
        assert_eq!(program.look(ms(50_400), ms(3610), 2), Some(false));
        assert_eq!(program.look(ms(50_500), ms(3610), 2), Some(true));
        // With one processor, half of it must be idle.
        assert_eq!(program.look(ms(50_600), ms(3670), 1), Some(false));
        assert_eq!(program.look(ms(50_700), ms(3720), 1), Some(true));
        // A look of long ago tells nothing either.
        assert_eq!(program.look(ms(60_000), ms(3720), 2), None);
    }
}
