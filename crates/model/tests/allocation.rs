//! A step and a draw take no memory once their buffers have grown.

#![expect(unsafe_code, reason = "an allocator that counts has to be one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rollscope_model::sampling::{SamplingParams, SamplingScratch, sample};
use rollscope_model::{KvPool, Logits, Model, Row, Wanted};

/// Counts the allocations of each thread.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator; the counter itself does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[test]
fn steady_steps_and_draws_do_not_allocate() {
    let model = Model::bundled().unwrap();
    let mut kv = KvPool::new(model.config(), 4, 16).unwrap();
    let pages = kv.alloc(4).unwrap();
    let (mut logits, mut scratch) = (Logits::new(), SamplingScratch::default());
    let plain = SamplingParams::default();
    let all = [
        plain,
        SamplingParams { temperature: 0.0, ..plain },
        SamplingParams { top_k: 9, top_p: 0.9, min_p: 0.01, ..plain },
    ];
    let mut step = |tokens: &[u32], position| {
        let row = Row { tokens, position, pages: &pages, logits: Wanted::All };
        model.forward(&mut kv, &[row], &mut logits).unwrap();
        for params in &all {
            sample(logits.row(0), params, position as u64, &mut scratch);
        }
    };
    step(&[256; 60], 0);
    let before = ALLOCATIONS.get();
    step(&[49; 7], 20);
    step(&[50], 27);
    step(&[51; 32], 28);
    assert_eq!(ALLOCATIONS.get() - before, 0);
    drop(vec![1]);
    assert_eq!(ALLOCATIONS.get() - before, 1, "the counter counts");
}
