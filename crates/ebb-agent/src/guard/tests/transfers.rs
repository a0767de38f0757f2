//! Transfers larger than what may be pinned at a time: made in pieces, with the result of one call.

use super::*;

const MSG_DONTWAIT: u64 = 0x40;

#[test]
fn a_large_read_of_a_file_is_whole_and_moves_the_position() {
    let mem = Pages::new(16 << 20, 512 << 10);
    let content = pattern(5 * MIB + 77);
    let mut file = file_with(&content);
    assert_eq!(
        run(&mem, g::__NR_read, [fd(&file), mem.start + 3, content.len() as u64 - 7, 0, 0, 0]),
        5 * 1048576 + 70
    );
    assert_eq!(mem.slice(3, content.len() - 7), &content[..content.len() - 7]);
    assert_eq!(file.stream_position().unwrap(), content.len() as u64 - 7);
    assert_eq!(run(&mem, g::__NR_read, [fd(&file), mem.start, 8 << 20, 0, 0, 0]), 7, "the end of the file");
    assert_eq!(run(&mem, g::__NR_read, [fd(&file), mem.start, 8 << 20, 0, 0, 0]), 0);
}

/// Makes call `nr` on `fd` with `len` bytes at the start of the memory. Returns its answer, and how many bytes each
/// transfer asked for.
fn transfers(mem: &Pages, nr: u32, fd: u64, len: usize, flags: u64) -> (i64, Vec<u64>) {
    let (mut real, mut pieces) = (kernel(mem), Vec::new());
    let ret = call(mem, nr as u64, &[fd, mem.start, len as u64, flags, 0, 0], &mut |nr, args| {
        if !matches!(nr as u32, g::__NR_fstat | g::__NR_getsockopt | g::__NR_fcntl | g::__NR_ioctl) {
            pieces.push(args[2]);
        }
        real(nr, args)
    });
    (ret, pieces)
}

/// Reads a stream to its end, in another thread.
fn drain(mut stream: std::fs::File) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("a stream");
        all
    })
}

#[test]
fn what_goes_to_a_stream_pins_no_more_than_others_leave() {
    const K: u64 = 1 << 10;
    let content = pattern(3 * MIB);
    // What others leave at each look, and how often that turns out to be too much once it is pinned.
    let cases: [(&[u64], u32); 5] =
        [(&[64 * K], 0), (&[64 * K, 512 * K, 64 * K], 0), (&[128 * K, 64 * K, 64 * K, 64 * K], 3), (&[], 1), (&[], 50)];
    for (limits, too_much) in cases {
        for is_socket in [false, true] {
            let mem = Pages::new(8 << 20, 512 << 10);
            *mem.piece_max.borrow_mut() = limits.iter().rev().copied().collect();
            mem.too_much.set(too_much);
            mem.slice(0, content.len()).copy_from_slice(&content);
            let (far, near) = if is_socket { socket_pair(libc::SOCK_STREAM) } else { pipe(0) };
            let reader = drain(far);
            let (ret, pieces) = transfers(&mem, g::__NR_write, fd(&near), content.len(), 0);
            drop(near);
            assert_eq!(ret, content.len() as i64);
            assert!(reader.join().expect("the reader") == content);
            assert!(pieces.iter().all(|bytes| *bytes <= 448 * K), "{pieces:?}");
            // The first look was for the whole transfer, which could not be pinned anyhow.
            let is_small = pieces.iter().any(|bytes| *bytes <= 48 * K);
            assert_eq!(is_small, limits.len() != 1, "{pieces:?}");
        }
    }
}

#[test]
fn a_vector_to_a_stream_pins_no_more_than_others_leave() {
    let content = pattern(600 << 10);
    for (limits, too_much) in [(&[64 << 10; 3][..], 0), (&[], 2), (&[256 << 10, 100 << 10], 5)] {
        let mem = Pages::new(8 << 20, 512 << 10);
        *mem.piece_max.borrow_mut() = limits.to_vec();
        mem.too_much.set(too_much);
        mem.slice(0, content.len()).copy_from_slice(&content);
        // Each entry is small.
        let vectors: Vec<[u64; 2]> = (0..15).map(|i| [mem.start + i * (40 << 10), 40 << 10]).collect();
        let (far, near) = socket_pair(libc::SOCK_STREAM);
        let reader = drain(far);
        let args = [fd(&near), vectors.as_ptr() as u64, vectors.len() as u64, 0, 0, 0];
        assert_eq!(run(&mem, g::__NR_writev, args), content.len() as i64);
        drop(near);
        assert!(reader.join().expect("the reader") == content);
        assert!(mem.piece_max.borrow().is_empty() || mem.too_much.get() > 0, "what others have pinned was looked at");
    }
}

