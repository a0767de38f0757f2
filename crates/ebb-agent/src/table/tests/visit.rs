//! Checks the visitor against hand-made arguments, and against the running kernel.

use crate::table::visit::{Buffer, Kind, ReadMemory, for_each_robust};
use crate::table::walk::for_each_buffer;
use linux_raw_sys::general as g;
use linux_raw_sys::ioctl as i;
use proptest::prelude::*;

/// Memory of 64-bit words from `BASE` on. No other memory exists.
#[derive(Default)]
struct Words(Vec<u64>);

const BASE: u64 = 0x10_0000;

impl Words {
    /// Appends words. Returns their address.
    fn put(&mut self, words: &[u64]) -> u64 {
        let at = BASE + self.0.len() as u64 * 8;
        self.0.extend_from_slice(words);
        at
    }

    fn put_str(&mut self, text: &[u8]) -> u64 {
        let mut padded = text.to_vec();
        padded.push(0);
        padded.resize(padded.len().next_multiple_of(8), 0xff);
        let words: Vec<u64> = padded.chunks(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
        self.put(&words)
    }
}

impl ReadMemory for Words {
    fn read(&self, addr: u64, out: &mut [u8]) -> bool {
        let mut bytes: Vec<u8> = self.0.iter().flat_map(|w| w.to_ne_bytes()).collect();
        // Memory ends at the end of a page.
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        let Some(at) = addr.checked_sub(BASE) else { return false };
        let at = at as usize;
        let Some(from) = at.checked_add(out.len()).and_then(|end| bytes.get(at..end)) else { return false };
        out.copy_from_slice(from);
        true
    }

