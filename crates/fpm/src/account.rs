//! What a stream's sequence numbers tell: messages lost, a publisher that was started anew.
//!
//! A publisher numbers its messages, and is one rank of one worker. At an endpoint there is usually one; where a proxy carries
//! several to one endpoint, each has an account of its own.

use std::collections::BTreeMap;

use crate::record::ForwardPassMetrics;
use crate::subscriber::Message;

/// Counts what came of one publisher's stream and what did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The number that comes next if nothing is lost.
    next: Option<u64>,
    /// Messages of the present publisher lost since [`Account::take_unreported`].
    unreported: u64,
    /// Whether the next message is of a publisher that was started anew, whatever its number.
    is_anew: bool,
    /// Messages that came.
    pub received: u64,
    /// Messages that were sent while we listened, or were away for a moment, and did not come.
    pub lost: u64,
    /// Times that the publisher was started anew.
    pub restarts: u64,
}

/// The accounts of an endpoint's publishers, by the name of the worker and the rank, each with what else is known of it.
#[derive(Clone, Debug)]
pub struct Accounts<T = ()> {
    of: BTreeMap<Box<str>, BTreeMap<u32, Entry<T>>>,
    publishers: usize,
    /// Messages that were no record.
    pub malformed: u64,
}

/// A publisher.
#[derive(Clone, Debug, Default)]
pub struct Entry<T> {
    /// Its messages.
    pub account: Account,
    /// What else is known.
    pub state: T,
}

/// How a message follows the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the first, after so many that were sent before we came.
    First(u64),
    /// Nothing lies between them.
    Next,
    /// So many between them are lost.
    Gap(u64),
    /// A new publisher has sent it, after so many that were sent before we came to it.
    Restart(u64),
}

/// Publishers at one endpoint at most; one that lies about its name is not to fill the memory.
const MAX_PUBLISHERS: usize = 4096;

// === impl Account ===

impl Account {
    /// Takes a message's number. On one connection numbers only grow, so a smaller one is of another publisher. One that
    /// was started anew and has already sent more than the one before looks like a gap: the wire does not tell them apart.
    pub fn take(&mut self, sequence: u64) -> Arrival {
        let arrival = match self.next {
            None => Arrival::First(sequence),
            Some(_) if self.is_anew => Arrival::Restart(sequence),
            Some(next) if sequence == next => Arrival::Next,
            Some(next) if sequence > next => Arrival::Gap(sequence - next),
            Some(_) => Arrival::Restart(sequence),
        };
        self.next = Some(sequence.saturating_add(1));
        self.is_anew = false;
        self.received += 1;
        match arrival {
            Arrival::Next | Arrival::First(_) => {}
            Arrival::Gap(lost) => {
                self.lost = self.lost.saturating_add(lost);
                self.not_taken(lost);
            }
            Arrival::Restart(_) => {
                self.restarts += 1;
                // What was lost of the publisher before is not lost of this one.
                self.unreported = 0;
            }
        }
        arrival
    }

    /// It is known, if not by its numbers, that the publisher was started anew: it publishes elsewhere.
    pub fn begin_anew(&mut self) {
        self.is_anew = true;
    }

    /// Messages of the present publisher that were lost, or not taken, since this was last asked.
    pub fn take_unreported(&mut self) -> u64 {
        std::mem::take(&mut self.unreported)
    }

    /// So many messages came, or were to be reported, in vain.
    pub fn not_taken(&mut self, messages: u64) {
        self.unreported = self.unreported.saturating_add(messages);
    }
}

// === impl Accounts ===

impl<T: Default> Accounts<T> {
    /// Takes a message; gives how it arrived and the publisher that it is of. One that is no record does not say whose it is:
    /// where there is one publisher it is that one's, and else nobody's.
    pub fn take(&mut self, message: &Message) -> Option<(Arrival, &mut Entry<T>)> {
        let entry = if let Ok(ForwardPassMetrics { worker_id, dp_rank, .. }) = &message.metrics {
            // In most cases it is known, and its name need not be kept once more.
            if !self.of.get(worker_id).is_some_and(|ranks| ranks.contains_key(dp_rank)) {
                self.add(worker_id, *dp_rank);
            }
            self.entry(worker_id, *dp_rank)
        } else {
            self.malformed += 1;
            let is_only = self.publishers == 1;
            self.of.values_mut().flat_map(BTreeMap::values_mut).next().filter(|_| is_only)
        };
        entry.map(|entry| (entry.account.take(message.sequence), entry))
    }

    /// All of them were started anew, as [`Account::begin_anew`] has it.
    pub fn begin_anew(&mut self) {
        self.iter_mut().for_each(|(.., entry)| entry.account.begin_anew());
    }

    /// A publisher that is known.
    pub fn entry(&mut self, worker_id: &str, dp_rank: u32) -> Option<&mut Entry<T>> {
        self.of.get_mut(worker_id)?.get_mut(&dp_rank)
    }

