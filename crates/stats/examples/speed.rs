//! How long the numbers of a large step take: `cargo run --release -p rollscope-stats --example speed [REQUESTS [SAMPLES [ROUNDS]]]`.
//!
//! Every request is of a prefill/decode pair and has all of its stages. A sample has several turns, 8 unless told
//! otherwise, and 128 samples are in flight.

#[path = "../../formats/examples/cpu/mod.rs"]
mod cpu;

use rollscope_stats::step_numbers;
use rollscope_trace::{
    Join, Leg, LegRole, Nanos, Profile, Record, Report, RequestId, Scalar, StepNumber, StepTrace, UnixNs,
    WorkerRef,
};

use cpu::Watch;

/// Numbers that only look random: Lehmer's generator with the multiplier of Park and Miller.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> f64 {
        self.0 = self.0 * 48_271 % 0x7fff_ffff;
        self.0 as f64 / 2_147_483_647.0
    }
}

fn workers(side: &str) -> Vec<WorkerRef> {
    let worker = |number| {
        let url = format!("http://10.0.0.{number}:30000");
        WorkerRef { instance: format!("{side}@{url}").into(), url: url.into() }
    };
    (0..8).map(worker).collect()
}

fn leg(
    draw: &mut Draw,
    (role, workers): (LegRole, &[WorkerRef]),
    end: Nanos,
    names: &[(&'static str, f64)],
) -> Leg {
    let worker = workers[(draw.next() * 8.0) as usize].clone();
    let pairs: Vec<_> =
        names.iter().map(|(name, most)| (*name, Scalar::Number(draw.next() * most))).collect();
    Leg { report: Report::from_pairs(pairs), ..Leg::new(role, worker, Nanos(0), end) }
}

/// Samples in flight.
const IN_FLIGHT: u64 = 128;

fn profile(draw: &mut Draw, workers: &[Vec<WorkerRef>; 2], number: u64, turns: u64) -> Profile {
    let prefill = [
        ("pd_prefill_bootstrap_queue_duration", 0.1),
        ("pd_prefill_bootstrap_duration", 0.1),
        ("pd_prefill_alloc_wait_duration", 0.1),
        ("pd_prefill_forward_duration", 0.5),
        ("pd_prefill_transfer_queue_duration", 0.1),
        ("pd_transfer_speed_gb_s", 20.0),
        ("pd_transfer_total_mb", 200.0),
        ("pd_prefill_retry_count", 0.0),
        ("queue_time", 0.2),
        ("prompt_tokens", 900.0),
        ("cached_tokens", 0.5),
    ];
    let decode = [
        ("pd_decode_prealloc_duration", 0.1),
        ("pd_decode_bootstrap_duration", 0.1),
        ("pd_decode_alloc_wait_duration", 0.1),
        ("pd_decode_transfer_duration", 0.3),
        ("pd_decode_forward_duration", 20.0),
        ("queue_time", 0.1),
        ("e2e_latency", 25.0),
        ("decode_throughput", 90.0),
        ("prompt_tokens", 900.0),
        ("completion_tokens", 2000.0),
    ];
    let end = Nanos((draw.next() * 25e9) as u64);
    let sample = number / (IN_FLIGHT * turns) * IN_FLIGHT + number % IN_FLIGHT;
    Profile {
        join: Join {
            step: Some(StepNumber(1)),
            group: Some((sample / 8).to_string().into()),
            sample: Some((sample % 8).to_string().into()),
            ..Join::default()
        },
        legs: vec![
            leg(draw, (LegRole::Prefill, &workers[0]), end, &prefill),
            leg(draw, (LegRole::Decode, &workers[1]), end, &decode),
        ],
        ..Profile::new(
            RequestId(number.into()),
            UnixNs(1_700_000_000_000_000_000 + number as i64 * 300_000),
            end,
        )
    }
}

#[expect(clippy::print_stdout, reason = "the figures are what it is for")]
fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let requests = args.next().and_then(Result::ok).unwrap_or(1_000_000);
    let samples = args.next().and_then(Result::ok).unwrap_or(requests / 8).max(1);
    let rounds = args.next().and_then(Result::ok).unwrap_or(5);
    let turns = requests.div_ceil(samples);
    let mut draw = Draw(42);
    let workers = ["prefill", "decode"].map(workers);
    let records =
        (0..requests).map(|number| Record::Profile(Box::new(profile(&mut draw, &workers, number, turns))));
    let trace = StepTrace::gather(StepNumber(1), records);
    let (mut best_s, mut names) = (f64::INFINITY, 0);
    for _ in 0..rounds {
        let watch = Watch::start();
        names = step_numbers(&trace).metrics.len();
        best_s = best_s.min(watch.cpu_s());
    }
    println!("requests {requests} samples {samples} names {names} best_s {best_s:.4}");
}
