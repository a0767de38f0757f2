//! Random use of groups against a plain model of who owns which page: groups come, go and are limited, pages are moved,
//! written, evicted, given up, remapped, viewed and forked, and after each step the books agree with the model.

use crate::harness::alone::{COMPRESSIBLE, PAGE, Pages, alone, fork, space_on, wait};
use crate::harness::{Random, ctx, map};
use ebb::{GroupError, GroupId, GroupLimits, Space, SwapSpec};

const NO_LIMITS: GroupLimits = GroupLimits { ram_max_pages: None, ram_high_pages: None, swap_max_pages: None };
/// Pages of a mapping.
const N: usize = 300;
/// Mappings at a time.
const MAPPINGS: usize = 6;
const STEPS: usize = 700;

/// A group as the model knows it. The first is the root.
#[derive(Clone)]
struct Group {
    id: GroupId,
    parent: usize,
    limits: GroupLimits,
    is_alive: bool,
}

/// A mapping: what is in it, and whose each page is.
struct Mapping {
    pages: Pages,
    owners: Vec<usize>,
    /// Pages that certainly have content. Others may, by read-ahead.
    written: Vec<bool>,
}

struct Model {
    space: &'static Space,
    random: Random,
    groups: Vec<Group>,
    mappings: Vec<Mapping>,
    version: u64,
}

impl Model {
    fn line(&self, group: usize) -> Vec<usize> {
        std::iter::successors((group > 0).then_some(group), |at| Some(self.groups[*at].parent).filter(|at| *at > 0))
            .collect()
    }

    fn some_group(&mut self) -> usize {
        let alive: Vec<usize> = (0..self.groups.len()).filter(|i| self.groups[*i].is_alive).collect();
        alive[self.random.below(alive.len())]
    }

    /// Limits under which a group can always be reclaimed: none has both, nor with an ancestor.
    fn some_limits(&mut self, parent: usize) -> GroupLimits {
        let line = self.line(parent);
        let has_ram = line.iter().any(|i| self.groups[*i].limits.ram_max_pages.is_some());
        let has_swap = line.iter().any(|i| self.groups[*i].limits.swap_max_pages.is_some());
        let (kind, n) = (self.random.below(4), self.random.below(300) as u64 + 40);
        match kind {
            0 if !has_swap => GroupLimits { ram_max_pages: Some(n), ..NO_LIMITS },
            1 if !has_ram => GroupLimits { swap_max_pages: Some(n), ..NO_LIMITS },
            2 if !has_swap => GroupLimits { ram_max_pages: Some(n), ram_high_pages: Some(n - n / 8), ..NO_LIMITS },
            _ => NO_LIMITS,
        }
    }

    fn create(&mut self) {
        let parent = self.some_group();
        let limits = self.some_limits(parent);
        match self.space.create_group(ctx(self.space), self.groups[parent].id, &limits) {
            Ok(id) => self.groups.push(Group { id, parent, limits, is_alive: true }),
            Err(error) => assert!(error == GroupError::TooDeep && self.line(parent).len() == ebb::GROUP_DEPTH_MAX),
        }
    }

    fn remove(&mut self) {
        let group = self.some_group();
        let has_children =
            self.groups.iter().any(|other| other.is_alive && other.parent == group && other.id != GroupId::ROOT);
        let expected = match group {
            0 => Err(GroupError::Root),
            _ if has_children => Err(GroupError::HasChildren),
            _ => Ok(()),
        };
        assert_eq!(self.space.remove_group(ctx(self.space), self.groups[group].id), expected);
        if expected.is_ok() {
            let parent = self.groups[group].parent;
            self.groups[group].is_alive = false;
            let owners = self.mappings.iter_mut().flat_map(|mapping| &mut mapping.owners);
            owners.filter(|owner| **owner == group).for_each(|owner| *owner = parent);
        }
    }

