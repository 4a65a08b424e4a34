//! All ranks at work, a line each, again and again.
//!
//! A screen is a table of text; the terminal is told only to begin at its top and to forget the rest. So there is nothing to
//! restore however the program ends, and into a file the screens go one after the other.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use rollscope_config::options;
use rollscope_fpm::{Account, Endpoint, ForwardPassMetrics, Heard, What};
use rollscope_trace::sentence;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Watch;
use crate::exit::Failure;
use crate::output::inert;
use crate::table::{Table, duration, significant};

options! {
    /// Show all ranks at work, a line each.
    pub(crate) struct TopOptions, environment "ROLLSCOPE_FPM_TOP" {
        observability {
            /// Servers that are asked where they publish.
            server: Vec<String> = &[], value_name("URL");
            /// Seconds between two looks.
            interval: u16 = 1, range(1..=3600);
            /// End after so many looks.
            count: Option<u32> = None, range(1..=1_000_000);
        }
    }
}

/// Everything that is shown.
struct Board {
    ranks: Vec<Rank>,
}

/// One rank.
struct Rank {
    endpoint: Endpoint,
    account: Account,
    /// Why nothing is heard of it.
    trouble: Option<String>,
    /// The latest record.
    last: Option<ForwardPassMetrics>,
    lately: Lately,
}

/// What came since the screen before.
#[derive(Default)]
struct Lately {
    passes: u64,
    busy_s: f64,
    prefill_tokens: u64,
    /// A token for each request that decodes.
    decode_tokens: u64,
}

const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

pub(super) async fn run(mut watch: Watch, options: &TopOptions) -> Result<(), Failure> {
    let mut board = Board::new(&watch.endpoints);
    let mut left = options.count;
    let mut looks = interval(Duration::from_secs(options.interval.into()));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks.tick().await;
    let mut since = Instant::now();
    while left != Some(0) {
        tokio::select! {
            heard = watch.heard.recv() => match heard {
                Some(heard) => board.take(heard),
                None => return Ok(()),
            },
            now = looks.tick() => {
                show(&board.screen(now.duration_since(since)))?;
                since = now;
                left = left.map(|left| left - 1);
            }
        }
    }
    Ok(())
}

fn show(lines: &[String]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if stdout.is_terminal() {
        write!(stdout, "{HOME}")?;
        for line in lines {
            writeln!(stdout, "{line}{REST_OF_LINE}")?;
        }
        write!(stdout, "{REST_OF_SCREEN}")?;
    } else {
        writeln!(stdout, "{}\n", lines.join("\n"))?;
    }
    stdout.flush()
}

// === impl Board ===

impl Board {
    fn new(endpoints: &[Endpoint]) -> Self {
        let rank = |endpoint: &Endpoint| Rank {
            endpoint: endpoint.clone(),
            account: Account::default(),
            trouble: None,
            last: None,
            lately: Lately::default(),
        };
        Self { ranks: endpoints.iter().map(rank).collect() }
    }

    fn take(&mut self, Heard { from, what }: Heard<usize>) {
        let Some(rank) = self.ranks.get_mut(from) else { return };
        match what {
            What::Connected => rank.trouble = None,
            What::Lost(error) => rank.trouble = Some(inert(&sentence(&error))),
            What::Message(message) => {
                rank.account.take(message.sequence);
                match message.metrics {
                    Ok(metrics) => {
                        rank.lately.add(&metrics);
                        rank.last = Some(metrics);
                    }
                    Err(_) => rank.account.malformed += 1,
                }
            }
        }
    }

    /// The screen after so long, and a new beginning for what is counted over time.
    fn screen(&mut self, window: Duration) -> Vec<String> {
        let mut table = Table::new([
            "rank",
            "running",
            "queued",
            "KV tokens",
            "prefill/s",
            "decode/s",
            "forward",
            "passes/s",
            "idle",
            "lost",
            "restarts",
        ]);
        let mut troubles = Vec::new();
        for rank in &mut self.ranks {
            let lately = std::mem::take(&mut rank.lately);
            table.row(rank.cells(&lately, window.as_secs_f64()));
            let name = rank.name();
            troubles.extend(rank.trouble.as_ref().map(|trouble| format!("{name}: {trouble}")));
            if rank.account.malformed > 0 {
                troubles.push(format!("{name}: {} messages are no record", rank.account.malformed));
            }
        }
        let mut lines: Vec<String> = table.lines().collect();
        lines.extend(troubles);
        lines
    }
}

// === impl Rank ===

impl Rank {
    fn name(&self) -> String {
        let last = self.last.as_ref();
        match last.map(|last| (&*last.worker_id, last.dp_rank)) {
            Some((worker, rank)) if !worker.is_empty() => format!("{} dp{rank}", inert(worker)),
            _ => inert(&self.endpoint.to_string()),
        }
    }