#[test]
fn what_must_be_whole_is_not_cut_for_what_others_have_pinned() {
    let content = pattern(MIB / 4);
    let limited = || {
        let mem = Pages::new(8 << 20, 512 << 10);
        *mem.piece_max.borrow_mut() = vec![64 << 10; 8];
        mem.too_much.set(8);
        mem
    };
    let whole = |bytes: usize| (bytes as i64, vec![bytes as u64]);
    let mem = limited();
    assert_eq!(transfers(&mem, g::__NR_read, fd(&file_with(&content)), content.len(), 0), whole(content.len()));
    assert!(mem.slice(0, content.len()) == &content[..]);
    // A program that peeks for this much may take less for the end.
    let (far, mut near) = socket_pair(libc::SOCK_STREAM);
    near.write_all(&content[..100 << 10]).expect("room in the socket");
    let mem = limited();
    let got = transfers(&mem, g::__NR_recvfrom, fd(&far), 100 << 10, libc::MSG_PEEK as u64);
    assert_eq!(got, whole(100 << 10));
    assert!(mem.slice(0, 100 << 10) == &content[..100 << 10]);
    // A program that asks for all of this much gets it, in pieces.
    let mem = limited();
    let (ret, pieces) = transfers(&mem, g::__NR_recvfrom, fd(&far), 100 << 10, libc::MSG_WAITALL as u64);
    assert_eq!(ret, 100 << 10);
    assert!(pieces.len() > 1 && mem.slice(0, 100 << 10) == &content[..100 << 10], "{pieces:?}");
}

#[test]
fn what_counts_calls_gets_the_calls_that_were_made() {
    const SIZES: [usize; 2] = [256 << 10, 2 << 20];
    for (len, expected) in SIZES.into_iter().zip([vec![256 << 10], vec![448 << 10]]) {
        // A socket that takes everything and notifies the end of each call.
        let (_far, near) = socket_pair(libc::SOCK_STREAM);
        let mem = Pages::new(8 << 20, 512 << 10);
        *mem.piece_max.borrow_mut() = vec![64 << 10; 8];
        let (mut real, mut pieces) = (kernel(&mem), Vec::new());
        let args = [fd(&near), mem.start, len as u64, libc::MSG_ZEROCOPY as u64, 0, 0];
        let ret = call(&mem, g::__NR_sendto as u64, &args, &mut |nr, args| match nr as u32 {
            g::__NR_sendto => {
                pieces.push(args[2]);
                args[2] as i64
            }
            _ => real(nr, args),
        });
        assert_eq!((ret, &pieces), (expected[0] as i64, &expected));
        // A device whose calls are messages.
        *mem.piece_max.borrow_mut() = vec![64 << 10; 8];
        let (mut real, mut pieces) = (kernel(&mem), Vec::new());
        let args = [fd(&near), mem.start, len as u64, 0, 0, 0];
        let ret = call(&mem, g::__NR_write as u64, &args, &mut |nr, args| match nr as u32 {
            g::__NR_write => {
                pieces.push(args[2]);
                args[2] as i64
            }
            g::__NR_fstat => {
                let ret = real(nr, args);
                // SAFETY: the guard wants the answer here.
                let stat = unsafe { &mut *(args[1] as *mut g::stat) };
                (stat.st_mode, stat.st_rdev) = (g::S_IFCHR, 10 << 8 | 229);
                ret
            }
            _ => real(nr, args),
        });
        assert_eq!(ret, len as i64);
        assert_eq!(pieces.len(), len.div_ceil(448 << 10));
    }
}

#[test]
fn a_vector_that_becomes_shorter_meanwhile_ends() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let vectors = [[0u64; 2]; 64].map(|_| [mem.start, 4096]);
    let vectors = RefCell::new(vectors.to_vec());
    let far_apart: Vec<[u64; 2]> = (0..64).map(|i| [mem.start + i * (100 << 10), 4096]).collect();
    vectors.borrow_mut().copy_from_slice(&far_apart);
    let mut mem = mem;
    // The buffers cannot be pinned together.
    mem.ranges_max = 20;
    let file = file_with(&[]);
    let mut real = kernel(&mem);
    let args = [fd(&file), vectors.borrow().as_ptr() as u64, 64, 0, 0, 0];
    let ret = call(&mem, g::__NR_writev as u64, &args, &mut |nr, args| match nr as u32 {
        g::__NR_writev => {
            vectors.borrow_mut().iter_mut().for_each(|entry| entry[1] = 0);
            5000
        }
        _ => real(nr, args),
    });
    assert_eq!(ret, 5000);
}

