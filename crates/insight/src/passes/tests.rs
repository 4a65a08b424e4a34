//! Requests and passes whose places are known.

use rollscope_trace::{
    Join, PassLoad, Record, Report, RequestId, SampleKey, Scalar, StepNumber, StepTrace, WorkerRef,
};

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

/// Of the calls of one request.
fn passes_of<'a>(request: &'a Profile, passes: &'a [ForwardPass], company: &Company) -> Vec<LegPasses<'a>> {
    request_passes(std::slice::from_ref(request), passes, company).remove(0)
}

fn numbers(found: &LegPasses<'_>) -> Vec<u64> {
    found.passes.iter().map(|pass| pass.counter_id).collect()
}

fn step(number: u64, requests: &[Profile]) -> StepTrace {
    let in_step = |request: &Profile| {
        let join = Join { step: Some(StepNumber(number)), ..request.join.clone() };
        Record::Profile(Box::new(Profile { join, ..request.clone() }))
    };
    StepTrace::gather(StepNumber(number), requests.iter().map(in_step))
}

/// All that went on in steps while one of their requests did.
fn company(request: &Profile, steps: &[StepTrace]) -> Company {
    let (time, mut company) = (time_of_passes([request]).unwrap(), Company::default());
    for step in steps {
        assert!(company.add(step, &time));
    }
    company
}

/// A request that names no sample is one of its own.
fn shared(step: u64, request: u128, passes: u64) -> Shared {
    let sample = RequestId(request).to_string().into();
    Shared {
        request: RequestId(request),
        sample: SampleKey { step: StepNumber(step), group: None, sample },
        passes,
    }
}

#[test]
fn passes_that_name_no_worker_are_its_by_its_name_or_by_their_endpoint_or_an_estimate() {
    let unnamed = |endpoint: &str, worker_id: &str, number| ForwardPass {
        worker: None,
        worker_id: worker_id.into(),
        endpoint: endpoint.into(),
        ..pass("http://w", number, 1.5)
    };
    let found = |told, passes: &[ForwardPass]| {
        let request = request(1, told);
        let found = passes_of(&request, passes, &Company::default());
        found.first().map(|found| (found.basis, numbers(found), found.told))
    };
    let others = [unnamed("ipc://b.0", "", 5), unnamed("ipc://a.0", "x", 5), unnamed("ipc://a.0", "x", 6)];
    assert_eq!(found(None, &others), Some((Basis::Unnamed, vec![5, 6, 5], 0)), "anybody's");
    assert_eq!(found(Some((6, 9)), &others), Some((Basis::Unnamed, vec![6], 0)));
    assert_eq!(found(Some((7, 9)), &others), None);
    let named = [&others[..], &[unnamed("ipc://c.0", "http://w", 5)]].concat();
    assert_eq!(found(None, &named), Some((Basis::Estimate, vec![5], 0)));
    assert_eq!(found(Some((5, 6)), &named), Some((Basis::Exact, vec![5], 2)));
    // Another recorder, or this one later, has learned whose endpoint it is.
    let known = [&others[1..], &[pass("http://w", 9, 0.5)]].concat();
    assert_eq!(found(Some((5, 6)), &known), Some((Basis::Exact, vec![5, 6], 2)));
    let of_another = [&others[1..], &[pass("http://v", 9, 0.5)]].concat();
    assert_eq!(found(None, &of_another), None);
}

#[test]
fn told_numbers_give_the_passes_and_the_company() {
    let mine = request(1, Some((5, 8)));
    let step =
        step(1, &[mine.clone(), request(2, Some((7, 20))), request(3, Some((9, 9))), request(4, None)]);
    let mut passes: Vec<_> = [4, 5, 6, 8, 9].map(|number| pass("http://w", number, 1.5)).to_vec();
    passes[3].lost_before = 1;
    // Of another worker, and of the same one started anew an hour later.
    passes.push(pass("http://other", 7, 1.5));
    passes.push(ForwardPass { life: 1, ..pass("http://w", 7, 3600.0) });
    let found = passes_of(&mine, &passes, &company(&mine, &[step]));
    assert_eq!((found[0].basis, numbers(&found[0])), (Basis::Exact, vec![5, 6, 8]));
    assert_eq!((found[0].told, found[0].not_found(), found[0].lost), (4, 1, 1));
    assert_eq!(found[0].shared, [shared(1, 2, 1)], "one of two is not heard of");
    assert_eq!((found[0].busy(), found[0].mean_batch()), (Nanos(300_000_000), 2.0));
}

