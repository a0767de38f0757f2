//! What the functions say, with Ebb or without it: `cargo test` runs this without.

use ebb_hints::{Advice, Error, PAGE, Stats};

#[test]
fn without_ebb_nothing_happens_and_under_ebb_it_does() {
    let memory = vec![7u8; 64 * PAGE];
    let is_active = ebb_hints::is_active();
    assert_eq!(
        ebb_hints::stats().map(|stats| stats.size),
        if is_active { Ok(size_of::<Stats>() as u64) } else { Err(Error::NOT_UNDER_EBB) }
    );
    assert_eq!(ebb_hints::set_ram(1), Err(if is_active { Error::INVALID } else { Error::NOT_UNDER_EBB }));
    assert_eq!(ebb_hints::reclaim(0), Ok(0));
    assert_eq!(
        (ebb_hints::cold(&memory), ebb_hints::soon(&memory[1..]), ebb_hints::soon(&memory[..5])),
        (Ok(()), Ok(()), Ok(()))
    );
    // SAFETY: advice that changes no content.
    let odd = unsafe { ebb_hints::advise(8 as *mut u8, PAGE, Advice::Cold) };
    assert_eq!(odd, if is_active { Err(Error::INVALID) } else { Ok(()) });
    assert!(memory.iter().all(|byte| *byte == 7));
}

#[test]
fn errors_say_what_to_do() {
    assert!(Error::NOT_UNDER_EBB.to_string().contains("ebb run"));
    assert_eq!(Error(5).to_string(), "Ebb answers with error number 5");
}
