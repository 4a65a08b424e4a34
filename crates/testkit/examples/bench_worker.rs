//! A fake worker for benchmarks: replies that are ready before the first call, and as few system calls as can be.
//!
//! ```text
//! bench_worker [--role regular|prefill|decode] [--bytes N] [--logprobs N] [--events N] [--delay-ms N] [--hold]
//! ```
//! `POST /generate` gets a reply of about `--bytes` and, in it, about `--logprobs` bytes of log-probabilities: of the
//! prompt's tokens from a prefill worker, of the output's from the others. With `--events` the reply is a stream of
//! that many events, each written by itself as a real worker's are. `--delay-ms` is slept before the reply; `--hold`
//! keeps streams open after their first event until `POST /release`. Every other path gets a small object that routers
//! take for whatever they probe. The address is printed to stdout once it is listened on.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the worker says, and how.
#[derive(Debug)]
struct Plan {
    /// Written one after the other.
    pieces: Vec<Vec<u8>>,
    /// The reply to everything that is no generation.
    other: Vec<u8>,
    delay: Duration,
    is_held: bool,
}

/// What was asked for on the command line.
#[derive(Debug, Default)]
struct Args {
    is_prefill: bool,
    bytes: usize,
    logprobs: usize,
    events: usize,
    delay_ms: u64,
    is_held: bool,
}

/// The head of a request.
struct Head {
    path: Path,
    bytes: usize,
    content_length: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Generate,
    Release,
    Other,
}

/// Room for the largest request that benchmarks send.
const BUFFER_BYTES: usize = 64 << 10;

/// What a prefill worker took, as SGLang with slime's patch says it.
const PREFILL_STAGES: &str = concat!(
    r#","e2e_latency":0.0013284,"pd_prefill_bootstrap_queue_duration":0.0009182319,"pd_prefill_bootstrap_duration":0.0007716109"#,
    r#","pd_prefill_alloc_wait_duration":0.000146621,"pd_prefill_forward_duration":0.0010293840"#,
    r#","pd_prefill_transfer_queue_duration":0.0001239010,"pd_transfer_speed_gb_s":11.28374"#,
    r#","pd_transfer_total_mb":18.875,"pd_prefill_retry_count":0"#,
);
/// The same of a decode worker.
const DECODE_STAGES: &str = concat!(
    r#","e2e_latency":0.0032847,"pd_decode_prealloc_duration":0.0008123411,"pd_decode_bootstrap_duration":0.0007612331"#,
    r#","pd_decode_alloc_wait_duration":0.000051108,"pd_decode_transfer_duration":0.0011510293"#,
    r#","pd_decode_forward_duration":0.0009182735"#,
);

fn main() -> io::Result<()> {
    let plan = Arc::new(Args::parse(std::env::args().skip(1))?.plan());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let mut stdout = io::stdout();
        writeln!(stdout, "{}", listener.local_addr()?)?;
        stdout.flush()?;
        let released = Arc::new(watch::Sender::new(()));
        loop {
            let (stream, _) = listener.accept().await?;
            let (plan, released) = (Arc::clone(&plan), Arc::clone(&released));
            tokio::spawn(async move {
                // A client that leaves is no event.
                drop(serve(stream, &plan, &released).await);
            });
        }
    })
}

