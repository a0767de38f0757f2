//! Drivers of which nothing is known: whatever their structures lead to is resident when they look, and each call is
//! made once.
//!
//! The driver here is a double. It goes through the structure as a driver that knows it does, has an effect, and fails,
//! like the kernel, at a page that is out. `PROPTEST_CASES` makes the run longer. A failure names the seed and the
//! case.

use super::*;

/// _IOWR('z', 7, size): a type that no driver has.
fn request(size: usize) -> u64 {
    0xc000_7a07 | (size as u64) << 16
}

const UNSIZED: u64 = 0x7a34;
const BUFFERS_AT: u64 = 1 << 20;
const APART: u64 = 256 << 10;
/// Memory from here on is at addresses whose lower halves are small.
const AMBIGUOUS: u64 = 0x7a12_0000_0000;

/// A buffer that a structure leads to.
#[derive(Clone, Copy, Debug)]
struct Nested {
    offset: u64,
    len: u64,
}

#[derive(Clone, Debug)]
enum Field {
    Number(u32),
    Buffer(Nested),
    /// A length beside the address, larger than what is brought in without a length.
    Long(Nested),
    /// An address of a list of buffers.
    List(Vec<Nested>),
}

fn nested(len: std::ops::Range<u64>) -> impl Strategy<Value = Nested> {
    (0u64..8192, len).prop_map(|(offset, len)| Nested { offset, len })
}

fn field() -> impl Strategy<Value = Field> {
    prop_oneof![
        any::<u32>().prop_map(Field::Number),
        nested(1..60_000).prop_map(Field::Buffer),
        nested(70_000..200_000).prop_map(Field::Long),
        prop::collection::vec(nested(1..60_000), 1..6).prop_map(Field::List),
    ]
}

/// A structure in memory, and what a driver that knows the structure touches.
struct Built {
    words: Vec<u32>,
    touched: Vec<(u64, u64)>,
}

impl Built {
    fn address(&mut self, at: u64) {
        self.words.extend([at as u32, (at >> 32) as u32]);
    }

    fn new(mem: &Pages, fields: &[Field]) -> Self {
        let (mut this, mut lists) = (Self { words: Vec::new(), touched: Vec::new() }, 64usize << 10);
        let mut next = BUFFERS_AT;
        let mut place = |touched: &mut Vec<(u64, u64)>, nested: &Nested| {
            let at = mem.start + next + nested.offset;
            next += APART;
            touched.push((at, nested.len));
            at
        };
        for field in fields {
            match field {
                Field::Number(number) => this.words.push(*number),
                Field::Buffer(nested) => {
                    let at = place(&mut this.touched, nested);
                    this.address(at);
                }
                Field::Long(nested) => {
                    let at = place(&mut this.touched, nested);
                    this.address(at);
                    this.words.push(nested.len as u32);
                }
                Field::List(list) => {
                    for (i, nested) in list.iter().enumerate() {
                        let at = place(&mut this.touched, nested);
                        mem.put_word(lists + i * 16, at);
                        mem.put_word(lists + i * 16 + 8, nested.len);
                    }
                    this.touched.push((mem.start + lists as u64, list.len() as u64 * 16));
                    this.address(mem.start + lists as u64);
                    lists += 8192;
                }
            }
        }
        this
    }
}

#[test]
fn a_length_that_looks_like_the_lower_half_of_an_address_counts_beside_one() {
    const LEN: u64 = 199_551;
    let mem = Pages::at(AMBIGUOUS + (1 << 32), 64 << 20, 16 << 20);
    let (buffer, high) = (mem.start + BUFFERS_AT, (mem.start >> 32) as u32);
    let [low, len] = [buffer as u32, LEN as u32];
    for words in [[low, high, len, high], [len, low, high, 0]] {
        mem.resident.borrow_mut().clear();
        let ret = call(&mem, g::__NR_ioctl as u64, &[3, request(16), words.as_ptr() as u64, 0, 0, 0], &mut |_, _| {
            if mem.all_resident(buffer, LEN) { 0 } else { -EFAULT }
        });
        assert_eq!(ret, 0, "{words:x?}");
    }
}

