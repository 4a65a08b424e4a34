//! A step and a draw take no memory once their buffers have grown; quantized weights are read without ever being floats.

#![expect(unsafe_code, reason = "an allocator that counts has to be one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rollscope_model::sampling::{SamplingParams, SamplingScratch, sample};
use rollscope_model::{KvPool, Logits, Model, Row, Wanted};

#[path = "../src/tests/gguf.rs"]
mod gguf;

/// Counts the allocations of each thread, and what they take together.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// What a thread frees may come from another one.
    static BYTES: Cell<isize> = const { Cell::new(0) };
    static MOST_BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator; the counter itself does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        BYTES.set(BYTES.get() + layout.size() as isize);
        MOST_BYTES.set(MOST_BYTES.get().max(BYTES.get()));
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get() - layout.size() as isize);
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

/// A byte a number, and scales, come to a quarter more than the file; floats would be four times as much.
#[test]
fn quantized_weights_are_read_without_becoming_floats() {
    let (hidden, vocab, draws) = (4096, 256, Cell::new(0_u32));
    let random = || {
        draws.set(draws.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        f64::from(draws.get()) / f64::from(u32::MAX)
    };
    let mut file = gguf::GgufFile::default();
    file.text("general.architecture", "llama");
    for (key, size) in [
        ("context_length", 16),
        ("embedding_length", hidden),
        ("block_count", 1),
        ("feed_forward_length", 32),
        ("attention.head_count", 1),
        ("attention.key_length", 2),
    ] {
        file.u32(&format!("llama.{key}"), size);
    }
    file.f32("llama.rope.freq_base", 1e4);
    file.bool("tokenizer.ggml.add_bos_token", false);
    file.tokenizer(&(0..vocab).map(|id| format!("t{id}")).collect::<Vec<_>>(), vocab);
    let hidden = hidden as usize;
    let norm: Vec<u8> = vec![0; 4 * hidden];
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        file.tensor(&format!("{name}.weight"), &[hidden], (0, &norm));
    }
    for (name, rows, columns, kind) in [
        ("token_embd", vocab, hidden, 8),
        ("blk.0.attn_q", 2, hidden, 12),
        ("blk.0.attn_k", 2, hidden, 12),
        ("blk.0.attn_v", 2, hidden, 14),
        ("blk.0.attn_output", hidden, 2, 1),
        ("blk.0.ffn_gate", 32, hidden, 2),
        ("blk.0.ffn_up", 32, hidden, 3),
        ("blk.0.ffn_down", hidden, 32, 8),
    ] {
        let values = gguf::random_values(kind, rows * columns, 0.01, random);
        file.tensor(&format!("{name}.weight"), &[rows, columns], (kind, &values));
    }
    let bytes = file.into_bytes();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let file_bytes = bytes.len() as isize;
    drop(bytes);
    let before = BYTES.get();
    MOST_BYTES.set(before);
    let model = Model::open(&path).unwrap();
    assert_eq!(model.config().hidden_size, hidden);
    let most = MOST_BYTES.get() - before;
    assert!(most > file_bytes && most < 3 * file_bytes, "{most} bytes for a file of {file_bytes}");
}