    fn cells(&self, lately: &Lately, window_s: f64) -> [String; 11] {
        let blank = || "-".to_owned();
        let per_second = |count: u64| significant(count as f64 / window_s);
        let last = self.last.as_ref().filter(|_| self.trouble.is_none());
        let of =
            |read: fn(&ForwardPassMetrics) -> u64| last.map_or_else(blank, |last| read(last).to_string());
        let idle = (1.0 - lately.busy_s / window_s).clamp(0.0, 1.0) * 100.0;
        let when_heard = |text: String| if last.is_some() { text } else { blank() };
        [
            self.name(),
            of(|last| last.scheduled.num_prefill_requests.saturating_add(last.scheduled.num_decode_requests)),
            of(|last| last.queued.num_prefill_requests.saturating_add(last.queued.num_decode_requests)),
            of(|last| {
                last.scheduled.sum_prefill_kv_tokens.saturating_add(last.scheduled.sum_decode_kv_tokens)
            }),
            when_heard(per_second(lately.prefill_tokens)),
            when_heard(per_second(lately.decode_tokens)),
            if lately.passes == 0 { blank() } else { duration(lately.busy_s / lately.passes as f64) },
            when_heard(per_second(lately.passes)),
            when_heard(format!("{idle:.0}%")),
            self.account.lost.to_string(),
            self.account.restarts.to_string(),
        ]
    }
}

// === impl Lately ===

impl Lately {
    fn add(&mut self, metrics: &ForwardPassMetrics) {
        if metrics.is_heartbeat() {
            return;
        }
        self.passes += 1;
        self.busy_s += metrics.wall_time;
        let scheduled = &metrics.scheduled;
        self.prefill_tokens = self.prefill_tokens.saturating_add(scheduled.sum_prefill_tokens);
        self.decode_tokens = self.decode_tokens.saturating_add(scheduled.num_decode_requests);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rollscope_fpm::{Message, QueuedRequests, ScheduledRequests, TransportError, decode};

    use super::*;

    fn message(from: usize, sequence: u64, metrics: ForwardPassMetrics) -> Heard<usize> {
        let (received, waited) = (Instant::now(), Duration::ZERO);
        Heard { from, what: What::Message(Message { sequence, received, waited, metrics: Ok(metrics) }) }
    }

    #[test]
    fn a_screen_shows_every_rank() {
        let endpoints = ["ipc:///run/a.0", "ipc:///run/a.1", "tcp://h:5"].map(|text| text.parse().unwrap());
        let mut board = Board::new(&endpoints);
        let scheduled = ScheduledRequests {
            num_prefill_requests: 1,
            sum_prefill_tokens: 512,
            num_decode_requests: 7,
            sum_decode_kv_tokens: 9000,
            ..ScheduledRequests::default()
        };
        let queued = QueuedRequests { num_prefill_requests: 3, ..QueuedRequests::default() };
        let pass = ForwardPassMetrics {
            worker_id: "w".into(),
            wall_time: 0.25,
            scheduled,
            queued,
            ..Default::default()
        };
        board.take(message(0, 4, pass.clone()));
        board.take(message(0, 7, pass));
        board.take(message(1, 9, ForwardPassMetrics { dp_rank: 1, ..Default::default() }));
        board.take(message(1, 0, ForwardPassMetrics { dp_rank: 1, ..Default::default() }));
        let (received, waited) = (Instant::now(), Duration::ZERO);
        let bad = Message { sequence: 1, received, waited, metrics: decode(b"no") };
        board.take(Heard { from: 1, what: What::Message(bad) });
        board.take(Heard { from: 2, what: What::Lost(TransportError::Closed) });
        let expected = [
            "rank            running  queued  KV tokens  prefill/s  decode/s  forward  passes/s  idle  lost  restarts",
            "w dp0                 8       3       9000        512      7.00   250 ms      1.00   75%     2         0",
            "ipc:///run/a.1        0       0          0          0         0        -         0  100%     0         1",
            "tcp://h:5             -       -          -          -         -        -         -     -     0         0",
            "ipc:///run/a.1: 1 messages are no record",
            "tcp://h:5: the peer closed the connection",
        ];
        assert_eq!(board.screen(Duration::from_secs(2)), expected);
        // What is counted over time begins anew, and the latest state stays.
        assert!(
            board.screen(Duration::from_secs(2))[1].ends_with(
                "8       3       9000          0         0        -         0  100%     2         0"
            )
        );
    }

    #[test]
    fn what_a_worker_says_neither_steers_the_terminal_nor_overflows() {
        let mut board = Board::new(&["ipc:///run/a.0".parse().unwrap(), "tcp://h:5".parse().unwrap()]);
        let scheduled = ScheduledRequests {
            num_prefill_requests: u64::MAX,
            sum_prefill_tokens: u64::MAX,
            sum_prefill_kv_tokens: u64::MAX,
            num_decode_requests: u64::MAX,
            sum_decode_kv_tokens: u64::MAX,
            ..ScheduledRequests::default()
        };
        let queued = QueuedRequests {
            num_prefill_requests: u64::MAX,
            num_decode_requests: 1,
            ..QueuedRequests::default()
        };
        let pass = ForwardPassMetrics {
            worker_id: "\x1b[2J\nw".into(),
            wall_time: 0.25,
            scheduled,
            queued,
            ..Default::default()
        };
        board.take(message(0, 0, pass.clone()));
        board.take(message(0, 1, pass));
        let refused = TransportError::Refused("\x1b]0;mine\x07\n".into());
        board.take(Heard { from: 1, what: What::Lost(refused) });
        let screen = board.screen(Duration::from_secs(2));
        assert!(screen[1].starts_with("\\u{1b}[2J\\nw dp0 "), "{screen:?}");
        assert_eq!(screen[1].matches(&u64::MAX.to_string()).count(), 3, "{screen:?}");
        assert_eq!(screen[3], "tcp://h:5: refused by the peer: \\u{1b}]0;mine\\u{7}\\n");
    }
}