#[test]
fn buffers_full_of_addresses_hide_none_of_a_list() {
    const BUFFERS: usize = 32;
    let mem = Pages::new(64 << 20, 16 << 20);
    let list = 64usize << 10;
    let buffers: Vec<u64> = (0..BUFFERS as u64).map(|i| mem.start + BUFFERS_AT + i * APART).collect();
    for (i, &at) in buffers.iter().enumerate() {
        mem.put_word(list + i * 16, at);
        mem.put_word(list + i * 16 + 8, 4096);
        // What its content leads to is of no use.
        for n in 0..64 {
            mem.put_word((at - mem.start) as usize + n * 8, mem.start + (40 << 20) + (i * 64 + n) as u64 * 4096);
        }
    }
    mem.resident.borrow_mut().clear();
    let header = [mem.start + list as u64, BUFFERS as u64];
    let ret = call(&mem, g::__NR_ioctl as u64, &[3, request(16), header.as_ptr() as u64, 0, 0, 0], &mut |_, _| {
        if buffers.iter().all(|&at| mem.all_resident(at, 4096)) { 0 } else { -EFAULT }
    });
    assert_eq!(ret, 0);
    assert!(buffers.iter().all(|at| mem.given.borrow().contains(at)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_driver_finds_all_that_its_structure_leads_to_at_the_first_try(
        fields in prop::collection::vec(field(), 1..10),
        is_packed in any::<bool>(),
        on_heap in prop::option::of(0usize..12_000),
        is_sized in any::<bool>(),
        is_ambiguous in any::<bool>(),
    ) {
        // Where lengths look like addresses, if what follows them is an upper half, or anywhere.
        let mem = match is_ambiguous {
            true => Pages::at(AMBIGUOUS, 64 << 20, 16 << 20),
            false => Pages::new(64 << 20, 16 << 20),
        };
        let mut built = Built::new(&mem, &fields);
        if is_packed {
            built.words.insert(0, 7);
        }
        let bytes: Vec<u8> = built.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let elsewhere = bytes.clone();
        let arg = match on_heap {
            Some(at) => {
                let at = at / 4 * 4;
                mem.slice(at, bytes.len()).copy_from_slice(&bytes);
                built.touched.push((mem.start + at as u64, bytes.len() as u64));
                mem.start + at as u64
            }
            None => elsewhere.as_ptr() as u64,
        };
        let number = if is_sized { request(bytes.len()) } else { UNSIZED };
        let mut effects = 0;
        let ret = call(&mem, g::__NR_ioctl as u64, &[3, number, arg, 0, 0, 0], &mut |_, _| {
            assert!(!mem.blocked.get());
            effects += 1;
            if built.touched.iter().all(|&(at, len)| mem.all_resident(at, len)) { 0 } else { -EFAULT }
        });
        prop_assert_eq!((ret, effects), (0, 1));
        prop_assert!(mem.begun.get() == 0 && !mem.blocked.get());
        // The driver may keep whatever its structure leads to.
        let buffers = built.touched.iter().filter(|(at, _)| *at >= mem.start + BUFFERS_AT);
        prop_assert!(buffers.clone().all(|(at, _)| mem.given.borrow().contains(at)));
        prop_assert!(!mem.given.borrow().is_empty());
    }
}

#[test]
fn requests_that_may_have_had_an_effect_are_made_once() {
    let mem = Pages::new(1 << 20, 256 << 10);
    // Dirty logs, SCSI, NVMe, USB, sound, video, wireless, and requests that nobody knows.
    let requests = [
        0x4010_ae42,
        0xc018_aec0,
        0x2285,
        0xc048_4e41,
        0xc018_5502,
        0xc018_5500,
        0x4018_4150,
        0xc058_5611,
        0x8b2a,
        0x8946,
        0x5412,
        UNSIZED,
        request(24),
    ];
    for number in requests {
        let mut calls = 0;
        let ret = call(&mem, g::__NR_ioctl as u64, &[3, number, mem.start + 64, 0, 0, 0], &mut |_, _| {
            calls += 1;
            -EFAULT
        });
        assert_eq!((ret, calls), (-EFAULT, 1), "{number:#x}");
    }
}

#[test]
fn what_the_budget_cannot_bear_is_not_registered() {
    let mem = Pages::new(1 << 20, 256 << 10);
    let region = [0, 0, 512 << 10, mem.start];
    region.iter().enumerate().for_each(|(i, word)| mem.put_word(4096 + i * 8, *word));
    let args = [3, 0x4020_ae46, mem.start + 4096, 0, 0, 0];
    mem.registers.set(false);
    let ret = call(&mem, g::__NR_ioctl as u64, &args, &mut |_, _| panic!("made"));
    assert_eq!(ret, -(libc::ENOMEM as i64));
    assert!(mem.begun.get() == 0 && !mem.blocked.get());
    mem.registers.set(true);
    assert_eq!(call(&mem, g::__NR_ioctl as u64, &args, &mut |_, _| 0), 0);
    assert_eq!(*mem.excluded.borrow(), [(mem.start, 512 << 10)]);
    assert!(mem.given.borrow().is_empty());
}