#[test]
fn a_message_is_whole_whatever_others_have_pinned() {
    let mem = Pages::new(8 << 20, 512 << 10);
    *mem.piece_max.borrow_mut() = vec![64 << 10; 4];
    let (far, near) = socket_pair(libc::SOCK_SEQPACKET);
    let content = pattern(100 << 10);
    mem.slice(0, content.len()).copy_from_slice(&content);
    assert_eq!(run(&mem, g::__NR_write, [fd(&near), mem.start, content.len() as u64, 0, 0, 0]), content.len() as i64);
    let at = mem.start + MIB as u64;
    assert_eq!(run(&mem, g::__NR_read, [fd(&far), at, 200 << 10, 0, 0, 0]), content.len() as i64);
    assert!(mem.slice(MIB, content.len()) == &content[..]);
}

#[test]
fn a_large_positioned_transfer_leaves_the_position_alone() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let content = pattern(3 * MIB);
    let mut file = file_with(&content);
    let n = 2 * MIB as u64;
    assert_eq!(run(&mem, g::__NR_pread64, [fd(&file), mem.start, n, 1000, 0, 0]), n as i64);
    assert_eq!(mem.slice(0, n as usize), &content[1000..1000 + n as usize]);
    assert_eq!(run(&mem, g::__NR_pwrite64, [fd(&file), mem.start, n, 0, 0, 0]), n as i64);
    assert_eq!(file.stream_position().unwrap(), 0);
    let mut back = Vec::new();
    file.read_to_end(&mut back).unwrap();
    assert_eq!(back[..n as usize], content[1000..1000 + n as usize]);
    assert_eq!(back.len(), content.len());
}

#[test]
fn an_error_after_a_piece_is_a_short_count() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let file = file_with(&pattern(4 * MIB));
    let mut pieces = 0;
    let mut real = kernel(&mem);
    let ret = call(&mem, g::__NR_read as u64, &[fd(&file), mem.start, 4 << 20, 0, 0, 0], &mut |nr, args| {
        pieces += (nr == 0) as u32;
        if pieces == 3 { -(libc::EIO as i64) } else { real(nr, args) }
    });
    assert_eq!(ret, 2 * (448 << 10));
    assert_eq!(pieces, 3);
}

#[test]
fn an_error_in_the_first_piece_is_the_answer() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (read_end, _write_end) = pipe(libc::O_NONBLOCK);
    let ret = run(&mem, g::__NR_read, [fd(&read_end), mem.start, 4 << 20, 0, 0, 0]);
    assert_eq!(ret, -(libc::EAGAIN as i64));
    let args = [9999, mem.start, 4 << 20, 0, 0, 0];
    assert_eq!(call(&mem, g::__NR_read as u64, &args, &mut refusing_kernel), -(libc::EBADF as i64));
}

#[test]
fn a_large_read_of_a_stream_ends_where_there_is_no_more() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (read_end, mut write_end) = pipe(0);
    write_end.write_all(&[7; 1000]).unwrap();
    assert_eq!(run(&mem, g::__NR_read, [fd(&read_end), mem.start, 4 << 20, 0, 0, 0]), 1000);
    assert_eq!(mem.slice(0, 1000), [7; 1000]);
}

#[test]
fn a_large_write_to_a_blocking_pipe_writes_everything() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let content = pattern(3 * MIB + 5);
    mem.slice(0, content.len()).copy_from_slice(&content);
    let (mut read_end, write_end) = pipe(0);
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        read_end.read_to_end(&mut all).unwrap();
        all
    });
    assert_eq!(
        run(&mem, g::__NR_write, [fd(&write_end), mem.start, content.len() as u64, 0, 0, 0]),
        content.len() as i64
    );
    drop(write_end);
    assert!(reader.join().unwrap() == content);
}

#[test]
fn a_large_write_to_a_full_pipe_that_does_not_block_is_short() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (_read_end, write_end) = pipe(libc::O_NONBLOCK);
    assert_eq!(run(&mem, g::__NR_write, [fd(&write_end), mem.start, 4 << 20, 0, 0, 0]), 64 << 10);
    assert_eq!(run(&mem, g::__NR_write, [fd(&write_end), mem.start, 4 << 20, 0, 0, 0]), -(libc::EAGAIN as i64));
}

