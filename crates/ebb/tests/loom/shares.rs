//! Masks of what processes have in common since a fork: what is counted of them while holders come, go and die.

use super::explore;
use ebb::tree::Page as TreePage;
use ebb::tree::share::{Bit, NEAR, Share};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// A page of a share, and the word of the first plane for it.
struct SharedPage {
    share: Share,
    words: [AtomicU64; 2],
}

/// The bit of a holder in a page's mask and its word of the first plane.
fn bit([mask, far]: &[AtomicU64; 2], number: u32) -> Bit<'_> {
    Bit::new(number, mask, (number >= NEAR).then_some(far))
}

/// What a mask has of one far holder.
const FAR_ONE: u64 = 1 << NEAR;

impl SharedPage {
    fn new(mask: u64, far: u64) -> Arc<Self> {
        Arc::new(Self { share: Share::default(), words: [mask, far].map(AtomicU64::new) })
    }

    fn bit(&self, number: u32) -> Bit<'_> {
        bit(&self.words, number)
    }

    fn begin(&self, own: u32, child: u32) -> bool {
        self.share.begin(self.bit(own), self.bit(child))
    }

    fn join(&self, own: u32, child: u32) -> bool {
        self.share.join(self.bit(own), self.bit(child))
    }

    fn leave(&self, number: u32) -> Option<bool> {
        self.share.leave(self.bit(number), false)
    }

    fn words(&self) -> (u64, u64) {
        load(&self.words)
    }
}

fn load(words: &[AtomicU64; 2]) -> (u64, u64) {
    (words[0].load(Ordering::SeqCst), words[1].load(Ordering::SeqCst))
}

/// Holders as near ones, as far ones, and as both.
const NUMBERS: [[u32; 3]; 4] = [[0, 1, 2], [NEAR, NEAR + 1, NEAR + 2], [0, NEAR, 1], [NEAR, 0, NEAR + 1]];

/// What the words of a page have of some holders.
fn words_of(numbers: &[u32]) -> (u64, u64) {
    numbers.iter().fold((0, 0), |(mask, far), number| match number.checked_sub(NEAR) {
        None => (mask | 1 << number, far),
        Some(bit) => (mask + FAR_ONE, far | 1 << bit),
    })
}

/// Three processes hold a page. Two of them write to it, or give it up, at the same time, and one of them is taken for dead
/// meanwhile, by two: what is left out of the sum is never more than what is held by several, and in the end exactly that.
#[test]
fn leaving_a_share_is_counted_once() {
    for numbers in NUMBERS {
        explore(3, move || {
            let shared = SharedPage::new(0, 0);
            assert!(shared.begin(numbers[0], numbers[1]));
            assert!(shared.join(numbers[0], numbers[2]));
            assert_eq!(shared.words(), words_of(&numbers));
            shared.share.count(2, 0);
            let leave = |number: u32| {
                let shared = shared.clone();
                move || shared.leave(number)
            };
            let others = [thread::spawn(leave(numbers[0])), thread::spawn(leave(numbers[1]))];
            let again = leave(numbers[1])();
            let [first, second] = others.map(|other| other.join().unwrap());
            assert_eq!(first, Some(true));
            assert_eq!([again, second].iter().flatten().count(), 1);
            assert_eq!(shared.words(), words_of(&numbers[2..]));
            assert_eq!(shared.share.surplus(), 0);
            // The last one holds it alone.
            assert_eq!(leave(numbers[2])(), Some(false));
            assert_eq!((shared.share.surplus(), shared.words()), (0, (0, 0)));
        });
    }
}

/// The last two that hold a page leave at the same time: one of them is the last, and nothing is left out of the sum.
#[test]
fn one_of_two_that_leave_a_share_is_the_last() {
    for [first, second, _] in NUMBERS {
        explore(3, move || {
            let (mask, far) = words_of(&[first, second]);
            let shared = SharedPage::new(mask, far);
            shared.share.count(1, 0);
            let other = {
                let shared = shared.clone();
                thread::spawn(move || shared.leave(first))
            };
            let second = shared.leave(second);
            let first = other.join().unwrap();
            assert_eq!([first, second].iter().filter(|others| **others == Some(true)).count(), 1);
            assert_eq!([first, second].iter().filter(|others| **others == Some(false)).count(), 1);
            assert_eq!((shared.share.surplus(), shared.words()), (0, (0, 0)));
        });
    }
}

/// A holder that has the page alone writes to it while another process, whose page at the same address is its own, forks
/// and uses the mask for that: one counted surplus, whoever comes first. One that is far keeps its place until it leaves.
#[test]
fn a_mask_of_one_holder_is_used_again() {
    for numbers in NUMBERS {
        explore(3, move || {
            let (mask, far) = words_of(&numbers[..1]);
            let shared = SharedPage::new(mask, far);
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || shared.leave(numbers[0]))
            };
            let begun = shared.begin(numbers[1], numbers[2]);
            shared.share.count(i64::from(begun), 0);
            assert_ne!(writer.join().unwrap(), Some(true));
            assert!(begun || numbers[0] >= NEAR);
            let words = if begun { words_of(&numbers[1..]) } else { (0, 0) };
            assert_eq!((shared.words(), shared.share.surplus()), (words, i64::from(begun)));
            assert!(!begun || !shared.begin(numbers[0], numbers[0] + 3));
        });
    }
}

