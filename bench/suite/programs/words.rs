//! Rust: trees and hash tables of strings and vectors, each an allocation of its own, built, changed and taken apart.
//!
//! words KEYS CHANGES: prints a sum that depends on the arguments alone.
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("words KEYS CHANGES"));
    let (keys, changes) = (arguments.next().unwrap(), arguments.next().unwrap());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut tree: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut table: HashMap<u64, Box<[String]>, BuildHasherDefault<DefaultHasher>> = HashMap::default();
    let mut sum = 0u64;
    for change in 0..changes {
        let key = random.below(keys);
        let numbers = tree.entry(format!("key {key}")).or_default();
        numbers.push(change as u32);
        if numbers.len() > 12 {
            sum = (sum * 31 + numbers.iter().map(|&one| u64::from(one)).sum::<u64>()) % 1_000_000_007;
            numbers.clear();
            numbers.shrink_to_fit();
        }
        let words = (0..random.below(4)).map(|nr| format!("word {} of {key}", nr * change)).collect();
        if let Some(old) = table.insert(key, words) {
            sum = (sum * 31 + old.iter().map(|word| word.len() as u64).sum::<u64>()) % 1_000_000_007;
        }
    }
    for (key, numbers) in &tree {
        sum = (sum * 31 + key.len() as u64 + numbers.len() as u64) % 1_000_000_007;
    }
    println!("{} keys, {sum}", tree.len());
}
