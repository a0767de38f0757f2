//! Threads that waited at one time lose none of each other's instants, and a new round of the ring none of its own.

use super::explore;
use ebb::stalls::Word;
use loom::sync::Arc;
use loom::thread;

#[test]
fn of_instants_that_two_threads_note_none_is_lost() {
    explore(3, || {
        let word = Arc::new(Word::default());
        let others = [0b01, 0b10].map(|bits| {
            let word = word.clone();
            thread::spawn(move || word.set(7, bits))
        });
        let new = word.set(7, 0b100) + others.into_iter().map(|other| other.join().expect("it noted")).sum::<u32>();
        assert_eq!((word.bits(7), new), (0b111, 3));
    });
}

#[test]
fn an_instant_that_two_threads_note_is_new_to_one_of_them() {
    explore(3, || {
        let word = Arc::new(Word::default());
        let other = {
            let word = word.clone();
            thread::spawn(move || word.set(7, 0b110))
        };
        let new = word.set(7, 0b011) + other.join().expect("it noted");
        assert_eq!((word.bits(7), new), (0b111, 3));
    });
}

#[test]
fn a_new_round_keeps_all_of_its_own_and_nothing_of_the_last() {
    explore(3, || {
        let word = Arc::new(Word::default());
        word.set(7, 0b1000);
        let others = [(7, 0b1), (8, 0b10)].map(|(number, bits)| {
            let word = word.clone();
            thread::spawn(move || word.set(number, bits))
        });
        word.set(8, 0b100);
        others.into_iter().for_each(|other| assert!(other.join().is_ok()));
        assert_eq!((word.bits(7), word.bits(8)), (0, 0b110));
    });
}
