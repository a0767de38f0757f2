//! What a device is like, as the command found it or the user said: whether its medium turns, and whether it is told what
//! is no longer used.

use crate::base::uapi;
use crate::counters::devices::KINDS;
use ebb_slots::Placement;

/// The medium of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// Any place costs the same to get to. So is a medium of which nothing is known.
    #[default]
    Ssd,
    /// The medium turns: to get to another place costs more than what is there to read.
    Hdd,
    /// Memory: a disk in RAM, or memory that persists. A transfer is a copy, and nothing is waited for.
    Ram,
}

impl Kind {
    /// Most allocation shards of a file. Each costs a cluster with its tables for each size of run that it writes.
    pub const SHARDS_MAX: usize = 4;

    /// All kinds, each at the place of its number.
    const ALL: [Self; 3] = [Self::Ssd, Self::Hdd, Self::Ram];

    /// The kind with this name.
    pub fn of_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().as_bytes() == name)
    }

    /// The kind with this number; solid state if there is none.
    pub fn of_number(number: u64) -> Self {
        Self::ALL.get(number as usize).copied().unwrap_or_default()
    }

    /// Its number.
    pub const fn number(self) -> u64 {
        self as u64
    }

    /// Its name, as the user writes it.
    pub const fn name(self) -> &'static str {
        KINDS[self as usize]
    }

    /// How the slots of a file are given out. On a disk that turns, what any thread writes follows what was written last.
    pub(crate) const fn placement(self) -> Placement {
        match self {
            Self::Ssd | Self::Ram => Placement::Sharded,
            Self::Hdd => Placement::Sequential,
        }
    }

    /// Allocation shards of a file: no more threads than there are processors write at a time.
    pub(crate) fn shards(self) -> usize {
        match self {
            Self::Ssd | Self::Ram => uapi::nr_cpus().min(Self::SHARDS_MAX),
            Self::Hdd => 1,
        }
    }
}

/// What the file system is told of the parts of a file that nobody uses any more.
///
/// The words are those of swapon(8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Discard {
    /// Holes are punched for clusters that nobody uses, but for a few.
    #[default]
    Pages,
    /// All of it, before its first use. A spill file is new and empty then, so from there on this is [`Discard::None`].
    Once,
    /// Nothing: the file keeps its space until it is closed.
    None,
}

impl Discard {
    /// The policy with this name.
    pub fn of_name(name: &[u8]) -> Option<Self> {
        [Self::Pages, Self::Once, Self::None].into_iter().find(|discard| discard.name().as_bytes() == name)
    }

    /// Its name, as the user writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::Once => "once",
            Self::None => "none",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_not() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_name(kind.name().as_bytes()), Some(kind));
            assert_eq!(Kind::of_number(kind.number()), kind);
            assert_eq!(Kind::ALL[kind as usize], kind);
        }
        assert_eq!(Kind::of_number(KINDS.len() as u64), Kind::Ssd);
        assert_eq!(Kind::ALL.map(Kind::name), ["ssd", "hdd", "ram"]);
        for discard in [Discard::Pages, Discard::Once, Discard::None] {
            assert_eq!(Discard::of_name(discard.name().as_bytes()), Some(discard));
        }
        assert_eq!((Kind::of_name(b"floppy"), Kind::of_name(b""), Discard::of_name(b"twice")), (None, None, None));
    }

    #[test]
    fn a_disk_that_turns_is_written_at_one_place() {
        assert_eq!(Kind::Hdd.shards(), 1);
        assert!((1..=Kind::SHARDS_MAX).contains(&Kind::Ssd.shards()));
    }
}
