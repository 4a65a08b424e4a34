//! Following a run that is being written.

use std::thread;

use proptest::prelude::*;
use rollscope_run::{Follow, Run};
use rollscope_trace::Record;

use crate::make::{append, exact_all, profile_record, run, writer};

#[derive(Clone, Debug)]
enum Act {
    Append {
        writer: usize,
        records: usize,
    },
    Seal {
        writer: usize,
    },
    Poll,
    /// A second follower begins anew.
    Begin,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..2usize, 0..20usize).prop_map(|(writer, records)| Act::Append { writer, records }),
        2 => (0..2usize).prop_map(|writer| Act::Seal { writer }),
        2 => Just(Act::Poll),
        1 => Just(Act::Begin),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_record_is_seen_once_and_in_its_writers_order(acts in prop::collection::vec(act(), 1..40)) {
        let (_dir, run) = run();
        let mut writers = [writer(&run, "a"), writer(&run, "b")];
        let mut followers = [Seen::new(&run), Seen::new(&run)];
        let mut written = [Vec::new(), Vec::new()];
        for act in acts.into_iter().chain([Act::Poll]) {
            match act {
                Act::Append { writer, records } => {
                    let start = written[writer].len() as u64;
                    let records: Vec<_> =
                        (0..records as u64).map(|at| profile_record(writer as u64, start + at)).collect();
                    append(&mut writers[writer], &records);
                    written[writer].extend(exact_all(&records));
                }
                Act::Seal { writer } => {
                    let writer = &writers[writer];
                    run.sealer(writer.name()).seal(writer.position()).unwrap();
                }
                Act::Poll => {
                    for follower in &mut followers {
                        follower.poll();
                        prop_assert_eq!(&follower.seen, &written);
                    }
                }
                Act::Begin => followers[1] = Seen::new(&run),
            }
        }
    }
}

/// A follower and what it has seen, by writer.
struct Seen {
    follow: Follow,
    seen: [Vec<String>; 2],
}

impl Seen {
    fn new(run: &Run) -> Self {
        Self { follow: run.follow(), seen: [Vec::new(), Vec::new()] }
    }

    fn poll(&mut self) {
        for record in self.follow.poll().unwrap() {
            let writer = record.step().unwrap().0 as usize;
            self.seen[writer].extend(exact_all(&[record]));
        }
        assert_eq!(self.follow.damage().count(), 0);
    }
}

#[test]
fn a_follower_keeps_up_with_a_thread_that_writes() {
    const RECORDS: u64 = 3000;
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let mut sealer = run.sealer(writer.name());
    let mut follow = run.follow();
    let writing = thread::spawn(move || {
        for number in 0..RECORDS {
            append(&mut writer, &[profile_record(1, number)]);
            if number % 500 == 0 {
                sealer.seal(writer.position()).unwrap();
            }
        }
        writer.end().unwrap();
    });
    let mut seen = Vec::new();
    while (seen.len() as u64) < RECORDS {
        let finished = writing.is_finished();
        let records = follow.poll().unwrap();
        assert!(!(finished && records.is_empty()), "lost after {}", seen.len());
        seen.extend(records);
    }
    writing.join().unwrap();
    let ids = |records: &[Record]| {
        let id = |record: &Record| match record {
            Record::Profile(profile) => profile.id.0 as u64,
            _ => u64::MAX,
        };
        records.iter().map(id).collect::<Vec<_>>()
    };
    assert_eq!(ids(&seen), (0..RECORDS).collect::<Vec<_>>());
    assert!(follow.poll().unwrap().is_empty());
    assert_eq!(follow.damage().count(), 0);
}