    fn some_range(&mut self) -> (usize, usize, usize) {
        let first = self.random.below(N);
        (self.random.below(self.mappings.len()), first, self.random.below(N - first) + 1)
    }

    fn move_pages(&mut self) {
        let ((m, first, n), group) = (self.some_range(), self.some_group());
        let at = self.mappings[m].pages.addr(first);
        let id = self.groups[group].id;
        assert_eq!(self.space.move_to_group(ctx(self.space), at, n * PAGE, id), Ok(()));
        self.mappings[m].owners[first..first + n].fill(group);
    }

    fn write(&mut self) {
        let (m, first, n) = self.some_range();
        for page in first..first + n.min(60) {
            self.version += 1;
            let kind = self.random.below(4) as u64;
            self.mappings[m].pages.write(page, self.version, kind);
            self.mappings[m].written[page] = true;
        }
    }

    fn read(&mut self) {
        let (m, first, n) = self.some_range();
        for page in first..first + n {
            self.mappings[m].pages.check(page);
            self.mappings[m].written[page] = true;
        }
    }

    fn evict(&mut self) {
        let group = self.some_group();
        if group > 0 {
            let (id, limits) = (self.groups[group].id, self.groups[group].limits);
            let tight = GroupLimits { ram_max_pages: Some(1), ..limits };
            assert_eq!(self.space.set_group_limits(ctx(self.space), id, &tight), Ok(()));
            assert_eq!(self.space.set_group_limits(ctx(self.space), id, &limits), Ok(()));
        }
    }

    fn give_up(&mut self) {
        let (m, first, n) = self.some_range();
        let mapping = &mut self.mappings[m];
        let call = [mapping.pages.addr(first) as u64, (n * PAGE) as u64, libc::MADV_DONTNEED as u64, 0, 0, 0];
        assert_eq!(self.space.madvise(ctx(self.space), call), 0);
        mapping.pages.versions[first..first + n].fill((0, 0));
        mapping.written[first..first + n].fill(false);
    }

    fn add(&mut self) {
        let group = self.some_group();
        self.space.set_thread_group(ctx(self.space), self.groups[group].id).expect("the group");
        let pages = Pages { space: self.space, at: map(self.space, N * PAGE), versions: vec![(0, 0); N] };
        self.mappings.push(Mapping { pages, owners: vec![group; N], written: vec![false; N] });
    }

    fn view(&mut self) {
        let (m, group) = (self.random.below(self.mappings.len()), self.some_group());
        self.space.set_thread_group(ctx(self.space), self.groups[group].id).expect("the group");
        let Mapping { pages, written, .. } = &self.mappings[m];
        let made = self.space.snapshot(ctx(self.space), pages.addr(0), N * PAGE);
        let Ok(at) = made else { return assert_eq!(made, Err(ebb::SnapshotError::NoRoom)) };
        let pages = Pages { space: self.space, at: at as *mut u8, versions: pages.versions.clone() };
        let written = written.clone();
        self.mappings.push(Mapping { pages, owners: vec![group; N], written });
    }

    /// mremap takes one mapping, and its pages are of one group each time.
    fn move_elsewhere(&mut self) {
        const MAYMOVE_FIXED: u64 = 3;
        let m = self.random.below(self.mappings.len());
        let len = (N * PAGE) as u64;
        self.space.set_thread_group(ctx(self.space), GroupId::ROOT).expect("the root");
        let is_one = self.mappings[m].owners.iter().all(|owner| *owner == self.mappings[m].owners[0]);
        let to = map(self.space, N * PAGE) as u64;
        let from = self.mappings[m].pages.at as u64;
        let moved = self.space.mremap(ctx(self.space), [from, len, len, MAYMOVE_FIXED, to, 0]);
        if moved as u64 == to {
            self.mappings[m].pages.at = to as *mut u8;
        } else {
            assert!(!is_one && moved == -i64::from(libc::EFAULT), "{moved}");
            crate::harness::unmap(self.space, to as *mut u8, N * PAGE);
        }
    }