#[test]
fn a_peer_that_leaves_after_a_piece_makes_a_short_count_without_a_signal() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (far, near) = socket_pair(libc::SOCK_STREAM);
    let mut real = kernel(&mem);
    let mut far = Some(far);
    let mut seen = Vec::new();
    let ret = call(&mem, g::__NR_write as u64, &[fd(&near), mem.start, 4 << 20, 0, 0, 0], &mut |nr, args| {
        if nr == g::__NR_write as u64 {
            seen.push((nr, 0));
            return args[2] as i64;
        }
        if nr == g::__NR_sendto as u64 {
            seen.push((nr, args[3]));
            far.take();
        }
        real(nr, args)
    });
    assert_eq!(ret, 448 << 10);
    assert_eq!(seen, [(g::__NR_write as u64, 0), (g::__NR_sendto as u64, libc::MSG_NOSIGNAL as u64)]);
}

#[test]
fn a_vector_to_a_peer_that_leaves_makes_no_signal_either() {
    const RWF_NOWAIT: u64 = 8;
    let (no_signal, waits_not) = (libc::MSG_NOSIGNAL as u64, libc::MSG_DONTWAIT as u64);
    for (nr, flags, expected) in [
        (g::__NR_writev, 0, no_signal),
        (g::__NR_pwritev2, 0, no_signal),
        (g::__NR_pwritev2, RWF_NOWAIT, no_signal | waits_not),
    ] {
        let mem = Pages::new(8 << 20, 512 << 10);
        let (far, near) = socket_pair(libc::SOCK_STREAM);
        let iov = [[mem.start, 4 << 20]];
        let mut real = kernel(&mem);
        let mut far = Some(far);
        let mut seen = Vec::new();
        // The position belongs to no file.
        let args = [fd(&near), iov.as_ptr() as u64, 1, u64::MAX, u64::MAX, flags];
        let ret = call(&mem, nr as u64, &args, &mut |now, args| {
            if now == nr as u64 {
                return 448 << 10;
            }
            if now == g::__NR_sendmsg as u64 {
                seen.push(args[2]);
                far.take();
            }
            real(now, args)
        });
        assert_eq!((ret, &seen[..]), (448 << 10, &[expected][..]));
    }
}

#[test]
fn a_signal_before_the_first_piece_leaves_the_call_unmade() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let file = file_with(&pattern(4 * MIB));
    let args = [fd(&file), mem.start, 4 << 20, 0, 0, 0];
    assert_eq!(split::run(&mem, g::__NR_read as u64, &args, &mut |_, _| NOT_MADE), NOT_MADE);
}

#[test]
fn a_signal_between_pieces_ends_a_stream_but_not_a_file() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let file = file_with(&pattern(2 * MIB));
    let mut real = kernel(&mem);
    let mut n = 0;
    let mut interrupted = |nr: u64, args: &[u64; 6]| {
        n += 1;
        if n % 3 == 0 { NOT_MADE } else { real(nr, args) }
    };
    let ret = split::run(&mem, g::__NR_read as u64, &[fd(&file), mem.start, 2 << 20, 0, 0, 0], &mut interrupted);
    assert_eq!(ret, 2 << 20);

    let (_read_end, write_end) = pipe(0);
    let mut pieces = 0;
    let ret =
        split::run(&mem, g::__NR_write as u64, &[fd(&write_end), mem.start, 2 << 20, 0, 0, 0], &mut |nr, args| {
            if nr != g::__NR_write as u64 {
                return kernel(&mem)(nr, args);
            }
            pieces += 1;
            if pieces == 2 { NOT_MADE } else { args[2] as i64 }
        });
    assert_eq!(ret, 448 << 10);
}

#[test]
fn a_message_too_large_to_pin_is_made_whole() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (far, near) = socket_pair(libc::SOCK_DGRAM);
    assert_eq!(run(&mem, g::__NR_sendto, [fd(&near), mem.start, 1000, 0, 0, 0]), 1000);
    // A buffer far larger than the datagram: what the datagram fills is pinned.
    let mut calls = Vec::new();
    let ret = call(&mem, g::__NR_recvfrom as u64, &[fd(&far), mem.start, 4 << 20, 0, 0, 0], &mut |nr, args| {
        calls.push((nr, args[2]));
        if nr != g::__NR_recvfrom as u64 {
            return kernel(&mem)(nr, args);
        }
        assert!(mem.all_pinned(args[1], 512 << 10));
        // SAFETY: the test's own socket and memory.
        unsafe { libc::syscall(nr as i64, args[0], args[1], args[2], args[3], args[4], args[5]) }
    });
    assert_eq!(ret, 1000);
    assert_eq!(calls.last(), Some(&(g::__NR_recvfrom as u64, 4 << 20)));
}

