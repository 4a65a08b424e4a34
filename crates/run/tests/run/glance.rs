//! glance.bin: what was made of a step when it was sealed.

use std::fs;

use rollscope_trace::{ForwardPass, Record, StepNumber, UnixNs};

use crate::make::{append, profile, run, writer};

const STEP: StepNumber = StepNumber(1);

#[test]
fn it_is_there_for_as_long_as_it_is_of_all_that_is_sealed() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let sealer = run.sealer("gateway");
    let request = |number| Record::Profile(Box::new(profile(1, number)));
    assert_eq!(run.glance(STEP).unwrap(), None, "none was made");

    append(&mut writer, &[request(1), request(2)]);
    sealer.seal(writer.position()).unwrap();
    let state = run.sealed_state(STEP).unwrap();
    run.put_glance(STEP, state.clone(), b"first\nsight").unwrap();
    assert_eq!(run.glance(STEP).unwrap().as_deref(), Some(&b"first\nsight"[..]));
    assert_eq!(run.glance(StepNumber(2)).unwrap(), None);

    let pass = ForwardPass { step: Some(STEP), ..ForwardPass::new("ipc:///tmp/passes.0", 1, UnixNs(1)) };
    append(&mut writer, &[Record::ForwardPass(Box::new(pass))]);
    sealer.seal(writer.position()).unwrap();
    assert!(run.glance(STEP).unwrap().is_some(), "a worker's passes go on when its requests have ended");

    append(&mut writer, &[request(3)]);
    assert!(run.glance(STEP).unwrap().is_some(), "what is only logged is the reader's to see");
    sealer.seal(writer.position()).unwrap();
    assert_eq!(run.glance(STEP).unwrap(), None, "more was sealed");
    run.put_glance(STEP, state, b"late").unwrap();
    assert_eq!(run.glance(STEP).unwrap(), None, "and it was made before that");
}

#[test]
fn one_that_a_disk_has_changed_is_none() {
    let (_dir, run) = run();
    run.put_glance(STEP, run.sealed_state(STEP).unwrap(), b"sight").unwrap();
    assert!(run.glance(STEP).unwrap().is_some());
    let path = run.dir().join("steps/step=000001/glance.bin");
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        fs::write(&path, &changed).unwrap();
        assert_ne!(run.glance(STEP).unwrap().as_deref(), Some(&changed[changed.len() - 5..]), "byte {at}");
        fs::write(&path, &whole[..at]).unwrap();
        assert_eq!(run.glance(STEP).unwrap(), None, "cut at {at}");
    }
}
