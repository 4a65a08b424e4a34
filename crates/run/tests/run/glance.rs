//! glance.bin: what was made of a step when it was sealed.

use std::fs;

use rollscope_run::{GlanceBlocks, Run};
use rollscope_trace::{ForwardPass, Record, StepNumber, UnixNs};

use crate::make::{append, profile, run, writer};

const STEP: StepNumber = StepNumber(1);

fn blocks(of: &[&[u8]]) -> GlanceBlocks {
    let mut blocks = GlanceBlocks::default();
    for block in of {
        blocks.push(block).unwrap();
    }
    blocks
}

fn is_there(run: &Run) -> bool {
    run.glance(STEP).unwrap().is_some()
}

#[test]
fn it_is_there_for_as_long_as_it_is_of_all_that_is_sealed() {
    let (_dir, run) = run();
    let mut writer = writer(&run, "gateway");
    let mut sealer = run.sealer("gateway");
    let request = |number| Record::Profile(Box::new(profile(1, number)));
    assert!(!is_there(&run), "none was made");

    append(&mut writer, &[request(1), request(2)]);
    sealer.seal(writer.position()).unwrap();
    let state = run.sealed_state(STEP).unwrap();
    let many = vec![7; 100_000];
    run.put_glance(STEP, state.clone(), blocks(&[b"first\nsight", b"", &many])).unwrap();
    let glance = run.glance(STEP).unwrap().unwrap();
    let read = [2, 0, 1, 3].map(|number| glance.block(number));
    assert_eq!(read, [Some(many), Some(b"first\nsight".to_vec()), Some(vec![]), None]);
    assert!(run.glance(StepNumber(2)).unwrap().is_none());

    let pass = ForwardPass { step: Some(STEP), ..ForwardPass::new("ipc:///tmp/passes.0", 1, UnixNs(1)) };
    append(&mut writer, &[Record::ForwardPass(Box::new(pass))]);
    sealer.seal(writer.position()).unwrap();
    assert!(is_there(&run), "a worker's passes go on when its requests have ended");

    append(&mut writer, &[request(3)]);
    assert!(is_there(&run), "what is only logged is the reader's to see");
    sealer.seal(writer.position()).unwrap();
    assert!(!is_there(&run), "more was sealed");
    run.put_glance(STEP, state, blocks(&[b"late"])).unwrap();
    assert!(!is_there(&run), "and it was made before that");
}

#[test]
fn one_that_a_disk_has_changed_is_none() {
    let (_dir, run) = run();
    run.put_glance(STEP, run.sealed_state(STEP).unwrap(), blocks(&[b"first", b"second"])).unwrap();
    let read = || {
        let glance = run.glance(STEP).unwrap()?;
        Some([0, 1].map(|number| glance.block(number)))
    };
    assert_eq!(read(), Some([Some(b"first".to_vec()), Some(b"second".to_vec())]));
    let path = run.dir().join("steps/step=000001/glance.bin");
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        for damaged in [&changed[..], &whole[..at]] {
            fs::write(&path, damaged).unwrap();
            let [first, second] = read().unwrap_or_default();
            assert!(first.as_deref().is_none_or(|block| block == b"first"), "byte {at}");
            assert!(second.as_deref().is_none_or(|block| block == b"second"), "byte {at}");
            assert!(first.is_none() || second.is_none(), "byte {at}");
        }
    }
}

#[test]
fn one_that_cannot_be_read_is_none() {
    let (_dir, run) = run();
    run.put_glance(STEP, run.sealed_state(STEP).unwrap(), blocks(&[b"first"])).unwrap();
    let glance = run.glance(STEP).unwrap().unwrap();
    let path = run.dir().join("steps/step=000001/glance.bin");
    let whole = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(glance.block(0), None, "removed since");
    fs::create_dir(&path).unwrap();
    assert!(!is_there(&run), "a folder");
    assert_eq!(glance.block(0), None);
    fs::remove_dir(&path).unwrap();
    // A head that is longer than any that is written.
    let blanks = vec![b' '; 17 << 20];
    fs::write(&path, [&whole[..1], &blanks, &whole[1..]].concat()).unwrap();
    assert!(!is_there(&run));
    fs::write(&path, [&whole[..1], &blanks[..1000], &whole[1..]].concat()).unwrap();
    assert!(is_there(&run), "blanks are as good as none");
}

#[test]
fn a_follower_tells_when_all_that_it_has_read_of_a_step_is_sealed() {
    let (_dir, run) = run();
    let (mut first, mut second) = (writer(&run, "gateway"), writer(&run, "other"));
    let request = |step, number| Record::Profile(Box::new(profile(step, number)));
    append(&mut first, &[request(1, 1)]);
    run.sealer("gateway").seal(first.position()).unwrap();
    let mut follow = run.follow();
    follow.skip_sealed().unwrap();
    let mut is_sealed = || {
        while !follow.poll().unwrap().is_empty() {}
        follow.is_sealed(STEP).unwrap()
    };
    assert!(is_sealed());
    append(&mut first, &[request(1, 2), request(2, 3)]);
    append(&mut second, &[request(1, 4)]);
    assert!(!is_sealed());
    run.sealer("gateway").seal(first.position()).unwrap();
    assert!(!is_sealed(), "the other's is not");
    append(&mut first, &[request(2, 5)]);
    run.sealer("other").seal(second.position()).unwrap();
    assert!(is_sealed(), "that another step goes on is nothing to it");
    let pass = ForwardPass { step: Some(STEP), ..ForwardPass::new("ipc:///tmp/passes.0", 1, UnixNs(1)) };
    append(&mut first, &[Record::ForwardPass(Box::new(pass))]);
    assert!(is_sealed());
}
