//! Attention of one position over its paged context.
//!
//! Keys of a page lie dimension by dimension, so that the scores of neighbouring positions are computed side by side, each
//! a chain over ascending dimensions. Values lie position by position, and each element of the result is a chain over
//! ascending positions, as is the sum of the weights. Pages are only where the next positions are found.

use crate::isa::kernel;
use crate::kernels::elementwise::exp;
use crate::kv::PageId;

/// The keys and values of one layer for one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerKv<'a> {
    /// The pool's memory.
    pub(crate) data: &'a [f32],
    /// The sequence's pages in order.
    pub(crate) pages: &'a [PageId],
    /// Floats a page.
    pub(crate) page_len: usize,
    /// Where in a page the layer's keys begin.
    pub(crate) keys: usize,
    /// Where in a page the layer's values begin.
    pub(crate) values: usize,
    /// Positions a page.
    pub(crate) page_tokens: usize,
    /// Elements a head.
    pub(crate) head_dim: usize,
    /// Query heads that share a key-value head.
    pub(crate) group: usize,
}

kernel! {
    /// Attends from `query` (all heads of one position) to the first `scores.len()` positions of the context; the last
    /// of them is its own. `scores` is working memory, `out` has the shape of `query`.
    fn attend(query: &[f32], kv: &LayerKv<'_>, scores: &mut [f32], out: &mut [f32]) {
        let scale = 1.0 / (kv.head_dim as f32).sqrt();
        let heads = query.chunks_exact(kv.head_dim).zip(out.chunks_exact_mut(kv.head_dim));
        for (head, (query, out)) in heads.enumerate() {
            let kv_head = head / kv.group;
            for (scores, page) in scores.chunks_mut(kv.page_tokens).zip(kv.pages) {
                score_page(query, kv.keys_of(*page, kv_head), kv.page_tokens, scores);
            }
            let top = highest(scores);
            for score in scores.iter_mut() {
                *score = exp((*score - top) * scale);
            }
            let mut first = 0;
            while first < kv.head_dim {
                let out = &mut out[first..];
                first += match kv.head_dim - first {
                    32.. => mix_block::<32>(scores, kv, (kv_head, first), out),
                    8.. => mix_block::<8>(scores, kv, (kv_head, first), out),
                    _ => mix_block::<1>(scores, kv, (kv_head, first), out),
                };
            }
        }
    }
}

/// The mean of the context's values, by weight, in `N` dimensions of a head from the `first`-th on. Their sums stay in
/// registers.
#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn mix_block<const N: usize>(
    weights: &[f32],
    kv: &LayerKv<'_>,
    (kv_head, first): (usize, usize),
    out: &mut [f32],
) -> usize {
    let (mut total, mut sums) = (0.0, [0.0; N]);
    for (weights, page) in weights.chunks(kv.page_tokens).zip(kv.pages) {
        let values = kv.values_of(*page, kv_head).chunks_exact(kv.head_dim);
        for (weight, values) in weights.iter().zip(values) {
            // The total is summed once more for each block: it takes no time beside the products.
            total += weight;
            if let Some(values) = values[first..].first_chunk::<N>() {
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = weight.mul_add(*value, *sum);
                }
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = sum / total;
    }
    N
}

/// The products of a query head with the keys of a page's first positions.
///
/// Whole blocks of positions are computed even if only part of them is wanted: what lies beyond is memory of this page.
#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn score_page(query: &[f32], keys: &[f32], page_tokens: usize, scores: &mut [f32]) {
    let mut first = 0;
    while first < scores.len() {
        let wanted = &mut scores[first..];
        first += match page_tokens - first {
            16.. => score_block::<16>(query, &keys[first..], page_tokens, wanted),
            8.. => score_block::<8>(query, &keys[first..], page_tokens, wanted),
            _ => score_block::<1>(query, &keys[first..], page_tokens, wanted),
        };
    }
}

#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn score_block<const N: usize>(query: &[f32], keys: &[f32], stride: usize, scores: &mut [f32]) -> usize {
    let mut sums = [0.0; N];
    for (query, keys) in query.iter().zip(keys.chunks(stride)) {
        if let Some(keys) = keys.first_chunk::<N>() {
            for (sum, key) in sums.iter_mut().zip(keys) {
                *sum = query.mul_add(*key, *sum);
            }
        }
    }
    let wanted = scores.len().min(N);
    scores[..wanted].copy_from_slice(&sums[..wanted]);
    N
}

/// The highest score, in lanes: a maximum does not depend on the order.
#[expect(clippy::inline_always, reason = "compiled for the instruction set of the kernel that calls it")]
#[inline(always)]
fn highest(scores: &[f32]) -> f32 {
    let mut top = [f32::NEG_INFINITY; 16];
    for scores in scores.chunks(16) {
        for (top, score) in top.iter_mut().zip(scores) {
            *top = if *score > *top { *score } else { *top };
        }
    }
    top.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

// === impl LayerKv ===

impl<'a> LayerKv<'a> {
    /// A head's keys on a page: for each dimension, the positions.
    fn keys_of(&self, page: PageId, kv_head: usize) -> &'a [f32] {
        self.block(page, self.keys, kv_head)
    }

    /// A head's values on a page: for each position, the dimensions.
    fn values_of(&self, page: PageId, kv_head: usize) -> &'a [f32] {
        self.block(page, self.values, kv_head)
    }

    fn block(&self, page: PageId, start: usize, kv_head: usize) -> &'a [f32] {
        let len = self.page_tokens * self.head_dim;
        &self.data[page.0 as usize * self.page_len + start + kv_head * len..][..len]
    }
}