#[test]
fn waiting_for_all_of_a_stream_reads_on() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (far, mut near) = socket_pair(libc::SOCK_STREAM);
    let content = pattern(2 * MIB);
    let sent = content.clone();
    let writer = std::thread::spawn(move || near.write_all(&sent).unwrap());
    let waitall = libc::MSG_WAITALL as u64;
    assert_eq!(run(&mem, g::__NR_recvfrom, [fd(&far), mem.start, 2 << 20, waitall, 0, 0]), 2 << 20);
    writer.join().unwrap();
    assert!(mem.slice(0, 2 * MIB) == content);
}

#[test]
fn a_large_message_passes_its_descriptors_once() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (far, near) = socket_pair(libc::SOCK_STREAM);
    let content = pattern(2 * MIB);
    mem.slice(0, content.len()).copy_from_slice(&content);
    let passed = file_with(b"passed");
    // SOL_SOCKET, SCM_RIGHTS, one descriptor; header and vector are in managed memory, too.
    let at = 4 * MIB;
    mem.put_word(at, 20);
    mem.put_word(at + 8, 1 | 1 << 32);
    mem.put_word(at + 16, fd(&passed));
    mem.put_word(at + 64, mem.start);
    mem.put_word(at + 72, MIB as u64);
    mem.put_word(at + 80, mem.start + MIB as u64);
    mem.put_word(at + 88, MIB as u64);
    let header = [0, 0, mem.start + at as u64 + 64, 2, mem.start + at as u64, 24, 0];
    for (i, word) in header.into_iter().enumerate() {
        mem.put_word(at + 128 + i * 8, word);
    }
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut descriptors = Vec::new();
        let mut room = vec![0u8; 1 << 16];
        loop {
            let mut control = [0u64; 8];
            let mut iov = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            // SAFETY: zeroes are a valid header.
            let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
            msg.msg_iov = &mut iov;
            msg.msg_iovlen = 1;
            msg.msg_control = control.as_mut_ptr().cast();
            msg.msg_controllen = 64;
            // SAFETY: everything that the header names lives here.
            let n = unsafe { libc::recvmsg(far.as_raw_fd(), &mut msg, 0) };
            if n <= 0 {
                break;
            }
            if msg.msg_controllen > 0 {
                // SAFETY: the kernel made the descriptor for us.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(control[2] as i32) });
            }
            all.extend_from_slice(&room[..n as usize]);
        }
        (all, descriptors.len())
    });
    let ret = run(&mem, g::__NR_sendmsg, [fd(&near), mem.start + at as u64 + 128, 0, 0, 0, 0]);
    assert_eq!(ret, 2 << 20);
    drop(near);
    let (all, descriptors) = reader.join().unwrap();
    assert!(all == content);
    assert_eq!(descriptors, 1);
}

#[test]
fn a_received_messages_header_is_given_back() {
    let mem = Pages::new(8 << 20, 512 << 10);
    let (far, mut near) = socket_pair(libc::SOCK_STREAM);
    near.write_all(&[5; 100]).unwrap();
    mem.put_word(64, mem.start + 4096);
    mem.put_word(72, 4 << 20);
    let header = [0, 0, mem.start + 64, 1, mem.start + 2048, 64, u64::MAX];
    for (i, word) in header.into_iter().enumerate() {
        mem.put_word(128 + i * 8, word);
    }
    assert_eq!(run(&mem, g::__NR_recvmsg, [fd(&far), mem.start + 128, 0, 0, 0, 0]), 100);
    let word = |i: usize| u64::from_ne_bytes(mem.slice(128 + i * 8, 8).try_into().unwrap());
    assert_eq!((word(2), word(3)), (mem.start + 64, 1), "the vector is the program's own");
    assert_eq!(word(5), 0, "no control data came");
    assert_eq!(word(6) as u32, 0, "flags");
    assert_eq!(mem.slice(4096, 100), [5; 100]);
}

