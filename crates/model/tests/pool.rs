//! Pages of a KV pool: taken all or none, never by two owners, as bytes of the promised length.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use proptest::prelude::*;
use rollscope_model::{KvPool, Model, ModelError, PageId};

fn pool(pages: usize, page_tokens: usize) -> Result<KvPool, ModelError> {
    KvPool::new(Model::bundled().unwrap().config(), pages, page_tokens)
}

#[test]
fn a_page_is_all_layers_keys_and_values() {
    let mut kv = pool(3, 5).unwrap();
    // Layers × (keys and values) × heads × dimensions × bytes × positions.
    assert_eq!(kv.page_bytes(), 4 * 2 * 2 * 32 * 4 * 5);
    assert_eq!([0, 1, 5, 6, 10].map(|tokens| kv.pages_for(tokens)), [0, 1, 1, 2, 2]);
    kv.page_mut(PageId(1)).fill(7);
    assert_eq!(kv.page(PageId(1)), vec![7; kv.page_bytes()]);
    for other in [PageId(0), PageId(2)] {
        assert_eq!(kv.page(other), vec![0; kv.page_bytes()]);
    }
}

#[test]
fn impossible_pools_are_refused() {
    // Beyond what numbers hold, what there can be pages of, and what a process can have: 2 PiB here.
    let cases = [
        (0, 16),
        (16, 0),
        (usize::MAX, 2),
        (1 << 40, 1 << 10),
        (1, usize::MAX),
        (1 << 32, 1),
        (1 << 27, 1 << 13),
    ];
    for (pages, page_tokens) in cases {
        let error = pool(pages, page_tokens).unwrap_err().to_string();
        assert_eq!(error, format!("cannot make a KV pool of {pages} pages of {page_tokens} tokens"));
    }
}

#[test]
fn a_page_freed_twice_has_one_owner() {
    let mut kv = pool(3, 16).unwrap();
    let pages = kv.alloc(2).unwrap();
    kv.free(&pages);
    kv.free(&pages);
    kv.free(&[PageId(2), PageId(77)]);
    assert_eq!(kv.free_pages(), 3);
    assert_eq!(kv.alloc(3).unwrap().into_iter().collect::<BTreeSet<_>>().len(), 3);
    assert_eq!(kv.alloc(1), None);
    assert_eq!(kv.alloc(0), Some(vec![]));
}

proptest! {
    #[test]
    fn pages_are_never_shared_or_lost(sizes in prop::collection::vec((0..9_usize, any::<bool>()), 0..60)) {
        let mut kv = pool(24, 1).unwrap();
        let mut owned: Vec<Vec<PageId>> = Vec::new();
        for (size, release) in sizes {
            if release && !owned.is_empty() {
                kv.free(&owned.swap_remove(size % owned.len()));
            } else if let Some(pages) = kv.alloc(size) {
                prop_assert_eq!(pages.len(), size);
                owned.push(pages);
            } else {
                prop_assert!(size > kv.free_pages());
            }
            let all: BTreeSet<PageId> = owned.iter().flatten().copied().collect();
            prop_assert_eq!(all.len() + kv.free_pages(), kv.total_pages());
        }
    }
}
