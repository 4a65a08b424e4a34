//! A worker as it is registered.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::{Rng, RngExt as _};

use crate::address::{WorkerAddress, WorkerUrl};
use crate::books::Counts;
use crate::breaker::BreakerState;
use crate::hash::StableHash;
use crate::health::HealthState;
use crate::leg::{LegGuard, Vitals};
use crate::load::{Load, ReportedLoad};
use crate::moment::Moment;
use crate::rank::DpRank;
use crate::standing::{Availability, Verdicts};

/// A registered worker: one process, or one data-parallel rank of it. `T` is what the owner of the registry keeps for
/// it, such as its connections.
#[derive(Debug)]
pub struct Worker<T> {
    /// The instance's own name: a worker that is registered anew at the same URL, or that has started anew, gets
    /// another, with new books, a closed breaker and a new link.
    pub id: WorkerId,
    /// Where it is, with its rank if it is one: what people and figures call it.
    pub name: Box<str>,
    /// Where it is.
    pub url: WorkerUrl,
    /// The rank that is meant, if it is one.
    pub rank: Option<u32>,
    /// What it may be asked to do.
    pub role: Role,
    /// The owner's.
    pub link: T,
    pub(crate) vitals: Arc<Vitals>,
    /// Hash of its address.
    pub(crate) place: u64,
    introduction: Mutex<Introduction>,
}

/// Name of an instance: 16 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId {
    number: u64,
    text: Box<str>,
}

/// What a server says of itself, in `/server_info` or however it is asked. What it does not say is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    /// Anything that differs from one start of it to the next: an instance id, a start-up time. Only compared.
    pub stamp: Option<Box<str>>,
    /// How many data-parallel ranks it has.
    pub dp_size: Option<u32>,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Regular,
    /// The prompt.
    Prefill {
        /// Port of its bootstrap server, if it is known.
        bootstrap_port: Option<u16>,
    },
    /// The tokens.
    Decode,
}

/// A role without its particulars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RoleKind {
    /// Everything.
    Regular,
    /// The prompt.
    Prefill,
    /// The tokens.
    Decode,
}

// === impl Worker ===

impl<T> Worker<T> {
    pub(crate) fn new(id: WorkerId, address: WorkerAddress, role: Role, link: T, vitals: Vitals) -> Self {
        let name = address.to_string();
        let place = StableHash::new().add(name.as_bytes()).finish();
        Self {
            id,
            name: name.into(),
            url: address.url,
            rank: address.rank,
            role,
            link,
            vitals: Arc::new(vitals),
            place,
            introduction: Mutex::default(),
        }
    }

    /// Begins a leg, unless the worker has been removed or its breaker has opened since it was chosen.
    pub fn begin(&self, size_bytes: u64, now: Moment) -> Result<LegGuard, Availability> {
        self.vitals.begin(size_bytes, now)
    }

    /// Legs that have not ended.
    pub fn load(&self) -> u64 {
        self.counts().live
    }

    /// The legs sent to it.
    pub fn counts(&self) -> Counts {
        self.vitals.books.counts()
    }

    /// Legs that have not ended, and their size.
    pub fn in_flight(&self) -> Load {
        self.vitals.in_flight()
    }

    /// Its load by its own report, if there is one of at most that age.
    pub fn reported_load(&self, now: Moment, max_age: Duration) -> Option<Load> {
        self.vitals.reported(now, max_age)
    }

    /// Takes what it said of its load at a moment: what began here after that is added to it. An older report than the one
    /// at hand is ignored.
    pub fn report_load(&self, load: ReportedLoad, at: Moment) {
        self.vitals.report(load, at);
    }

    /// Takes the result of an active check; gives the health if it has changed.
    pub fn check(&self, passed: bool) -> Option<HealthState> {
        self.vitals.standing.check(passed)
    }

    /// Whether it may be sent a request.
    pub fn availability(&self, now: Moment) -> Availability {
        self.vitals.standing.availability(now)
    }

    /// What its checks say.
    pub fn health(&self) -> HealthState {
        self.vitals.standing.health()
    }

    /// What its breaker does.
    pub fn breaker(&self) -> BreakerState {
        self.vitals.standing.breaker()
    }

    /// What its breaker has been told so far.
    pub fn verdicts(&self) -> Verdicts {
        self.vitals.standing.verdicts()
    }

    /// How many data-parallel ranks its server has, once it has said so.
    pub fn dp_size(&self) -> Option<u32> {
        self.introduction.lock().dp_size
    }

    /// The rank that a request goes to, if it is known and the server has it: the worker's own, or else the one that
    /// is asked for.
    pub fn dp_rank(&self, asked: Option<u32>) -> Option<DpRank> {
        DpRank::new(self.rank.or(asked)?, self.dp_size()?).ok()
    }

    /// How it was named.
    pub fn address(&self) -> WorkerAddress {
        WorkerAddress { url: self.url.clone(), rank: self.rank }
    }

    /// Learns what was not known. False if something contradicts what was known: then another process answers.
    pub(crate) fn learn(&self, news: &Introduction) -> bool {
        let mut known = self.introduction.lock();
        if contradict(known.stamp.as_ref(), news.stamp.as_ref())
            || contradict(known.dp_size.as_ref(), news.dp_size.as_ref())
        {
            return false;
        }
        if known.stamp.is_none() {
            known.stamp.clone_from(&news.stamp);
        }
        known.dp_size = known.dp_size.or(news.dp_size);
        true
    }
}

fn contradict<V: PartialEq>(known: Option<&V>, news: Option<&V>) -> bool {
    matches!((known, news), (Some(known), Some(news)) if known != news)
}

// === impl WorkerId ===

impl WorkerId {
    pub(crate) fn draw(rng: &mut impl Rng) -> Self {
        let number = rng.random();
        Self { number, text: format!("{number:016x}").into() }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// === impl Role ===

impl Role {
    /// Without its particulars.
    pub fn kind(self) -> RoleKind {
        match self {
            Self::Regular => RoleKind::Regular,
            Self::Prefill { .. } => RoleKind::Prefill,
            Self::Decode => RoleKind::Decode,
        }
    }
}

// === impl RoleKind ===

impl RoleKind {
    /// As spelled in the `worker_type` of SGLang's router.
    pub fn name(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl fmt::Display for RoleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