/// Twenty small buffers, too far apart to be pinned together. Returns the memory, the vector, and the content.
fn scattered() -> (Pages, u64, Vec<u8>) {
    let mut mem = Pages::new(8 << 20, 512 << 10);
    mem.ranges_max = 6;
    let mut content = Vec::new();
    for i in 0..20usize {
        let (at, len) = (MIB + i * 65_536, 10 + i);
        mem.slice(at, len).fill(i as u8);
        content.extend(std::iter::repeat_n(i as u8, len));
        mem.put_word(i * 16, mem.start + at as u64);
        mem.put_word(i * 16 + 8, len as u64);
    }
    let vector = mem.start;
    (mem, vector, content)
}

/// A kernel that needs pages only resident, not pinned.
fn lenient<'a>(mem: &'a Pages, calls: &'a Cell<u32>, nr_counted: u32) -> impl FnMut(u64, &[u64; 6]) -> i64 + 'a {
    move |nr, args| {
        calls.set(calls.get() + (nr == nr_counted as u64) as u32);
        let mut evicted = false;
        for_each_buffer(nr, args, mem, &mut |b| evicted |= !mem.all_resident(b.addr, b.len));
        if evicted { -EFAULT } else { refusing_kernel(nr, args) }
    }
}

#[test]
fn a_scattered_write_that_fits_stays_one_call() {
    let (mem, vector, content) = scattered();
    let (mut read_end, write_end) = pipe(0);
    let mut file = file_with(b"");
    for to in [fd(&write_end), fd(&file)] {
        let calls = Cell::new(0);
        let args = [to, vector, 20, 0, 0, 0];
        let ret = call(&mem, g::__NR_writev as u64, &args, &mut lenient(&mem, &calls, g::__NR_writev));
        assert_eq!((ret, calls.get()), (content.len() as i64, 1));
    }
    let mut back = vec![0; content.len()];
    read_end.read_exact(&mut back).unwrap();
    assert_eq!(back, content);
    file.rewind().unwrap();
    file.read_exact(&mut back).unwrap();
    assert_eq!(back, content);
}

#[test]
fn a_scattered_write_that_an_eviction_cuts_short_goes_on_in_pinned_pieces() {
    let (mem, vector, content) = scattered();
    let mut file = file_with(b"");
    for cut in [0, 1, 33, content.len() as i64 - 1] {
        file.set_len(0).unwrap();
        file.rewind().unwrap();
        let mut first = true;
        let args = [fd(&file), vector, 20, 0, 0, 0];
        let ret = call(&mem, g::__NR_writev as u64, &args, &mut |nr, args| {
            if nr != g::__NR_writev as u64 || !std::mem::take(&mut first) {
                return kernel(&mem)(nr, args);
            }
            (&file).write_all(&content[..cut as usize]).unwrap();
            if cut == 0 { -EFAULT } else { cut }
        });
        assert_eq!(ret, content.len() as i64);
        let mut back = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut back).unwrap();
        assert_eq!(back, content);
    }
}

#[test]
fn a_scattered_read_is_made_in_pinned_pieces() {
    let (mem, vector, content) = scattered();
    let sent: Vec<u8> = content.iter().map(|b| !b).collect();
    let file = file_with(&sent);
    assert_eq!(run(&mem, g::__NR_readv, [fd(&file), vector, 20, 0, 0, 0]), content.len() as i64);
    let mut at = 0;
    for i in 0..20usize {
        assert_eq!(mem.slice(MIB + i * 65_536, 10 + i), &sent[at..at + 10 + i]);
        at += 10 + i;
    }
}

#[test]
fn a_scattered_message_is_sent_once_and_tried_again_after_an_eviction() {
    let (mem, vector, content) = scattered();
    let (far, near) = socket_pair(libc::SOCK_DGRAM);
    let header = [0, 0, vector, 20, 0, 0, 0];
    for (i, word) in header.into_iter().enumerate() {
        mem.put_word(4096 + i * 8, word);
    }
    let calls = Cell::new(0);
    let mut evictions = 2;
    let mut real = lenient(&mem, &calls, g::__NR_sendmsg);
    let args = [fd(&near), mem.start + 4096, 0, 0, 0, 0];
    let ret = call(&mem, g::__NR_sendmsg as u64, &args, &mut |nr, args| {
        if nr == g::__NR_sendmsg as u64 && evictions > 0 {
            evictions -= 1;
            return -EFAULT;
        }
        real(nr, args)
    });
    assert_eq!(ret, content.len() as i64);
    let mut back = vec![0; 2 * content.len()];
    assert_eq!((&far).read(&mut back).unwrap(), content.len());
    assert_eq!(back[..content.len()], content);
}

