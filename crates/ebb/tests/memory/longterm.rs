//! Pages that the kernel has pinned for long stay where they are, however they would be evicted otherwise. A ring of io_uring has
//! them: what is read from them and written to them goes by the frame that was pinned, as by any device.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM, RAM_PAGES, RANDOM, alone, assert_sound, fork, space_on, wait,
};
use crate::harness::{Random, check, ctx, fill, map};
use ebb::{Mapping, PageMap, Space, SwapSpec};
use ring::Ring;

mod ring {
    //! As much of io_uring as a device's buffers need.

    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::sync::atomic::{AtomicU32, Ordering};

    const READ_FIXED: u8 = 4;
    const WRITE_FIXED: u8 = 5;
    const REGISTER_BUFFERS: u64 = 0;
    const ENTRIES: u64 = 4;
    const SQES: i64 = 0x1000_0000;

    fn mapped(fd: i32, bytes: usize, at: i64) -> *mut u8 {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let got = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, fd, at) };
        assert_ne!(got, libc::MAP_FAILED);
        got.cast()
    }

    fn call(nr: i64, args: [u64; 6]) -> i64 {
        // SAFETY: calls on a ring and on buffers of the test.
        let got = unsafe { libc::syscall(nr, args[0], args[1], args[2], args[3], args[4], args[5]) };
        assert!(got >= 0, "{nr}: {}", std::io::Error::last_os_error());
        got
    }

    /// A ring with pinned buffers, and a file that they are copied through.
    pub struct Ring {
        fd: i32,
        ring: *mut u8,
        sqes: *mut u8,
        params: [u32; 30],
        buffers: Vec<(u64, u64)>,
        file: File,
    }

    impl Ring {
        /// Pins buffers, by address and length, until it is dropped.
        pub fn pin(buffers: &[(u64, u64)]) -> Self {
            let mut params = [0u32; 30];
            let fd = call(libc::SYS_io_uring_setup, [ENTRIES, params.as_mut_ptr() as u64, 0, 0, 0, 0]) as i32;
            call(
                libc::SYS_io_uring_register,
                [fd as u64, REGISTER_BUFFERS, buffers.as_ptr() as u64, buffers.len() as u64, 0, 0],
            );
            // SAFETY: a file of the test's own.
            let file = unsafe { File::from_raw_fd(libc::memfd_create(c"device".as_ptr(), 0)) };
            let (ring, sqes) = (mapped(fd, 4096, 0), mapped(fd, 4096, SQES));
            Self { fd, ring, sqes, params, buffers: buffers.to_vec(), file }
        }

        /// A word of the ring whose offset is word `i` of the parameters.
        fn word(&self, i: usize) -> &AtomicU32 {
            // SAFETY: the kernel gave the offset, which is within the mapping.
            unsafe { &*self.ring.add(self.params[i] as usize).cast::<AtomicU32>() }
        }

        fn submit(&self, op: u8, buffer: usize) {
            let (at, len) = self.buffers[buffer];
            // SAFETY: the first entry, 64 bytes, is nobody else's.
            unsafe {
                self.sqes.write_bytes(0, 64);
                self.sqes.write(op);
                self.sqes.add(4).cast::<i32>().write(self.file.as_raw_fd());
                self.sqes.add(16).cast::<u64>().write(at);
                self.sqes.add(24).cast::<u32>().write(len as u32);
                self.sqes.add(40).cast::<u16>().write(buffer as u16);
            }
            let tail = self.word(11);
            let mask = self.word(12).load(Ordering::Relaxed);
            let slot = tail.load(Ordering::Relaxed);
            // SAFETY: the array has as many words as the mask says.
            unsafe { self.ring.add(self.params[16] as usize).cast::<u32>().add((slot & mask) as usize).write(0) };
            tail.store(slot.wrapping_add(1), Ordering::Release);
            call(libc::SYS_io_uring_enter, [self.fd as u64, 1, 1, 1, 0, 0]);
            let head = self.word(20);
            let seen = head.load(Ordering::Relaxed);
            let at = self.params[25] as usize + (seen & self.word(22).load(Ordering::Relaxed)) as usize * 16;
            // SAFETY: an entry of 16 bytes: user data, answer, flags.
            let answer = unsafe { self.ring.add(at + 8).cast::<i32>().read() };
            head.store(seen.wrapping_add(1), Ordering::Release);
            assert_eq!(answer as u64, len);
        }

        /// What the device finds in a buffer.
        pub fn read(&self, buffer: usize) -> Vec<u8> {
            use std::os::unix::fs::FileExt;
            self.submit(WRITE_FIXED, buffer);
            let mut bytes = vec![0; self.buffers[buffer].1 as usize];
            self.file.read_exact_at(&mut bytes, 0).expect("the file");
            bytes
        }

        /// Has the device fill a buffer.
        pub fn write(&self, buffer: usize, bytes: &[u8]) {
            use std::os::unix::fs::FileExt;
            self.file.write_all_at(bytes, 0).expect("the file");
            self.submit(READ_FIXED, buffer);
        }
    }

    impl Drop for Ring {
        fn drop(&mut self) {
            // SAFETY: the ring's own.
            unsafe {
                libc::close(self.fd);
                libc::munmap(self.ring.cast(), 4096);
                libc::munmap(self.sqes.cast(), 4096);
            }
        }
    }
}

