//! A forward pass: rows of tokens in, keys and values onto pages, logits out.

use crate::config::ModelConfig;
use crate::error::RowError;
use crate::isa::Isa;
use crate::kernels::{Lanes, add, attend, matmul, rms_norm, rotate, silu_gate};
use crate::kv::{KvPool, PageId};
use crate::weights::{Layer, Weights};

/// A stretch of one sequence to compute in a step: a prompt, a chunk of one, or the last token.
///
/// The positions before it must be on the pages already. Rows may share pages of a common prefix, but no row may write
/// (have a position on) a page that another row of the step reads or writes.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The tokens; at least one.
    pub tokens: &'a [u32],
    /// The position of `tokens[0]` in the sequence, from 0.
    pub position: usize,
    /// The sequence's pages from position 0 to at least the last one of this row. More are allowed.
    pub pages: &'a [PageId],
    /// Positions whose logits are wanted.
    pub logits: Wanted,
}

/// Positions of a row whose logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// None: a chunk of a prompt that is not its end.
    None,
    /// The last one.
    Last,
    /// Each of them.
    All,
}

/// The logits of a step, and the working memory of computing them: kept from step to step, it grows to the largest.
#[derive(Debug, Default)]
pub struct Logits {
    values: Vec<f32>,
    width: usize,
    scratch: Scratch,
}

/// Activations, each positions × some width.
#[derive(Debug, Default)]
struct Scratch {
    /// The residual stream.
    hidden: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    /// What a layer's half adds to the residual stream.
    delta: Vec<f32>,
    gate_up: Vec<f32>,
    gated: Vec<f32>,
    /// One head's query or key.
    head: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// Attention weights of one head over the longest context.
    scores: Vec<f32>,
    /// Quantized weights, for the moment of their use.
    unpacked: Vec<Lanes>,
}

/// A step's immutable inputs.
struct Pass<'a> {
    config: &'a ModelConfig,
    isa: Isa,
    rows: &'a [Row<'a>],
}

/// Runs a step whose rows were checked.
pub(crate) fn run(
    (config, weights, isa): (&ModelConfig, &Weights, Isa),
    kv: &mut KvPool,
    rows: &[Row<'_>],
    out: &mut Logits,
) {
    let pass = Pass { config, isa, rows };
    let Logits { values, width, scratch } = out;
    pass.begin(weights, scratch);
    for (index, layer) in weights.layers.iter().enumerate() {
        pass.attention(layer, index, kv, scratch);
        pass.mlp(layer, scratch);
    }
    *width = config.vocab_size;
    pass.finish(weights, scratch, values);
}

/// Norms each head by itself.
fn norm_heads(isa: Isa, (heads, weight): (&mut [f32], &[f32]), eps: f32, scratch: &mut Vec<f32>) {
    for head in heads.chunks_exact_mut(weight.len()) {
        scratch.clear();
        scratch.extend_from_slice(head);
        rms_norm(isa, scratch, weight, eps, head);
    }
}

/// Makes room for `len` floats, without touching those that are there.
fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    buffer
}

// === impl Row ===

impl Row<'_> {
    /// Checks all that `run` relies on.
    pub(crate) fn check(&self, config: &ModelConfig, kv: &KvPool) -> Result<(), RowError> {
        if self.tokens.is_empty() {
            return Err(RowError::Empty);
        }
        let end = self.position.saturating_add(self.tokens.len());
        if end > config.max_position_embeddings {
            return Err(RowError::TooLong { end, limit: config.max_position_embeddings });
        }
        if let Some(token) = self.tokens.iter().find(|token| **token as usize >= config.vocab_size) {
            return Err(RowError::Token { token: *token, vocab_size: config.vocab_size });
        }
        let needed = kv.pages_for(end);
        if self.pages.len() < needed {
            return Err(RowError::FewPages { needed, pages: self.pages.len() });
        }
        match self.pages[..needed].iter().find(|page| page.0 as usize >= kv.total_pages()) {
            Some(page) => Err(RowError::Page { page: page.0, total: kv.total_pages() }),
            None => Ok(()),
        }
    }

    fn positions(&self) -> std::ops::Range<usize> {
        self.position..self.position + self.tokens.len()
    }
}

// === impl Logits ===

impl Logits {
    /// No logits.
    pub fn new() -> Self {
        Self::default()
    }

    /// The logits of the `index`-th wanted position, counted over all rows in order; one for each token of the
    /// vocabulary.
    ///
    /// # Panics
    /// If fewer positions were wanted.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values[index * self.width..][..self.width]
    }

    /// Wanted positions of the latest step.
    pub fn len(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }

    /// No position was wanted.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

// === impl Pass ===