    /// Each publisher, by the name of its worker and its rank.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, u32, &mut Entry<T>)> {
        let ranks = self.of.iter_mut().map(|(worker_id, ranks)| (&**worker_id, ranks));
        ranks.flat_map(|(worker_id, ranks)| {
            ranks.iter_mut().map(move |(dp_rank, entry)| (worker_id, *dp_rank, entry))
        })
    }

    /// Publishers that are known.
    pub fn len(&self) -> usize {
        self.publishers
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.publishers == 0
    }

    fn add(&mut self, worker_id: &str, dp_rank: u32) {
        // The only one that was started anew may call itself otherwise now.
        let is_other_name = self.publishers == 1 && self.iter_mut().all(|(.., entry)| entry.account.is_anew);
        let entry = if is_other_name { self.remove_first() } else { None };
        if self.publishers >= MAX_PUBLISHERS {
            self.remove_first();
        }
        self.of.entry(worker_id.into()).or_default().insert(dp_rank, entry.unwrap_or_default());
        self.publishers += 1;
    }

    fn remove_first(&mut self) -> Option<Entry<T>> {
        let mut first = self.of.first_entry()?;
        let removed = first.get_mut().pop_first();
        if first.get().is_empty() {
            first.remove();
        }
        self.publishers -= usize::from(removed.is_some());
        removed.map(|(_, entry)| entry)
    }
}

impl<T> Default for Accounts<T> {
    fn default() -> Self {
        Self { of: BTreeMap::new(), publishers: 0, malformed: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::codec::decode;

    #[test]
    fn gaps_and_restarts_are_told_apart() {
        let mut account = Account::default();
        for (sequence, arrival) in [
            (3, Arrival::First(3)),
            (4, Arrival::Next),
            (7, Arrival::Gap(2)),
            (0, Arrival::Restart(0)),
            (1, Arrival::Next),
            (1, Arrival::Restart(1)),
            (u64::MAX, Arrival::Gap(u64::MAX - 2)),
            (u64::MAX, Arrival::Next),
            (0, Arrival::Restart(0)),
        ] {
            assert_eq!(account.take(sequence), arrival, "{sequence}");
        }
        account.begin_anew();
        for (sequence, arrival) in [(7, Arrival::Restart(7)), (8, Arrival::Next)] {
            assert_eq!(account.take(sequence), arrival, "{sequence}, of one that publishes elsewhere");
        }
        let expected =
            Account { next: Some(9), received: 11, lost: u64::MAX, restarts: 4, ..Account::default() };
        assert_eq!(account, expected);
        let mut unheard = Account::default();
        unheard.begin_anew();
        assert_eq!(unheard.take(5), Arrival::First(5), "nothing was heard of the one before");
    }

    fn message(worker: &str, dp_rank: u32, sequence: u64) -> Message {
        let metrics = ForwardPassMetrics { worker_id: worker.into(), dp_rank, ..Default::default() };
        let (received, waited) = (Instant::now(), Duration::ZERO);
        Message { sequence, received, waited, metrics: Ok(metrics) }
    }

    #[test]
    fn a_publisher_that_was_started_anew_elsewhere_may_have_another_name() {
        let mut accounts: Accounts<u8> = Accounts::default();
        let take = |accounts: &mut Accounts<u8>, worker, rank, sequence| {
            let (arrival, entry) = accounts.take(&message(worker, rank, sequence)).unwrap();
            entry.state += 1;
            (arrival, entry.state, accounts.len())
        };
        assert_eq!(take(&mut accounts, "a", 0, 3), (Arrival::First(3), 1, 1));
        accounts.begin_anew();
        assert_eq!(take(&mut accounts, "b", 0, 90), (Arrival::Restart(90), 2, 1), "the same one");
        assert_eq!(take(&mut accounts, "c", 0, 1), (Arrival::First(1), 1, 2), "not told to be anew");
        accounts.begin_anew();
        assert_eq!(
            take(&mut accounts, "d", 0, 7),
            (Arrival::First(7), 1, 3),
            "of several it is not known which"
        );
        assert_eq!(take(&mut accounts, "c", 0, 2), (Arrival::Restart(2), 2, 3));
    }

    #[test]
    fn publishers_behind_one_endpoint_are_told_apart() {
        let malformed = |sequence| Message { metrics: decode(b"no"), ..message("", 0, sequence) };
        let mut accounts: Accounts = Accounts::default();
        for (name, message, arrival) in [
            ("nobody is known", malformed(0), None),
            ("the first", message("a", 0, 5), Some(Arrival::First(5))),
            ("the only one's", malformed(6), Some(Arrival::Next)),
            ("another rank", message("a", 1, 900), Some(Arrival::First(900))),
            ("another worker", message("b", 0, 2), Some(Arrival::First(2))),
            ("anybody's", malformed(3), None),
            ("the first goes on", message("a", 0, 7), Some(Arrival::Next)),
            ("the other rank too", message("a", 1, 903), Some(Arrival::Gap(2))),
            ("the other worker was started anew", message("b", 0, 0), Some(Arrival::Restart(0))),
        ] {
            assert_eq!(accounts.take(&message).map(|(arrival, _)| arrival), arrival, "{name}");
        }
        let lost = accounts.iter_mut().map(|(.., entry)| entry.account.lost).sum::<u64>();
        assert_eq!((accounts.malformed, accounts.len(), lost), (3, 3, 2));
        for rank in 0..2 * MAX_PUBLISHERS as u32 {
            accounts.take(&message("liar", rank, 0));
        }
        assert_eq!((accounts.len(), accounts.iter_mut().count()), (MAX_PUBLISHERS, MAX_PUBLISHERS));
    }

    #[test]
    fn what_is_lost_is_reported_once_and_with_its_own_life() {
        let mut account = Account::default();
        for sequence in [0, 3] {
            account.take(sequence);
        }
        assert_eq!((account.take_unreported(), account.take_unreported()), (2, 0));
        account.take(5);
        account.take(0);
        assert_eq!(account.take_unreported(), 0, "it was lost of the life before");
    }
}
