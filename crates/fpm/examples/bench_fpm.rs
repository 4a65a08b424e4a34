//! The parts of `cargo xtask bench fpm`, a process each: a scheduler that publishes, subscribers, and a thousand ranks.

#![expect(clippy::print_stdout, reason = "a program that prints what it measured")]

use std::collections::VecDeque;
use std::error::Error;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, Instant};

use rollscope_fpm::{
    Account, Address, Arrival, Base, Endpoint, ForwardPassMetrics, Heard, Pass, Publisher, QUEUE_RECORDS,
    QueuedRequests, ScheduledRequests, Subscription, What, encode,
};
use tokio::sync::mpsc;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const USAGE: &str =
    "usage: bench_fpm publish ENDPOINT BEFORE PASSES INTERVAL_US steady|resting | hear ADDRESS | stall PATH
       | ranks BASE_PATH RANKS MESSAGES_PER_S SECONDS";

/// What a SUB socket and a PUB socket send first: greeting and READY; the former then subscribes to everything.
const SUBSCRIBER: &[u8] = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB\x00\x01\x01";
const PUBLISHER: &[u8] = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";

/// What the scheduler does between two passes takes the caches: so many bytes are gone through.
const WORK_BYTES: usize = 1 << 20;

/// Between two of the passes that go before those that are timed; and what the publisher gets to hand all of them on.
const BEFORE_EVERY: Duration = Duration::from_micros(50);
const BEFORE_ENDS: Duration = Duration::from_millis(200);

/// Bits of a frame's first byte.
const MORE: u8 = 1;
const LONG: u8 = 2;

/// A rank that is listened to. Like a publisher it keeps [`QUEUE_RECORDS`] messages for a subscriber that does not read, and
/// drops what comes then.
struct Rank {
    stream: UnixStream,
    /// The message that is being written, and how much of it is.
    message: Vec<u8>,
    written: usize,
    /// Where the sequence number stands in it.
    sequence_at: usize,
    /// Numbers of messages that wait.
    waiting: VecDeque<u64>,
    next: u64,
    dropped: u64,
}

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["publish", endpoint, before, passes, interval_us, pace @ ("steady" | "resting")] => {
            let interval = Duration::from_micros(interval_us.parse()?);
            let publisher = Publisher::bind(&endpoint.parse()?, "bench", 0)?;
            publish(publisher, (before.parse()?, passes.parse()?), interval, *pace == "resting")
        }
        ["hear", address] => hear(address),
        ["stall", path] => stall(path),
        ["ranks", base, ranks, rate, seconds] => {
            let seconds = Duration::from_secs(seconds.parse()?);
            serve_ranks(Path::new(base), ranks.parse()?, rate.parse()?, seconds)
        }
        _ => Err(USAGE.into()),
    }
}