    fn is_self(&self, pid: i32) -> bool {
        pid == 42
    }
}

fn visit(mem: &Words, nr: u32, args: &[u64]) -> Vec<Buffer> {
    let mut all = [0u64; 6];
    all[..args.len()].copy_from_slice(args);
    let mut out = Vec::new();
    for_each_buffer(nr as u64, &all, mem, &mut |b| out.push(b));
    out
}

fn pin(addr: u64, len: u64, write: bool) -> Buffer {
    Buffer { addr, len, write, kind: Kind::Pin }
}

fn exclude(addr: u64, len: u64, write: bool) -> Buffer {
    Buffer { addr, len, write, kind: Kind::Exclude }
}

#[test]
fn read_touches_its_buffer_only() {
    let mem = Words::default();
    assert_eq!(visit(&mem, g::__NR_read, &[3, 0x5000, 100]), [pin(0x5000, 100, true)]);
    assert_eq!(visit(&mem, g::__NR_write, &[3, 0x5000, 100]), [pin(0x5000, 100, false)]);
    assert_eq!(visit(&mem, g::__NR_read, &[3, 0, 100]), []);
    assert_eq!(visit(&mem, g::__NR_read, &[3, 0x5000, 0]), []);
}

#[test]
fn a_narrow_count_ignores_the_upper_half_of_its_register() {
    let mem = Words::default();
    assert_eq!(visit(&mem, g::__NR_poll, &[0x5000, 0xdead_beef_0000_0002, 0]), [pin(0x5000, 16, true)]);
    assert_eq!(visit(&mem, g::__NR_epoll_wait, &[1, 0x5000, -1i32 as u32 as u64, 0]), []);
}

#[test]
fn a_buffer_past_the_end_of_user_addresses_is_cut_off() {
    let mem = Words::default();
    assert_eq!(visit(&mem, g::__NR_read, &[3, u64::MAX - 10, 100]), []);
    let cut = visit(&mem, g::__NR_read, &[3, (1 << 56) - 10, u64::MAX]);
    assert_eq!(cut, [pin((1 << 56) - 10, 10, true)]);
}

#[test]
fn a_vector_is_walked_and_cut_to_what_one_call_transfers() {
    let mut mem = Words::default();
    let iov = mem.put(&[0x5000, 10, 0, 7, 0x6000, 0x8000_0000, 0x7000, 5]);
    let seen = visit(&mem, g::__NR_readv, &[3, iov, 4]);
    assert_eq!(seen, [pin(iov, 64, false), pin(0x5000, 10, true), pin(0x6000, 0x7fff_f000 - 17, true)]);
}

#[test]
fn a_vector_that_cannot_be_read_shows_only_itself() {
    let mem = Words::default();
    assert_eq!(visit(&mem, g::__NR_writev, &[3, 0x5000, 1 << 40 | 2000]), [pin(0x5000, 1024 * 16, false)]);
}

#[test]
fn a_message_leads_to_name_vector_and_control() {
    let mut mem = Words::default();
    let iov = mem.put(&[0x5000, 10]);
    let msg = mem.put(&[0x7000, 16, iov, 1, 0x8000, 32, 0]);
    assert_eq!(
        visit(&mem, g::__NR_recvmsg, &[3, msg, 0]),
        [pin(msg, 56, true), pin(0x7000, 16, true), pin(iov, 16, false), pin(0x5000, 10, true), pin(0x8000, 32, true)]
    );
    assert!(visit(&mem, g::__NR_sendmsg, &[3, msg, 0]).iter().all(|b| !b.write));
}

#[test]
fn an_array_of_messages_is_walked() {
    let mut mem = Words::default();
    let iov = mem.put(&[0x5000, 10, 0x6000, 20]);
    let msgs = mem.put(&[0, 0, iov, 1, 0, 0, 0, 0, 0, 0, iov + 16, 1, 0, 0, 0, 0]);
    let seen = visit(&mem, g::__NR_sendmmsg, &[3, msgs, 2, 0]);
    assert!(seen.contains(&pin(msgs, 64, true)) && seen.contains(&pin(msgs + 64, 64, true)));
    assert!(seen.contains(&pin(0x5000, 10, false)) && seen.contains(&pin(0x6000, 20, false)));
}

#[test]
fn a_socket_address_is_as_long_as_its_length_word_says() {
    let mut mem = Words::default();
    let len = mem.put(&[0xffff_ffff_0000_0010]);
    assert_eq!(visit(&mem, g::__NR_accept, &[3, 0x5000, len]), [pin(0x5000, 16, true), pin(len, 4, true)]);
}

#[test]
fn a_string_is_as_long_as_it_is_also_across_pages() {
    let mut mem = Words::default();
    let short = mem.put_str(b"/etc/passwd");
    assert_eq!(visit(&mem, g::__NR_open, &[short, 0, 0]), [pin(short, 12, false)]);
    mem.0.resize(512 - 2, 0);
    let long = mem.put_str(&[b'x'; 100]);
    assert_eq!(long % 4096, 4096 - 16);
    assert_eq!(visit(&mem, g::__NR_open, &[long, 0, 0]), [pin(long, 101, false)]);
}

#[test]
fn a_string_without_an_end_stops_at_a_paths_length_or_where_memory_ends() {
    let mut mem = Words::default();
    mem.0.resize(1024, u64::MAX);
    assert_eq!(visit(&mem, g::__NR_open, &[BASE, 0, 0]), [pin(BASE, 4096, false)]);
    assert_eq!(visit(&mem, g::__NR_open, &[BASE + 4096, 0, 0]), [pin(BASE + 4096, 4096, false)]);
    assert_eq!(visit(&mem, g::__NR_open, &[0x5000, 0, 0]), []);
}

#[test]
fn the_arguments_of_execve_are_walked() {
    let mut mem = Words::default();
    let path = mem.put_str(b"/bin/ls");
    let arg = mem.put_str(b"-l");
    let argv = mem.put(&[path, arg, 0]);
    assert_eq!(
        visit(&mem, g::__NR_execve, &[path, argv, 0]),
        [pin(path, 8, false), pin(path, 8, false), pin(arg, 3, false), pin(argv, 24, false)]
    );
}

#[test]
fn descriptor_sets_are_whole_words() {
    let mem = Words::default();
    let seen = visit(&mem, g::__NR_select, &[65, 0x5000, 0, 0x6000, 0x7000]);
    assert_eq!(seen, [pin(0x5000, 16, true), pin(0x6000, 16, true), pin(0x7000, 16, true)]);
}

#[test]
fn pselect6_leads_to_its_signal_set() {
    let mut mem = Words::default();
    let sigs = mem.put(&[0x9000, 8]);
    let seen = visit(&mem, g::__NR_pselect6, &[0, 0, 0, 0, 0, sigs]);
    assert_eq!(seen, [pin(sigs, 16, false), pin(0x9000, 8, false)]);
}

#[test]
fn a_futex_operation_says_which_words_it_uses() {
    let mem = Words::default();
    let private = g::FUTEX_PRIVATE_FLAG as u64;
    let wait = g::FUTEX_WAIT as u64;
    let wake = g::FUTEX_WAKE as u64;
    let requeue = g::FUTEX_CMP_REQUEUE as u64;
    let futex = |op: u64| visit(&mem, g::__NR_futex, &[0x5000, op, 1, 0x6000, 0x7000, 0]);
    assert_eq!(futex(wake | private), []);
    assert_eq!(futex(wake), [pin(0x5000, 4, true)]);
    assert_eq!(futex(wait | private), [pin(0x5000, 4, true), pin(0x6000, 16, false)]);
    assert_eq!(futex(requeue | private), [pin(0x5000, 4, true), pin(0x7000, 4, true)]);
}

#[test]
fn futex_waitv_leads_to_every_word() {
    let mut mem = Words::default();
    let waiters = mem.put(&[0, 0x5000, 2, 0, 0x6000, 2]);
    let seen = visit(&mem, g::__NR_futex_waitv, &[waiters, 2, 0, 0, 0]);
    assert_eq!(seen, [pin(waiters, 48, false), pin(0x5000, 8, true), pin(0x6000, 8, true)]);
}

#[test]
fn ioctl_knows_old_requests_and_reads_the_size_of_new_ones() {
    let mut mem = Words::default();
    mem.put(&[0; 64]);
    let ioctl = |request: u32| visit(&mem, g::__NR_ioctl, &[3, request as u64, 0x5ff0]);
    assert_eq!(ioctl(i::FIONREAD), [pin(0x5ff0, 4, true)]);
    assert_eq!(ioctl(i::TCGETS), [pin(0x5ff0, 36, true)]);
    // _IOWR('X', 1, 4000 bytes)
    let probe = |len| Buffer { addr: 0x5ff0, len, write: true, kind: Kind::Probe };
    assert_eq!(ioctl(0xcfa0_5801), [probe(4000)]);
    assert_eq!(ioctl(0x1234), [probe(256)]);
}

#[test]
fn ioctl_follows_the_pointers_of_known_requests() {
    let mut mem = Words::default();
    let conf = mem.put(&[400, 0x5000]);
    assert!(visit(&mem, g::__NR_ioctl, &[3, i::SIOCGIFCONF as u64, conf]).contains(&pin(0x5000, 400, true)));
    let guest = mem.put(&[0, 0x1000, 0x20_0000, 0x4000_0000]);
    assert!(
        visit(&mem, g::__NR_ioctl, &[3, 0x4020_ae46, guest]).contains(&register(0x4000_0000, 0x20_0000)),
        "guest memory stays"
    );
    let command = mem.put(&[0, 6 | 32 << 8 | 512 << 32, 0x5000, 0x6000, 0x7000, 0, 0, 0, 0, 0, 0]);
    let seen = visit(&mem, g::__NR_ioctl, &[3, 0x2285, command]);
    assert!(seen.contains(&pin(0x5000, 512, true)));
    assert!(seen.contains(&pin(0x6000, 6, false)));
    assert!(seen.contains(&pin(0x7000, 32, true)));
}

fn register(addr: u64, len: u64) -> Buffer {
    Buffer { addr, len, write: true, kind: Kind::Register }
}

#[test]
fn what_a_device_keeps_stays_for_good() {
    let mut mem = Words::default();
    // struct v4l2_buffer: type 1 (capture), memory 2 (user pointer) at byte 60, address, length.
    let video = mem.put(&[1 << 32, 0, 0, 0, 0, 0, 0, 2 << 32, 0x7000_0000, 0x9000, 0]);
    assert!(visit(&mem, g::__NR_ioctl, &[3, 0xc058_560f, video]).contains(&register(0x7000_0000, 0x9000)));
    // A buffer of several planes, 64 bytes each.
    let planes = mem.put(&[0x5000 << 32, 0x7100_0000, 0, 0, 0, 0, 0, 0, 0x6000 << 32, 0x7200_0000, 0, 0, 0, 0, 0, 0]);
    let video = mem.put(&[9 << 32, 0, 0, 0, 0, 0, 0, 2 << 32, planes, 2, 0]);
    let seen = visit(&mem, g::__NR_ioctl, &[3, 0xc058_560f, video]);
    assert!(seen.contains(&register(0x7100_0000, 0x5000)) && seen.contains(&register(0x7200_0000, 0x6000)));
    let umem = mem.put(&[0x7300_0000, 0x20_0000, 4096, 0]);
    let seen = visit(&mem, g::__NR_setsockopt, &[3, 283, 4, umem, 32]);
    assert!(seen.contains(&register(0x7300_0000, 0x20_0000)));
    // struct usbdevfs_urb: buffer and length in its third and fourth word.
    let urb = mem.put(&[3, 0, 0x7400_0000, 0x3000, 0, 0, 0]);
    let seen = visit(&mem, g::__NR_ioctl, &[3, 0x8038_550a, urb]);
    assert!(seen.contains(&exclude(urb, 56, true)) && seen.contains(&exclude(0x7400_0000, 0x3000, true)));
}

#[test]
fn commands_register_what_they_name_by_address_and_length() {
    /// A process that has such a device.
    struct Commanded(Words);
    impl ReadMemory for Commanded {
        fn read(&self, addr: u64, out: &mut [u8]) -> bool {
            self.0.read(addr, out)
        }

        fn may_be_managed(&self, addr: u64, _len: u64) -> bool {
            (BASE..0x8000_0000).contains(&addr)
        }

        fn takes_commands(&self, fd: i32) -> bool {
            fd == 5
        }
    }
    let mut mem = Words::default();
    // struct ib_uverbs_reg_mr after its header: response, address, length.
    let answer = mem.put(&[0; 4]);
    let command = mem.put(&[9 | 12 << 32, answer, 0x7000_0000, 0x80_0000, 0x7000_0000, 0]);
    // The same command by ioctl, and an address and a length as attributes of their own.
    let value = |bytes: u64| 7 | bytes << 16;
    let call =
        mem.put(&[24 + 4 * 16, 0, 0, value(40), command + 8, value(8), 0x7100_0000, value(8), 0x5000, value(4), 3]);
    let mem = Commanded(mem);
    let seen = |nr: u32, args: [u64; 6]| {
        let mut seen = Vec::new();
        for_each_buffer(nr as u64, &args, &mem, &mut |b| seen.push(b));
        seen
    };
    let written = |fd| seen(g::__NR_write, [fd, command, 48, 0, 0, 0]);
    assert!(written(5).contains(&register(0x7000_0000, 0x80_0000)));
    assert!(written(5).iter().any(|b| b.kind == Kind::Driver && b.addr == answer));
    assert_eq!(written(6), [pin(command, 48, false)]);
    let called = seen(g::__NR_ioctl, [6, 0xc018_1b01, call, 0, 0, 0]);
    assert!(called.contains(&pin(command + 8, 40, true)));
    assert!(called.contains(&register(0x7000_0000, 0x80_0000)) && called.contains(&register(0x7100_0000, 0x5000)));
    assert!(called.iter().any(|b| b.kind == Kind::Driver && b.addr == answer));
}

#[test]
fn commands_of_devices_lead_to_their_data() {
    let mut mem = Words::default();
    let bulk = mem.put(&[0x81 | 0x2000 << 32, 1000, 0x7000_0000]);
    assert!(visit(&mem, g::__NR_ioctl, &[3, 0xc018_5502, bulk]).contains(&pin(0x7000_0000, 0x2000, true)));
    let control = mem.put(&[0x40 << 48, 1000, 0x7000_0000]);
    assert!(visit(&mem, g::__NR_ioctl, &[3, 0xc018_5500, control]).contains(&pin(0x7000_0000, 0x40, true)));
    let nvme = mem.put(&[6, 0, 0x7100_0000, 0x7200_0000, 64 | 0x3000 << 32, 0, 0, 0, 0]);
    let seen = visit(&mem, g::__NR_ioctl, &[3, 0xc048_4e41, nvme]);
    assert!(seen.contains(&pin(0x7100_0000, 64, true)) && seen.contains(&pin(0x7200_0000, 0x3000, true)));
    // A dirty log of a slot whose memory was not seen.
    let log = mem.put(&[0, 0x7300_0000]);
    let kind = Kind::Probe;
    let seen = visit(&mem, g::__NR_ioctl, &[3, 0x4010_ae42, log]);
    assert!(seen.contains(&Buffer { kind, ..pin(0x7300_0000, 1 << 20, true) }));
}

#[test]
fn requests_of_a_userfaultfd_lead_no_further() {
    let mut mem = Words::default();
    let waiting = mem.put(&[0x7000_0000]);
    let copy = mem.put(&[waiting, 0x7100_0000, 4096, 0, 0]);
    let seen = visit(&mem, g::__NR_ioctl, &[3, 0xc028_aa03, copy]);
    let has = |addr| seen.iter().any(|b| b.addr == addr);
    assert!(has(copy) && has(waiting) && has(0x7100_0000) && !has(0x7000_0000), "{seen:x?}");
}

#[test]
fn only_pages_with_content_are_followed() {
    /// Managed memory where only the pages of the words have content.
    struct Sparse(Words);
    impl ReadMemory for Sparse {
        fn read(&self, addr: u64, out: &mut [u8]) -> bool {
            assert!(self.may_be_looked_at(addr), "{addr:x} is looked at");
            self.0.read(addr, out)
        }

        fn may_be_looked_at(&self, addr: u64) -> bool {
            self.0.read(addr, &mut [0])
        }
    }
    let mut mem = Words::default();
    let further = mem.put(&[0x7000_0000]);
    let unknown = mem.put(&[further, 0x7100_0000]);
    let mem = Sparse(mem);
    let mut seen = Vec::new();
    let args = [3, 0xc010_7a63, unknown, 0, 0, 0];
    for_each_buffer(g::__NR_ioctl as u64, &args, &mem, &mut |b| seen.push(b.addr));
    assert!([unknown, further, 0x7000_0000, 0x7100_0000].iter().all(|addr| seen.contains(addr)), "{seen:x?}");
}

#[test]
fn fcntl_touches_memory_for_locks_and_owners_only() {
    let mem = Words::default();
    let fcntl = |command: u32| visit(&mem, g::__NR_fcntl, &[3, command as u64, 0x5000]);
    assert_eq!(fcntl(g::F_SETLKW), [pin(0x5000, 32, true)]);
    assert_eq!(fcntl(g::F_OFD_SETLK), [pin(0x5000, 32, true)]);
    assert_eq!(fcntl(g::F_SETOWN_EX), [pin(0x5000, 8, true)]);
    assert_eq!(fcntl(g::F_DUPFD), []);
    assert_eq!(fcntl(g::F_SETFL), []);
}

#[test]
fn what_the_kernel_uses_later_is_excluded() {
    let mut mem = Words::default();
    assert_eq!(visit(&mem, g::__NR_set_robust_list, &[0x5000, 24]), [exclude(0x5000, 24, false)]);
    assert_eq!(visit(&mem, g::__NR_rseq, &[0x5000, 32, 0, 0]), [exclude(0x5000, 32, true)]);
    assert_eq!(visit(&mem, g::__NR_set_tid_address, &[0x5000]), [exclude(0x5000, 4, true)]);
    let iov = mem.put(&[0x5000, 10]);
    assert!(visit(&mem, g::__NR_vmsplice, &[1, iov, 1, 0]).contains(&exclude(0x5000, 10, true)));
    let iocb = mem.put(&[0, 0, 1, 0x7000, 99, 0, 0, 0]);
    let iocbs = mem.put(&[iocb]);
    let seen = visit(&mem, g::__NR_io_submit, &[1, 1, iocbs]);
    let kind = Kind::Request { context: 1, block: iocb };
    assert_eq!(seen, [pin(iocbs, 8, false), pin(iocb, 64, true), Buffer { kind, ..pin(0x7000, 99, false) }]);
}

#[test]
fn clone_excludes_the_word_that_is_cleared_at_the_end() {
    let mem = Words::default();
    let clear = (g::CLONE_CHILD_CLEARTID | g::CLONE_PARENT_SETTID) as u64;
    let seen = visit(&mem, g::__NR_clone, &[clear, 0, 0x5000, 0x6000, 0]);
    assert_eq!(seen, [pin(0x5000, 4, true), exclude(0x6000, 4, true)]);
    assert_eq!(visit(&mem, g::__NR_clone, &[17, 0, 0x5000, 0x6000, 0]), []);
}

#[test]
fn message_queues_have_a_type_before_the_text() {
    let mem = Words::default();
    assert_eq!(visit(&mem, g::__NR_msgsnd, &[1, 0x5000, 100, 0]), [pin(0x5000, 108, false)]);
    assert_eq!(visit(&mem, g::__NR_msgrcv, &[1, 0x5000, 100, 0, 0]), [pin(0x5000, 108, true)]);
}

#[test]
fn mount_pins_a_page_of_options_whatever_it_holds() {
    let mem = Words::default();
    let seen = visit(&mem, g::__NR_mount, &[0, 0, 0, 0, 0x5800]);
    assert_eq!(seen, [Buffer { addr: 0x5800, len: 4096, write: false, kind: Kind::Probe }]);
}

#[test]
fn another_process_memory_is_not_looked_at_but_ones_own_is() {
    let mut mem = Words::default();
    let local = mem.put(&[0x5000, 10]);
    let remote = mem.put(&[0x6000, 20]);
    let other = visit(&mem, g::__NR_process_vm_readv, &[7, local, 1, remote, 1, 0]);
    assert_eq!(other, [pin(local, 16, false), pin(0x5000, 10, true), pin(remote, 16, false)]);
    let own = visit(&mem, g::__NR_process_vm_readv, &[42, local, 1, remote, 1, 0]);
    assert!(own.contains(&pin(0x6000, 20, false)));
}

#[test]
fn structures_that_name_their_size_are_taken_at_their_word_within_a_page() {
    let mut mem = Words::default();
    let small = mem.put(&[0]);
    let huge = mem.put(&[u64::MAX]);
    assert_eq!(visit(&mem, g::__NR_sched_setattr, &[0, small, 0]), [pin(small, 48, true)]);
    assert_eq!(visit(&mem, g::__NR_sched_setattr, &[0, huge, 0]), [pin(huge, 4096, true)]);
}

#[test]
fn a_robust_list_is_walked_to_its_end() {
    let mut mem = Words::default();
    let first = mem.put(&[0, 0]);
    let second = mem.put(&[0, 0]);
    let head = mem.put(&[first, 8, 0]);
    mem.0[((first - BASE) / 8) as usize] = second | 1;
    mem.0[((second - BASE) / 8) as usize] = head;
    let mut seen = Vec::new();
    for_each_robust(head, &mem, &mut |b| seen.push(b));
    assert_eq!(
        seen,
        [
            pin(head, 24, false),
            pin(first, 8, false),
            pin(first + 8, 4, true),
            pin(second, 8, false),
            pin(second + 8, 4, true)
        ]
    );
}

#[test]
fn a_robust_list_that_is_a_ring_ends() {
    let mut mem = Words::default();
    let entry = mem.put(&[0, 0]);
    let head = mem.put(&[entry, 8, 0]);
    mem.0[((entry - BASE) / 8) as usize] = entry;
    let mut seen = 0;
    for_each_robust(head, &mem, &mut |_| seen += 1);
    assert_eq!(seen, 1 + 2 * 2048);
}

/// Memory in which every address holds small numbers that look like pointers into itself.
struct Maze(u64);

impl ReadMemory for Maze {
    fn read(&self, addr: u64, out: &mut [u8]) -> bool {
        for (n, byte) in out.iter_mut().enumerate() {
            let at = addr.wrapping_add(n as u64);
            *byte = (at.wrapping_mul(self.0 | 1) >> (at % 23)) as u8;
        }
        !addr.is_multiple_of(11)
    }
}

/// Arguments: any bits, and often what programs do pass.
fn any_arg() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0u64..64, Just(u64::MAX), (0u64..1 << 47), Just(1 << 31), Just(0)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_visitor_ends_and_stays_in_user_addresses(
        nr in 0u64..480,
        args in prop::array::uniform6(any_arg()),
        seed in any::<u64>(),
    ) {
        let mut buffers = 0u64;
        for_each_buffer(nr, &args, &Maze(seed), &mut |b| {
            buffers += 1;
            assert!(b.addr != 0 && b.len > 0 && b.addr.checked_add(b.len).is_some_and(|end| end <= 1 << 56));
        });
        prop_assert!(buffers <= 1 << 21);
    }

