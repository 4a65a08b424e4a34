//! Accounts of what was begun and how it ended.

use std::sync::Arc;

use parking_lot::Mutex;

/// An account, shared by all its clones.
///
/// Invariant: in every snapshot started = completed + truncated + failed + aborted + live, because all six change under
/// one lock.
#[derive(Clone, Debug, Default)]
pub struct Books(Arc<Mutex<Counts>>);

/// An account's state at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Begun.
    pub started: u64,
    /// Ended with a whole reply.
    pub completed: u64,
    /// Ended before the reply's end.
    pub truncated: u64,
    /// Ended with an error.
    pub failed: u64,
    /// Given up.
    pub aborted: u64,
    /// Not ended.
    pub live: u64,
}

/// How something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With a whole reply.
    Completed,
    /// Before the reply's end.
    Truncated,
    /// With an error.
    Failed,
    /// It was given up.
    Aborted,
}

/// One open entry. It closes exactly once: by [`Ticket::end`], or as aborted when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Ticket {
    books: Books,
    ended: bool,
}

// === impl Books ===

impl Books {
    /// Begins an entry.
    pub fn open(&self) -> Ticket {
        let mut counts = self.0.lock();
        counts.started += 1;
        counts.live += 1;
        Ticket { books: self.clone(), ended: false }
    }

    /// The state now.
    pub fn counts(&self) -> Counts {
        *self.0.lock()
    }
}

// === impl Ticket ===

impl Ticket {
    /// Ends the entry.
    pub fn end(mut self, ending: Ending) {
        self.close(ending);
    }

    fn close(&mut self, ending: Ending) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let mut counts = self.books.0.lock();
        counts.live -= 1;
        *counts.of(ending) += 1;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.close(Ending::Aborted);
    }
}

// === impl Counts ===

impl Counts {
    /// Whether nothing is missing and nothing counted twice.
    pub fn balance(&self) -> bool {
        self.started == self.completed + self.truncated + self.failed + self.aborted + self.live
    }

    fn of(&mut self, ending: Ending) -> &mut u64 {
        match ending {
            Ending::Completed => &mut self.completed,
            Ending::Truncated => &mut self.truncated,
            Ending::Failed => &mut self.failed,
            Ending::Aborted => &mut self.aborted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_closes_once_whatever_happens_to_it() {
        let books = Books::default();
        books.open().end(Ending::Completed);
        books.open().end(Ending::Failed);
        books.open().end(Ending::Truncated);
        drop(books.open());
        let live = books.open();
        let counts = books.counts();
        let expected = Counts { started: 5, completed: 1, truncated: 1, failed: 1, aborted: 1, live: 1 };
        assert_eq!(counts, expected);
        live.end(Ending::Completed);
        assert_eq!(books.counts().live, 0);
        assert!(books.counts().balance());
    }

    #[test]
    fn every_snapshot_balances_under_contention() {
        let books = Books::default();
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let books = books.clone();
                scope.spawn(move || {
                    for round in 0..5_000 {
                        let ticket = books.open();
                        match (round + worker) % 4 {
                            0 => ticket.end(Ending::Completed),
                            1 => ticket.end(Ending::Failed),
                            2 => ticket.end(Ending::Truncated),
                            _ => drop(ticket),
                        }
                    }
                });
            }
            for _ in 0..5_000 {
                let counts = books.counts();
                assert!(counts.balance() && counts.live <= 4, "{counts:?}");
            }
        });
        let counts = books.counts();
        assert_eq!((counts.started, counts.failed, counts.live), (20_000, 5_000, 0));
    }
}