/// A scheduler that hands over a pass at an even pace; prints what it spent on its publisher for each, in nanoseconds. One that
/// rests comes to rest between two passes: then ending the rest, and beginning it again, is part of what is timed. Passes that
/// fill the queue of a subscriber may go before.
fn publish(
    mut publisher: Publisher,
    (before, passes): (usize, usize),
    interval: Duration,
    rests: bool,
) -> Outcome {
    println!("bound {}", publisher.endpoint());
    // Subscribers come, and say so on stdin.
    io::stdin().read_line(&mut String::new())?;
    for number in 0..before {
        publisher.publish(pass(number as u64));
        std::thread::sleep(BEFORE_EVERY);
    }
    std::thread::sleep(BEFORE_ENDS);
    let mut work = vec![1_u8; WORK_BYTES];
    let mut took_ns = Vec::with_capacity(passes);
    let mut next = Instant::now();
    let mut compute = |interval: Duration| {
        next += interval;
        while Instant::now() < next {
            work.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
        }
    };
    for number in 0..passes {
        let pass = pass(number as u64);
        let waking = if rests {
            compute(interval / 2);
            let begun = Instant::now();
            publisher.work();
            begun.elapsed()
        } else {
            publisher.work();
            Duration::ZERO
        };
        compute(if rests { interval / 2 } else { interval });
        let begun = Instant::now();
        publisher.publish(pass);
        if rests {
            publisher.rest();
        }
        took_ns.push(u64::try_from((waking + begun.elapsed()).as_nanos())?);
    }
    publisher.rest();
    took_ns.sort_unstable();
    let at = |share: f64| took_ns[((took_ns.len() - 1) as f64 * share) as usize];
    println!("median_ns {} p99_ns {} max_ns {} dropped {}", at(0.5), at(0.99), at(1.0), publisher.dropped());
    // Subscribers take what waits for them.
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// A subscriber that takes whatever comes of an address, until its stdin ends; says when it has heard of every rank, and
/// prints at last how many messages came, and how many did not.
fn hear(address: &str) -> Outcome {
    let endpoints = address.parse::<Address>()?.look();
    let mut accounts = vec![Account::default(); endpoints.len()];
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let (tell, mut heard) = mpsc::channel(4096);
        let start = |(index, endpoint): (usize, Endpoint)| Subscription::start(endpoint, index, tell.clone());
        let _subscriptions: Vec<_> = endpoints.into_iter().enumerate().map(start).collect();
        let mut unheard = accounts.len();
        let mut end = pin!(tokio::task::spawn_blocking(|| io::stdin().read_line(&mut String::new())));
        loop {
            let Heard { from, what } = tokio::select! {
                Some(heard) = heard.recv() => heard,
                _ = &mut end => break,
            };
            let What::Message(message) = what else { continue };
            if let Arrival::First(_) = accounts[from].take(message.sequence) {
                unheard -= 1;
                if unheard == 0 {
                    println!("heard");
                }
            }
        }
    });
    let sum = |read: fn(&Account) -> u64| accounts.iter().map(read).sum::<u64>();
    println!("received {} lost {}", sum(|account| account.received), sum(|account| account.lost));
    Ok(())
}

/// A subscriber that subscribes and does not read before a line of stdin tells it to; prints how many messages it then finds
/// before the first that it lost.
fn stall(path: &str) -> Outcome {
    let mut stream = UnixStream::connect(path)?;
    // libzmq refuses a subscription that comes before it has greeted.
    let (greeting, subscription) = SUBSCRIBER.split_at(PUBLISHER.len());
    stream.write_all(greeting)?;
    stream.read_exact(&mut [0; PUBLISHER.len()])?;
    stream.write_all(subscription)?;
    let mut account = Account::default();
    // A heartbeat: from here on all is sent.
    account.take(sequence(&mut stream)?);
    println!("heard");
    io::stdin().read_line(&mut String::new())?;
    let mut stream = io::BufReader::new(stream);
    while !matches!(account.take(sequence(&mut stream)?), Arrival::Gap(_)) {}
    println!("read {}", account.received - 1);
    Ok(())
}

/// Reads a message; gives its number.
fn sequence(stream: &mut impl io::Read) -> Outcome<u64> {
    let mut frames: Vec<Vec<u8>> = Vec::new();
    loop {
        let mut head = [0; 2];
        stream.read_exact(&mut head)?;
        let [flags, first] = head;
        let mut length = [0, 0, 0, 0, 0, 0, 0, first];
        if flags & LONG != 0 {
            length.rotate_right(1);
            stream.read_exact(&mut length[1..])?;
        }
        let mut frame = vec![0; usize::try_from(u64::from_be_bytes(length))?];
        stream.read_exact(&mut frame)?;
        frames.push(frame);
        if flags & MORE == 0 {
            break;
        }
    }
    let [_, number, _] = frames.as_slice() else { return Err("not a message of three frames".into()) };
    Ok(u64::from_be_bytes(number.as_slice().try_into()?))
}

