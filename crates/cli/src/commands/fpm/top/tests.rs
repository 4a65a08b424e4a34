//! Screens of what was heard.

use std::time::Instant;

use rollscope_fpm::{QueuedRequests, ScheduledRequests, TransportError, decode};
use unicode_width::UnicodeWidthStr as _;

use super::*;

/// The place of an endpoint whose name ends with its number.
fn source(endpoint: &str) -> Origin<PassSource> {
    let number = endpoint.rsplit(['.', ':']).next().unwrap().parse().unwrap();
    let number = if endpoint.starts_with("tcp") { 1000 + number } else { number };
    Origin::new(number, PassSource { endpoint: endpoint.parse().unwrap(), worker: None })
}

fn message(endpoint: &str, sequence: u64, metrics: ForwardPassMetrics) -> Heard<Origin<PassSource>> {
    let (received, waited) = (Instant::now(), Duration::ZERO);
    let message = Message { sequence, received, waited, metrics: Ok(metrics) };
    Heard { from: source(endpoint), what: What::Message(message) }
}

fn pass(worker: &str, dp_rank: u32, running: u64) -> ForwardPassMetrics {
    let scheduled = ScheduledRequests {
        num_prefill_requests: 1,
        sum_prefill_tokens: 512,
        num_decode_requests: running - 1,
        sum_decode_kv_tokens: 9000,
        ..ScheduledRequests::default()
    };
    let queued = QueuedRequests { num_prefill_requests: 3, ..QueuedRequests::default() };
    ForwardPassMetrics {
        worker_id: worker.into(),
        dp_rank,
        wall_time: 0.25,
        scheduled,
        queued,
        ..ForwardPassMetrics::default()
    }
}

const WINDOW: Duration = Duration::from_secs(2);

#[test]
fn a_screen_shows_every_rank() {
    let mut board = Board::default();
    board.take(message("ipc:///run/a.0", 4, pass("w", 0, 8)));
    board.take(message("ipc:///run/a.0", 7, pass("w", 0, 8)));
    let idle = |rank| ForwardPassMetrics { dp_rank: rank, ..ForwardPassMetrics::default() };
    board.take(message("ipc:///run/a.1", 9, idle(1)));
    board.take(message("ipc:///run/a.1", 0, idle(1)));
    let (received, waited) = (Instant::now(), Duration::ZERO);
    let bad = Message { sequence: 1, received, waited, metrics: decode(b"no") };
    board.take(Heard { from: source("ipc:///run/a.1"), what: What::Message(bad) });
    board.take(Heard { from: source("tcp://h:5"), what: What::Lost(TransportError::Closed) });
    // A proxy, behind which two ranks are, with numbers of their own.
    board.take(message("tcp://p:9", 70, idle(0)));
    board.take(message("tcp://p:9", 3, idle(1)));
    board.take(message("tcp://p:9", 71, idle(0)));
    let expected = [
        "rank               latest  running  queued  KV tokens  prefill/s  decode/s  forward  passes/s  idle  messages  lost  restarts",
        "w dp0                pass        8       3       9000        512      7.00   250 ms      1.00   75%         2     2         0",
        "ipc:///run/a.1  heartbeat        0       0          0          0         0        -         0  100%         3     0         1",
        "tcp://h:5               -        -       -          -          -         -        -         -     -         0     0         0",
        "tcp://p:9 dp0   heartbeat        0       0          0          0         0        -         0  100%         2     0         0",
        "tcp://p:9 dp1   heartbeat        0       0          0          0         0        -         0  100%         1     0         0",
        "ipc:///run/a.1: 1 messages are no record",
        "tcp://h:5: the peer closed the connection",
    ];
    assert_eq!(board.screen(WINDOW, None), expected);
    // What is counted over time begins anew, and the latest state stays.
    let again = board.screen(WINDOW, None);
    assert!(again[1].ends_with(
        "8       3       9000          0         0        -         0  100%         2     2         0"
    ));
    // A heartbeat amid a long pass says nothing of what runs.
    board.take(message("ipc:///run/a.0", 8, ForwardPassMetrics { worker_id: "w".into(), ..idle(0) }));
    let silent = &board.screen(WINDOW, None)[1];
    assert!(silent.starts_with("w dp0           heartbeat        8       3       9000 "), "{silent}");
    // It was started anew elsewhere, and stays the rank that it is.
    let elsewhere = PassSource { endpoint: "ipc:///run/b.1".parse().unwrap(), worker: None };
    let from = Origin::new(1, elsewhere);
    let what = What::Moved("ipc:///run/a.1".parse().unwrap());
    board.take(Heard { from: from.clone(), what });
    let next = message("ipc:///run/a.1", 40, idle(1));
    board.take(Heard { from, ..next });
    let anew = &board.screen(WINDOW, None)[2];
    assert!(anew.starts_with("ipc:///run/b.1  heartbeat") && anew.ends_with("0         2"), "{anew}");
    board.take(Heard { from: source("tcp://p:9"), what: What::Left });
    assert_eq!(board.screen(WINDOW, None).len(), 6, "what nobody listens to is gone");
}