/// Puts headers for `n` messages at the start of the memory, far apart, each with `bytes` to receive into. Returns
/// where the buffers are.
fn messages(mem: &Pages, n: usize, bytes: usize) -> Vec<usize> {
    let (vectors, buffers) = (1 << 16, 1 << 17);
    let place = |i: usize| buffers + i * (bytes + 8192);
    for i in 0..n {
        mem.put_word(vectors + i * 16, mem.start + place(i) as u64);
        mem.put_word(vectors + i * 16 + 8, bytes as u64);
        let header = [0, 0, mem.start + (vectors + i * 16) as u64, 1, 0, 0, 0, 0];
        header.iter().enumerate().for_each(|(word, value)| mem.put_word(i * 64 + word * 8, *value));
    }
    (0..n).map(place).collect()
}

#[test]
fn messages_whose_buffers_cannot_be_pinned_together_all_come() {
    const N: usize = 24;
    for (pin_max, ranges_max, flags) in
        [(512 << 10, usize::MAX, 0), (16 << 20, 5, 0), (32 << 10, usize::MAX, 0), (512 << 10, usize::MAX, 0x1_0000)]
    {
        let mut mem = Pages::new(8 << 20, pin_max);
        mem.ranges_max = ranges_max;
        let places = messages(&mem, N, 64 << 10);
        let (far, near) = socket_pair(libc::SOCK_DGRAM);
        // More than the kernel queues: the rest is sent meanwhile.
        let sender =
            std::thread::spawn(move || (0..N).for_each(|i| (&near).write_all(&[i as u8 + 1; 3]).expect("sent")));
        let mut done = 0;
        while done < N {
            let args = [fd(&far), mem.start + done as u64 * 64, (N - done) as u64, flags, 0, 0];
            // A single message of a size that cannot be pinned is received as it is. The kernel double here insists on
            // pins.
            let mut real = kernel(&mem);
            let ret = call(&mem, g::__NR_recvmmsg as u64, &args, &mut |nr, args| match pin_max < 64 << 10 {
                true => refusing_kernel(nr, args),
                false => real(nr, args),
            });
            assert!(ret > 0, "{ret}");
            // A call that waits for all messages gets all.
            assert!(flags != 0 || ret == N as i64, "{ret}");
            done += ret as usize;
        }
        sender.join().expect("the sender");
        for (i, place) in places.into_iter().enumerate() {
            assert_eq!(mem.slice(place, 3), [i as u8 + 1; 3]);
            assert_eq!(mem.slice(i * 64 + 56, 4), 3u32.to_ne_bytes());
        }
    }
}

#[test]
fn messages_in_pieces_end_where_one_call_would() {
    let mem = Pages::new(8 << 20, 512 << 10);
    messages(&mem, 24, 64 << 10);
    let (far, near) = socket_pair(libc::SOCK_DGRAM);
    let send = |n: usize| (0..n).for_each(|_| (&near).write_all(b"abc").expect("sent"));
    let receive = |flags: u64, time: u64| run(&mem, g::__NR_recvmmsg, [fd(&far), mem.start, 24, flags, time, 0]);
    // Nothing is there at all; then a piece and a half.
    assert_eq!(receive(MSG_DONTWAIT, 0), -i64::from(libc::EAGAIN));
    send(9);
    assert_eq!(receive(MSG_DONTWAIT, 0), 9);
    // Exactly one piece.
    send(6);
    assert_eq!(receive(MSG_DONTWAIT, 0), 6);
    // The call waits for the first message and for no other.
    send(8);
    assert_eq!(receive(0x1_0000, 0), 8);
    // The time is over within the first piece: the kernel looks at it after each message.
    send(8);
    let time = 4 << 20;
    mem.put_word(time, 0);
    mem.put_word(time + 8, 1);
    assert!((1..=8).contains(&receive(0, mem.start + time as u64)));
    // No socket.
    assert_eq!(run(&mem, g::__NR_recvmmsg, [u64::MAX, mem.start, 24, 0, 0, 0]), -i64::from(libc::EBADF));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_vector_cut_into_pieces_transfers_what_the_whole_would(
        lens in prop::collection::vec(prop_oneof![Just(0usize), 1..50usize, 1..300_000usize], 1..150),
        offset in 0u64..5000,
        positioned in any::<bool>(),
    ) {
        let total: usize = lens.iter().sum();
        let mem = Pages::new(64 << 20, 128 << 10);
        let content = pattern(total.saturating_sub(3) + offset as usize);
        let file = file_with(&content);
        let mut at = 1 << 16;
        let mut places = Vec::new();
        for (i, &len) in lens.iter().enumerate() {
            mem.put_word(i * 16, mem.start + at as u64);
            mem.put_word(i * 16 + 8, len as u64);
            places.push((at, len));
            at += len + i % 7;
        }
        let n = lens.len() as u64;
        let (nr, from) = if positioned { (g::__NR_preadv, offset as usize) } else { (g::__NR_readv, 0) };
        let want = content.len().saturating_sub(from).min(total);
        prop_assert_eq!(run(&mem, nr, [fd(&file), mem.start, n, offset, 0, 0]), want as i64);
        let got: Vec<u8> = places.iter().flat_map(|&(at, len)| mem.slice(at, len).to_vec()).collect();
        prop_assert!(got[..want] == content[from..from + want]);

        let mut out = file_with(b"");
        let nr = if positioned { g::__NR_pwritev2 } else { g::__NR_writev };
        let args = [fd(&out), mem.start, n, if positioned { u64::MAX } else { 0 }, 0, 0];
        prop_assert_eq!(run(&mem, nr, args), total as i64);
        let mut back = Vec::new();
        out.rewind().unwrap();
        out.read_to_end(&mut back).unwrap();
        prop_assert!(back == got);
    }
}