/// As many ranks, each at a socket of its own: once all are listened to, each sends at an even pace. Prints how many
/// messages were sent and how many were dropped, when all are on their way.
fn serve_ranks(base: &Path, ranks: u32, rate: u32, seconds: Duration) -> Outcome {
    let base: Base = format!("ipc://{}", base.display()).parse()?;
    let mut listeners = Vec::new();
    for number in 0..ranks {
        let Endpoint::Ipc(path) = base.of_rank(number)? else { return Err("no path".into()) };
        listeners.push((UnixListener::bind(&path)?, Removed(path)));
    }
    println!("bound");
    let mut serving = Vec::new();
    for (number, (listener, _)) in listeners.iter().enumerate() {
        serving.push(Rank::accept(listener, u32::try_from(number)?)?);
    }
    println!("heard");
    let between = Duration::from_secs(1) / (ranks * rate);
    let (begun, mut sent, mut late) = (Instant::now(), 0_u64, Duration::ZERO);
    while begun.elapsed() < seconds {
        let due = begun + Duration::from_nanos(between.as_nanos() as u64 * sent);
        let now = Instant::now();
        if now < due {
            std::thread::sleep(due - now);
        }
        late = late.max(now.saturating_duration_since(due));
        let index = (sent % u64::from(ranks)) as usize;
        serving[index].send()?;
        sent += 1;
    }
    let ended = Instant::now();
    while serving.iter().any(|rank| !rank.waiting.is_empty()) {
        for rank in &mut serving {
            rank.flush()?;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let dropped: u64 = serving.iter().map(|rank| rank.dropped).sum();
    let behind = ended.elapsed();
    println!("sent {sent} dropped {dropped} late_ms {} behind_ms {}", late.as_millis(), behind.as_millis());
    // Whoever listens takes what is under way, and is asked what it has.
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}

fn pass(number: u64) -> Pass {
    Pass {
        wall_time: 0.012,
        scheduled: ScheduledRequests {
            num_prefill_requests: number % 3,
            sum_prefill_tokens: 512 * (number % 3),
            num_decode_requests: 48,
            sum_decode_kv_tokens: 48 * 1800 + number,
            var_decode_kv_tokens: 90_000.0,
            ..ScheduledRequests::default()
        },
        queued: QueuedRequests {
            num_prefill_requests: 5,
            sum_prefill_tokens: 9000,
            ..QueuedRequests::default()
        },
    }
}

/// A socket's file, removed with this.
struct Removed(PathBuf);

// === impl Rank ===

impl Rank {
    /// Waits for a subscriber.
    fn accept(listener: &UnixListener, number: u32) -> Outcome<Self> {
        let (mut stream, _) = listener.accept()?;
        stream.write_all(PUBLISHER)?;
        stream.read_exact(&mut [0; SUBSCRIBER.len()])?;
        stream.set_nonblocking(true)?;
        let pass = pass(u64::from(number));
        let metrics = ForwardPassMetrics {
            worker_id: "bench".into(),
            dp_rank: number,
            counter_id: 0,
            wall_time: pass.wall_time,
            scheduled: pass.scheduled,
            queued: pass.queued,
        };
        let mut payload = Vec::new();
        encode(&metrics, &mut payload);
        let mut message = vec![1, 0, 1, 8];
        let sequence_at = message.len();
        message.extend([0; 8]);
        message.push(2);
        message.extend((payload.len() as u64).to_be_bytes());
        message.extend(payload);
        Ok(Self {
            stream,
            written: message.len(),
            message,
            sequence_at,
            waiting: VecDeque::new(),
            next: 0,
            dropped: 0,
        })
    }

    fn send(&mut self) -> Outcome {
        if self.waiting.len() < QUEUE_RECORDS {
            self.waiting.push_back(self.next);
        } else {
            self.dropped += 1;
        }
        self.next += 1;
        self.flush()
    }

    /// Writes as much of what waits as the socket takes.
    fn flush(&mut self) -> Outcome {
        loop {
            if self.written == self.message.len() {
                let Some(number) = self.waiting.pop_front() else { return Ok(()) };
                self.message[self.sequence_at..][..8].copy_from_slice(&number.to_be_bytes());
                self.written = 0;
            }
            match self.stream.write(&self.message[self.written..]) {
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

// === impl Removed ===

impl Drop for Removed {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}
