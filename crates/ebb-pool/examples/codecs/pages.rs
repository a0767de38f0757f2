//! Pages of real programs: started here, filled with data, and read through `/proc/PID/mem`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read as _, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use ebb_pool::codec::Page;

pub struct Corpus {
    pub name: String,
    pub pages: Vec<Page>,
}

const PYTHON_RECORDS: &str = r#"
import random, sys
random.seed(1)
words = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"]
kept = [{"id": i, "name": "user%d" % i, "score": random.random(), "tags": random.sample(words, 3),
         "city": random.choice(words) + "ville", "visits": random.randrange(10**6)} for i in range(120000)]
print("ready", flush=True)
sys.stdin.read()
"#;

const PYTHON_FLOATS: &str = r#"
import array, random, sys
random.seed(1)
kept = array.array("d", (random.gauss(0, 1) for i in range(4000000)))
print("ready", flush=True)
sys.stdin.read()
"#;

const PYTHON_INTEGERS: &str = r#"
import array, random, sys
random.seed(1)
kept = array.array("q", (random.randrange(1000) + i // 7 for i in range(4000000)))
print("ready", flush=True)
sys.stdin.read()
"#;

const PYTHON_SOURCE_TREES: &str = r#"
import ast, glob, os, sys
files = sorted(glob.glob(os.path.join(os.path.dirname(ast.__file__), "*.py")))[:150]
kept = []
for name in files:
    text = open(name, errors="replace").read()
    kept.append((text, ast.parse(text), compile(text, name, "exec")))
print("ready", flush=True)
sys.stdin.read()
"#;

const NODE_OBJECTS: &str = r#"
const kept = [];
for (let i = 0; i < 200000; i++) {
  kept.push({ id: i, name: "user" + i, score: Math.random(), tags: ["a" + i % 7, "b" + i % 11], at: new Map([[i, i * 2]]) });
}
console.log("ready");
process.stdin.resume();
process.stdin.on("end", () => process.exit(kept.length ? 0 : 1));
"#;

const JAVA_OBJECTS: &str = r#"
import java.util.*;
class Kept {
    record User(int id, String name, double score, List<String> tags) {}
    public static void main(String[] args) throws Exception {
        Random random = new Random(1);
        Map<Integer, User> kept = new HashMap<>();
        for (int i = 0; i < 300000; i++)
            kept.put(i, new User(i, "user" + i, random.nextDouble(), List.of("a" + i % 7, "b" + i % 11)));
        System.out.println("ready");
        System.in.read();
        System.exit(kept.isEmpty() ? 1 : 0);
    }
}
"#;

/// Reads so many pages of some program.
type Read = fn(usize) -> std::io::Result<Vec<Page>>;

/// A program that is ended when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already; nothing is lost then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The corpora that need no arguments. A program that is not there is left out, and says so.
pub fn programs(count: usize) -> Vec<Corpus> {
    let all: [(&str, Read); 9] = [
        ("python: dicts of records", |count| python(PYTHON_RECORDS, count)),
        ("python: sources, syntax trees and byte code", |count| python(PYTHON_SOURCE_TREES, count)),
        ("node: objects and maps", |count| script("node", &["-e", NODE_OBJECTS], count)),
        ("java: records in a hash map", java),
        ("redis: JSON values of some 400 bytes", redis),
        ("rustc: compiling", rustc),
        ("text: Rust sources", text),
        ("array of small growing integers", |count| python(PYTHON_INTEGERS, count)),
        ("array of random doubles", |count| python(PYTHON_FLOATS, count)),
    ];
    let mut corpora = Vec::new();
    for (name, pages) in all {
        match pages(count) {
            Ok(pages) => corpora.push(Corpus { name: name.into(), pages }),
            Err(error) => eprintln!("{name}: left out: {error}"),
        }
    }
    corpora
}

/// The corpus of `pid:PID` or `file:PATH`.
pub fn from_source(source: &str, count: usize) -> Corpus {
    let pages = match source.split_once(':') {
        Some(("pid", pid)) => anonymous_pages(pid.parse().expect("a process number"), count),
        Some(("file", path)) => fs::read(path).map(|bytes| sample(pages_of(&bytes), count)),
        _ => panic!("{source}: not pid:PID or file:PATH"),
    };
    Corpus { name: source.into(), pages: pages.unwrap_or_else(|error| panic!("{source}: {error}")) }
}

fn python(program: &str, count: usize) -> std::io::Result<Vec<Page>> {
    script("python3", &["-c", program], count)
}

fn java(count: usize) -> std::io::Result<Vec<Page>> {
    let source = std::env::temp_dir().join(format!("ebb-codecs-{}.java", std::process::id()));
    fs::write(&source, JAVA_OBJECTS)?;
    let pages = script("java", &["-Xmx256m", &source.to_string_lossy()], count);
    fs::remove_file(&source)?;
    pages
}

/// The pages of a program that prints a line once it has filled its memory, and then waits for the end of its input.
fn script(program: &str, args: &[&str], count: usize) -> std::io::Result<Vec<Page>> {
    let mut child = Running(Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    let _stdin: Option<ChildStdin> = child.0.stdin.take();
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?).read_line(&mut line)?;
    anonymous_pages(child.0.id(), count)
}

fn redis(count: usize) -> std::io::Result<Vec<Page>> {
    let port = 20000 + std::process::id() % 20000;
    let mut command = Command::new("redis-server");
    command.args(["--save", "", "--appendonly", "no", "--port", &port.to_string()]).stdout(Stdio::null());
    let child = Running(command.spawn()?);
    let start = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port as u16)) {
            Ok(stream) => break stream,
            Err(error) if start.elapsed() > Duration::from_secs(5) => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut random = Random(7);
    for chunk in 0..200 {
        let mut commands = String::new();
        let (mut reply, keys) = (vec![0; 5 * 500], 500);
        for key in 0..keys {
            let key = format!("session:{:08}", chunk * keys + key);
            let value = json(&mut random);
            commands += &format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{value}\r\n", key.len(), value.len());
        }
        stream.write_all(commands.as_bytes())?;
        stream.read_exact(&mut reply)?;
    }
    anonymous_pages(child.0.id(), count)
}

/// A record such as web services keep.
fn json(random: &mut Random) -> String {
    const AGENTS: [&str; 4] = ["Mozilla/5.0 (X11; Linux x86_64)", "curl/8.5.0", "okhttp/4.12", "Googlebot/2.1"];
    const PATHS: [&str; 5] = ["/cart", "/search?q=shoes", "/login", "/item/", "/help/returns"];
    let history: Vec<String> = (0..random.below(6) + 1)
        .map(|_| {
            let path = PATHS[random.below(5)];
            format!("{{\"path\":\"{path}{}\",\"ms\":{}}}", random.below(9000), random.below(400))
        })
        .collect();
    format!(
        "{{\"user\":{},\"token\":\"{:016x}{:016x}\",\"agent\":\"{}\",\"ip\":\"10.{}.{}.{}\",\"history\":[{}]}}",
        random.below(1 << 30),
        random.next(),
        random.next(),
        AGENTS[random.below(4)],
        random.below(256),
        random.below(256),
        random.below(256),
        history.join(","),
    )
}

fn rustc(count: usize) -> std::io::Result<Vec<Page>> {
    let mut command = Command::new("rustc");
    command.args(["--edition", "2024", "--crate-type", "lib", "-O", "--emit", "obj", "-o", "/dev/null", "-"]);
    let mut child = Running(command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn()?);
    let mut source = String::new();
    for index in 0..3000 {
        source += &format!(
            "pub fn f{index}(map: &mut std::collections::BTreeMap<u32, Vec<String>>, key: u32) -> usize {{\n    \
             let list = map.entry(key ^ {index}).or_default();\n    list.push(format!(\"{{key}} {index}\"));\n    \
             list.iter().filter(|item| item.len() > {}).map(String::len).sum()\n}}\n",
            index % 11
        );
    }
    child.0.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?.write_all(source.as_bytes())?;
    std::thread::sleep(Duration::from_secs(4));
    anonymous_pages(child.0.id(), count)
}

fn text(count: usize) -> std::io::Result<Vec<Page>> {
    let registry = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo"));
    let mut folders = vec![std::path::PathBuf::from(registry.unwrap_or_default()).join("registry/src")];
    let mut bytes = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && bytes.len() < 64 << 20 {
                bytes.extend(fs::read(path)?);
            }
        }
    }
    Ok(sample(pages_of(&bytes), count))
}

