//! The breaker, by tables and by random histories.

use proptest::prelude::*;

use super::*;

const CONFIG: BreakerConfig = BreakerConfig {
    failure_threshold: Some(3),
    success_threshold: 2,
    timeout: Duration::from_mins(1),
    window: Duration::from_mins(2),
};

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

/// A call that begins and ends at once; whether it was let through.
fn call(breaker: &mut Breaker, verdict: Verdict, now: Moment) -> bool {
    let pass = breaker.admit(now);
    if let Some(pass) = &pass {
        breaker.settle(pass, verdict, now);
    }
    pass.is_some()
}

fn tripped(now: Moment) -> Breaker {
    let mut breaker = Breaker::new(CONFIG);
    for _ in 0..3 {
        assert!(call(&mut breaker, Verdict::Failure, now));
    }
    assert_eq!(breaker.state(), BreakerState::Open);
    breaker
}

#[test]
fn only_failures_in_a_row_and_within_the_window_open_it() {
    use Verdict::{Failure, Neutral, Success};
    let full = Verdict::Backpressure { retry_after: None };
    for (calls, state) in [
        (&[(0, Failure), (0, Failure), (0, Failure)][..], BreakerState::Open),
        (&[(0, Failure), (60, Failure), (120, Failure)], BreakerState::Open),
        (&[(0, Failure), (60, Failure), (121, Failure)], BreakerState::Closed),
        (&[(0, Failure), (0, Failure), (0, Success), (0, Failure), (0, Failure)], BreakerState::Closed),
        (&[(0, Failure), (0, Failure), (0, Neutral), (0, full), (0, Failure)], BreakerState::Open),
        (&[(0, Neutral); 100], BreakerState::Closed),
        (&[(0, full); 100], BreakerState::Closed),
    ] {
        let mut breaker = Breaker::new(CONFIG);
        for (second, verdict) in calls {
            assert!(call(&mut breaker, *verdict, at(*second)));
        }
        assert_eq!(breaker.state(), state, "{calls:?}");
    }
    for failure_threshold in [None, Some(u32::MAX)] {
        let mut disabled = Breaker::new(BreakerConfig { failure_threshold, ..CONFIG });
        assert!((0..1000).all(|_| call(&mut disabled, Failure, at(0))));
        assert!(matches!(&disabled.state, State::Closed { failures } if failures.is_empty()));
    }
    let mut strict = Breaker::new(BreakerConfig { failure_threshold: Some(0), ..CONFIG });
    assert!(call(&mut strict, Failure, at(0)) && !call(&mut strict, Failure, at(0)));
}

#[test]
fn a_status_blames_the_worker_for_its_own_errors_only() {
    let full = Verdict::Backpressure { retry_after: None };
    for (status, verdict) in [
        (200, Verdict::Success),
        (307, Verdict::Success),
        (400, Verdict::Neutral),
        (404, Verdict::Neutral),
        (422, Verdict::Neutral),
        (429, full),
        (500, Verdict::Failure),
        (502, Verdict::Failure),
        (503, full),
        (504, Verdict::Failure),
    ] {
        assert_eq!(Verdict::of_status(status, None), verdict, "{status}");
    }
}

#[test]
fn probes_close_it() {
    let mut breaker = tripped(at(0));
    assert!(!breaker.admits(at(59)));
    let first = breaker.admit(at(60)).unwrap();
    let second = breaker.admit(at(60)).unwrap();
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    assert!(breaker.has_probes(), "no more are needed");
    let third = breaker.admit(at(60)).unwrap();
    breaker.settle(&first, Verdict::Success, at(61));
    assert!(breaker.has_probes());
    breaker.release(&third);
    assert!(breaker.has_probes());
    breaker.settle(&second, Verdict::Success, at(61));
    assert_eq!(breaker.state(), BreakerState::Closed);
    assert!((0..9).all(|_| breaker.admit(at(61)).is_some()));
}

