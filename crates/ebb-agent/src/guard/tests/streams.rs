//! Reading streams on: a call in pieces takes what one call of the kernel's takes.

use super::*;

/// A local socket with `content` to be read, as much of it as fits.
fn stream_with(content: &[u8]) -> (std::fs::File, std::fs::File) {
    let (far, mut near) = socket_pair(libc::SOCK_STREAM);
    let size = 16 << 20;
    // SAFETY: reads one number.
    let ret = unsafe {
        libc::setsockopt(near.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, (&raw const size).cast(), 4)
    };
    let fits = if ret == 0 { content.len() } else { content.len().min(100 << 10) };
    near.write_all(&content[..fits]).expect("room in the socket");
    (far, near)
}

fn set_nonblocking(file: &std::fs::File) {
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
}

fn waiting(file: &std::fs::File) -> i32 {
    let mut bytes = 0i32;
    // SAFETY: writes one number.
    assert_eq!(unsafe { libc::ioctl(file.as_raw_fd(), libc::FIONREAD, &mut bytes) }, 0);
    bytes
}

#[test]
fn a_stream_is_read_on_while_something_is_there() {
    let content = pattern(3 * MIB);
    for is_nonblocking in [false, true] {
        for nr in [g::__NR_read, g::__NR_readv, g::__NR_preadv2, g::__NR_recvfrom, g::__NR_recvmsg] {
            let mem = Pages::new(8 << 20, 64 << 10);
            let (far, _near) = stream_with(&content);
            if is_nonblocking {
                set_nonblocking(&far);
            }
            let there = waiting(&far) as usize;
            assert!(there > 64 << 10);
            let iov = [[mem.start, 4 << 20]];
            // SAFETY: zeroes are a valid header.
            let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
            (header.msg_iov, header.msg_iovlen) = (iov.as_ptr() as *mut _, 1);
            let (buffer, len) = match nr {
                g::__NR_read | g::__NR_recvfrom => (mem.start, 4 << 20),
                g::__NR_recvmsg => (&raw const header as u64, 0),
                _ => (iov.as_ptr() as u64, 1),
            };
            // preadv2 is given the stream's own position.
            let position = if nr == g::__NR_preadv2 { u64::MAX } else { 0 };
            assert_eq!(run(&mem, nr, [fd(&far), buffer, len, position, 0, 0]), there as i64, "{nr}");
            assert!(mem.slice(0, there) == &content[..there]);
            assert_eq!(waiting(&far), 0);
        }
    }
}

#[test]
fn a_pipe_that_blocks_is_read_on_without_waiting() {
    let content = pattern(200 << 10);
    let mem = Pages::new(8 << 20, 64 << 10);
    let (read_end, mut write_end) = pipe(0);
    // SAFETY: numbers only.
    unsafe { libc::fcntl(write_end.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 20) };
    write_end.write_all(&content).expect("room in the pipe");
    assert_eq!(run(&mem, g::__NR_read, [fd(&read_end), mem.start, 4 << 20, 0, 0, 0]), content.len() as i64);
    assert!(mem.slice(0, content.len()) == content);
}

#[test]
fn who_takes_the_rest_meanwhile_leaves_nobody_waiting() {
    let content = pattern(100 << 10);
    let mem = Pages::new(8 << 20, 64 << 10);
    let (far, _near) = stream_with(&content);
    let mut real = kernel(&mem);
    let mut others = &far;
    let mut rest = vec![0u8; 4 << 20];
    let ret = call(&mem, g::__NR_read as u64, &[fd(&far), mem.start, 4 << 20, 0, 0, 0], &mut |nr, args| {
        let ret = real(nr, args);
        if nr == g::__NR_ioctl as u64 {
            // After the look.
            let taken = others.read(&mut rest).expect("what is there");
            assert!(taken > 0);
        }
        ret
    });
    assert_eq!(ret, 48 << 10);
}

