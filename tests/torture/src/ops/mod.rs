//! The operations a worker chooses from.

pub mod coroutine;
pub mod heap;
pub mod io;
pub mod memory;
pub mod process;
pub mod program_break;
pub mod protect;
pub mod shared;
pub mod signals;
pub mod threads;

use crate::worker::Worker;

/// One kind of operation; chosen in proportion to its weight.
pub struct Op {
    pub name: &'static str,
    pub weight: usize,
    pub run: fn(&mut Worker),
}

const fn op(name: &'static str, weight: usize, run: fn(&mut Worker)) -> Op {
    Op { name, weight, run }
}

/// Every operation.
pub static OPS: [Op; 43] = [
    op("map", 30, memory::map),
    op("check", 120, memory::check),
    op("write", 120, memory::write),
    op("copy", 30, memory::copy),
    op("unmap", 12, memory::unmap),
    op("map-over", 10, memory::map_over),
    op("fill-hole", 8, memory::fill_hole),
    op("dontneed", 20, memory::dontneed),
    op("free", 8, memory::free),
    op("advise", 16, memory::advise),
    op("huge", 4, memory::huge),
    op("at-fork", 4, memory::at_fork),
    op("lock", 4, memory::lock),
    op("reserve", 6, memory::reserve),
    op("mremap-grow", 8, memory::grow),
    op("mremap-shrink", 6, memory::shrink),
    op("mremap-move", 10, memory::move_away),
    op("mremap-over", 5, memory::move_over),
    op("mremap-dontunmap", 5, memory::move_keeping),
    op("protect", 20, protect::protect),
    op("guard", 12, protect::guard),
    op("guard-pages", 3, protect::guard_pages),
    op("code", 6, protect::code),
    op("brk", 8, program_break::step),
    op("fork", 3, process::fork),
    op("exec", 1, process::exec),
    op("reap", 6, process::reap),
    op("thread", 3, threads::thread),
    op("own-stack", 2, threads::own_stack),
    op("raw-clone", 2, threads::raw_clone),
    op("cancel", 1, threads::cancel),
    op("storm", 2, signals::toggle_storm),
    op("jump", 2, signals::jump_out),
    op("coroutine", 16, coroutine::step),
    op("heap", 60, heap::step),
    op("file", 14, io::file),
    op("pipe", 14, io::pipe),
    op("socket", 14, io::socket),
    op("self-copy", 6, io::self_copy),
    op("large-io", 1, io::large),
    op("calls", 14, io::calls),
    op("groups", 40, shared::groups),
    op("words", 60, shared::words),
];

/// What every worker does last.
pub static FINISH: Op = op("finish", 0, finish);

fn finish(worker: &mut Worker) {
    signals::stop(worker);
    process::reap_all(worker);
    coroutine::finish(worker);
    worker.check_all();
    if let Some(program_break) = &mut worker.program_break {
        program_break.release();
    }
    for block in worker.blocks.drain(..) {
        block.release();
    }
    for area in &mut worker.areas {
        area.unmap_all();
    }
    worker.areas.clear();
}

/// An operation's number, for the history.
pub fn number(op: &Op) -> u8 {
    OPS.iter().position(|known| core::ptr::eq(known, op)).unwrap_or(OPS.len()) as u8 + 1
}

/// The name of an operation number.
pub fn name(number: u8) -> &'static str {
    match usize::from(number) {
        0 => "-",
        n if n <= OPS.len() => OPS[n - 1].name,
        _ => FINISH.name,
    }
}

/// The operations a comma list names: `a,b` only these, `-a,-b` all but these, empty all.
pub fn select(list: &str) -> Result<Vec<&'static Op>, String> {
    let names: Vec<&str> = list.split(',').filter(|name| !name.is_empty()).collect();
    for name in &names {
        if !OPS.iter().any(|op| op.name == name.trim_start_matches('-')) {
            return Err((*name).to_owned());
        }
    }
    let only = names.iter().any(|name| !name.starts_with('-'));
    let chosen = |op: &&Op| {
        let without = names.iter().any(|name| name.strip_prefix('-') == Some(op.name));
        !without && (!only || names.contains(&op.name))
    };
    Ok(OPS.iter().filter(chosen).collect())
}
