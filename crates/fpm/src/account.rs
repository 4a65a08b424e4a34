//! What a stream's sequence numbers tell: messages lost, a publisher that was started anew.

/// Counts what came of one endpoint's stream and what did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The number that comes next if nothing is lost.
    next: Option<u64>,
    /// Messages that came.
    pub received: u64,
    /// Messages that were sent while we listened, or were away for a moment, and did not come.
    pub lost: u64,
    /// Times that the numbers began anew.
    pub restarts: u64,
    /// Messages that were sent before we came: by the publisher we first met, and by each that was started anew.
    pub missed: u64,
    /// Messages that were no record.
    pub malformed: u64,
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

// === impl Account ===

impl Account {
    /// Takes a message's number. On one connection numbers only grow, so a smaller one is of another publisher. One that
    /// was started anew and has already sent more than the one before looks like a gap: the wire does not tell them apart.
    pub fn take(&mut self, sequence: u64) -> Arrival {
        let arrival = match self.next {
            None => Arrival::First(sequence),
            Some(next) if sequence == next => Arrival::Next,
            Some(next) if sequence > next => Arrival::Gap(sequence - next),
            Some(_) => Arrival::Restart(sequence),
        };
        self.next = Some(sequence.saturating_add(1));
        self.received += 1;
        match arrival {
            Arrival::Next => {}
            Arrival::First(missed) => self.missed = missed,
            Arrival::Gap(lost) => self.lost = self.lost.saturating_add(lost),
            Arrival::Restart(missed) => {
                self.restarts += 1;
                self.missed = self.missed.saturating_add(missed);
            }
        }
        arrival
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let expected =
            Account { next: Some(1), received: 9, lost: u64::MAX, restarts: 3, missed: 4, malformed: 0 };
        assert_eq!(account, expected);
    }
}
