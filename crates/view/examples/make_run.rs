//! Writes a large run to measure the viewer with: one closed step of a disaggregated fleet.
//!
//! `cargo run --release -p rollscope-view --example make_run -- DIR SAMPLES TURNS WORKERS`: each turn of a sample is a
//! request of 12 spans and a reward span of the user's; each worker tells of a forward pass 30 times a second. The same
//! arguments make the same records.

use std::error::Error;
use std::path::Path;

use rollscope_run::{LogOptions, Run, RunInfo};
use rollscope_trace::{
    Attr, CloseReason, Finish, FinishKind, ForwardPass, Join, Leg, LegRole, Measure, Nanos, PassLoad,
    Profile, Reading, Record, Report, RequestId, SampleKey, SampleMark, StepClose, StepNumber, UnixNs,
    UserSpan, WorkerRef,
};

const BEGIN: UnixNs = UnixNs(1_760_000_000_000_000_000);
const STEP: StepNumber = StepNumber(1);
const GROUP: u64 = 8;
const MS: u64 = 1_000_000;
/// From one forward pass of a worker to the next.
const PASS_NS: u64 = 33 * MS;

/// A small generator of pseudo-random numbers (xorshift64*), so that the run needs no crate for it.
struct Dice(u64);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, samples, turns, workers] = args.as_slice() else {
        return Err("wanted: DIR SAMPLES TURNS WORKERS".into());
    };
    let (samples, turns, workers): (u64, u64, u64) = (samples.parse()?, turns.parse()?, workers.parse()?);
    let info = RunInfo { producer: "make_run".to_owned(), created: BEGIN, config: serde_json::Value::Null };
    let run = Run::create(Path::new(dir), &info)?;
    let mut writer = run.writer("gateway", LogOptions::default())?;
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let mut last = 0;
    for sample in 0..samples {
        // Samples begin as slots get free, 512 at a time.
        let mut at = sample / 512 * 900 * MS + dice.below(700 * MS);
        for turn in 0..turns {
            let profile = request(sample, turn, at, workers, &mut dice);
            at += profile.end.0 + 2 * MS;
            writer.append(&Record::Profile(Box::new(profile)))?;
            let end = at + (1 + dice.below(30)) * MS;
            writer.append(&Record::Span(reward(sample, at, end)))?;
            at = end;
        }
        let mut mark = SampleMark::new(key(sample));
        (mark.reward, mark.response_tokens) = (Some(dice.below(5) as f64 / 4.0), Some(40 + dice.below(900)));
        writer.append(&Record::Sample(mark))?;
        last = last.max(at);
    }
    for worker in 0..workers {
        for pass in 0..last / PASS_NS {
            let pass = forward_pass(worker, workers, pass, &mut dice);
            writer.append(&Record::ForwardPass(Box::new(pass)))?;
        }
    }
    let (at, reason) = (BEGIN.after(Nanos(last)), CloseReason::Told);
    let close = StepClose { step: STEP, at, reason, rollout_time: None, gpus: Some(8) };
    writer.append(&Record::Close(close))?;
    writer.flush()?;
    run.sealer(writer.name()).seal(writer.position())?;
    let sealed = run.sealed_state(STEP)?;
    let trace = run.step(STEP)?;
    let numbers = rollscope_stats::step_numbers(&trace);
    let glance = rollscope_view::glance(trace, numbers).ok_or("no first sight of the step")?;
    run.put_glance(STEP, sealed, glance)?;
    Ok(writer.end()?)
}

fn key(sample: u64) -> SampleKey {
    let group = Some(format!("prompt-{}", sample / GROUP).into());
    SampleKey { step: STEP, group, sample: format!("sample-{}", sample % GROUP).into() }
}

fn reward(sample: u64, start_ns: u64, end_ns: u64) -> UserSpan {
    UserSpan {
        key: key(sample),
        attempt: 0,
        name: "reward".into(),
        start: BEGIN.after(Nanos(start_ns)),
        end: Some(BEGIN.after(Nanos(end_ns))),
        attrs: vec![("checker".into(), Attr::from("exact"))],
    }
}

/// A worker by its number: the first half compute prompts, the others generate.
fn worker_of(worker: u64, workers: u64) -> WorkerRef {
    let pair = (workers / 2).max(1);
    let role = if worker < pair { LegRole::Prefill } else { LegRole::Decode };
    let number = worker % pair;
    WorkerRef {
        url: format!("http://{}-{number}:30000", role.name()).into(),
        instance: format!("w-{number}").into(),
    }
}