#[test]
fn what_a_worker_says_neither_steers_the_terminal_nor_overflows() {
    let mut board = Board::default();
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
    let pass = ForwardPassMetrics { scheduled, queued, ..pass("\x1b[2J\nw", 0, 1) };
    board.take(message("ipc:///run/a.0", 0, pass.clone()));
    board.take(message("ipc:///run/a.0", 1, pass));
    let refused = TransportError::Refused("\x1b]0;mine\x07\n".into());
    board.take(Heard { from: source("tcp://h:5"), what: What::Lost(refused) });
    let screen = board.screen(WINDOW, None);
    assert!(screen[1].starts_with("\\u{1b}[2J\\nw dp0 "), "{screen:?}");
    assert_eq!(screen[1].matches(&u64::MAX.to_string()).count(), 3, "{screen:?}");
    assert_eq!(screen[3], "tcp://h:5: refused by the peer: \\u{1b}]0;mine\\u{7}\\n");
}

#[test]
fn a_screen_fits_its_terminal() {
    let mut board = Board::default();
    for rank in 0..30 {
        board.take(message(&format!("ipc:///run/a.{rank}"), 0, pass(&"long".repeat(17_500), rank, 5)));
    }
    for port in 1..=9 {
        board
            .take(Heard { from: source(&format!("tcp://h:{port}")), what: What::Lost(TransportError::Late) });
    }
    for (columns, lines, ranks, head) in [
        (200, 50, 39, Some("idle  messages  lost  restarts")),
        (200, 20, 13, Some("idle  messages  lost  restarts")),
        (104, 20, 13, Some("decode/s  forward  idle  lost")),
        (80, 10, 5, Some("decode/s  lost")),
        (40, 4, 1, None),
        (3, 3, 0, None),
        (0, 0, 0, None),
    ] {
        let screen = board.screen(WINDOW, Some(Size { columns, lines }));
        let name = format!("{columns} by {lines}: {screen:#?}");
        assert!(screen.iter().all(|line| line.width() <= usize::from(columns)), "{name}");
        assert!(screen.len() < usize::from(lines).max(2) || lines < 3, "{name}");
        let shown = screen.iter().filter(|line| line.starts_with("long") || line.starts_with("tcp://h:"));
        let shown = shown.filter(|line| !line.contains(": ")).count();
        assert_eq!(shown, ranks, "{name}");
        if let Some(head) = head {
            assert!(screen[0].ends_with(head), "{name}");
            assert!(screen.iter().any(|line| line.contains("no handshake in time")), "{name}");
        }
        if head.is_some() && ranks < 39 {
            let more = format!("and {} more: ", 39 - ranks);
            assert!(screen.iter().any(|line| line.starts_with(&more)), "{name}");
        }
    }
    let whole = board.screen(WINDOW, None);
    assert_eq!(whole.len(), 1 + 39 + 9, "in a file everything is there");
    assert!(whole.iter().all(|line| line.chars().count() < 500), "and no name without end");
}

#[test]
fn what_is_made_harmless_still_fits() {
    let mut board = Board::default();
    let refused = TransportError::Refused("\x1b]0;mine\x07".repeat(20));
    board.take(Heard { from: source("tcp://h:5"), what: What::Lost(refused) });
    board.take(message("ipc:///run/a.0", 0, pass(&"\x1b[2J".repeat(50), 0, 1)));
    for columns in [120, 80, 41] {
        let screen = board.screen(WINDOW, Some(Size { columns, lines: 10 }));
        assert!(screen.iter().all(|line| line.width() <= usize::from(columns)), "{columns}: {screen:#?}");
        assert!(screen.iter().any(|line| line.starts_with("tcp://h:5: refused by the peer: \\u{1b}]0;")));
        assert!(screen.iter().all(|line| !line.contains(char::is_control)), "{screen:?}");
    }
}

#[test]
fn a_screen_is_measured_in_columns() {
    let mut board = Board::default();
    board.take(message("ipc:///run/a.0", 0, pass(&"推理".repeat(30), 7, 5)));
    for columns in [120, 81, 80, 41] {
        let screen = board.screen(WINDOW, Some(Size { columns, lines: 10 }));
        assert!(screen.iter().all(|line| line.width() <= usize::from(columns)), "{columns}: {screen:#?}");
        assert!(screen[1].starts_with("推理推理"), "{screen:#?}");
        assert!(screen[1].contains(" dp7"), "{screen:#?}");
    }
}