const SPILL: SwapSpec<'_> = SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT };
/// Every so many-th page is the device's: too far apart for MOVE to be the cheaper way.
const APART: usize = 5;
const BUFFERS: usize = 40;

fn bytes_at(at: *const u8, page: usize) -> Vec<u8> {
    // SAFETY: managed memory of the test.
    unsafe { std::slice::from_raw_parts(at.add(page * PAGE), PAGE) }.to_vec()
}

fn buffers(pages: &Pages) -> Vec<(u64, u64)> {
    (0..BUFFERS).map(|i| (pages.addr(i * APART) as u64, PAGE as u64)).collect()
}

/// Uses more than fits, often enough that every page's turn comes.
fn churn(space: &'static Space) {
    let mut others = Pages::new(space, 2 * RAM_PAGES, COMPRESSIBLE);
    let mut random = Random(7);
    for round in 0..2 {
        for page in 0..others.len() {
            others.write(page, round + 3, if page % 7 == 0 { RANDOM } else { COMPRESSIBLE });
        }
        (0..RAM_PAGES).for_each(|_| others.check(random.below(2 * RAM_PAGES)));
    }
}

/// The device sees what the program writes, and the program what the device writes, whatever was evicted in between.
fn use_both(pages: &mut Pages, ring: &Ring, rounds: u64) {
    for round in 0..rounds {
        churn(pages.space);
        for i in 0..BUFFERS {
            let page = i * APART;
            pages.check(page);
            pages.write(page, 100 + round, RANDOM);
            assert!(ring.read(i) == bytes_at(pages.at, page), "round {round}: the device reads an old page {page}");
            pages.write(page, 200 + round, COMPRESSIBLE);
            let wanted = bytes_at(pages.at, page);
            pages.write(page, 300 + round, RANDOM);
            ring.write(i, &wanted);
            pages.versions[page] = (200 + round, COMPRESSIBLE);
            assert!(bytes_at(pages.at, page) == wanted, "round {round}: page {page} is not what the device wrote");
        }
        pages.check_all();
    }
}

/// Pages that the program gave to a driver, pinned since.
fn given(space: &'static Space) -> (Pages, Ring) {
    let pages = Pages::aligned(space, BUFFERS * APART, COMPRESSIBLE);
    buffers(&pages).iter().for_each(|(at, _)| space.give_to_driver(ctx(space), *at as usize));
    // What is out comes in, as for the call.
    pages.check_all();
    let ring = Ring::pin(&buffers(&pages));
    (pages, ring)
}

#[test]
fn what_a_driver_has_pinned_stays_where_it_is() {
    alone(|| {
        let space = space_on(&[SPILL], true);
        let (mut pages, ring) = given(space);
        use_both(&mut pages, &ring, 3);
        drop(ring);
        churn(space);
        assert_sound(&pages);
    });
}

