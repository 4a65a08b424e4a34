//! Which workers serve a request, and why.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rollscope_route::{
    Ask, Chosen, Decision, DpRank, Fleet, LegGuard, Moment, NoChoice, Policy, PolicyKind, PolicySettings,
    Prompt, RoleKind,
};
use rollscope_trace::Join;
use rollscope_wire::Chunks;

use crate::core::Core;
use crate::fault::Refusal;
use crate::options::GatewayOptions;
use crate::pool::{Pool, PooledWorker};
use crate::{checks, discovery, loads};

/// How the workers of each role are chosen.
#[derive(Debug)]
pub(crate) struct Choosers {
    regular: Chooser,
    prefill: Chooser,
    decode: Chooser,
    /// Whether one of them goes by the prompt.
    pub(crate) reads_prompt: bool,
    /// Whether one of them goes by loads.
    pub(crate) weighs_loads: bool,
}

/// How the workers of one role are chosen.
#[derive(Debug)]
pub(crate) struct Chooser {
    pub(crate) kind: PolicyKind,
    policy: Policy,
    /// So many legs have got a worker.
    pub(crate) chosen: AtomicU64,
}

/// What a choice goes by.
#[derive(Debug)]
pub(crate) struct Wish<'a> {
    pub(crate) join: &'a Join,
    pub(crate) prompt: Option<&'a Chunks>,
    /// Of the body.
    pub(crate) size_bytes: u64,
    /// The data-parallel rank that the client asks for.
    pub(crate) rank: Option<u32>,
    /// Names of workers where it has been in vain.
    pub(crate) avoided: &'a [String],
    pub(crate) now: Moment,
}

/// A worker at which a leg has begun.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) worker: Arc<PooledWorker>,
    pub(crate) guard: LegGuard,
    /// The rank that the leg is for, if it is for one.
    pub(crate) dp_rank: Option<DpRank>,
}

/// What was decided.
#[derive(Debug)]
pub(crate) enum Decided {
    Nothing,
    One(Decision),
    Pair { prefill: Decision, decode: Decision },
}

/// So often a request is given a worker before it is refused.
const MAX_CHOICES: u32 = 4;
/// Of so many unhealthy workers a refusal tells what is wrong.
const MAX_PROBLEMS: usize = 3;
/// Between two times that what is due is done.
const TEND_INTERVAL: Duration = Duration::from_secs(5);

// === impl Choosers ===

impl Choosers {
    pub(crate) fn new(options: &GatewayOptions) -> Self {
        let settings = options.policy_settings();
        let regular = options.policy.0;
        let prefill = options.prefill_policy.map_or(regular, |policy| policy.0);
        let decode = options.decode_policy.map_or(regular, |policy| policy.0);
        let used: &[_] = if options.pd_disaggregation { &[prefill, decode] } else { &[regular] };
        Self {
            regular: Chooser::new(regular, &settings),
            prefill: Chooser::new(prefill, &settings),
            decode: Chooser::new(decode, &settings),
            reads_prompt: used.iter().any(|kind| kind.reads_prompt()),
            weighs_loads: used.iter().any(|kind| kind.weighs_loads()),
        }
    }

    pub(crate) fn of(&self, kind: RoleKind) -> &Chooser {
        match kind {
            RoleKind::Regular => &self.regular,
            RoleKind::Prefill => &self.prefill,
            RoleKind::Decode => &self.decode,
        }
    }
}

// === impl Chooser ===

impl Chooser {
    fn new(kind: PolicyKind, settings: &PolicySettings) -> Self {
        Self { kind, policy: Policy::with(kind, settings), chosen: AtomicU64::new(0) }
    }
}

// === impl Core ===

impl Core {
    /// Finds a seat for a request that one worker serves.
    pub(crate) fn seat(&self, wish: &Wish<'_>) -> Result<(Seat, Decided), Refusal> {
        persist(|| {
            let chosen = self.choose(&self.registry.fleet(), RoleKind::Regular, wish)?;
            let decided = Decided::One(chosen.decision);
            Ok((self.begin(RoleKind::Regular, chosen, wish)?, decided))
        })
    }

