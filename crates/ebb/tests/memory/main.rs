//! One process: what comes in and what goes out, by itself, by advice and by calls that change the address space.

#[allow(dead_code, reason = "each room uses its part")]
#[path = "../harness/mod.rs"]
mod harness;

mod advice;
mod beside;
mod beside_forks;
mod clean;
mod clean_folios;
mod collapse;
mod cooling;
mod discard;
mod first_touch;
mod folios;
mod frees;
mod growth;
mod huge;
mod idle;
mod in_place;
mod longterm;
mod mlock;
mod move_races;
mod neighbours;
mod plain_map;
mod readahead;
mod reclaim;
mod referenced;
mod scan;
mod snapshot;
mod squeeze;
mod stock;
mod stress;
mod takeover;
mod takeover_file;