    fn in_child(&mut self) {
        let space = self.space;
        let pid = fork(space, || {
            self.agree();
            (0..20).for_each(|_| self.step(9));
            self.mappings.iter().for_each(|mapping| mapping.pages.check_all());
            self.agree();
        });
        assert_eq!(wait(pid), 0);
    }

    fn step(&mut self, kinds: usize) {
        match self.random.below(kinds) {
            0 => self.create(),
            1 => self.remove(),
            2 => self.move_pages(),
            3 => self.write(),
            4 => self.read(),
            5 => self.evict(),
            6 => self.give_up(),
            7 => self.move_elsewhere(),
            8 if self.mappings.len() == MAPPINGS => drop(self.mappings.remove(self.random.below(MAPPINGS))),
            8 => self.add(),
            9 if self.mappings.len() < MAPPINGS => self.view(),
            _ if self.random.below(10) == 0 => self.in_child(),
            _ => self.write(),
        }
    }

    fn agree(&mut self) {
        let space = self.space;
        assert_eq!(space.validate(), Ok(()));
        for group in (1..self.groups.len()).filter(|i| self.groups[*i].is_alive) {
            let info = space.group_info(ctx(space), self.groups[group].id).expect("the group");
            let is_within = |owner: usize| self.line(owner).contains(&group);
            let (mut most, mut least) = (0, 0);
            for mapping in &self.mappings {
                for (page, owner) in mapping.owners.iter().enumerate() {
                    most += u64::from(is_within(*owner));
                    // A page of zeros is nowhere once it is evicted.
                    let is_somewhere = mapping.written[page] && mapping.pages.versions[page].1 != 0;
                    least += u64::from(is_within(*owner) && is_somewhere);
                }
            }
            let (ram, swap) = (info.ram.current_pages, info.swap.current_pages);
            assert!(ram.max(swap) <= most && ram + swap >= least, "{least} to {most} pages: {info:?}");
            assert!(info.ram.peak_pages >= ram && info.swap.peak_pages >= swap);
            assert!(info.limits.ram_max_pages.is_none_or(|max| ram <= max), "{info:?}");
        }
        for mapping in &self.mappings {
            let page = self.random.below(N);
            let owner = space.group_of(ctx(space), mapping.pages.addr(page));
            assert_eq!(owner, Some(self.groups[mapping.owners[page]].id));
        }
    }
}

fn run(seed: u64) {
    let space = space_on(&[SwapSpec { dir: c"/var/tmp", bytes: 256 << 20, priority: None, ..SwapSpec::DEFAULT }], true);
    // The space itself is short of memory too.
    let others = Pages::new(space, 3500, COMPRESSIBLE);
    let root = Group { id: GroupId::ROOT, parent: 0, limits: NO_LIMITS, is_alive: true };
    let mut model = Model { space, random: Random(seed), groups: vec![root], mappings: Vec::new(), version: 1 };
    (0..4).for_each(|_| model.create());
    (0..4).for_each(|_| model.add());
    for _ in 0..STEPS {
        model.step(11);
        model.agree();
        if model.mappings.is_empty() {
            model.add();
        }
    }
    model.mappings.iter().for_each(|mapping| mapping.pages.check_all());
    others.check_all();
    model.mappings.clear();
    let mut rest = 0;
    space.groups(ctx(space), |info| {
        let is_root = info.id == GroupId::ROOT;
        rest += if is_root { 0 } else { info.ram.current_pages + info.swap.current_pages };
    });
    assert_eq!((rest, space.validate(), space.stats().error_bytes()[0]), (0, Ok(()), 0));
}

#[test]
fn random_use_agrees_with_the_model() {
    alone(|| run(0x5eed_0001));
}

#[test]
fn other_random_use_agrees_with_the_model() {
    alone(|| run(0x5eed_7702));
}

#[test]
fn more_random_use_agrees_with_the_model() {
    alone(|| run(0x00c0_ffee));
}