    /// Finds seats for a request that a prefill and a decode worker serve. Nothing begins at either before both are
    /// chosen.
    pub(crate) fn seat_pair(&self, wish: &Wish<'_>) -> Result<([Seat; 2], Decided), Refusal> {
        persist(|| {
            let fleet = self.registry.fleet();
            let prefill = self.choose(&fleet, RoleKind::Prefill, wish)?;
            let decode = self.choose(&fleet, RoleKind::Decode, wish)?;
            let decided = Decided::Pair { prefill: prefill.decision, decode: decode.decision };
            let prefill = self.begin(RoleKind::Prefill, prefill, wish)?;
            Ok(([prefill, self.begin(RoleKind::Decode, decode, wish)?], decided))
        })
    }

    fn choose(&self, fleet: &Fleet<Pool>, role: RoleKind, wish: &Wish<'_>) -> Result<Chosen<Pool>, Refusal> {
        let pieces: Vec<&[u8]> =
            wish.prompt.into_iter().flat_map(Chunks::pieces).map(Bytes::as_ref).collect();
        let ask = Ask {
            routing_key: wish.join.session.as_deref().map(str::as_bytes),
            group: wish.join.group.as_deref().map(str::as_bytes),
            prompt: Prompt(&pieces),
            rank: wish.rank,
            avoided: wish.avoided,
            now: wish.now,
            seed: rand::random(),
        };
        let chosen = self.choosers.of(role).policy.decide(fleet.of(role), &ask);
        chosen.map_err(|why| match why {
            NoChoice::NoWorker => Refusal::NoWorker(role),
            NoChoice::Unavailable(_) => {
                let problems = self.problems(fleet.of(role));
                Refusal::NoChoice { role, why, problems }
            }
            NoChoice::NoSuchRank { .. } => Refusal::NoChoice { role, why, problems: String::new() },
        })
    }

    /// What keeps the first workers from being healthy, each behind a semicolon.
    fn problems(&self, workers: &[Arc<PooledWorker>]) -> String {
        let problems = workers.iter().filter_map(|worker| Some((worker, checks::problem(self, worker)?)));
        let told = problems.take(MAX_PROBLEMS).map(|(worker, why)| format!("; {}: {why}", worker.name));
        told.collect()
    }

    /// Begins a leg at the chosen worker.
    fn begin(&self, role: RoleKind, chosen: Chosen<Pool>, wish: &Wish<'_>) -> Result<Seat, Refusal> {
        let Chosen { worker, decision, dp_rank } = chosen;
        let begun = worker.begin(wish.size_bytes, wish.now);
        let why = NoChoice::Unavailable(decision.considered);
        let guard = begun.map_err(|_| Refusal::NoChoice { role, why, problems: String::new() })?;
        self.choosers.of(role).chosen.fetch_add(1, Ordering::Relaxed);
        Ok(Seat { worker, guard, dp_rank })
    }

    /// What goes on beside the requests, for ever.
    pub(crate) async fn tend(&self) {
        tokio::join!(self.tend_often(), loads::poll(self), discovery::follow_all(self));
    }

    /// Does what is due from time to time, for the policies, for what they go by, and for the clock.
    async fn tend_often(&self) {
        loop {
            tokio::time::sleep(TEND_INTERVAL).await;
            let Choosers { regular, prefill, decode, .. } = &self.choosers;
            for chooser in [regular, prefill, decode] {
                chooser.policy.tend(self.clock.moment());
            }
            let fleet = self.registry.fleet();
            self.passes.retain(|id| fleet.get(id.as_str()).is_some());
            // The connections of what is asked beside the requests; serving threads look after their own.
            fleet.all().for_each(|worker| worker.link.tidy());
            if let Some(news) = self.clock.look(self.requests.counts()) {
                self.notices.tell(news.level(), format_args!("{news}"));
            }
        }
    }
}

/// Tries again when a chosen worker has left or broken by the time its leg is to begin.
fn persist<T>(attempt: impl Fn() -> Result<T, Refusal>) -> Result<T, Refusal> {
    let mut last = attempt();
    for _ in 1..MAX_CHOICES {
        if !matches!(last, Err(Refusal::NoChoice { .. })) {
            break;
        }
        last = attempt();
    }
    last
}

// === impl Decided ===

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::One(decision) => decision.fmt(f),
            // Unlike a semicolon the bar stands in no decision.
            Self::Pair { prefill, decode } => write!(f, "prefill {prefill} | decode {decode}"),
        }
    }
}