async fn serve(mut stream: TcpStream, plan: &Plan, released: &watch::Sender<()>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // Streams by the thousand need no room for large requests.
    let mut buffer = vec![0; if plan.is_held { 4 << 10 } else { BUFFER_BYTES }];
    let mut filled = 0;
    loop {
        let head = loop {
            if let Some(head) = Head::parse(&buffer[..filled]) {
                break head;
            }
            filled += read(&mut stream, &mut buffer[filled..]).await?;
        };
        let length = head.bytes + head.content_length;
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        while filled < length {
            filled += read(&mut stream, &mut buffer[filled..]).await?;
        }
        buffer.copy_within(length..filled, 0);
        filled -= length;
        match head.path {
            Path::Generate => plan.reply(&mut stream, released).await?,
            Path::Release => {
                released.send_replace(());
                stream.write_all(&plan.other).await?;
            }
            Path::Other => stream.write_all(&plan.other).await?,
        }
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    match stream.read(buffer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(count),
    }
}

// === impl Plan ===

impl Plan {
    async fn reply(&self, stream: &mut TcpStream, released: &watch::Sender<()>) -> io::Result<()> {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        for (number, piece) in self.pieces.iter().enumerate() {
            if number == 1 && self.is_held {
                // The sender is the process's own, so it can not be gone.
                drop(released.subscribe().changed().await);
            } else if number > 0 {
                // Other streams' events come in between, as from a batch.
                tokio::task::yield_now().await;
            }
            stream.write_all(piece).await?;
        }
        Ok(())
    }
}

// === impl Args ===

impl Args {
    fn parse(mut args: impl Iterator<Item = String>) -> io::Result<Self> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("wrong option: {what}"));
        let mut parsed = Self::default();
        while let Some(name) = args.next() {
            let mut value = || args.next().ok_or_else(|| wrong(&name));
            let number = |text: String| text.parse::<usize>().map_err(|_| wrong(&text));
            match &name[..] {
                "--role" => parsed.is_prefill = value()? == "prefill",
                "--bytes" => parsed.bytes = number(value()?)?,
                "--logprobs" => parsed.logprobs = number(value()?)?,
                "--events" => parsed.events = number(value()?)?,
                "--delay-ms" => parsed.delay_ms = number(value()?)? as u64,
                "--hold" => parsed.is_held = true,
                _ => return Err(wrong(&name)),
            }
        }
        Ok(parsed)
    }

    fn plan(&self) -> Plan {
        let pieces = if self.events == 0 {
            vec![whole("application/json", &self.finished("", self.bytes))]
        } else {
            self.stream()
        };
        let other = r#"{"status":"ok","model_path":"bench","served_model_name":"bench","is_generation":true,"dp_size":1}"#;
        Plan {
            pieces,
            other: whole("application/json", other),
            delay: Duration::from_millis(self.delay_ms),
            is_held: self.is_held,
        }
    }

    /// The head with the first event, further events, the end.
    fn stream(&self) -> Vec<Vec<u8>> {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
        let mut pieces = Vec::new();
        for number in 1..=self.events {
            // Text is cumulative, as SGLang's is unless told otherwise.
            let text = " token".repeat(number);
            let event =
                if number == self.events { self.finished(&text, 0) } else { generated(&text, "null", "") };
            let head = if number == 1 { head } else { "" };
            pieces.push(format!("{head}{}", chunk(&format!("data: {event}\n\n"))).into_bytes());
        }
        pieces.push(format!("{}0\r\n\r\n", chunk("data: [DONE]\n\n")).into_bytes());
        pieces
    }

    /// A generation that has ended, of at least so many bytes.
    fn finished(&self, text: &str, bytes: usize) -> String {
        let mut measured = if self.is_prefill { PREFILL_STAGES } else { DECODE_STAGES }.to_owned();
        if self.logprobs > 0 {
            let (name, other) = if self.is_prefill {
                ("input_token_logprobs", "output_token_logprobs")
            } else {
                ("output_token_logprobs", "input_token_logprobs")
            };
            let _infallible = write!(
                measured,
                r#","{other}":[[-0.6931471,11,null]],"{name}":{}"#,
                token_logprobs(self.logprobs)
            );
        }
        let render = |text: &str| generated(text, r#"{"type":"length","length":8}"#, &measured);
        let bare = render(text).len();
        if bare >= bytes { render(text) } else { render(&format!("{text}{}", "x".repeat(bytes - bare))) }
    }
}

// === impl Head ===

impl Head {
    /// Reads a head; nothing if it is not whole. Bodies are expected with a length.
    fn parse(buffer: &[u8]) -> Option<Self> {
        let bytes = buffer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = &buffer[..bytes];
        let path = match head {
            _ if head.starts_with(b"POST /generate") => Path::Generate,
            _ if head.starts_with(b"POST /release") => Path::Release,
            _ => Path::Other,
        };
        let content_length = head.split(|byte| *byte == b'\n').find_map(content_length).unwrap_or(0);
        Some(Self { path, bytes, content_length })
    }
}

fn content_length(line: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let (name, value) = line.split_at_checked(NAME.len())?;
    if !name.eq_ignore_ascii_case(NAME) {
        return None;
    }
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// What SGLang says of a generation, and what else was measured.
fn generated(text: &str, finish_reason: &str, measured: &str) -> String {
    format!(
        concat!(
            r#"{{"text":"{}","output_ids":[1820,323,264,220],"meta_info":{{"id":"0f3c2a9b5d6e4f708192a3b4c5d6e7f8","#,
            r#""finish_reason":{},"prompt_tokens":128,"weight_version":"default","total_retractions":0,"#,
            r#""completion_tokens":8,"cached_tokens":64{}}}}}"#,
        ),
        text, finish_reason, measured
    )
}

/// An array of `[log-probability, token, text]` of about so many bytes.
fn token_logprobs(bytes: usize) -> String {
    let mut array = String::from("[[null,1,null]");
    let mut state = 1_u32;
    while array.len() < bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (digits, token) = (f64::from(state >> 8) / 2e6, state >> 15);
        let _infallible = write!(array, ",[-{digits},{token},null]");
    }
    array.push(']');
    array
}

fn whole(content_type: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

fn chunk(piece: &str) -> String {
    format!("{:x}\r\n{piece}\r\n", piece.len())
}
