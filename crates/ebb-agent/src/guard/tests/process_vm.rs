//! Copies between processes where one or both sides are the process's own memory.

use super::*;

/// Cuts `len` bytes at `at` into entries of a vector at `list`. Returns how many.
fn cut(mem: &Pages, list: usize, at: usize, len: usize, lens: &[usize]) -> u64 {
    let (mut n, mut done) = (0, 0);
    while done < len {
        let part = if n + 1 == 1000 { len - done } else { lens[n % lens.len()].min(len - done) };
        mem.put_word(list + n * 16, mem.start + (at + done) as u64);
        mem.put_word(list + n * 16 + 8, part as u64);
        done += part;
        n += 1;
    }
    n as u64
}

#[test]
fn what_a_process_copies_to_itself_is_copied_whole() {
    let pid = u64::from(std::process::id());
    for (pin_max, lens_of) in
        [(128 << 10, &[3 * MIB, 1][..]), (128 << 10, &[5000, 0, 1, 70_000, 4096]), (4 * MIB as u64, &[10])]
    {
        for nr in [g::__NR_process_vm_readv, g::__NR_process_vm_writev] {
            let mem = Pages::new(16 << 20, pin_max);
            let content = pattern(3 * MIB);
            let (from, to) = (MIB + 77, 8 * MIB + 4095);
            mem.slice(from, 3 * MIB).copy_from_slice(&content);
            let local = if nr == g::__NR_process_vm_readv { to } else { from };
            let n = cut(&mem, 0, local, 3 * MIB, &[9000, 100_000, 1]);
            let n_of = cut(&mem, 32 << 10, from + to - local, 3 * MIB, lens_of);
            let args = [pid, mem.start, n, mem.start + (32 << 10), n_of, 0];
            assert_eq!(run(&mem, nr, args), 3 * MIB as i64, "{pin_max} {lens_of:?}");
            assert_eq!(mem.slice(to, 3 * MIB), content);
        }
    }
}

#[test]
fn a_vector_that_its_own_transfer_overwrites_comes_to_an_end() {
    let mem = Pages::new(4 << 20, 128 << 10);
    let pid = u64::from(std::process::id());
    // The vector is in the first page that is overwritten, with zeros.
    for nr in [g::__NR_process_vm_readv, g::__NR_readv] {
        let n = cut(&mem, 0, 0, 900_000, &[600_000]);
        mem.put_word(2 << 20, mem.start + (2 << 20) + 16);
        mem.put_word((2 << 20) + 8, 900_000);
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let args = match nr {
            g::__NR_readv => [fd(&zeros), mem.start, n, 0, 0, 0],
            _ => [pid, mem.start, n, mem.start + (2 << 20), 1, 0],
        };
        let done = run(&mem, nr, args);
        assert!((1..900_000).contains(&done), "{done}");
    }
}

#[test]
fn a_copy_between_processes_ends_where_memory_does() {
    let mem = Pages::new(4 << 20, 128 << 10);
    let pid = u64::from(std::process::id());
    let content = pattern(MIB);
    mem.slice(MIB, MIB).copy_from_slice(&content);
    cut(&mem, 0, 2 * MIB, MIB, &[MIB]);
    // The second entry of the other side points to no memory.
    cut(&mem, 64, MIB, MIB, &[600_000]);
    mem.put_word(64 + 16, 8 << 12);
    let args = [pid, mem.start, 1, mem.start + 64, 2, 0];
    assert_eq!(run(&mem, g::__NR_process_vm_readv, args), 600_000);
    assert_eq!(mem.slice(2 * MIB, 600_000), &content[..600_000]);
    // More entries than a vector may have, and flags that do not exist.
    let many = [pid, mem.start, 1025, mem.start + 64, 1, 0];
    let refused = |nr: u32, args| call(&mem, nr as u64, &args, &mut refusing_kernel);
    assert_eq!(refused(g::__NR_process_vm_readv, many), -i64::from(libc::EINVAL));
    let flags = [pid, mem.start, 1, mem.start + 64, 1, 1];
    assert_eq!(refused(g::__NR_process_vm_writev, flags), -i64::from(libc::EINVAL));
}
