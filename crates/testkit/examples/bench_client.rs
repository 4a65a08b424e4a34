//! A load client for what wrk does not see: when the first event of a stream comes, and thousands of open streams.
//!
//! ```text
//! bench_client first-event ADDRESS BODY_FILE SECONDS   calls one after the other over one connection
//! bench_client streams     ADDRESS BODY_FILE COUNT     opens so many streams, prints `open`, waits for their ends
//! ```
//! The result is one JSON object on stdout. Both post the file to `/generate`.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// A reply, as it comes in.
#[derive(Default)]
struct Reply {
    bytes: Vec<u8>,
}

/// Streams that are being opened at a time: a listener's backlog is finite.
const OPENING: usize = 64;
/// Beyond this a reply is given up.
const PATIENCE: Duration = Duration::from_mins(1);

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
    let [mode, address, body, number] = &args[..] else { return Err(wrong()) };
    let address: SocketAddr = address.parse().map_err(|_| wrong())?;
    let request = request(address, &std::fs::read(body)?);
    let result = match &mode[..] {
        "first-event" => first_event(address, &request, number.parse().map_err(|_| wrong())?)?,
        "streams" => streams(address, request, number.parse().map_err(|_| wrong())?)?,
        _ => return Err(wrong()),
    };
    say(&result)
}

fn request(address: SocketAddr, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /generate HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn first_event(address: SocketAddr, request: &[u8], seconds: f64) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut first_us, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    let started = Instant::now();
    while started.elapsed().as_secs_f64() < seconds {
        let sent = Instant::now();
        stream.write_all(request)?;
        let (mut reply, mut first) = (Reply::default(), None);
        while !reply.is_whole() {
            match stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => reply.bytes.extend_from_slice(&buffer[..count]),
            }
            if first.is_none() && reply.has_event() {
                first = Some(sent.elapsed());
            }
        }
        let Some(first) = first.filter(|_| reply.is_success()) else { return Err(reply.complaint()) };
        first_us.push(first.as_secs_f64() * 1e6);
    }
    first_us.sort_by(f64::total_cmp);
    let at = |share: f64| first_us[((first_us.len() - 1) as f64 * share).round() as usize];
    let (count, p50, p99) = (first_us.len(), at(0.5), at(0.99));
    Ok(format!(r#"{{"requests":{count},"first_event_p50_us":{p50:.1},"first_event_p99_us":{p99:.1}}}"#))
}

fn streams(address: SocketAddr, request: Vec<u8>, count: usize) -> io::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (opening, request) = (Arc::new(Semaphore::new(OPENING)), Arc::new(request));
        // Opened streams say so by adding a permit.
        let opened = Arc::new(Semaphore::new(0));
        let mut streams = JoinSet::new();
        for _ in 0..count {
            let (opening, opened) = (Arc::clone(&opening), Arc::clone(&opened));
            let request = Arc::clone(&request);
            streams.spawn(async move {
                let result = stream(address, &request, &opening, &opened).await;
                if result.is_err() {
                    opened.add_permits(1);
                }
                result
            });
        }
        for _ in 0..count {
            opened.acquire().await.map_err(io::Error::other)?.forget();
        }
        say("open")?;
        let (mut completed, mut complaint) = (0, String::new());
        while let Some(ended) = streams.join_next().await {
            match ended? {
                Ok(()) => completed += 1,
                Err(error) => complaint = error.to_string().replace(['"', '\\'], "'"),
            }
        }
        let failed = count - completed;
        Ok(format!(r#"{{"completed":{completed},"failed":{failed},"complaint":"{complaint}"}}"#))
    })
}

async fn stream(
    address: SocketAddr,
    request: &[u8],
    opening: &Semaphore,
    opened: &Semaphore,
) -> io::Result<()> {
    let permit = opening.acquire().await.map_err(io::Error::other)?;
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(request).await?;
    let (mut reply, mut permit) = (Reply::default(), Some(permit));
    while !reply.is_whole() {
        let read = tokio::time::timeout(PATIENCE, stream.read_buf(&mut reply.bytes));
        if read.await.map_err(|_| io::ErrorKind::TimedOut)?? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if permit.is_some() && reply.has_event() {
            permit = None;
            opened.add_permits(1);
        }
    }
    if !reply.is_success() || permit.is_some() {
        return Err(reply.complaint());
    }
    Ok(())
}

fn say(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

// === impl Reply ===

impl Reply {
    fn is_success(&self) -> bool {
        self.bytes.starts_with(b"HTTP/1.1 200")
    }

    fn has_event(&self) -> bool {
        self.is_success() && find(&self.bytes, b"data:").is_some()
    }

    /// Streams are chunked and end with an empty chunk; refusals may have a length.
    fn is_whole(&self) -> bool {
        self.bytes.ends_with(b"\r\n0\r\n\r\n") || self.has_whole_length()
    }

    fn has_whole_length(&self) -> bool {
        let Some(head_end) = find(&self.bytes, b"\r\n\r\n") else { return false };
        let head = String::from_utf8_lossy(&self.bytes[..head_end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        length.is_some_and(|length: usize| self.bytes.len() >= head_end + 4 + length)
    }

    fn complaint(&self) -> io::Error {
        let begin = &self.bytes[..self.bytes.len().min(300)];
        io::Error::other(format!("not a stream: {}", String::from_utf8_lossy(begin)))
    }
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}
