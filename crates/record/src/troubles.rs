//! What goes wrong with forward passes: counted each time, told once in a while.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollscope_fpm::{Arrival, DecodeError, Endpoint, TransportError};
use rollscope_trace::sentence;

use crate::told::ToldError;

/// What happened with forward passes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassCounts {
    /// Messages that were heard, heartbeats among them.
    pub heard: u64,
    /// Messages that publishers have sent and that did not come.
    pub missing: u64,
    /// Messages that were no record.
    pub malformed: u64,
    /// Times that a publisher was started anew.
    pub restarts: u64,
    /// Reasons for which a publisher was not there, each counted once until it was there again.
    pub connections_lost: u64,
    /// Answers of workers that made no sense of where they publish, or named another's endpoint.
    pub bad_answers: u64,
}

/// Counts troubles and tells of each once in a while. Cheap to clone; all clones count together.
#[derive(Clone, Default)]
pub struct PassTroubles(Arc<Inner>);

/// Something that keeps forward passes from being heard or recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PassTrouble {
    /// A publisher is not there, or not there any more.
    #[error("no forward passes from {endpoint}")]
    Lost {
        /// Where it should be.
        endpoint: Endpoint,
        /// Why.
        source: TransportError,
    },
    /// Messages did not come.
    #[error("forward passes are missing from {endpoint}")]
    Missing {
        /// Where from.
        endpoint: Endpoint,
        /// How many.
        messages: u64,
    },
    /// A message is no record.
    #[error("not a forward pass from {endpoint}")]
    Malformed {
        /// Where from.
        endpoint: Endpoint,
        /// Why.
        source: DecodeError,
    },
    /// A pass of a length that no clock shows.
    #[error("not a time of a forward pass from {endpoint}, seconds: {seconds:e}")]
    Endless {
        /// Where from.
        endpoint: Endpoint,
        /// As it was told.
        seconds: f64,
    },
    /// The run did not take a pass: too much waits to be written.
    #[error("forward passes from {endpoint} are not recorded: too much waits for the disk")]
    Refused {
        /// Where from.
        endpoint: Endpoint,
    },
    /// What a worker tells of its endpoints makes no sense.
    #[error("no forward passes from worker {url}")]
    Told {
        /// Which worker.
        url: Arc<str>,
        /// Why.
        source: ToldError,
    },
    /// Two workers tell of one endpoint; its passes are recorded once, as the first one's.
    #[error("workers {first} and {second} both publish forward passes at {endpoint}")]
    Shared {
        /// Which endpoint.
        endpoint: Endpoint,
        /// Whose passes they are taken for.
        first: Arc<str>,
        /// Who says so too.
        second: Arc<str>,
    },
}

#[derive(Default)]
struct Inner {
    counts: Mutex<PassCounts>,
    /// When each was told last. Not by their texts, in which peers have a say: one that has ever new words would mute the others.
    told: Mutex<BTreeMap<Topic, Instant>>,
    tell: Option<Tell>,
}

/// What a trouble is about: its kind, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Topic {
    kind: &'static str,
    whose: Whose,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    Publisher(Endpoint),
    Worker(Arc<str>),
}

type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// A trouble that goes on is told again after so long.
const AGAIN_AFTER: Duration = Duration::from_mins(10);
/// Troubles that are told within that time; others are only counted.
const MAX_TOLD: usize = 256;

// === impl PassCounts ===

impl PassCounts {
    fn add(&mut self, trouble: &PassTrouble) {
        let (counter, count) = match trouble {
            PassTrouble::Lost { .. } => (&mut self.connections_lost, 1),
            PassTrouble::Missing { messages, .. } => (&mut self.missing, *messages),
            PassTrouble::Malformed { .. } | PassTrouble::Endless { .. } => (&mut self.malformed, 1),
            // The recorder counts them.
            PassTrouble::Refused { .. } => return,
            PassTrouble::Told { .. } | PassTrouble::Shared { .. } => (&mut self.bad_answers, 1),
        };
        *counter = counter.saturating_add(count);
    }
}

// === impl PassTrouble ===