#[test]
fn what_a_driver_has_pinned_stays_after_a_fork() {
    alone(|| {
        let space = space_on(&[SPILL], true);
        let (mut pages, ring) = given(space);
        let mut ends = [0; 2];
        // SAFETY: a pipe of the test's own.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let child = fork(space, || {
            // SAFETY: closes its end; the read ends when its parent has closed the other.
            unsafe {
                libc::close(ends[1]);
                libc::read(ends[0], [0u8].as_mut_ptr().cast(), 1);
            }
            pages.check_all();
        });
        use_both(&mut pages, &ring, 2);
        // SAFETY: as above.
        unsafe { libc::close(ends[1]) };
        assert_eq!(wait(child), 0);
        // What they had in common is this process's alone now, and may be pinned as well.
        let others = Ring::pin(&(0..8).map(|i| (pages.addr(i * APART + 2) as u64, PAGE as u64)).collect::<Vec<_>>());
        use_both(&mut pages, &ring, 2);
        for i in 0..8 {
            let page = i * APART + 2;
            pages.write(page, 400, RANDOM);
            assert!(others.read(i) == bytes_at(pages.at, page), "the device reads an old page {page}");
        }
        assert_sound(&pages);
    });
}

#[test]
fn what_a_driver_may_have_is_evicted_when_it_has_not() {
    alone(|| {
        let space = space_on(&[SPILL], true);
        space.give_to_driver(ctx(space), 0);
        let pages = Pages::new(space, 3 * RAM_PAGES, COMPRESSIBLE);
        let mut random = Random(5);
        (0..4 * RAM_PAGES).for_each(|_| pages.check(random.below(pages.len())));
        let child = fork(space, || pages.check_all());
        (0..2 * RAM_PAGES).for_each(|_| pages.check(random.below(pages.len())));
        assert_eq!(wait(child), 0);
        (0..2 * RAM_PAGES).for_each(|_| pages.check(random.below(pages.len())));
        assert_sound(&pages);
    });
}

#[test]
fn what_was_pinned_before_it_is_managed_stays_where_it_is() {
    alone(|| {
        let n = BUFFERS * APART;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping, which has its pages before it is managed.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), n * PAGE, 3, flags, -1, 0) } as *mut u8;
        (0..n).for_each(|page| fill(at, page, 1, COMPRESSIBLE));
        let pinned: Vec<_> = (0..BUFFERS).map(|i| (at as u64 + (i * APART * PAGE) as u64, PAGE as u64)).collect();
        let ring = Ring::pin(&pinned);
        let space = space_on(&[SPILL], true);
        let mapping = Mapping {
            start: at as usize,
            end: at as usize + n * PAGE,
            prot: 3,
            // As the agent finds out where nobody can be asked.
            kept: !space.can_ask_for_pins(),
            ..Mapping::default()
        };
        ctx(space);
        assert!(space.take_over(&PageMap::open().expect("pagemap"), &mapping));
        let mut pages = Pages { space, at, versions: vec![(1, COMPRESSIBLE); n] };
        use_both(&mut pages, &ring, 3);
        assert_sound(&pages);
    });
}

#[test]
fn more_than_the_budget_can_bear_is_not_registered() {
    alone(|| {
        let space = space_on(&[SPILL], true);
        let bytes = RAM as usize;
        let at = map(space, 2 * bytes);
        (0..bytes / PAGE).for_each(|page| fill(at, page, 1, COMPRESSIBLE));
        let register = |from: usize, len: usize| space.register(ctx(space), at as usize + from, len);
        assert!(!register(0, bytes));
        assert!(register(0, bytes / 2));
        assert!(!register(bytes / 2, bytes / 2), "a second half");
        // What is registered counts once.
        assert!(register(bytes / 8, bytes / 2));
        (0..bytes / PAGE).for_each(|page| check(at, page, 1, COMPRESSIBLE));
        assert_eq!(space.validate(), Ok(()));
    });
}
