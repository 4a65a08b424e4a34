//! Requests as large and as different from each other as real ones are.

use rollscope_trace::{
    ClockOffset, Finish, FinishKind, Join, Leg, LegRole, Measure, Nanos, Profile, Reading, Report, RequestId,
    StepNumber, Unit, UnixNs, WorkerRef,
};

/// Makes requests of prefill/decode pairs with all their stages. Each has times and numbers of its own, down to the last
/// bit, as clocks give them.
#[derive(Debug)]
pub(crate) struct Maker {
    /// Lehmer's generator with the multiplier of Park and Miller.
    state: u64,
    prefill: Vec<WorkerRef>,
    decode: Vec<WorkerRef>,
}

/// Workers on each side.
const WORKERS: usize = 16;
/// Samples of a prompt.
const SAMPLES: u64 = 8;
/// Between two arrivals.
const APART_NS: f64 = 900_000.0;

// === impl Maker ===

impl Maker {
    pub(crate) fn new() -> Self {
        let workers = |role: LegRole| {
            let worker = |number| WorkerRef {
                url: format!("http://{}-{number}:30000", role.name()).into(),
                instance: format!("w-{number:04}").into(),
            };
            (0..WORKERS).map(worker).collect()
        };
        Self { state: 42, prefill: workers(LegRole::Prefill), decode: workers(LegRole::Decode) }
    }

    /// Between 0 and 1.
    fn draw(&mut self) -> f64 {
        let mut bits = 0;
        for _ in 0..2 {
            self.state = self.state * 48_271 % 0x7fff_ffff;
            bits = bits << 31 | self.state;
        }
        (bits >> 9) as f64 / (1u64 << 53) as f64
    }

    fn id(&mut self) -> RequestId {
        let mut half = || (self.draw() * 2f64.powi(64)) as u128;
        RequestId(half() << 64 | half())
    }

    /// The request of that number in a step.
    pub(crate) fn profile(&mut self, step: StepNumber, number: u64) -> Profile {
        let arrival = UnixNs(1_790_000_000_000_000_000 + ((number as f64 + self.draw()) * APART_NS) as i64);
        let end = Nanos(500_000_000 + (self.draw() * 25e9) as u64);
        let first_byte = Nanos((end.0 as f64 * 0.1 * (1.0 + self.draw())) as u64);
        let legs = vec![self.leg(LegRole::Prefill, end), self.leg(LegRole::Decode, end)];
        Profile {
            join: Join {
                step: Some(step),
                group: Some(format!("prompt-{}", number / SAMPLES).into()),
                sample: Some(format!("sample-{}", number % SAMPLES).into()),
                ..Join::default()
            },
            first_byte: Some(first_byte),
            decision: "power_of_two of 16 prefill, power_of_two of 16 decode".into(),
            legs,
            ..Profile::new(self.id(), arrival, end)
        }
    }

    fn leg(&mut self, role: LegRole, end: Nanos) -> Leg {
        let at = (self.draw() * WORKERS as f64) as usize;
        let worker =
            if role == LegRole::Prefill { self.prefill[at].clone() } else { self.decode[at].clone() };
        let end = if role == LegRole::Prefill { Nanos((end.0 as f64 * 0.1) as u64) } else { end };
        let prefix = format!("pd_{}", role.name());
        let is_own = |measure: &Measure| {
            let name = measure.name();
            !name.starts_with("pd_")
                || name.starts_with(&prefix)
                || role == LegRole::Prefill && name.starts_with("pd_transfer")
        };
        let measures = Measure::all().filter(is_own).map(|measure| (measure, self.reading(measure, end)));
        let measures = measures.collect();
        let kind = if self.draw() < 0.9 { FinishKind::Stop } else { FinishKind::Length };
        Leg {
            first_byte: Some(Nanos((end.0 as f64 * self.draw() * 0.1) as u64)),
            clock: Some(ClockOffset {
                offset_ns: at as i64 * 1_000_003 + (self.draw() * 1e4) as i64,
                bound: Nanos(100_000 + (self.draw() * 1e5) as u64),
            }),
            report: Report {
                measures,
                finish: Some(Finish { kind, message: None, status_code: None }),
                weight_version: Some("17".into()),
                worker_request_id: Some(self.id().to_string().into()),
            },
            ..Leg::new(role, worker, Nanos(100_000 + (self.draw() * 2e5) as u64), end)
        }
    }

    fn reading(&mut self, measure: Measure, end: Nanos) -> Reading {
        let share = self.draw();
        let value = match measure.unit() {
            Unit::Seconds => end.as_secs_f64() * 0.2 * share,
            Unit::UnixSeconds => 1_790_000_000.0 + share * 60.0,
            Unit::Tokens => (share * 4000.0).floor(),
            Unit::TokensPerSecond => 200.0 * share,
            Unit::Count => (share * 2.0).floor(),
            Unit::Sequence => (share * 1e6).floor(),
            Unit::GibPerSecond => 40.0 * share,
            Unit::Mib => 512.0 * share,
        };
        Reading { value, fault: None }
    }
}
