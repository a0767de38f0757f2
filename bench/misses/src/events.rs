//! Reads the records that a process wrote (`crates/ebb/src/base/events`).

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// What happened, to pages by number: a page keeps its number when it moves to another address, and the next page at an
/// address has the number of the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The page came in.
    In { page: u32, was: Was, why: Why },
    /// A fault on the page was served.
    Fault { page: u32, was: Was },
    /// The page was unmapped, and is staged if `is_staged`, or else stored.
    Out { page: u32, how: Out },
    /// The staged page was stored.
    Stored { page: u32 },
    /// The program gave the page up.
    Gone { page: u32 },
    /// A number of pages now.
    Size { which: usize, pages: u64 },
}

/// Where a page was before it came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Was {
    Untouched,
    Staged,
    Swapped,
}

/// Why a page came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// For a fault, first of its run.
    Fault,
    /// For a system call.
    Call,
    /// It was in memory when Ebb took the process over.
    Taken,
    /// Beside the page of a fault, by the same step.
    Around,
    /// The rest of a walk's window.
    Window,
    /// By the background thread, ahead of a walk.
    Beside,
    /// The program said that it will need it.
    WillNeed,
}

impl Why {
    /// Whether nobody waited for the page.
    pub fn is_ahead(self) -> bool {
        !matches!(self, Self::Fault | Self::Call | Self::Taken)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Out {
    Staged,
    InPlace,
    Clean,
}

/// The kinds of sizes, in the order of a sample.
pub const SIZES: [&str; 11] =
    ["limit", "charged", "pool", "books", "staged", "frames", "stock", "clean", "wanted", "device", "slots"];

/// Numbers of pages by address, the same for all runs that use it.
#[derive(Default)]
pub struct Numbers {
    of: HashMap<u64, u32>,
}

impl Numbers {
    fn of(&mut self, address: u64) -> u32 {
        let next = self.of.len() as u32;
        *self.of.entry(address).or_insert(next)
    }
}

fn was(tag: u64) -> Was {
    match tag & 7 {
        0 => Was::Untouched,
        2 => Was::Staged,
        _ => Was::Swapped,
    }
}

/// Reads a file of records.
pub fn read(path: &Path, numbers: &mut Numbers) -> io::Result<Vec<Event>> {
    let mut file = File::open(path)?;
    let mut head = [0; 16];
    file.read_exact(&mut head)?;
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or_default();
    let nr_records = word(&head[..8]).saturating_sub(1);
    let mut bytes = Vec::new();
    file.take(nr_records * 16).read_to_end(&mut bytes)?;
    let records = bytes.chunks_exact(16).map(|record| (word(&record[..8]), word(&record[8..])));
    Ok(events(records, numbers))
}

fn events(records: impl Iterator<Item = (u64, u64)>, numbers: &mut Numbers) -> Vec<Event> {
    let mut all = Vec::new();
    // Pages that have moved, and for whom each thread brings pages in.
    let mut moved: HashMap<u64, u64> = HashMap::new();
    let mut ahead: HashMap<u64, Why> = HashMap::new();
    for (head, detail) in records {
        let (address, n, kind) = (head >> 24, head >> 8 & 0xffff, head & 0xff);
        let mut number = |at: u64| {
            let at = if moved.is_empty() { at } else { moved.get(&at).copied().unwrap_or(at) };
            numbers.of(at)
        };
        match kind {
            1 => {
                let (used, thread) = (detail >> 16 & 0xffff, detail >> 32);
                let is_ahead = detail >> 9 & 1 != 0;
                for i in 0..n {
                    let why = match () {
                        () if is_ahead => ahead.get(&thread).copied().unwrap_or(Why::Window),
                        () if i < used => Why::Call,
                        () if i == 0 => Why::Fault,
                        () => Why::Around,
                    };
                    all.push(Event::In { page: number(address + i), was: was(detail), why });
                }
            }
            2 => all.push(Event::Fault { page: number(address), was: was(detail) }),
            3 => {
                let how = [Out::Staged, Out::InPlace, Out::Clean][detail as usize % 3];
                all.push(Event::Out { page: number(address), how });
            }
            4 => all.push(Event::Stored { page: number(address) }),
            5 => {
                all.push(Event::Gone { page: number(address) });
                moved.remove(&address);
            }
            6 => {
                let from = moved.remove(&address).unwrap_or(address);
                moved.insert(detail, from);
            }
            7 => {
                let why = [Why::Window, Why::Window, Why::Beside, Why::WillNeed][detail as usize & 3];
                ahead.insert(detail >> 32, why);
            }
            8 => all.push(Event::In { page: number(address), was: Was::Untouched, why: Why::Taken }),
            9 => all.push(Event::Size { which: n as usize, pages: detail }),
            // Opened clean pages say nothing about memory.
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_its_number_when_it_moves() {
        let record = |kind: u64, address: u64, detail: u64| (address << 24 | 1 << 8 | kind, detail);
        let records = [record(1, 50, 0), record(6, 50, 90), record(2, 90, 3), record(5, 90, 1), record(1, 90, 0)];
        let all = events(records.into_iter(), &mut Numbers::default());
        let born = |page| Event::In { page, was: Was::Untouched, why: Why::Fault };
        assert_eq!(all, [born(0), Event::Fault { page: 0, was: Was::Swapped }, Event::Gone { page: 0 }, born(1)]);
    }

    #[test]
    fn pages_of_one_step_came_in_for_different_reasons() {
        let step = |detail: u64| (7 << 24 | 3 << 8 | 1, detail);
        let why = |records: &[(u64, u64)]| {
            let came = events(records.iter().copied(), &mut Numbers::default());
            came.iter()
                .map(|event| if let Event::In { why, .. } = event { *why } else { Why::Taken })
                .collect::<Vec<_>>()
        };
        assert_eq!(why(&[step(3)]), [Why::Fault, Why::Around, Why::Around]);
        assert_eq!(why(&[step(3 | 2 << 16)]), [Why::Call, Why::Call, Why::Around]);
        assert_eq!(why(&[(7, 2 | 5 << 32), step(3 | 1 << 9 | 5 << 32)]), [Why::Beside; 3]);
    }
}