impl Pass<'_> {
    /// Looks the tokens up and computes each position's rotation.
    fn begin(&self, weights: &Weights, scratch: &mut Scratch) {
        let hidden_size = self.config.hidden_size;
        let count: usize = self.rows.iter().map(|row| row.tokens.len()).sum();
        let hidden = sized(&mut scratch.hidden, count * hidden_size);
        let tokens = self.rows.iter().flat_map(|row| row.tokens);
        for (hidden, token) in hidden.chunks_exact_mut(hidden_size).zip(tokens) {
            weights.embedding.copy_row(*token as usize, hidden);
        }
        scratch.cos.clear();
        scratch.sin.clear();
        for position in self.rows.iter().flat_map(Row::positions) {
            for frequency in &weights.rotary {
                let (sin, cos) = libm::sincosf(position as f32 * frequency);
                scratch.cos.push(cos);
                scratch.sin.push(sin);
            }
        }
    }

    /// `hidden += attention(norm(hidden))`; writes the positions' keys and values first, then reads the whole context.
    fn attention(&self, layer: &Layer, index: usize, kv: &mut KvPool, scratch: &mut Scratch) {
        let Self { config, isa, .. } = *self;
        let count = scratch.hidden.len() / config.hidden_size;
        let (queries, kv_size, half) = (config.query_size(), config.kv_size(), config.head_dim / 2);
        let normed = sized(&mut scratch.normed, scratch.hidden.len());
        rms_norm(isa, &scratch.hidden, &layer.attention_norm, config.rms_norm_eps, normed);
        let qkv = sized(&mut scratch.qkv, count * layer.qkv.outputs());
        matmul(isa, normed, &layer.qkv, &mut scratch.unpacked, qkv);

        let angles = scratch.cos.chunks_exact(half).zip(scratch.sin.chunks_exact(half));
        let places = self.rows.iter().flat_map(|row| row.positions().map(|position| (row.pages, position)));
        for ((qkv, (cos, sin)), (pages, position)) in
            qkv.chunks_exact_mut(layer.qkv.outputs()).zip(angles).zip(places.clone())
        {
            if let Some(bias) = &layer.qkv_bias {
                add(isa, qkv, bias);
            }
            let (rotated, value) = qkv.split_at_mut(queries + kv_size);
            if let Some([query_norm, key_norm]) = &layer.qk_norm {
                let (query, key) = rotated.split_at_mut(queries);
                norm_heads(isa, (query, query_norm), config.rms_norm_eps, &mut scratch.head);
                norm_heads(isa, (key, key_norm), config.rms_norm_eps, &mut scratch.head);
            }
            rotate(isa, rotated, cos, sin);
            kv.write(index, pages, position, (&rotated[queries..], value));
        }

        let attended = sized(&mut scratch.attended, count * queries);
        let group = config.num_attention_heads / config.num_key_value_heads;
        for ((qkv, out), (pages, position)) in
            qkv.chunks_exact(layer.qkv.outputs()).zip(attended.chunks_exact_mut(queries)).zip(places)
        {
            let scores = sized(&mut scratch.scores, position + 1);
            attend(isa, &qkv[..queries], &kv.layer(index, pages, group), scores, out);
        }

        let delta = sized(&mut scratch.delta, scratch.hidden.len());
        matmul(isa, attended, &layer.output, &mut scratch.unpacked, delta);
        add(isa, &mut scratch.hidden, delta);
    }

    /// `hidden += mlp(norm(hidden))`.
    fn mlp(&self, layer: &Layer, scratch: &mut Scratch) {
        let Self { config, isa, .. } = *self;
        let count = scratch.hidden.len() / config.hidden_size;
        let normed = sized(&mut scratch.normed, scratch.hidden.len());
        rms_norm(isa, &scratch.hidden, &layer.mlp_norm, config.rms_norm_eps, normed);
        let gate_up = sized(&mut scratch.gate_up, count * layer.gate_up.outputs());
        matmul(isa, normed, &layer.gate_up, &mut scratch.unpacked, gate_up);
        let gated = sized(&mut scratch.gated, count * config.intermediate_size);
        silu_gate(isa, gate_up, config.intermediate_size, gated);
        let delta = sized(&mut scratch.delta, scratch.hidden.len());
        matmul(isa, gated, &layer.down, &mut scratch.unpacked, delta);
        add(isa, &mut scratch.hidden, delta);
    }

    /// The logits of the wanted positions.
    fn finish(&self, weights: &Weights, scratch: &mut Scratch, logits: &mut Vec<f32>) {
        let Self { config, isa, .. } = *self;
        let width = config.hidden_size;
        // Wanted positions move to the front of `delta`, which is free now.
        scratch.delta.clear();
        let mut rest = scratch.hidden.as_slice();
        for row in self.rows {
            let (hidden, after) = rest.split_at(row.tokens.len() * width);
            rest = after;
            let wanted = match row.logits {
                Wanted::None => &hidden[..0],
                Wanted::Last => &hidden[hidden.len() - width..],
                Wanted::All => hidden,
            };
            scratch.delta.extend_from_slice(wanted);
        }
        let normed = sized(&mut scratch.normed, scratch.delta.len());
        rms_norm(isa, &scratch.delta, &weights.norm, config.rms_norm_eps, normed);
        let logits = sized(logits, scratch.delta.len() / width * config.vocab_size);
        matmul(isa, normed, weights.head(), &mut scratch.unpacked, logits);
    }
}
