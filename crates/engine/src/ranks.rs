//! The data-parallel ranks of a server: a scheduler each, told together what concerns the whole server.
//!
//! A request goes to the rank that it asks for; one with a room to the room's rank, which is the room modulo the number of ranks, so
//! that its other half finds it; any other to the next rank in turn.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::try_join_all;
use rollscope_model::ModelError;

use crate::output::{Abort, Listener};
use crate::request::GenerateSpec;
use crate::scheduler::{Occupation, PauseMode, Postbox, SchedulerGone, Snapshot, Whom};

/// The schedulers of all ranks.
#[derive(Debug)]
pub(crate) struct Ranks {
    postboxes: Vec<Postbox>,
    /// Counts the requests that any rank might have had.
    turn: AtomicUsize,
}

/// Why memory was not released.
#[derive(Debug)]
pub(crate) enum NotReleased {
    /// Live requests need it.
    Needed {
        /// So many.
        live: usize,
    },
    /// They do, and what a rank had given up before it was known cannot be had again: it stands still.
    Lost(ModelError),
}

// === impl Ranks ===

impl Ranks {
    /// One at least.
    pub(crate) fn new(postboxes: Vec<Postbox>) -> Self {
        Self { postboxes, turn: AtomicUsize::new(0) }
    }

    pub(crate) fn count(&self) -> usize {
        self.postboxes.len()
    }

    /// Hands the requests of a batch over, those of a rank as one, and returns the rank of each and where its output will be.
    pub(crate) async fn generate(
        &self,
        specs: Vec<GenerateSpec>,
    ) -> Result<Vec<(usize, Listener)>, SchedulerGone> {
        let mut by_rank: BTreeMap<usize, (Vec<usize>, Vec<GenerateSpec>)> = BTreeMap::new();
        for (index, spec) in specs.into_iter().enumerate() {
            let (indices, specs) = by_rank.entry(self.rank_of(&spec)).or_default();
            indices.push(index);
            specs.push(spec);
        }
        // Nothing is handed over before there is room for all: what is said of the batch finds none of it or all.
        let mut places = Vec::with_capacity(by_rank.len());
        for (rank, (indices, specs)) in by_rank {
            let place = self.postboxes.get(rank).ok_or(SchedulerGone)?.reserve().await?;
            places.push((rank, indices, specs, place));
        }
        let mut listeners = BTreeMap::new();
        for (rank, indices, specs, place) in places {
            let of_rank = place.generate(specs).into_iter().map(|listener| (rank, listener));
            listeners.extend(indices.into_iter().zip(of_rank));
        }
        Ok(listeners.into_values().collect())
    }

    fn rank_of(&self, spec: &GenerateSpec) -> usize {
        let room = spec.room.as_ref().map(|room| room.number).filter(|number| *number != 0);
        match (spec.dp_rank, room) {
            (Some(rank), _) => rank,
            (None, Some(room)) => rank_of_room(room, self.count()),
            (None, None) => self.turn.fetch_add(1, Ordering::Relaxed) % self.count(),
        }
    }

    /// Gives requests up; when this returns, they have ended.
    pub(crate) async fn abort(&self, whom: Whom, why: Abort) -> Result<(), SchedulerGone> {
        self.each(|postbox| postbox.abort(whom.clone(), why.clone())).await.map(drop)
    }

    /// What each rank tells of itself, with its requests if that is asked for.
    pub(crate) async fn inspect(&self, requests: bool) -> Result<Vec<Snapshot>, SchedulerGone> {
        self.each(|postbox| postbox.inspect(requests)).await
    }

    /// Returns when each scheduler has had nothing left to do.
    pub(crate) async fn idle(&self) -> Result<(), SchedulerGone> {
        self.each(Postbox::idle).await.map(drop)
    }

    /// Empties the prefix caches.
    pub(crate) async fn forget(&self) -> Result<(), SchedulerGone> {
        self.each(Postbox::forget).await.map(drop)
    }

    /// Returns when nothing is computed any more.
    pub(crate) async fn pause(&self, mode: PauseMode) -> Result<(), SchedulerGone> {
        self.each(|postbox| postbox.pause(mode)).await.map(drop)
    }

    pub(crate) async fn go_on(&self) -> Result<(), SchedulerGone> {
        self.each(Postbox::go_on).await.map(drop)
    }

    /// Gives up the schedulers' part of the memory, all or none of them.
    pub(crate) async fn release(&self, what: Occupation) -> Result<Result<(), NotReleased>, SchedulerGone> {
        let released = self.each(|postbox| postbox.release(what)).await?;
        let live: usize = released.iter().filter_map(|released| released.err()).sum();
        if live == 0 {
            return Ok(Ok(()));
        }
        let mut why = NotReleased::Needed { live };
        for (postbox, released) in self.postboxes.iter().zip(released) {
            if let Ok(given_up) = released
                && let Err(error) = postbox.resume(given_up, false).await?
            {
                why = NotReleased::Lost(error);
            }
        }
        Ok(Err(why))
    }

    pub(crate) async fn resume(
        &self,
        what: Occupation,
        replaced: bool,
    ) -> Result<Result<(), ModelError>, SchedulerGone> {
        let resumed = self.each(|postbox| postbox.resume(what, replaced)).await?;
        Ok(resumed.into_iter().collect())
    }

    /// Returns when nothing is under way, and nothing new begins until [`Ranks::proceed`]: with the number of requests that a
    /// pause holds.
    pub(crate) async fn quiesce(&self) -> Result<usize, SchedulerGone> {
        Ok(self.each(Postbox::quiesce).await?.into_iter().sum())
    }

    pub(crate) async fn proceed(&self, replaced: bool) -> Result<(), SchedulerGone> {
        self.each(|postbox| postbox.proceed(replaced)).await.map(drop)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.postboxes.iter().any(Postbox::is_closed)
    }

    /// Tells all at once, and waits for each.
    pub(crate) async fn each<'a, T, F: Future<Output = Result<T, SchedulerGone>>>(
        &'a self,
        tell: impl Fn(&'a Postbox) -> F,
    ) -> Result<Vec<T>, SchedulerGone> {
        try_join_all(self.postboxes.iter().map(tell)).await
    }
}

/// The rank, of so many, that a room belongs to.
pub(crate) fn rank_of_room(room: u64, ranks: usize) -> usize {
    (room % ranks.max(1) as u64) as usize
}
