//! Calls that are made whole: pinned, or repeated.

use super::*;

#[test]
fn a_small_buffer_is_brought_in_and_pinned_for_the_call() {
    let mem = Pages::new(1 << 20, 64 << 10);
    let file = file_with(b"hello");
    let before = prepare(&mem, table::row(0), 0, &[fd(&file), mem.start, 5, 0, 0, 0], true);
    assert_eq!(before, Before::Pinned);
    assert!(mem.all_pinned(mem.start, 5));
    mem.pin_end();
    assert_eq!(run(&mem, g::__NR_read, [fd(&file), mem.start, 100, 0, 0, 0]), 5);
    assert_eq!(mem.slice(0, 5), b"hello");
}

#[test]
fn a_call_without_managed_buffers_is_plain() {
    let mem = Pages::new(1 << 20, 64 << 10);
    let here = [0u8; 16];
    for (nr, args) in [
        (g::__NR_getpid, [0; 6]),
        (g::__NR_lseek, [3, mem.start, 0, 0, 0, 0]),
        (g::__NR_read, [3, here.as_ptr() as u64, 16, 0, 0, 0]),
        (g::__NR_open, [c"/".as_ptr() as u64, 0, 0, 0, 0, 0]),
    ] {
        assert_eq!(prepare(&mem, table::row(nr as u64), nr as u64, &args, true), Before::Plain, "{nr}");
    }
}

#[test]
fn a_page_that_cannot_be_had_fails_the_call_before_it_is_made() {
    let mem = Pages::new(1 << 20, 64 << 10);
    mem.unreadable.set(mem.start + PAGE_BYTES);
    let ret = call(&mem, g::__NR_write as u64, &[1, mem.start, 8192, 0, 0, 0], &mut |_, _| panic!("made"));
    assert_eq!(ret, -EFAULT);
    assert!(mem.begun.get() == 0 && !mem.blocked.get());
}

#[test]
fn a_page_that_is_lost_between_two_attempts_fails_the_call_and_ends_its_pins_once() {
    // A pinned page was read, so this page is one that the first attempt did not know of, or that another thread
    // replaced.
    let mem = Pages::new(1 << 20, 64 << 10);
    let mut calls = 0;
    let ret = call(&mem, g::__NR_write as u64, &[1, mem.start, 8192, 0, 0, 0], &mut |_, _| {
        calls += 1;
        mem.unreadable.set(mem.start + PAGE_BYTES);
        -EFAULT
    });
    assert_eq!((ret, calls), (-EFAULT, 1));
    assert!(mem.begun.get() == 0 && !mem.blocked.get());
}

#[test]
fn excluded_buffers_are_excluded() {
    let mem = Pages::new(1 << 20, 64 << 10);
    let ret = call(&mem, g::__NR_set_robust_list as u64, &[mem.start, 24, 0, 0, 0, 0], &mut |_, _| 0);
    assert_eq!(ret, 0);
    assert_eq!(*mem.excluded.borrow(), [(mem.start, 24)]);
}

#[test]
fn memory_devices_and_randomness_fill_large_buffers() {
    let mem = Pages::new(8 << 20, 512 << 10);
    mem.slice(0, 4 * MIB).fill(0xff);
    let zero = std::fs::File::open("/dev/zero").unwrap();
    assert_eq!(run(&mem, g::__NR_read, [fd(&zero), mem.start, 4 << 20, 0, 0, 0]), 4 << 20);
    assert!(mem.slice(0, 4 * MIB).iter().all(|&b| b == 0));
    assert_eq!(run(&mem, g::__NR_getrandom, [mem.start, 2 << 20, 0, 0, 0, 0]), 2 << 20);
    assert!(mem.slice(0, 2 * MIB).chunks(4096).all(|page| page.iter().any(|&b| b != 0)));
}

#[test]
fn a_directory_is_read_with_what_fits() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let dir = std::fs::File::open("/").unwrap();
    assert!(run(&mem, g::__NR_getdents64, [fd(&dir), mem.start, 4 << 20, 0, 0, 0]) > 0);
}

#[test]
fn an_address_the_kernel_refuses_is_left_to_the_kernel() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let file = file_with(&pattern(MIB));
    let args = [fd(&file), mem.start, u64::MAX >> 1, 0, 0, 0];
    assert_eq!(call(&mem, g::__NR_read as u64, &args, &mut refusing_kernel), -EFAULT);
    mem.put_word(0, mem.start + 4096);
    mem.put_word(8, u64::MAX);
    let args = [fd(&file), mem.start, 1, 0, 0, 0];
    assert_eq!(call(&mem, g::__NR_readv as u64, &args, &mut refusing_kernel), -(libc::EINVAL as i64));
}

#[test]
fn an_ioctl_without_effects_that_always_fails_is_given_up() {
    let mem = Pages::new(1 << 20, 256 << 10);
    let mut calls = 0;
    let args = [3, ioctl::FS_IOC_FIEMAP as u64, mem.start, 0, 0, 0];
    assert_eq!(
        call(&mem, g::__NR_ioctl as u64, &args, &mut |_, _| {
            calls += 1;
            -EFAULT
        }),
        -EFAULT
    );
    assert_eq!(calls, crate::guard::TRIES_MAX);
}

#[test]
fn an_address_that_is_not_managed_is_not_tried_again() {
    let mem = Pages::new(1 << 20, 256 << 10);
    let mut calls = 0;
    let args = [3, ioctl::TCGETS as u64, 0x10, 0, 0, 0];
    assert_eq!(
        call(&mem, g::__NR_ioctl as u64, &args, &mut |_, _| {
            calls += 1;
            -EFAULT
        }),
        -EFAULT
    );
    assert_eq!(calls, 1);
}

#[test]
fn a_transfer_with_effects_is_never_tried_again() {
    let mem = Pages::new(1 << 20, 256 << 10);
    for nr in (0..471).filter(|&nr| table::row(nr).split != Split::No) {
        let mut calls = 0;
        let args = [0, mem.start, 100, 0, 0, 0];
        call(&mem, nr, &args, &mut |_, _| {
            calls += 1;
            -EFAULT
        });
        assert_eq!(calls, 1, "{nr}");
    }
}
