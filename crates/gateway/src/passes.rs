//! Loads by the workers' forward passes: news of a load within milliseconds, where somebody listens to them.
//!
//! A pass tells of the batch that was computed, and of what waits. A worker that is decoding and takes a prompt in between
//! computes a pass in which the requests that decode are not: they stand until a pass says otherwise. A server is known
//! when all of its ranks have been heard lately. A heartbeat tells nothing, so whoever hears them leaves it out: SGLang sends
//! one after a second of silence, even in the middle of a long pass.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollscope_route::{Moment, ReportedLoad, WorkerId};

use crate::core::Core;
use crate::pool::PooledWorker;
use crate::server::Gateway;

/// A forward pass of a worker's rank, as far as it tells of its load. A heartbeat is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeardPass {
    /// Data-parallel rank.
    pub rank: u32,
    /// Requests of whose prompt a part was computed.
    pub prefilling: u64,
    /// Requests that got their next token.
    pub decoding: u64,
    /// Requests that waited meanwhile.
    pub waiting: u64,
    /// Tokens that the requests of the pass have in the KV cache.
    pub tokens: u64,
    /// How long ago it was decided what is computed: it tells nothing of what has been sent to the worker since.
    pub age: Duration,
}

/// What has been heard of servers, each by one of its workers.
#[derive(Debug, Default)]
pub(crate) struct Passes(Mutex<BTreeMap<WorkerId, BTreeMap<u32, Rank>>>);

/// What has been heard of a rank.
#[derive(Debug, Default)]
struct Rank {
    last: HeardPass,
    /// Of the last pass in which something was decoded, or in which nothing was computed.
    decoding: u64,
    decoding_tokens: u64,
    /// When it was heard.
    at: Moment,
    /// Of which moment it tells.
    of: Moment,
}

/// The load of a rank or of a server, and of which moment it is.
pub(crate) type Heard = (ReportedLoad, Moment);

// === impl Gateway ===

impl Gateway {
    /// Takes forward passes as they are heard, for policies that go by loads; the worker is named by its instance or its
    /// URL. It waits for nothing, and what it holds is bounded by the registered workers.
    pub fn hear_passes(&self) -> impl Fn(&str, HeardPass) + Send + Sync + use<> {
        let core = Arc::clone(&self.core);
        move |worker, pass| {
            if core.choosers.weighs_loads {
                core.hear(worker, pass);
            }
        }
    }
}

// === impl Core ===

impl Core {
    fn hear(&self, name: &str, pass: HeardPass) {
        let fleet = self.registry.fleet();
        let is_named =
            |server: &&Arc<PooledWorker>| server.id.as_str() == name || server.url.as_str() == name;
        let Some(named) = fleet.all().find(is_named) else { return };
        // All ranks of a server are kept with the first of its workers.
        let Some(server) = fleet.servers().find(|server| server.url == named.url) else { return };
        let now = self.clock.moment();
        self.passes
            .0
            .lock()
            .entry(server.id.clone())
            .or_default()
            .entry(pass.rank)
            .or_default()
            .take(pass, now);
        let of_all = self.heard_load(server, self.max_load_age());
        for worker in fleet.all().filter(|worker| worker.url == server.url) {
            let load = match worker.rank {
                Some(rank) if rank == pass.rank => self.passes.of_rank(&server.id, rank),
                Some(_) => None,
                None => of_all,
            };
            if let Some((load, of)) = load {
                worker.report_load(load, of);
            }
        }
    }

    /// The load of a server by its passes, if all of its ranks have been heard within a time.
    pub(crate) fn heard_load(&self, server: &PooledWorker, within: Duration) -> Option<Heard> {
        let now = self.clock.moment();
        let passes = self.passes.0.lock();
        let ranks = passes.get(&server.id)?;
        let fresh = ranks.values().filter(|rank| now.since(rank.at) <= within);
        let loads: Vec<Heard> = fresh.map(Rank::load).collect();
        if loads.len() < server.dp_size().unwrap_or(1).max(1) as usize {
            return None;
        }
        // Of what was sent after the oldest it is not known which rank has it.
        loads.into_iter().reduce(|(sum, oldest), (load, of)| (sum.and(&load), oldest.min(of)))
    }
}

// === impl Passes ===

impl Passes {
    fn of_rank(&self, server: &WorkerId, rank: u32) -> Option<Heard> {
        self.0.lock().get(server)?.get(&rank).map(Rank::load)
    }

    /// Forgets servers that are gone.
    pub(crate) fn retain(&self, is_there: impl Fn(&WorkerId) -> bool) {
        self.0.lock().retain(|server, _| is_there(server));
    }
}

// === impl Rank ===

impl Rank {
    fn take(&mut self, pass: HeardPass, at: Moment) {
        if pass.decoding > 0 || pass.prefilling == 0 {
            (self.decoding, self.decoding_tokens) = (pass.decoding, pass.tokens);
        }
        (self.last, self.at, self.of) = (pass, at, Moment(at.0.saturating_sub(pass.age)));
    }

    fn load(&self) -> Heard {
        let has_decoded = self.last.decoding > 0;
        let load = ReportedLoad {
            running: self.last.prefilling + self.decoding,
            waiting: self.last.waiting,
            tokens: if has_decoded { self.last.tokens } else { self.last.tokens + self.decoding_tokens },
        };
        (load, self.of)
    }
}

#[cfg(test)]
mod tests {
    use rollscope_route::{Registry, Role, WorkerUrl};

    use super::*;

    #[test]
    fn what_decodes_is_there_while_a_prompt_is_computed() {
        let mut rank = Rank::default();
        let pass = |prefilling, decoding, waiting, tokens| HeardPass {
            rank: 0,
            prefilling,
            decoding,
            waiting,
            tokens,
            age: Duration::from_secs(1),
        };
        for (what, pass, running, waiting, tokens) in [
            ("prompts", pass(2, 0, 5, 100), 2, 5, 100),
            ("tokens", pass(0, 2, 4, 102), 2, 4, 102),
            ("another prompt", pass(1, 0, 3, 50), 3, 3, 152),
            ("both in one", pass(1, 3, 0, 180), 4, 0, 180),
            ("nothing", pass(0, 0, 0, 0), 0, 0, 0),
        ] {
            let now = Moment(Duration::from_secs(9));
            rank.take(pass, now);
            let of = Moment(Duration::from_secs(8));
            assert_eq!(rank.load(), (ReportedLoad { running, waiting, tokens }, of), "{what}");
        }
    }

    #[test]
    fn what_servers_that_are_gone_have_told_is_forgotten() {
        let (registry, passes) = (Registry::<()>::new(), Passes::default());
        let [first, second] = ["http://a:1", "http://b:1"].map(|url| {
            let worker =
                registry.add(WorkerUrl::parse(url).unwrap(), Role::Regular, (), &mut rand::rng()).id.clone();
            passes.0.lock().insert(worker.clone(), BTreeMap::from([(0, Rank::default())]));
            worker
        });
        registry.remove(first.as_str());
        passes.retain(|id| registry.fleet().get(id.as_str()).is_some());
        assert!(passes.of_rank(&first, 0).is_none() && passes.of_rank(&second, 0).is_some());
    }
}