/// Reads the private anonymous memory of a process.
fn anonymous_pages(pid: u32, count: usize) -> std::io::Result<Vec<Page>> {
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut bytes = Vec::new();
    for line in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(flags), _, _, Some(inode)) =
            (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let name = fields.next().unwrap_or("");
        if flags != "rw-p" || inode != "0" || name.starts_with("[stack") || name.starts_with("[v") {
            continue;
        }
        let mut ends = range.split('-').filter_map(|end| u64::from_str_radix(end, 16).ok());
        let (Some(start), Some(end)) = (ends.next(), ends.next()) else { continue };
        resident_pages(pid, &memory, start, end, &mut bytes)?;
    }
    Ok(sample(pages_of(&bytes), count))
}

/// Appends those pages of a range that are in memory: the others were never touched.
fn resident_pages(pid: u32, memory: &File, start: u64, end: u64, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut entries = vec![0; ((end - start) / 4096 * 8) as usize];
    let read = pagemap.read_at(&mut entries, start / 4096 * 8)?;
    let mut page = [0; size_of::<Page>()];
    for (index, entry) in entries[..read].chunks_exact(8).enumerate() {
        let present = entry[7] & 0x80 != 0;
        if present && memory.read_exact_at(&mut page, start + index as u64 * 4096).is_ok() {
            bytes.extend_from_slice(&page);
        }
    }
    Ok(())
}

fn pages_of(bytes: &[u8]) -> Vec<Page> {
    bytes.as_chunks().0.to_vec()
}

/// `count` of the pages, chosen at random but always the same ones.
fn sample(mut pages: Vec<Page>, count: usize) -> Vec<Page> {
    let mut random = Random(42);
    for index in 0..count.min(pages.len()) {
        let other = index + random.below(pages.len() - index);
        pages.swap(index, other);
    }
    pages.truncate(count);
    pages
}

pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