#[test]
fn otherwise_they_are_those_that_may_have_run_meanwhile() {
    let mine = request(1, None);
    let company = company(&mine, &[step(1, &[mine.clone(), request(2, Some((1, 9)))])]);
    // Heard of before it began; the first and the last within; too late to have run meanwhile.
    let passes = [(1, 0.99), (2, 1.0), (3, 3.1), (4, 3.2)].map(|(number, at)| pass("http://w", number, at));
    let found = passes_of(&mine, &passes, &company);
    assert_eq!((found[0].basis, numbers(&found[0])), (Basis::Estimate, vec![2, 3]));
    assert!(found[0].shared.is_empty(), "who shares them is not known");
    assert!(passes_of(&mine, &[], &company).is_empty());
}

#[test]
fn only_what_was_lost_is_told_as_lost() {
    let mine = request(1, Some((5, 12)));
    let company = company(&mine, &[step(1, &[mine.clone(), request(2, Some((5, 12)))])]);
    // Each heard of: its number, and what was lost before it.
    for (name, heard, lost) in [
        ("heartbeats of a pause between", &[(5, 9), (6, 0), (11, 0), (12, 0)][..], 0),
        ("some of them lost", &[(5, 0), (6, 0), (11, 2), (12, 0)], 2),
        ("heard of by another recorder", &[(5, 0), (6, 0), (7, 0), (7, 2), (12, 0)], 0),
        ("the first", &[(6, 7), (12, 0)], 1),
        ("the last", &[(5, 0), (11, 0), (14, 3)], 1),
        ("one at least of the last seven", &[(5, 0)], 1),
    ] {
        let of = |(number, lost_before): &(u64, u64)| ForwardPass {
            lost_before: *lost_before,
            ..pass("http://w", *number, 1.5)
        };
        let passes: Vec<_> = heard.iter().map(of).collect();
        let found = passes_of(&mine, &passes, &company);
        assert_eq!(found[0].lost, lost, "{name}");
        let passes = found[0].passes.len() as u64;
        assert_eq!(found[0].shared, [shared(1, 2, passes)], "{name}");
    }
}

#[test]
fn the_step_that_a_pass_or_a_companion_stands_with_does_not_matter() {
    let mine = request(1, Some((5, 8)));
    let mut early = request(4, Some((0, 4)));
    early.arrival = UnixNs(-9 * SECOND);
    let steps = [step(1, &[mine.clone(), early.clone()]), step(2, &[request(2, Some((6, 8)))])];
    let of_step = |step, number| ForwardPass {
        step: Some(StepNumber(step)),
        ..pass("http://w", number, 1.0 + 0.1 * number as f64)
    };
    let passes = [of_step(0, 5), of_step(1, 6), of_step(2, 7), of_step(3, 8)];
    let found = passes_of(&mine, &passes, &company(&mine, &steps));
    assert_eq!((numbers(&found[0]), found[0].lost), (vec![5, 6, 7, 8], 0));
    assert_eq!(found[0].shared, [shared(2, 2, 3)]);
    let (time, mut company) = (time_of_passes([&mine]).unwrap(), Company::default());
    assert!(!company.add(&step(0, &[early]), &time), "it was over before");
}

#[test]
fn ranks_that_are_workers_of_their_own_have_the_passes_of_their_server() {
    let on_rank = |id, told, rank: u32| {
        let mut request = request(id, told);
        request.legs[0].worker =
            WorkerRef { url: format!("http://w@{rank}").into(), instance: format!("{rank}").into() };
        request
    };
    let heard = |dp_rank, number| ForwardPass { dp_rank, ..pass("http://w", number, 1.5) };
    let passes = [heard(0, 5), heard(1, 5), heard(1, 6), heard(0, 6)];
    let ranks = |found: &LegPasses<'_>| -> Vec<(u32, u64)> {
        found.passes.iter().map(|pass| (pass.dp_rank, pass.counter_id)).collect()
    };
    for told in [Some((5, 6)), None] {
        let mine = on_rank(1, told, 1);
        let others = [mine.clone(), on_rank(2, Some((6, 9)), 1), on_rank(3, Some((5, 6)), 0)];
        let found = passes_of(&mine, &passes, &company(&mine, &[step(1, &others)]));
        assert_eq!(ranks(&found[0]), [(1, 5), (1, 6)], "{told:?}");
        let expected = told.map(|_| shared(1, 2, 1));
        assert_eq!(found[0].shared, expected.into_iter().collect::<Vec<_>>(), "{told:?}");
    }
}

#[test]
fn a_pass_that_waited_to_be_heard_is_not_of_another_life() {
    let mine = request(1, Some((5, 6)));
    let late =
        |number| ForwardPass { uncertainty: Nanos(9 * SECOND as u64), ..pass("http://w", number, 13.9) };
    let passes = [late(5), late(6), ForwardPass { life: 1, ..pass("http://w", 6, 13.9) }];
    let found = passes_of(&mine, &passes, &Company::default());
    assert_eq!((numbers(&found[0]), found[0].passes[1].life), (vec![5, 6], 0));
}
