//! Following a run that is being written.

use std::thread;

use proptest::prelude::*;
use rollscope_trace::Record;

use crate::make::{append, exact_all, profile_record, run, writer};

#[derive(Clone, Debug)]
enum Act {
    Append { writer: usize, records: usize },
    Poll,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..2usize, 0..20usize).prop_map(|(writer, records)| Act::Append { writer, records }),
        Just(Act::Poll),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_record_is_seen_once_and_in_its_writers_order(acts in prop::collection::vec(act(), 1..30)) {
        let (_dir, run) = run();
        let mut writers = [writer(&run, "a"), writer(&run, "b")];
        let mut follow = run.follow();
        let (mut written, mut seen) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for act in acts.into_iter().chain([Act::Poll]) {
            match act {
                Act::Append { writer, records } => {
                    let start = written[writer].len() as u64;
                    let records: Vec<_> =
                        (0..records as u64).map(|at| profile_record(writer as u64, start + at)).collect();
                    append(&mut writers[writer], &records);
                    written[writer].extend(exact_all(&records));
                }
                Act::Poll => {
                    for record in follow.poll().unwrap() {
                        let writer = record.step().unwrap().0 as usize;
                        seen[writer].extend(exact_all(&[record]));
                    }
                    prop_assert_eq!(&seen, &written);
                }
            }
        }
        prop_assert_eq!(follow.damage().count(), 0);
    }
}

#[test]
fn a_follower_keeps_up_with_a_thread_that_writes() {
    const RECORDS: u64 = 3000;
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let mut follow = run.follow();
    let writing = thread::spawn(move || {
        for number in 0..RECORDS {
            append(&mut writer, &[profile_record(1, number)]);
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