#[test]
fn no_signal_ends_a_read_that_waits_for_nothing_any_more() {
    let content = pattern(100 << 10);
    let mem = Pages::new(8 << 20, 64 << 10);
    let (far, _near) = stream_with(&content);
    let mut real = kernel(&mem);
    let mut signals = 0;
    let mut interrupted = |nr: u64, args: &[u64; 6]| {
        // Before the second piece, and before the look for more.
        let is_further = nr == g::__NR_recvfrom as u64 || nr == g::__NR_ioctl as u64;
        if is_further && signals < 5 {
            signals += 1;
            return NOT_MADE;
        }
        real(nr, args)
    };
    let args = [fd(&far), mem.start, 4 << 20, 0, 0, 0];
    assert_eq!(split::run(&mem, g::__NR_read as u64, &args, &mut interrupted), content.len() as i64);
    assert_eq!(signals, 5);
}

#[test]
fn no_signal_ends_a_write_that_waits_for_nothing() {
    let mem = Pages::new(8 << 20, 64 << 10);
    let (_far, near) = socket_pair(libc::SOCK_STREAM);
    set_nonblocking(&near);
    let mut pieces = 0;
    let args = [fd(&near), mem.start, 2 << 20, 0, 0, 0];
    let ret = split::run(&mem, g::__NR_write as u64, &args, &mut |nr, args| {
        if !matches!(nr as u32, g::__NR_write | g::__NR_sendto) {
            return kernel(&mem)(nr, args);
        }
        pieces += 1;
        if pieces % 2 == 0 { NOT_MADE } else { args[2] as i64 }
    });
    assert_eq!(ret, 2 << 20);
}

#[test]
fn an_error_behind_a_piece_is_for_the_next_call() {
    let mem = Pages::new(8 << 20, 64 << 10);
    // The socket gets an error when its peer goes with data unread.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let mut near = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (mut far, _) = listener.accept().expect("a connection");
    near.write_all(b"never read").expect("room");
    far.write_all(&[7; 48 << 10]).expect("room");
    for _ in 0..1000 {
        if waiting_socket(&near) == 48 << 10 && waiting_socket(&far) > 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    drop(far);
    std::thread::sleep(std::time::Duration::from_millis(20));
    let args = [fd(&near), mem.start, 4 << 20, 0, 0, 0];
    assert_eq!(run(&mem, g::__NR_read, args), 48 << 10);
    assert_eq!(run(&mem, g::__NR_read, args), -(libc::ECONNRESET as i64));
}

fn waiting_socket(socket: &std::net::TcpStream) -> i32 {
    let mut bytes = 0i32;
    // SAFETY: writes one number.
    assert_eq!(unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &mut bytes) }, 0);
    bytes
}

#[test]
fn descriptors_come_with_the_bytes_they_were_sent_with() {
    let mem = Pages::new(8 << 20, 64 << 10);
    let (far, mut near) = socket_pair(libc::SOCK_STREAM);
    near.write_all(&pattern(60 << 10)).expect("room");
    let passed = file_with(b"passed");
    // SOL_SOCKET, SCM_RIGHTS, one descriptor.
    let control = [20u64, 1 | 1 << 32, fd(&passed)];
    let mut byte = 1u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: zeroes are a valid header; the call reads what is given.
    unsafe {
        let mut header: libc::msghdr = core::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut iov, 1);
        (header.msg_control, header.msg_controllen) = (control.as_ptr() as *mut _, 24);
        assert_eq!(libc::sendmsg(near.as_raw_fd(), &header, 0), 1);
    }
    near.write_all(b"behind").expect("room");
    let mut room = [0u64; 8];
    let iov = [[mem.start, 4u64 << 20]];
    // SAFETY: zeroes are a valid header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (iov.as_ptr() as *mut _, 1);
    (header.msg_control, header.msg_controllen) = (room.as_mut_ptr().cast(), 64);
    let args = [fd(&far), &raw mut header as u64, 0, 0, 0, 0];
    // The kernel ends the call after what came with a descriptor.
    assert_eq!(run(&mem, g::__NR_recvmsg, args), (60 << 10) + 1);
    assert_eq!((header.msg_controllen, room[1]), (24, 1 | 1 << 32));
    // SAFETY: a descriptor that was just received.
    let mut received = unsafe { std::fs::File::from_raw_fd(room[2] as i32) };
    let mut text = String::new();
    received.rewind().expect("a file");
    received.read_to_string(&mut text).expect("a file");
    assert_eq!(text, "passed");
    assert_eq!(run(&mem, g::__NR_recvmsg, args), 6);
}