impl PassTrouble {
    fn topic(&self) -> Topic {
        let (kind, endpoint) = match self {
            Self::Lost { endpoint, source } => (lost(source), endpoint),
            Self::Missing { endpoint, .. } => ("missing", endpoint),
            Self::Malformed { endpoint, .. } => ("malformed", endpoint),
            Self::Endless { endpoint, .. } => ("endless", endpoint),
            Self::Refused { endpoint } => ("refused", endpoint),
            Self::Shared { endpoint, .. } => ("shared", endpoint),
            Self::Told { url, .. } => return Topic { kind: "told", whose: Whose::Worker(Arc::clone(url)) },
        };
        Topic { kind, whose: Whose::Publisher(endpoint.clone()) }
    }
}

/// One of few reasons for which a publisher is not there.
fn lost(error: &TransportError) -> &'static str {
    match error {
        TransportError::Closed => "closed",
        TransportError::Late => "late",
        TransportError::Io { .. } => "unreachable",
        TransportError::Greeting
        | TransportError::Kind(_)
        | TransportError::Refused(_)
        | TransportError::Protocol(_)
        | TransportError::TooLong(_) => "no publisher",
    }
}

// === impl PassTroubles ===

impl PassTroubles {
    /// Counts, and has troubles told as sentences.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { tell: Some(Box::new(tell)), ..Inner::default() }))
    }

    /// What happened so far.
    pub fn counts(&self) -> PassCounts {
        *self.0.counts.lock()
    }

    /// Counts a message, by how it followed the one before, where that is known.
    pub(crate) fn count_heard(&self, arrival: Option<Arrival>) {
        let mut counts = self.0.counts.lock();
        counts.heard += 1;
        counts.restarts += u64::from(matches!(arrival, Some(Arrival::Restart(_))));
    }

    /// Counts a trouble, and tells it unless it was told lately.
    pub(crate) fn tell(&self, trouble: &PassTrouble) {
        self.0.counts.lock().add(trouble);
        let Some(tell) = &self.0.tell else { return };
        if self.is_due(trouble.topic(), Instant::now()) {
            tell(&sentence(trouble));
        }
    }

    fn is_due(&self, topic: Topic, now: Instant) -> bool {
        let mut told = self.0.told.lock();
        told.retain(|_, at| now.duration_since(*at) < AGAIN_AFTER);
        let is_due = told.len() < MAX_TOLD && !told.contains_key(&topic);
        if is_due {
            told.insert(topic, now);
        }
        is_due
    }
}

impl fmt::Debug for PassTroubles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PassTroubles").field(&self.counts()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_counted_each_time_and_told_once_in_a_while() {
        let texts = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&texts);
        let troubles = PassTroubles::new(move |text| told.lock().push(text.to_owned()));
        let endpoint = |number: usize| Endpoint::Ipc(format!("/a.{number}").into());
        let lost = |number| PassTrouble::Lost { endpoint: endpoint(number), source: TransportError::Closed };
        for _ in 0..3 {
            troubles.tell(&lost(0));
            troubles.tell(&PassTrouble::Missing { endpoint: endpoint(0), messages: 5 });
        }
        let expected = [
            "no forward passes from ipc:///a.0: the peer closed the connection",
            "forward passes are missing from ipc:///a.0",
        ];
        assert_eq!(*texts.lock(), expected);
        let counts = PassCounts { connections_lost: 3, missing: 15, ..PassCounts::default() };
        assert_eq!(troubles.counts(), counts);
        // A peer that says something else each time is one trouble.
        for number in 0..2 * MAX_TOLD {
            let source = TransportError::Refused(format!("reason {number}"));
            troubles.tell(&PassTrouble::Lost { endpoint: endpoint(0), source });
            troubles.tell(&PassTrouble::Endless { endpoint: endpoint(0), seconds: number as f64 });
        }
        assert_eq!(texts.lock().len(), 4, "its words fill what is told");
        for number in 0..2 * MAX_TOLD {
            troubles.tell(&lost(number));
        }
        assert_eq!(texts.lock().len(), MAX_TOLD, "more were told, or fewer");
        let later = Instant::now() + AGAIN_AFTER;
        assert!(troubles.is_due(lost(0).topic(), later), "it goes on");
        assert_eq!(troubles.0.told.lock().len(), 1);
    }
}
