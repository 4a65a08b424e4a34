//! Requests that are aborted before a worker has them.
//!
//! `/abort_request` is told to all workers, but they know nothing of a request that waits here, is being read, or is on its way
//! to a connection: that one is called off by the gateway. Each abort has a number, and a request keeps the number of the last
//! one before its arrival; any later one may mean it, until the moment at which it is written to a worker. Which names a request has
//! is known only when its body has been read. The queue reads none, so an abort by name has those that wait read theirs, as many at
//! once as there is room for; the others look when their turn comes.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rollscope_wire::{Dialect, GenerateRequest};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::core::Core;
use crate::fault::Refusal;
use crate::inbound::Inbound;

/// The aborts that clients have asked for.
#[derive(Debug)]
pub(crate) struct CallOffs {
    count: AtomicU64,
    recent: Mutex<Recent>,
    called: Notify,
    /// For bodies that are read although their requests have no place among those that are served, in KiB.
    room: Semaphore,
}

/// Aborts, by their numbers.
#[derive(Debug, Default)]
struct Recent {
    /// The last one of all requests.
    all: u64,
    /// Those by name since then, the oldest first.
    names: VecDeque<(u64, String)>,
}

/// The aborts of before a request's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since(u64);

/// Whom an abort means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    All,
    /// Of this name, or one that begins with it: workers take it so.
    Named(String),
}

/// Of more names than these the oldest are forgotten.
const MAX_NAMES: usize = 4096;
/// Longer ones are no names of requests.
const MAX_NAME_BYTES: usize = 4096;
/// Room for bodies.
const ROOM_KIB: usize = 256 << 10;

// === impl CallOffs ===

impl CallOffs {
    /// The aborts until now.
    pub(crate) fn until_now(&self) -> Since {
        Since(self.count.load(Ordering::Acquire))
    }

    /// Takes note of an abort.
    pub(crate) fn call_off(&self, whom: Whom) {
        {
            let mut recent = self.recent.lock();
            let number = self.count.load(Ordering::Acquire) + 1;
            recent.note(number, whom);
            self.count.store(number, Ordering::Release);
        }
        self.called.notify_waiters();
    }

    /// Whether a request is called off that has these names.
    pub(crate) fn mean(&self, since: Since, rids: &[String]) -> bool {
        self.until_now() != since && self.recent.lock().mean(since, rids)
    }

    /// Waits until a request is called off whose body is not read before its turn comes. Without a dialect its names can not be
    /// read.
    pub(crate) async fn wait(
        &self,
        since: Since,
        (core, dialect): (&Core, Option<Dialect>),
        inbound: &mut Inbound,
    ) -> Result<(), Refusal> {
        let Some(dialect) = dialect else {
            self.until_meant(since, &[]).await;
            return Ok(());
        };
        self.after(since).await;
        // The room is held for as long as the body is.
        let (_room, rids) = tokio::select! {
            biased;
            () = self.until_meant(since, &[]) => return Ok(()),
            read = self.read(core, inbound) => {
                let room = read?;
                (room, GenerateRequest::scan(inbound.body(), dialect)?.rids)
            }
        };
        self.until_meant(since, &rids).await;
        Ok(())
    }

    /// Reads a body once there is room for it, which is taken until the permit is dropped.
    pub(crate) async fn read(
        &self,
        core: &Core,
        inbound: &mut Inbound,
    ) -> Result<Option<SemaphorePermit<'_>>, Refusal> {
        let limit_bytes = core.options.startup().max_payload_size;
        let kib = inbound.most_bytes(limit_bytes).div_ceil(1 << 10).min(ROOM_KIB);
        // It is never closed.
        let room = self.room.acquire_many(u32::try_from(kib).unwrap_or(u32::MAX)).await.ok();
        inbound.read(core, limit_bytes).await?;
        Ok(room)
    }

    async fn until_meant(&self, since: Since, rids: &[String]) {
        loop {
            let seen = self.until_now();
            if self.mean(since, rids) {
                return;
            }
            self.after(seen).await;
        }
    }

    /// Waits until there are more aborts than these.
    async fn after(&self, seen: Since) {
        loop {
            let mut called = pin!(self.called.notified());
            called.as_mut().enable();
            if self.until_now() != seen {
                return;
            }
            called.await;
        }
    }
}

impl Default for CallOffs {
    fn default() -> Self {
        Self {
            count: AtomicU64::new(0),
            recent: Mutex::default(),
            called: Notify::new(),
            room: Semaphore::new(ROOM_KIB),
        }
    }
}

// === impl Recent ===

impl Recent {
    fn note(&mut self, number: u64, whom: Whom) {
        match whom {
            Whom::All => (self.all, self.names) = (number, VecDeque::new()),
            Whom::Named(name) if name.len() <= MAX_NAME_BYTES => {
                if self.names.len() == MAX_NAMES {
                    self.names.pop_front();
                }
                self.names.push_back((number, name));
            }
            Whom::Named(_) => {}
        }
    }

    /// Of several names each must be meant: a batch goes as a whole or not at all.
    fn mean(&self, since: Since, rids: &[String]) -> bool {
        let later = || self.names.iter().rev().take_while(|(number, _)| *number > since.0);
        let is_meant = |rid: &String| later().any(|(_, name)| rid.starts_with(&**name));
        self.all > since.0 || (!rids.is_empty() && rids.iter().all(is_meant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn an_abort_means_who_has_come_before_it_and_has_its_name() {
        let calls = CallOffs::default();
        let early = calls.until_now();
        calls.call_off(Whom::Named("req-1".to_owned()));
        let late = calls.until_now();
        for (rids, is_meant) in [
            (&["req-1"][..], true),
            (&["req-10"], true),
            (&["req-2"], false),
            (&["req"], false),
            (&["req-1", "req-2"], false),
            (&["req-1", "req-12"], true),
            (&[], false),
        ] {
            assert_eq!(calls.mean(early, &names(rids)), is_meant, "{rids:?}");
            assert!(!calls.mean(late, &names(rids)), "{rids:?}");
        }
        calls.call_off(Whom::Named("req-2".to_owned()));
        assert!(calls.mean(early, &names(&["req-1", "req-2"])), "by one abort after the other");
        calls.call_off(Whom::All);
        assert!(calls.mean(late, &[]) && !calls.mean(calls.until_now(), &[]));
    }

    #[test]
    fn names_are_bounded() {
        let calls = CallOffs::default();
        let since = calls.until_now();
        for number in 0..2 * MAX_NAMES {
            calls.call_off(Whom::Named(format!("{number:08}")));
        }
        calls.call_off(Whom::Named("x".repeat(MAX_NAME_BYTES + 1)));
        let recent = calls.recent.lock();
        assert_eq!(recent.names.len(), MAX_NAMES);
        assert!(recent.mean(since, &names(&["00008191"])) && !recent.mean(since, &names(&["00000000"])));
    }
}
