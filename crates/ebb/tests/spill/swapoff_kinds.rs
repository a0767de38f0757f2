//! Swapoff of a device of each kind while one of each kind takes its content, packed and in whole slots, in a process and in its child.
//! `EBB_FORCE` forces fallbacks.

use crate::harness::alone::{COMPRESSIBLE, Pages, RAM_PAGES, RANDOM, alone, assert_sound, fork, space_on, wait};
use crate::harness::ctx;
use ebb::{Kind, Space, SwapSpec};
use std::ffi::{CStr, CString};
use std::sync::atomic::Ordering::Relaxed;

const KINDS: [Kind; 3] = [Kind::Ssd, Kind::Hdd, Kind::Ram];
/// Kinds of content: two that compress, one better than the other, and one that does not.
const CONTENT: [u64; 4] = [COMPRESSIBLE, 5, COMPRESSIBLE, RANDOM];
/// So many budgets of pages do not fit into the pool.
const MANY: usize = 3 * RAM_PAGES;

/// A directory for a device of a kind, which is there for as long as this lives.
struct Dir(CString, i32);

impl Dir {
    fn new(kind: Kind, name: &str) -> Self {
        let at = if kind == Kind::Ram { "/dev/shm" } else { "/var/tmp" };
        let path = format!("{at}/ebb-swapoff-{}-{name}-{}", kind.name(), std::process::id());
        std::fs::create_dir(&path).expect("a directory");
        Self(CString::new(path).expect("no NUL"), std::process::id() as i32)
    }

    fn device(&self, kind: Kind) -> SwapSpec<'_> {
        SwapSpec { dir: &self.0, bytes: 1 << 30, priority: Some(1), kind, ..SwapSpec::DEFAULT }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // A child of fork has a copy of this.
        if std::process::id() as i32 == self.1 {
            let _ = std::fs::remove_dir(self.0.to_string_lossy().as_ref());
        }
    }
}

/// Kind, directory, and bytes in use of each device.
fn devices(space: &'static Space) -> Vec<(Kind, CString, u64)> {
    let mut all = Vec::new();
    assert!(space.devices(|device| all.push((device.kind, device.dir.to_owned(), device.used_bytes))));
    all
}

fn used(space: &'static Space) -> u64 {
    devices(space).iter().map(|(_, _, bytes)| bytes).sum()
}

/// Removes the device in `from`, the content of which goes to the only other one.
fn move_all(space: &'static Space, from: &CStr, (kind, to): (Kind, &CStr)) {
    let before = used(space);
    assert_eq!(space.swapoff(ctx(space), from, &mut |_| true), Ok(()));
    let after = devices(space);
    assert!(matches!(&after[..], [(of, dir, _)] if *of == kind && **dir == *to), "{after:?}");
    let after = used(space);
    // Objects may be packed more closely, and some go to the pool.
    assert!(after > before / 2 && after < before * 5 / 4, "{after} bytes of {before}");
}

/// Pages of which most are in the device, several in a slot or alone.
fn mixed(space: &'static Space) -> Pages {
    let mut pages = Pages::new(space, MANY, COMPRESSIBLE);
    (0..MANY).for_each(|page| pages.write(page, 2, CONTENT[page % CONTENT.len()]));
    let stats = space.stats();
    let (packed, whole) = (stats.writeback_pages.load(Relaxed), stats.out_file_pages.load(Relaxed));
    assert!(packed > MANY as u64 / 32 && whole > MANY as u64 / 32, "{packed} pages were packed, {whole} were not");
    pages
}

/// Moves content from a device of `kind` to one of each kind and back, each time with a child that does so itself.
fn move_to_each_and_back(kind: Kind) {
    let home = Dir::new(kind, "home");
    let space = space_on(&[home.device(kind)], true);
    let mut pages = mixed(space);
    for (round, other) in (3..).zip(KINDS) {
        let away = Dir::new(other, "away");
        space.swapon(ctx(space), &away.device(other), &mut || true).expect("a device");
        let child = fork(space, || {
            let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
            // It has content in files of its own, and its parent's.
            (0..MANY).step_by(3).for_each(|page| own.write(page, 100 + round, CONTENT[(page + 1) % CONTENT.len()]));
            move_all(space, &home.0, (other, &away.0));
            assert_sound(&own);
            std::mem::forget(own);
        });
        // The parent's file goes while the child reads from it.
        move_all(space, &home.0, (other, &away.0));
        (0..MANY).step_by(4).for_each(|page| pages.write(page, round, CONTENT[(page / 4) % CONTENT.len()]));
        pages.check_all();
        assert_eq!(wait(child), 0);
        space.swapon(ctx(space), &home.device(kind), &mut || true).expect("a device");
        move_all(space, &away.0, (kind, &home.0));
    }
    assert_sound(&pages);
}

#[test]
fn what_an_ssd_held_goes_to_each_kind_and_back() {
    alone(|| move_to_each_and_back(Kind::Ssd));
}

#[test]
fn what_a_disk_that_turns_held_goes_to_each_kind_and_back() {
    alone(|| move_to_each_and_back(Kind::Hdd));
}

#[test]
fn what_memory_held_goes_to_each_kind_and_back() {
    alone(|| move_to_each_and_back(Kind::Ram));
}