fn forward_pass(worker: u64, workers: u64, number: u64, dice: &mut Dice) -> ForwardPass {
    let (some, few) = (dice.below(60), dice.below(4));
    let scheduled = if worker < (workers / 2).max(1) {
        PassLoad { prefill_requests: few, prefill_tokens: few * 900, ..PassLoad::default() }
    } else {
        PassLoad { decode_requests: some, decode_kv_tokens: some * 1200, ..PassLoad::default() }
    };
    let endpoint = format!("tcp://worker-{worker}:20380");
    ForwardPass {
        step: Some(STEP),
        worker: Some(worker_of(worker, workers)),
        lost_before: u64::from(dice.below(2000) == 0),
        uncertainty: Nanos(MS),
        wall: Nanos((5 + dice.below(25)) * MS),
        scheduled,
        queued: PassLoad { decode_requests: few, ..PassLoad::default() },
        ..ForwardPass::new(&endpoint, number, BEGIN.after(Nanos((number + 1) * PASS_NS)))
    }
}

fn request(sample: u64, turn: u64, at_ns: u64, workers: u64, dice: &mut Dice) -> Profile {
    use Measure as M;
    let SampleKey { group, sample: name, .. } = key(sample);
    let id = sample << 16 | turn;
    let ms = |dice: &mut Dice, most: u64| dice.below(most * 1000) as f64 / 1e6;
    let (bootstrap, alloc) = (ms(dice, 4), ms(dice, 3));
    let (prefill, transfer) = (0.005 + ms(dice, 60), ms(dice, 6));
    let (handshake, pages) = (ms(dice, 3), ms(dice, 3));
    // A few are stragglers.
    let long = if dice.below(100) == 0 { 8.0 } else { 1.0 };
    let decode = (0.1 + ms(dice, 800)) * long;
    let prompt = 64.0 + dice.below(2000) as f64;
    let first = bootstrap + alloc + prefill + transfer;
    let prefill_leg = [
        (M::PrefillBootstrapQueue, bootstrap + alloc),
        (M::PrefillBootstrap, bootstrap),
        (M::PrefillAllocWait, alloc),
        (M::PrefillForward, prefill + transfer),
        (M::PrefillTransferQueue, transfer),
        (M::TransferTotal, prompt / 100.0),
        (M::PromptTokens, prompt),
    ];
    let generated = (decode * 60.0).floor();
    let queued = ms(dice, 9);
    let decode_leg = [
        (M::DecodePrealloc, handshake + pages),
        (M::DecodeBootstrap, handshake),
        (M::DecodeAllocWait, pages),
        (M::DecodeTransfer, (first - handshake - pages).max(0.0)),
        (M::DecodeForward, decode),
        (M::PromptTokens, prompt),
        (M::CompletionTokens, generated),
        (M::QueueTime, queued),
        (M::E2eLatency, first + decode),
        (M::DecodeThroughput, generated / decode),
    ];
    let pair = (workers / 2).max(1);
    let length_ns = ((first + decode) * 1e9) as u64 + 3 * MS;
    let leg = |role: LegRole, worker: u64, end_ns: u64, readings: &[(M, f64)]| {
        let reading = |(measure, value): &(M, f64)| (*measure, Reading { value: *value, fault: None });
        Leg {
            first_byte: Some(Nanos((first * 1e9) as u64)),
            report: Report {
                measures: readings.iter().map(reading).collect(),
                finish: Some(Finish { kind: FinishKind::Stop, message: None, status_code: None }),
                weight_version: Some("default".into()),
                worker_request_id: Some(format!("{id:032x}").into()),
            },
            ..Leg::new(
                role,
                worker_of(if role == LegRole::Prefill { worker } else { pair + worker }, workers),
                Nanos(MS),
                Nanos(end_ns),
            )
        }
    };
    let (prefill_worker, decode_worker) = (dice.below(pair), dice.below(pair));
    Profile {
        join: Join { step: Some(STEP), group, sample: Some(name), ..Join::default() },
        first_byte: Some(Nanos((first * 1e9) as u64)),
        decision: "power_of_two of 32 prefill, power_of_two of 32 decode".into(),
        legs: vec![
            leg(LegRole::Prefill, prefill_worker, (first * 1e9) as u64 + 2 * MS, &prefill_leg),
            leg(LegRole::Decode, decode_worker, length_ns - MS, &decode_leg),
        ],
        ..Profile::new(RequestId(u128::from(id)), BEGIN.after(Nanos(at_ns)), Nanos(length_ns))
    }
}

// === impl Dice ===

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % limit.max(1)
    }
}
