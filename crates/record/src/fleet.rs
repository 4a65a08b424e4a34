//! Where workers publish their forward passes: asked of the workers themselves, never guessed from how they were started.
//!
//! A worker is asked until it has told; again when a publisher of its could not be reached, or was lost, since it told, as it
//! may have been started anew and publish elsewhere; and now and then if it publishes nowhere. A rank that publishes elsewhere
//! stays the publisher that it was, and so does one whose worker is another instance at the same URL. Addresses that people gave are
//! looked at again and again, since ranks may come later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollscope_fpm::{Address, Endpoint, Subscriptions};
use rollscope_trace::WorkerRef;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::PassSource;
use crate::told::told_endpoints;
use crate::troubles::{PassTrouble, PassTroubles};

/// A publisher of forward passes, wherever it publishes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PassPublisher {
    /// A rank of the server at a URL.
    Rank(Arc<str>, u32),
    /// Whoever publishes at an address that somebody gave.
    At(Endpoint),
}

/// What a worker told.
struct Told {
    endpoints: BTreeMap<u32, Endpoint>,
    at: Instant,
    /// How often its publishers had not been reached by then.
    failures: u64,
}

/// The endpoints that are known.
struct Known {
    /// Of workers, in the order in which they told.
    told: Vec<(WorkerRef, Told)>,
    /// At addresses that were given.
    given: BTreeSet<Endpoint>,
}

/// Between two looks at the fleet.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// What a worker may take to tell of itself; its own bound on asking its schedulers is shorter.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// A worker that publishes nowhere is asked again after so long.
const ASK_IDLE_EVERY: Duration = Duration::from_secs(30);

/// Listens to the publishers of a fleet that changes, and to those at further addresses; runs until it is dropped. `ask` gets a
/// worker's `/server_info`; one that does not answer may be starting, and is asked again.
pub async fn follow_fleet<A>(
    mut subscriptions: Subscriptions<PassPublisher, PassSource>,
    workers: impl Fn() -> Vec<WorkerRef>,
    mut further: Vec<Address>,
    ask: impl Fn(WorkerRef) -> A,
    troubles: PassTroubles,
) where
    A: Future<Output = Option<Value>> + Send + 'static,
{
    let mut known = Known { told: Vec::new(), given: BTreeSet::new() };
    let (mut asked, mut asking) = (JoinSet::new(), BTreeSet::new());
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {
                known.given = further.iter_mut().flat_map(Address::look).collect();
                let fleet = workers();
                known.told.retain(|(worker, _)| fleet.iter().any(|other| other.url == worker.url));
                for worker in fleet {
                    let failures = failures(&subscriptions, &worker);
                    if known.is_to_tell(&worker, failures) && asking.insert(worker.clone()) {
                        let answer = timeout(ANSWER_WITHIN, ask(worker.clone()));
                        asked.spawn(async move { (worker, failures, answer.await.ok().flatten()) });
                    }
                }
            }
            Some(Ok((worker, failures, info))) = asked.join_next() => {
                asking.remove(&worker);
                let before = known.endpoints(&worker.url);
                match info.map(|info| told_endpoints(&info, &worker.url, &before)).transpose() {
                    Ok(told) => {
                        if let Some(endpoints) = told.flatten() {
                            let told = Told { endpoints, at: Instant::now(), failures };
                            for shared in known.tells(worker, told) {
                                troubles.tell(&shared);
                            }
                        }
                    }
                    Err(source) => troubles.tell(&PassTrouble::Told { url: worker.url, source }),
                }
            }
        }
        subscriptions.follow(known.sources());
    }
}

/// How often publishers of a worker could not be reached, or were lost.
fn failures(subscriptions: &Subscriptions<PassPublisher, PassSource>, worker: &WorkerRef) -> u64 {
    let is_of_worker =
        |publisher: &PassPublisher| matches!(publisher, PassPublisher::Rank(url, _) if *url == worker.url);
    let of_worker = subscriptions.iter().filter(|(publisher, _)| is_of_worker(publisher));
    of_worker.map(|(_, subscription)| subscription.failures()).sum()
}

// === impl Known ===

impl Known {
    /// Whether a worker has to be asked, whose publishers have not been reached so often.
    fn is_to_tell(&self, worker: &WorkerRef, failures: u64) -> bool {
        let told = self.told.iter().find(|(other, _)| other == worker);
        told.is_none_or(|(_, told)| {
            told.failures != failures || (told.endpoints.is_empty() && told.at.elapsed() >= ASK_IDLE_EVERY)
        })
    }

    /// Takes what a worker told; gives the endpoints that it shares with others since.
    fn tells(&mut self, worker: WorkerRef, told: Told) -> Vec<PassTrouble> {
        let before = self.shared();
        match self.told.iter_mut().find(|(other, _)| other.url == worker.url) {
            Some(known) => *known = (worker, told),
            None => self.told.push((worker, told)),
        }
        let news = self.shared().into_iter().filter(|shared| !before.contains(shared));
        news.map(|(endpoint, [first, second])| PassTrouble::Shared { endpoint, first, second }).collect()
    }