#[test]
fn each_of_more_messages_than_a_vector_may_have_entries_is_pinned() {
    const N: usize = 1500;
    let mem = Pages::new(16 << 20, 8 << 20);
    let (vectors, buffers) = (1 << 20, 2 << 20);
    for i in 0..N {
        mem.put_word(vectors + i * 16, mem.start + (buffers + i * 64) as u64);
        mem.put_word(vectors + i * 16 + 8, 64);
        let header = [0, 0, mem.start + (vectors + i * 16) as u64, 1, 0, 0, 0, 0];
        header.iter().enumerate().for_each(|(word, value)| mem.put_word(i * 64 + word * 8, *value));
    }
    // The kernel uses all of them: was each pinned?
    let mut unpinned = 0;
    let args = [0, mem.start, N as u64, 0, 0, 0];
    let ret = call(&mem, g::__NR_recvmmsg as u64, &args, &mut |nr, args| {
        if nr != g::__NR_recvmmsg as u64 {
            // A look at the socket: something is there.
            assert_eq!(nr, g::__NR_ppoll as u64);
            return 1;
        }
        for i in 0..args[2] {
            let at = args[1] + i * 64;
            unpinned += !mem.all_pinned(at, 64) as usize;
            let k = (at - mem.start) as usize / 64;
            unpinned += !mem.all_pinned(mem.start + (buffers + k * 64) as u64, 64) as usize;
        }
        args[2] as i64
    });
    assert_eq!((ret, unpinned), (N as i64, 0));
}

#[test]
fn an_error_between_pieces_of_recvmmsg_is_left_for_the_next_call() {
    use std::net::UdpSocket;
    let mem = Pages::new(8 << 20, 512 << 10);
    messages(&mem, 24, 64 << 10);
    let (a, b) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    a.connect(b.local_addr().unwrap()).unwrap();
    b.connect(a.local_addr().unwrap()).unwrap();
    (0..24).for_each(|_| assert_eq!(b.send(b"abc").unwrap(), 3));
    let mut b = Some(b);
    let fdn = a.as_raw_fd() as u64;
    let mut real = kernel(&mem);
    let mut pieces = 0;
    let ret = call(&mem, g::__NR_recvmmsg as u64, &[fdn, mem.start, 24, MSG_DONTWAIT, 0, 0], &mut |nr, args| {
        let ret = real(nr, args);
        pieces += 1;
        // The peer goes away, and the socket is told, as by an ICMP message that comes while the call is at work.
        if b.take().is_some() {
            a.send(b"x").unwrap();
        }
        ret
    });
    assert!(ret < 24 && ret > 0, "{ret} messages in {pieces} pieces");
    // One call would have left the error for the next.
    let mut byte = [0u8; 8];
    a.set_nonblocking(true).unwrap();
    let next = a.recv(&mut byte);
    assert_eq!(next.map_err(|e| e.raw_os_error()), Err(Some(libc::ECONNREFUSED)));
}