#[test]
fn a_probe_that_fails_opens_it_anew() {
    let mut breaker = tripped(at(0));
    let (first, second) = (breaker.admit(at(60)).unwrap(), breaker.admit(at(60)).unwrap());
    breaker.settle(&first, Verdict::Failure, at(70));
    assert_eq!(breaker.state(), BreakerState::Open);
    breaker.settle(&second, Verdict::Success, at(71));
    assert!(!breaker.admits(at(129)) && breaker.admits(at(130)));
    assert!(call(&mut breaker, Verdict::Success, at(130)));
    assert_eq!(breaker.state(), BreakerState::Open, "one success is not two, and no probe is live");
    assert!(call(&mut breaker, Verdict::Success, at(130)));
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_probe_that_tells_nothing_leaves_room_for_the_next() {
    for verdict in [Verdict::Neutral, Verdict::Backpressure { retry_after: None }] {
        let mut breaker = tripped(at(0));
        for _ in 0..10 {
            assert!(call(&mut breaker, verdict, at(60)), "{verdict:?}");
            assert_eq!(breaker.state(), BreakerState::Open);
        }
        let pass = breaker.admit(at(60)).unwrap();
        breaker.release(&pass);
        assert!(breaker.admits(at(60)));
    }
}

#[test]
fn what_began_before_the_last_change_has_no_say() {
    let mut breaker = Breaker::new(CONFIG);
    let early: Vec<Pass> = (0..6).map(|_| breaker.admit(at(0)).unwrap()).collect();
    for pass in &early[..3] {
        breaker.settle(pass, Verdict::Failure, at(0));
    }
    let probe = breaker.admit(at(60)).unwrap();
    breaker.settle(&early[3], Verdict::Failure, at(60));
    breaker.settle(&early[4], Verdict::Success, at(60));
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    breaker.settle(&probe, Verdict::Success, at(60));
    assert!(call(&mut breaker, Verdict::Success, at(60)));
    assert_eq!(breaker.state(), BreakerState::Closed);
    breaker.settle(&early[5], Verdict::Failure, at(60));
    assert!(call(&mut breaker, Verdict::Failure, at(60)) && call(&mut breaker, Verdict::Failure, at(60)));
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Begin,
    End(usize, Verdict),
    Drop(usize),
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let verdict = prop_oneof![
        3 => Just(Verdict::Failure),
        2 => Just(Verdict::Success),
        1 => Just(Verdict::Neutral),
        1 => Just(Verdict::Backpressure { retry_after: None }),
    ];
    prop_oneof![
        4 => Just(Act::Begin),
        4 => (any::<usize>(), verdict).prop_map(|(which, verdict)| Act::End(which, verdict)),
        1 => any::<usize>().prop_map(Act::Drop),
        1 => (0_u64..90).prop_map(Act::Wait),
    ]
}

proptest! {
    /// Whatever happens: half-open means live probes, and no more are needed than that takes; when all calls have ended it is not
    /// half-open; and once the timeout is over it lets requests through, and enough successes close it.
    #[test]
    fn it_never_stays_half_open(acts in prop::collection::vec(act(), 0..200)) {
        let mut breaker = Breaker::new(CONFIG);
        let (mut live, mut now) = (Vec::<Pass>::new(), at(0));
        for act in acts {
            match act {
                Act::Begin => live.extend(breaker.admit(now)),
                Act::End(which, verdict) if !live.is_empty() => {
                    let pass = live.swap_remove(which % live.len());
                    breaker.settle(&pass, verdict, now);
                }
                Act::Drop(which) if !live.is_empty() => {
                    let pass = live.swap_remove(which % live.len());
                    breaker.release(&pass);
                }
                Act::End(..) | Act::Drop(_) => {}
                Act::Wait(seconds) => now = now.after(Duration::from_secs(seconds)),
            }
            let probes = live.iter().filter(|pass| pass.is_probe && pass.epoch == breaker.epoch).count();
            prop_assert_eq!(breaker.state() == BreakerState::HalfOpen, probes > 0);
            prop_assert!(probes < 2 || breaker.has_probes());
            if let State::Closed { failures } = &breaker.state {
                prop_assert!(failures.len() < 3);
            }
        }
        for pass in live.drain(..) {
            breaker.release(&pass);
        }
        prop_assert_ne!(breaker.state(), BreakerState::HalfOpen);
        now = now.after(CONFIG.timeout);
        for _ in 0..2 {
            prop_assert!(call(&mut breaker, Verdict::Success, now));
        }
        prop_assert_eq!(breaker.state(), BreakerState::Closed);
    }
}