    /// What the worker at a URL told.
    fn endpoints(&self, url: &str) -> BTreeMap<u32, Endpoint> {
        let told = self.told.iter().find(|(worker, _)| *worker.url == *url);
        told.map(|(_, told)| told.endpoints.clone()).unwrap_or_default()
    }

    /// Endpoints that more than one worker tells of: whose each is, and who tells of it too.
    fn shared(&self) -> BTreeSet<(Endpoint, [Arc<str>; 2])> {
        let owners = self.owners();
        let tells = self
            .told
            .iter()
            .flat_map(|(worker, told)| told.endpoints.values().map(move |endpoint| (endpoint, worker)));
        let shared = tells.filter_map(|(endpoint, worker)| {
            let (first, _) = owners.get(endpoint).filter(|(first, _)| *first != worker)?;
            Some((endpoint.clone(), [first.url.clone(), worker.url.clone()]))
        });
        shared.collect()
    }

    /// The workers that told of endpoints, of each the first one, and which of its ranks is there.
    fn owners(&self) -> BTreeMap<&Endpoint, (&WorkerRef, u32)> {
        let mut owners = BTreeMap::new();
        for (worker, told) in &self.told {
            for (rank, endpoint) in &told.endpoints {
                owners.entry(endpoint).or_insert((worker, *rank));
            }
        }
        owners
    }

    /// What there is to listen to, each endpoint once: as the first worker's that told of it, or as nobody's.
    fn sources(&self) -> Vec<(PassPublisher, PassSource, Endpoint)> {
        let owners = self.owners();
        let others = self.given.iter().filter(|endpoint| !owners.contains_key(endpoint));
        let others = others.map(|endpoint| (PassPublisher::At(endpoint.clone()), None, endpoint.clone()));
        let owned = owners.iter().map(|(&endpoint, &(worker, rank))| {
            (PassPublisher::Rank(Arc::clone(&worker.url), rank), Some(worker.clone()), endpoint.clone())
        });
        let all = owned.chain(others);
        all.map(|(publisher, worker, endpoint)| {
            (publisher, PassSource { endpoint: endpoint.clone(), worker }, endpoint)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_two_workers_name_is_the_first_ones() {
        let worker = |url: &str| WorkerRef { url: url.into(), instance: url.into() };
        let endpoint = |text: &str| text.parse::<Endpoint>().unwrap();
        let told = |endpoints: &[&str], failures| Told {
            endpoints: (0..).zip(endpoints.iter().map(|text| endpoint(text))).collect(),
            at: Instant::now(),
            failures,
        };
        let given = BTreeSet::from([endpoint("ipc:///a.0"), endpoint("ipc:///c.0")]);
        let mut known = Known { told: Vec::new(), given };
        let mut news = |url, endpoints: &[&str], failures| {
            let news = known.tells(worker(url), told(endpoints, failures));
            news.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let shared =
            |second| vec![format!("workers http://z and {second} both publish forward passes at ipc:///a.0")];
        assert!(news("http://z", &["ipc:///a.0"], 0).is_empty());
        assert_eq!(news("http://b", &["ipc:///a.0", "ipc:///b.1"], 2), shared("http://b"));
        assert!(news("http://b", &["ipc:///a.0", "ipc:///b.1"], 3).is_empty(), "it is told already");
        assert_eq!(news("http://d", &["ipc:///a.0"], 0), shared("http://d"));
        assert!(news("http://d", &[], 0).is_empty());
        let sources = known.sources();
        let shown: Vec<_> = sources
            .iter()
            .map(|(_, source, at)| (at.to_string(), source.worker.as_ref().map(|worker| &*worker.url)))
            .collect();
        let expected =
            [("ipc:///a.0", Some("http://z")), ("ipc:///b.1", Some("http://b")), ("ipc:///c.0", None)];
        assert_eq!(shown, expected.map(|(endpoint, worker)| (endpoint.to_owned(), worker)));
        // Started anew it is another instance, that has not told yet, and the same publisher when it has.
        let again = WorkerRef { url: "http://b".into(), instance: "again".into() };
        assert!(known.is_to_tell(&again, 3));
        let publisher = PassPublisher::Rank("http://b".into(), 1);
        let at = |known: &Known| {
            let sources = known.sources();
            let (_, source, at) = sources.iter().find(|(one, ..)| *one == publisher)?;
            Some((source.worker.as_ref()?.instance.to_string(), at.to_string()))
        };
        let told_by = |instance: &str, at: &str| Some((instance.to_owned(), at.to_owned()));
        assert_eq!(at(&known), told_by("http://b", "ipc:///b.1"));
        known.tells(again, told(&["ipc:///a.0", "ipc:///e.1"], 3));
        assert_eq!(at(&known), told_by("again", "ipc:///e.1"));
        known.tells(worker("http://b"), told(&["ipc:///a.0", "ipc:///b.1"], 3));
        // It is asked again when something has failed since it told.
        assert!(!known.is_to_tell(&worker("http://b"), 3) && known.is_to_tell(&worker("http://b"), 4));
        assert!(known.is_to_tell(&worker("http://unknown"), 0));
    }
}
