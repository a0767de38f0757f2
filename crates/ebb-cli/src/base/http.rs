//! The little of HTTP that a scrape needs: GET for one page.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Inet(SocketAddr),
    Unix(PathBuf),
}

/// How long a client may take for its request, and as long again for reading the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Most clients at a time. Others wait.
const CLIENTS_MAX: usize = 16;
/// After a connection that could not be accepted, for lack of descriptors for example; and between looks whether there is room for
/// another client.
const PAUSE: Duration = Duration::from_millis(20);

/// A connection.
trait Connection: Read + Write + Send {
    /// Bounds the next read and the next write.
    fn set_patience(&self, patience: Duration) -> io::Result<()>;
}

impl Connection for TcpStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience)).and_then(|()| self.set_write_timeout(Some(patience)))
    }
}

impl Connection for UnixStream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience)).and_then(|()| self.set_write_timeout(Some(patience)))
    }
}

/// What is left until `end`. None if that is over.
fn left(end: Instant) -> Option<Duration> {
    end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

/// An answer.
pub struct Answer {
    pub status: &'static str,
    pub content_type: &'static str,
    pub body: String,
}

/// A bound address.
pub enum Listener {
    Inet(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Binds `address`. A socket that a server which has ended left behind is replaced.
    pub fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Inet(address) => TcpListener::bind(address).map(Self::Inet),
            Address::Unix(path) => match UnixListener::bind(path) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_behind(path) => {
                    std::fs::remove_file(path)?;
                    UnixListener::bind(path)
                }
                bound => bound,
            }
            .map(Self::Unix),
        }
    }

    /// The address, as a user can give it to a client.
    pub fn url(&self, path: &str) -> String {
        match self {
            Self::Inet(listener) => {
                listener.local_addr().map_or_else(|error| error.to_string(), |at| format!("http://{at}{path}"))
            }
            Self::Unix(listener) => {
                let name = listener.local_addr().ok().and_then(|at| at.as_pathname().map(Path::to_owned));
                format!("unix:{} ({path})", name.unwrap_or_default().display())
            }
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Self::Inet(listener) => Box::new(listener.accept()?.0),
            Self::Unix(listener) => Box::new(listener.accept()?.0),
        })
    }

    /// Answers for ever: `page` makes the answer to GET `path`, for one client at a time. A client that is slow holds up no other.
    pub fn serve(&self, path: &str, page: impl Fn() -> Answer + Send + Sync) -> ! {
        let (clients, one) = (AtomicUsize::new(0), Mutex::new(()));
        let page = || {
            let _one = one.lock().unwrap_or_else(PoisonError::into_inner);
            page()
        };
        std::thread::scope(|scope| {
            loop {
                while clients.load(SeqCst) >= CLIENTS_MAX {
                    std::thread::sleep(PAUSE);
                }
                let Ok(mut client) = self.accept() else {
                    std::thread::sleep(PAUSE);
                    continue;
                };
                clients.fetch_add(1, SeqCst);
                let (clients, page) = (&clients, &page);
                scope.spawn(move || {
                    answer(&mut *client, path, page);
                    drop(client);
                    clients.fetch_sub(1, SeqCst);
                });
            }
        })
    }
}

/// Whether a path is a socket at which nobody listens.
fn is_left_behind(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Answers one request. What fails concerns this client alone.
fn answer(client: &mut dyn Connection, path: &str, page: &impl Fn() -> Answer) {
    let Some(request) = request(client) else { return };
    let plain =
        |status, body: &str| Answer { status, content_type: "text/plain; charset=utf-8", body: body.to_owned() };
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    // A proxy's form names the host, too.
    let target = target.strip_prefix("http://").map_or(target, |rest| rest.find('/').map_or("/", |at| &rest[at..]));
    let is_head = method == "HEAD";
    let Answer { status, content_type, body } = match target.split('?').next() {
        _ if method != "GET" && !is_head => plain("405 Method Not Allowed", "only GET and HEAD\n"),
        Some(wanted) if wanted == path => page(),
        _ => plain("404 Not Found", &format!("the metrics are at {path}\n")),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let end = Instant::now() + PATIENCE;
    let mut rest = head.as_bytes();
    let mut next = if is_head { &[] } else { body.as_bytes() };
    while let Some(left) = left(end).filter(|_| !rest.is_empty())
        && client.set_patience(left).is_ok()
        && let Ok(n @ 1..) = client.write(rest)
    {
        rest = &rest[n..];
        if rest.is_empty() {
            rest = std::mem::take(&mut next);
        }
    }
}

/// The first line of a request, once all of its head is there. None if the client takes too long or says too much.
fn request(client: &mut dyn Connection) -> Option<String> {
    let end = Instant::now() + PATIENCE;
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        client.set_patience(left(end)?).ok()?;
        let n = client.read(&mut part).ok().filter(|n| *n > 0)?;
        head.extend_from_slice(&part[..n]);
        if head.len() > REQUEST_BYTES_MAX {
            return None;
        }
    }
    let line = head.split(|byte| *byte == b'\r').next()?;
    Some(String::from_utf8_lossy(line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks a server that runs for as long as the test's process.
    fn ask(address: SocketAddr, request: &str) -> String {
        let mut client = TcpStream::connect(address).expect("it listens");
        client.write_all(request.as_bytes()).expect("it reads");
        let mut said = String::new();
        let _ = client.read_to_string(&mut said);
        said
    }

    #[test]
    fn the_page_is_at_its_path_and_nothing_else_is_anywhere() {
        let listener = Listener::bind(&Address::Inet("127.0.0.1:0".parse().expect("an address"))).expect("a port");
        let Listener::Inet(inet) = &listener else { unreachable!("as asked for") };
        let address = inet.local_addr().expect("it is bound");
        assert_eq!(listener.url("/metrics"), format!("http://{address}/metrics"));
        let page = || Answer { status: "200 OK", content_type: "text/x", body: "hello\n".to_owned() };
        std::thread::spawn(move || listener.serve("/metrics", page));
        let got = ask(address, "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(got.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 6\r\n"), "{got}");
        assert!(got.ends_with("\r\n\r\nhello\n"), "{got}");
        assert!(ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        // Who says too much is told nothing, and the next one is served.
        assert_eq!(ask(address, &"x".repeat(REQUEST_BYTES_MAX + 2000)), "");
        assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("hello\n"));
        // So it is beside clients that say nothing, without a wait for them.
        let silent: Vec<_> = (0..CLIENTS_MAX - 1).map(|_| TcpStream::connect(address).expect("it listens")).collect();
        let asked = Instant::now();
        assert!(ask(address, "GET http://host:1/metrics HTTP/1.1\r\n\r\n").ends_with("hello\n"));
        assert!(asked.elapsed() < PATIENCE, "it waited for the others");
        // Too many hold others up for as long as they may take.
        let more: Vec<_> = (0..CLIENTS_MAX).map(|_| TcpStream::connect(address).expect("it listens")).collect();
        assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("hello\n"));
        drop((silent, more));
    }

    #[test]
    fn a_socket_that_was_left_behind_is_replaced_and_no_other_file_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let address = Address::Unix(path.clone());
        drop(Listener::bind(&address).expect("a new socket"));
        let second = Listener::bind(&address).expect("the first one is gone");
        assert_eq!(Listener::bind(&address).err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
        drop(second);
        std::fs::remove_file(&path).expect("it is there");
        std::fs::write(&path, "kept").expect("a file");
        assert!(Listener::bind(&address).is_err() && std::fs::read_to_string(&path).is_ok_and(|text| text == "kept"));
    }
}
