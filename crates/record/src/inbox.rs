//! The inbox: bounded by bytes, never waited for by whoever puts something in.

use std::collections::VecDeque;
use std::mem::size_of;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rollscope_trace::{Attr, Dropped, ForwardPass, Leg, Measure, Profile, Reading, Record, StepNumber};

use crate::StepEnd;
use crate::sealing::Reply;

/// What the writing thread is asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Log a profile.
    Profile(Box<Profile>),
    /// Log another record. Boxed, as there are few of them beside profiles.
    Record(Box<Record>),
    /// Close a step and say what came of it.
    EndStep { step: StepNumber, end: StepEnd, reply: Reply },
}

/// Losses since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) profiles: u64,
    pub(crate) user_records: u64,
    pub(crate) passes: u64,
}

/// Commands on their way to the writing thread. A lock is held for as long as it takes to move a pointer. What there is much
/// of wakes nobody: the thread looks by itself soon, and is woken where it would find too much.
#[derive(Debug)]
pub(crate) struct Inbox {
    limit_bytes: usize,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    commands: VecDeque<Command>,
    bytes: usize,
    lost: Lost,
    /// Something is there that somebody waits for.
    is_asked: bool,
    closed: bool,
}

/// Whether the writing thread is woken by what is put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wakes {
    AtOnce,
    /// Once it is much.
    WhenMuch,
}

/// What a command that is no record counts for.
const COMMAND_BYTES: usize = 256;

// === impl Command ===

impl Command {
    fn of(record: Record) -> Self {
        match record {
            Record::Profile(profile) => Self::Profile(profile),
            other => Self::Record(Box::new(other)),
        }
    }
}

// === impl Lost ===

impl Lost {
    /// Counts a record.
    pub(crate) fn add(&mut self, record: &Record) {
        match record {
            Record::Profile(_) => self.profiles += 1,
            Record::Span(_) | Record::Sample(_) => self.user_records += 1,
            Record::ForwardPass(pass) => self.passes += u64::from(!pass.is_rest()),
            Record::Close(_) | Record::Dropped(_) => {}
        }
    }

    pub(crate) fn add_all(&mut self, other: Self) {
        self.profiles += other.profiles;
        self.user_records += other.user_records;
        self.passes += other.passes;
    }
}

// === impl Inbox ===

impl Inbox {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, state: Mutex::default(), arrived: Condvar::new() }
    }

    pub(crate) fn put_profile(&self, profile: Profile) -> Result<(), Dropped> {
        let bytes = profile_bytes(&profile);
        self.put(bytes, [Command::Profile(Box::new(profile))], Wakes::WhenMuch, |lost| lost.profiles += 1)
    }

    /// Of a pass that does not fit the next one of its stream is to tell.
    pub(crate) fn put_pass(&self, pass: ForwardPass) -> Result<(), Dropped> {
        let record = Record::ForwardPass(Box::new(pass));
        let mut counted = Lost::default();
        counted.add(&record);
        let count_loss = |lost: &mut Lost| lost.add_all(counted);
        self.put(record_bytes(&record), [Command::of(record)], Wakes::WhenMuch, count_loss)
    }

    pub(crate) fn put_all(&self, records: Vec<Record>) -> Result<(), Dropped> {
        let count = records.len() as u64;
        let bytes = records.iter().map(record_bytes).sum();
        let commands = records.into_iter().map(Command::of);
        self.put(bytes, commands, Wakes::AtOnce, |lost| lost.user_records += count)
    }

    /// Whether so much fits at all, be there room at present or not.
    pub(crate) fn could_hold(&self, records: &[Record]) -> bool {
        records.iter().map(record_bytes).sum::<usize>() <= self.limit_bytes
    }

    pub(crate) fn command(&self, command: Command) -> Result<(), Dropped> {
        self.put(COMMAND_BYTES, [command], Wakes::AtOnce, |_| {})
    }

    /// Takes no more from now on.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_one();
    }

    /// All that is there: at once where somebody waits for it or it is much, otherwise when that comes or `patience` is over,
    /// so that the rest gathers. Nothing more will come once it says so.
    pub(crate) fn take(&self, patience: Duration) -> (VecDeque<Command>, bool) {
        let mut state = self.state.lock();
        if !state.closed && !state.is_asked && !self.is_much(state.bytes) {
            self.arrived.wait_for(&mut state, patience);
        }
        (state.bytes, state.is_asked) = (0, false);
        (std::mem::take(&mut state.commands), state.closed)
    }

    /// Nobody takes anything any more: what is there is lost, and who waits for a step's end is let go.
    pub(crate) fn abandon(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let commands = std::mem::take(&mut state.commands);
        for command in &commands {
            match command {
                Command::Profile(_) => state.lost.profiles += 1,
                Command::Record(record) => state.lost.add(record),
                Command::EndStep { .. } => {}
            }
        }
        // Who waits is told without the lock.
        drop(state);
    }

    pub(crate) fn lost(&self) -> Lost {
        self.state.lock().lost
    }

    /// Counts records that were taken and could not be written, or were written to a log that is gone.
    pub(crate) fn count_unwritten(&self, unwritten: Lost) {
        self.state.lock().lost.add_all(unwritten);
    }

    /// More than half of the room is taken.
    fn is_much(&self, bytes: usize) -> bool {
        bytes > self.limit_bytes / 2
    }

    fn put(
        &self,
        bytes: usize,
        commands: impl IntoIterator<Item = Command>,
        wakes: Wakes,
        count_loss: impl FnOnce(&mut Lost),
    ) -> Result<(), Dropped> {
        let mut state = self.state.lock();
        if state.closed || state.bytes.saturating_add(bytes) > self.limit_bytes {
            count_loss(&mut state.lost);
            return Err(Dropped);
        }
        let was_much = self.is_much(state.bytes);
        state.bytes += bytes;
        state.commands.extend(commands);
        let is_woken = match wakes {
            Wakes::AtOnce => {
                state.is_asked = true;
                true
            }
            Wakes::WhenMuch => !was_much && self.is_much(state.bytes),
        };
        drop(state);
        if is_woken {
            self.arrived.notify_one();
        }
        Ok(())
    }
}

