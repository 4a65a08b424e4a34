//! Requests and passes whose places are known.

use rollscope_trace::{Join, PassLoad, Record, Report, Scalar, StepNumber, WorkerRef};

use super::*;

const SECOND: i64 = 1_000_000_000;

fn worker(url: &str) -> WorkerRef {
    WorkerRef { url: url.into(), instance: "1".into() }
}

/// A request from one second on, for two seconds.
fn request(id: u128, told: Option<(u64, u64)>) -> Profile {
    let pairs = told.into_iter().flat_map(|(first, last)| {
        let number = |value: u64| Scalar::Number(value as f64);
        [("forward_pass_first_counter_id", number(first)), ("forward_pass_last_counter_id", number(last))]
    });
    let leg = Leg {
        report: Report::from_pairs(pairs),
        ..Leg::new(LegRole::Regular, worker("http://w"), Nanos(0), Nanos(2 * SECOND as u64))
    };
    Profile {
        join: Join { step: Some(StepNumber(1)), ..Join::default() },
        legs: vec![leg],
        ..Profile::new(RequestId(id), UnixNs(SECOND), Nanos(2 * SECOND as u64))
    }
}

fn pass(url: &str, counter_id: u64, received_s: f64) -> ForwardPass {
    ForwardPass {
        step: Some(StepNumber(1)),
        worker: Some(worker(url)),
        uncertainty: Nanos(5_000_000),
        wall: Nanos(100_000_000),
        scheduled: PassLoad { decode_requests: 2, ..PassLoad::default() },
        ..ForwardPass::new("ipc://a.0", counter_id, UnixNs((received_s * SECOND as f64) as i64))
    }
}

fn numbers(found: &LegPasses<'_>) -> Vec<u64> {
    found.passes.iter().map(|pass| pass.counter_id).collect()
}

fn step(requests: &[Profile]) -> StepTrace {
    StepTrace::gather(
        StepNumber(1),
        requests.iter().map(|request| Record::Profile(Box::new(request.clone()))),
    )
}

#[test]
fn told_numbers_give_the_passes_and_the_company() {
    let mine = request(1, Some((5, 8)));
    let step = step(&[mine.clone(), request(2, Some((7, 20))), request(3, Some((9, 9))), request(4, None)]);
    let mut passes: Vec<_> = [4, 5, 6, 8, 9].map(|number| pass("http://w", number, 1.5)).to_vec();
    passes[3].lost_before = 1;
    // Of another worker, and of the same one started anew an hour later.
    passes.push(pass("http://other", 7, 1.5));
    passes.push(ForwardPass { life: 1, ..pass("http://w", 7, 3600.0) });
    let found = request_passes(&step, &mine, &passes);
    assert_eq!((found[0].basis, numbers(&found[0]), found[0].lost), (Basis::Exact, vec![5, 6, 8], 1));
    assert_eq!(found[0].shared, [Shared { request: RequestId(2), passes: 1 }], "one of two is not heard of");
    assert_eq!((found[0].busy(), found[0].mean_batch()), (Nanos(300_000_000), 2.0));
}

#[test]
fn otherwise_they_are_those_that_may_have_run_meanwhile() {
    let mine = request(1, None);
    let step = step(&[mine.clone(), request(2, Some((1, 9)))]);
    // Heard of before it began; the first and the last within; too late to have run meanwhile.
    let passes = [(1, 0.99), (2, 1.0), (3, 3.1), (4, 3.2)].map(|(number, at)| pass("http://w", number, at));
    let found = request_passes(&step, &mine, &passes);
    assert_eq!((found[0].basis, numbers(&found[0])), (Basis::Estimate, vec![2, 3]));
    assert!(found[0].shared.is_empty(), "who shares them is not known");
    assert!(request_passes(&step, &mine, &[]).is_empty());
}

#[test]
fn only_what_was_lost_is_told_as_lost() {
    let mine = request(1, Some((5, 12)));
    let step = step(&[mine.clone(), request(2, Some((5, 12)))]);
    // Each heard of: its number, and what was lost before it.
    for (name, heard, lost) in [
        ("heartbeats of a pause between", &[(5, 9), (6, 0), (11, 0), (12, 0)][..], 0),
        ("some of them lost", &[(5, 0), (6, 0), (11, 2), (12, 0)], 2),
        ("heard of by another recorder", &[(5, 0), (6, 0), (7, 0), (7, 2), (12, 0)], 0),
        ("the first", &[(6, 7), (12, 0)], 1),
        ("the last", &[(5, 0), (11, 0), (14, 3)], 1),
    ] {
        let of = |(number, lost_before): &(u64, u64)| ForwardPass {
            lost_before: *lost_before,
            ..pass("http://w", *number, 1.5)
        };
        let passes: Vec<_> = heard.iter().map(of).collect();
        let found = request_passes(&step, &mine, &passes);
        assert_eq!(found[0].lost, lost, "{name}");
        let passes = found[0].passes.len() as u64;
        assert_eq!(found[0].shared, [Shared { request: RequestId(2), passes }], "{name}");
    }
}