    #[test]
    fn options_of_any_value_are_survived(
        nr in prop::sample::select(vec![
            g::__NR_ioctl, g::__NR_fcntl, g::__NR_prctl, g::__NR_keyctl, g::__NR_ptrace, g::__NR_bpf,
            g::__NR_futex, g::__NR_semctl, g::__NR_io_uring_register, g::__NR_io_submit, g::__NR_clone3,
            g::__NR_recvmmsg, g::__NR_setsockopt, g::__NR_fsconfig,
        ]),
        option in 0u64..40,
        at in 0usize..3,
        mut args in prop::array::uniform6(any_arg()),
        seed in any::<u64>(),
    ) {
        args[at] = option;
        let mut buffers = 0u64;
        for_each_buffer(nr as u64, &args, &Maze(seed), &mut |_| buffers += 1);
        prop_assert!(buffers <= 1 << 21);
    }
}

/// Returns a page with no memory after it.
fn last_page() -> u64 {
    // SAFETY: a fresh mapping, whose second page becomes inaccessible.
    unsafe {
        let at = libc::mmap(
            core::ptr::null_mut(),
            8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        libc::mprotect(at.add(4096), 4096, libc::PROT_NONE);
        at as u64
    }
}

#[test]
fn the_running_kernel_touches_no_more_than_the_table_says() {
    // Each structure is put right before the end of memory, with the size that the table gives it.
    let (page, elsewhere) = (last_page(), last_page());
    let mut fds = [0i32; 2];
    // SAFETY: the array receives two descriptors.
    assert_eq!(unsafe { libc::pipe(fds.as_mut_ptr()) }, 0);
    let pipe = fds[0] as u64;
    // SAFETY: plain calls that make descriptors and objects.
    let (timer, semaphores, file) = unsafe {
        (
            libc::timerfd_create(libc::CLOCK_MONOTONIC, 0) as u64,
            libc::semget(libc::IPC_PRIVATE, 3, 0o600) as u64,
            libc::open(c"/proc/self/exe".as_ptr(), libc::O_RDONLY) as u64,
        )
    };
    let here = 0x7777;
    let cwd = libc::AT_FDCWD as u64;
    let empty = c"".as_ptr() as u64;
    let root = c"/".as_ptr() as u64;
    let at_empty = libc::AT_EMPTY_PATH as u64;
    let calls: &[(u32, [u64; 6])] = &[
        (g::__NR_fstat, [pipe, here, 0, 0, 0, 0]),
        (g::__NR_stat, [root, here, 0, 0, 0, 0]),
        (g::__NR_newfstatat, [pipe, empty, here, at_empty, 0, 0]),
        (g::__NR_statx, [cwd, root, 0, 0xfff, here, 0]),
        (g::__NR_statfs, [root, here, 0, 0, 0, 0]),
        (g::__NR_fstatfs, [pipe, here, 0, 0, 0, 0]),
        (g::__NR_uname, [here, 0, 0, 0, 0, 0]),
        (g::__NR_sysinfo, [here, 0, 0, 0, 0, 0]),
        (g::__NR_times, [here, 0, 0, 0, 0, 0]),
        (g::__NR_time, [here, 0, 0, 0, 0, 0]),
        (g::__NR_gettimeofday, [here, 0, 0, 0, 0, 0]),
        (g::__NR_gettimeofday, [0, here, 0, 0, 0, 0]),
        (g::__NR_getrusage, [0, here, 0, 0, 0, 0]),
        (g::__NR_getrlimit, [0, here, 0, 0, 0, 0]),
        (g::__NR_prlimit64, [0, 0, 0, here, 0, 0]),
        (g::__NR_getitimer, [0, here, 0, 0, 0, 0]),
        (g::__NR_setitimer, [0, 0, here, 0, 0, 0]),
        (g::__NR_clock_gettime, [0, here, 0, 0, 0, 0]),
        (g::__NR_clock_getres, [0, here, 0, 0, 0, 0]),
        (g::__NR_adjtimex, [here, 0, 0, 0, 0, 0]),
        (g::__NR_clock_adjtime, [0, here, 0, 0, 0, 0]),
        (g::__NR_timerfd_gettime, [timer, here, 0, 0, 0, 0]),
        (g::__NR_sched_getparam, [0, here, 0, 0, 0, 0]),
        (g::__NR_sched_getattr, [0, here, 56, 0, 0, 0]),
        (g::__NR_sched_rr_get_interval, [0, here, 0, 0, 0, 0]),
        (g::__NR_sched_getaffinity, [0, 1024, here, 0, 0, 0]),
        (g::__NR_getresuid, [here, here, here, 0, 0, 0]),
        (g::__NR_getcpu, [here, here, 0, 0, 0, 0]),
        (g::__NR_rt_sigpending, [here, 8, 0, 0, 0, 0]),
        (g::__NR_rt_sigprocmask, [0, 0, here, 8, 0, 0]),
        (g::__NR_rt_sigaction, [10, 0, here, 8, 0, 0]),
        (g::__NR_sigaltstack, [0, here, 0, 0, 0, 0]),
        (g::__NR_get_robust_list, [0, here, here, 0, 0, 0]),
        (g::__NR_get_mempolicy, [here, 0, 0, 0, 0, 0]),
        (g::__NR_prctl, [libc::PR_GET_NAME as u64, here, 0, 0, 0, 0]),
        (g::__NR_prctl, [libc::PR_GET_PDEATHSIG as u64, here, 0, 0, 0, 0]),
        (g::__NR_prctl, [libc::PR_GET_CHILD_SUBREAPER as u64, here, 0, 0, 0, 0]),
        (g::__NR_prctl, [40, here, 0, 0, 0, 0]),
        (g::__NR_ioctl, [pipe, i::FIONREAD as u64, here, 0, 0, 0]),
        (g::__NR_ioctl, [pipe, i::FIONBIO as u64, here, 0, 0, 0]),
        (g::__NR_fcntl, [file, g::F_GETLK as u64, here, 0, 0, 0]),
        (g::__NR_fcntl, [pipe, g::F_GETOWN_EX as u64, here, 0, 0, 0]),
        (g::__NR_cachestat, [file, here, here, 0, 0, 0]),
        (g::__NR_mincore, [page, 4096, here, 0, 0, 0]),
        (g::__NR_semctl, [semaphores, 0, libc::IPC_STAT as u64, here, 0, 0]),
        (g::__NR_semctl, [semaphores, 0, 3, here, 0, 0]),
        (g::__NR_shmctl, [0, 3, here, 0, 0, 0]),
        (g::__NR_shmctl, [0, 14, here, 0, 0, 0]),
        (g::__NR_msgctl, [0, 3, here, 0, 0, 0]),
        (g::__NR_arch_prctl, [0x1003, here, 0, 0, 0, 0]),
        (g::__NR_capget, [here, 0, 0, 0, 0, 0]),
        (g::__NR_io_setup, [1, here, 0, 0, 0, 0]),
        (g::__NR_file_getattr, [cwd, root, here, 24, 0, 0]),
        (g::__NR_seccomp, [3, 0, here, 0, 0, 0]),
    ];
    for (nr, args) in calls {
        for at in (0..6).filter(|&at| args[at] == here) {
            let mut sized = *args;
            sized.iter_mut().filter(|a| **a == here).for_each(|a| *a = elsewhere);
            sized[at] = page;
            let mut len = 0;
            for_each_buffer(*nr as u64, &sized, &Words::default(), &mut |b| {
                if b.addr == page {
                    len = b.len;
                }
            });
            assert!(len > 0 && len <= 4096, "call {nr}, argument {at}");
            sized[at] = page + 4096 - len;
            // SAFETY: the page is the test's own; all structures are output, or are read as zeroes.
            let ret = unsafe {
                core::ptr::write_bytes(page as *mut u8, 0, 4096);
                libc::syscall(*nr as i64, sized[0], sized[1], sized[2], sized[3], sized[4], sized[5])
            };
            let error = std::io::Error::last_os_error().raw_os_error();
            assert!(ret != -1 || error != Some(libc::EFAULT), "call {nr}, argument {at}: {len} bytes are too few");
        }
    }
    // SAFETY: releases what was made above.
    unsafe {
        libc::semctl(semaphores as i32, 0, libc::IPC_RMID);
        libc::munmap(page as *mut _, 8192);
        libc::munmap(elsewhere as *mut _, 8192);
        for fd in [pipe, fds[1] as u64, timer, file] {
            libc::close(fd as i32);
        }
    }
}