/// About what a record takes in memory.
fn record_bytes(record: &Record) -> usize {
    size_of::<Command>()
        + size_of::<Record>()
        + match record {
            Record::Profile(profile) => profile_bytes(profile),
            Record::Span(span) => span.name.len() + key_bytes(&span.key) + attrs_bytes(&span.attrs),
            Record::Sample(mark) => {
                let texts = [mark.category.as_deref(), mark.dataset.as_deref()];
                key_bytes(&mark.key) + texts.into_iter().map(text_bytes).sum::<usize>()
            }
            Record::ForwardPass(pass) => {
                let worker = pass.worker.as_ref();
                let worker_bytes = worker.map_or(0, |worker| worker.url.len() + worker.instance.len());
                size_of::<ForwardPass>() + pass.endpoint.len() + pass.worker_id.len() + worker_bytes
            }
            Record::Close(_) | Record::Dropped(_) => 0,
        }
}

fn key_bytes(key: &rollscope_trace::SampleKey) -> usize {
    key.sample.len() + text_bytes(key.group.as_deref())
}

fn profile_bytes(profile: &Profile) -> usize {
    let join = &profile.join;
    let texts = [&join.group, &join.sample, &join.traceparent, &join.session, &join.rid, &profile.error];
    size_of::<Command>()
        + size_of::<Profile>()
        + profile.endpoint.len()
        + profile.decision.len()
        + texts.iter().map(|text| text_bytes(text.as_deref())).sum::<usize>()
        + profile.legs.iter().map(leg_bytes).sum::<usize>()
        + attrs_bytes(&profile.attrs)
}

fn attrs_bytes(attrs: &[(Box<str>, Attr)]) -> usize {
    let attr = |(name, value): &(Box<str>, Attr)| {
        let text = if let Attr::Text(text) = value { text.len() } else { 0 };
        size_of::<(Box<str>, Attr)>() + name.len() + text
    };
    attrs.iter().map(attr).sum()
}

fn leg_bytes(leg: &Leg) -> usize {
    let report = &leg.report;
    let finish = report.finish.as_ref().and_then(|finish| finish.message.as_deref());
    let texts =
        [leg.error.as_deref(), report.weight_version.as_deref(), report.worker_request_id.as_deref(), finish];
    size_of::<Leg>()
        + leg.worker.url.len()
        + leg.worker.instance.len()
        + texts.into_iter().map(text_bytes).sum::<usize>()
        + report.measures.iter().count() * size_of::<(Measure, Reading)>()
}

fn text_bytes(text: Option<&str>) -> usize {
    text.map_or(0, str::len)
}

#[cfg(test)]
mod tests {
    use rollscope_trace::{Nanos, RequestId, SampleKey, SampleMark, UnixNs};
    use tokio::sync::oneshot::{self, error::TryRecvError};

    use super::*;

    fn mark(sample: &str) -> Record {
        Record::Sample(SampleMark::new(SampleKey { step: StepNumber(1), group: None, sample: sample.into() }))
    }

    #[test]
    fn a_full_inbox_refuses_whole_batches_and_counts_them() {
        let inbox = Inbox::new(3 * record_bytes(&mark("a")));
        inbox.put_all(vec![mark("a"), mark("b")]).unwrap();
        assert_eq!(inbox.put_all(vec![mark("c"), mark("d")]), Err(Dropped));
        inbox.put_all(vec![mark("e")]).unwrap();
        assert_eq!(inbox.lost(), Lost { user_records: 2, ..Lost::default() });
        assert_eq!(inbox.take(Duration::ZERO).0.len(), 3);
        inbox.put_all(vec![mark("f")]).unwrap();
    }

    #[test]
    fn the_texts_of_a_profile_count() {
        let mut profile = Profile::new(RequestId(1), UnixNs(1), Nanos(1));
        let before = profile_bytes(&profile);
        profile.attrs = vec![("prompt_text".into(), Attr::from("x".repeat(1000)))];
        assert!(profile_bytes(&profile) > before + 1000);
    }

    #[test]
    fn a_closed_inbox_gives_what_it_has_and_takes_no_more() {
        let inbox = Inbox::new(1 << 20);
        inbox.put_all(vec![mark("a")]).unwrap();
        inbox.close();
        assert_eq!(inbox.put_all(vec![mark("b")]), Err(Dropped));
        let (commands, closed) = inbox.take(Duration::from_mins(1));
        assert_eq!((commands.len(), closed), (1, true));
    }

    #[test]
    fn an_abandoned_inbox_counts_what_it_held_and_lets_go_who_waits() {
        let inbox = Inbox::new(1 << 20);
        inbox.put_all(vec![mark("a"), mark("b")]).unwrap();
        let (reply, mut closed) = oneshot::channel();
        inbox.command(Command::EndStep { step: StepNumber(1), end: StepEnd::default(), reply }).unwrap();
        inbox.abandon();
        assert_eq!(inbox.lost(), Lost { user_records: 2, ..Lost::default() });
        assert!(matches!(closed.try_recv(), Err(TryRecvError::Closed)));
        assert_eq!(inbox.put_all(vec![mark("c")]), Err(Dropped));
    }
}