/// Somebody adds up while a page is given up that another holds, too: no sum is below what is held.
#[test]
fn a_sum_beside_a_break_is_not_too_small() {
    for [first, second, _] in NUMBERS {
        explore(3, move || {
            let page = Arc::new(TreePage::with_members(10, 2));
            let words = [AtomicU64::new(0), AtomicU64::new(0)];
            let share = page.share(0);
            let bits = [first, second].map(|number| bit(&words, number));
            assert!(share.begin(bits[0], bits[1]));
            for index in 0..2 {
                page.member(index).granted.store(1, Ordering::SeqCst);
            }
            share.count(1, 0);
            let adder = {
                let page = page.clone();
                thread::spawn(move || page.sum().held)
            };
            // It gives the page up.
            assert_eq!(share.leave(bits[0], false), Some(true));
            page.member(0).granted.fetch_sub(1, Ordering::SeqCst);
            assert!((1..=2).contains(&adder.join().unwrap()));
            assert_eq!(page.sum().held, 1);
        });
    }
}

/// A process that holds a page alone forks, and lets its child join, while another uses the mask for its own page: both
/// are counted, or the first finds another place.
#[test]
fn joining_a_mask_that_is_used_again_is_refused() {
    for [own, child, other] in NUMBERS {
        explore(3, move || {
            let (mask, far) = words_of(&[own]);
            let shared = SharedPage::new(mask, far);
            let beginner = {
                let shared = shared.clone();
                thread::spawn(move || shared.begin(other, 3))
            };
            let joined = shared.join(own, child);
            let begun = beginner.join().unwrap();
            // Who is far keeps the mask.
            assert!(if own >= NEAR { joined && !begun } else { joined != begun });
            let holders = if joined { [own, child] } else { [other, 3] };
            assert_eq!(shared.words(), words_of(&holders));
        });
    }
}

/// A process forks, and lets its child join, while another that holds the page leaves: both are counted.
#[test]
fn who_joins_beside_one_that_leaves_is_counted() {
    for [own, other, child] in NUMBERS {
        explore(3, move || {
            let (mask, far) = words_of(&[own, other]);
            let shared = SharedPage::new(mask, far);
            shared.share.count(1, 0);
            let leaver = {
                let shared = shared.clone();
                thread::spawn(move || shared.leave(other))
            };
            assert!(shared.join(own, child));
            shared.share.count(1, 0);
            assert_eq!(leaver.join().unwrap(), Some(true));
            assert_eq!((shared.words(), shared.share.surplus()), (words_of(&[own, child]), 1));
        });
    }
}

/// Somebody was killed between the count of a far holder and its bit: the page seems to be held by one more, and counts too much at
/// worst, whoever leaves.
#[test]
fn a_far_holder_without_a_bit_is_never_counted_too_little() {
    for [first, second, third] in NUMBERS {
        explore(3, move || {
            let (mask, far) = words_of(&[first, second]);
            let shared = SharedPage::new(mask + FAR_ONE, far);
            shared.share.count(1, 0);
            let other = {
                let shared = shared.clone();
                thread::spawn(move || shared.leave(first))
            };
            // Each of them may think that it is not the last one.
            assert!(shared.leave(second).is_some());
            assert!(other.join().unwrap().is_some());
            assert_eq!((shared.words(), shared.share.surplus()), ((FAR_ONE, 0), 0));
            // Nobody has it, and nobody uses it again.
            assert!(!shared.begin(first, third));
        });
    }
}

/// A dead process's bits are taken back while another holder leaves: what is left out ends at what is held twice.
#[test]
fn bits_of_the_dead_are_taken_back_beside_a_break() {
    for [dead, other, third] in NUMBERS {
        explore(3, move || {
            let words = |numbers: &[u32]| <[u64; 2]>::from(words_of(numbers)).map(AtomicU64::new);
            let pages = [words(&[dead, other]), words(&[dead, other, third])];
            let shared = Arc::new((Share::default(), pages));
            shared.0.count(3, 0);
            let holder = {
                let shared = shared.clone();
                thread::spawn(move || [0, 1].map(|i: usize| shared.0.leave(bit(&shared.1[i], other), false)))
            };
            let pages = shared.0.leave_all(shared.1.iter().map(|words| bit(words, dead)), false);
            let left = holder.join().unwrap();
            // On the first page one of the two was the last.
            assert_eq!(pages == 2, left[0] == Some(false));
            assert!((1..=2).contains(&pages) && left[1] == Some(true));
            let masks = [load(&shared.1[0]), load(&shared.1[1])];
            assert_eq!((masks, shared.0.surplus()), ([(0, 0), words_of(&[third])], 0));
        });
    }
}
