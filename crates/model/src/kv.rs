//! The paged cache of keys and values.
//!
//! # Layout of a page
//! A page holds [`KvPool::page_tokens`] consecutive positions of one sequence, all layers of them, as f32 in the
//! machine's byte order:
//!
//! ```text
//! for each layer:
//!     keys:   for each key-value head: for each dimension: for each position
//!     values: for each key-value head: for each position: for each dimension
//! ```
//!
//! It is one contiguous stretch of bytes, so a transfer sends and receives whole pages. Two pools exchange pages if
//! [`crate::Model::fingerprint`], [`KvPool::page_tokens`] and the byte order are the same. Positions that were not written
//! hold whatever was there before; nothing reads them.

use zerocopy::IntoBytes;

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::kernels::LayerKv;
use crate::memory::Zeroed;

/// A page of a [`KvPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

/// A fixed number of pages, and which of them are free.
#[derive(Debug)]
pub struct KvPool {
    shape: KvShape,
    page_tokens: usize,
    data: Zeroed<f32>,
    /// Free pages, the next one last.
    free: Vec<PageId>,
    /// By page: it was allocated and not freed.
    used: Vec<bool>,
}

/// What of a model's shape its keys and values depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KvShape {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
}

// === impl KvPool ===

impl KvPool {
    /// A pool of `pages` pages of `page_tokens` positions each, for models of this shape. All pages are free.
    ///
    /// Memory is taken from the operating system as pages are first written. A multiple of 16 positions a page is fastest.
    pub fn new(config: &ModelConfig, pages: usize, page_tokens: usize) -> Result<Self, ModelError> {
        let shape = KvShape::of(config);
        let floats = shape.token_len().checked_mul(page_tokens).and_then(|page| page.checked_mul(pages));
        let data = floats.filter(|floats| *floats > 0).and_then(|floats| Zeroed::new(floats).ok());
        let (Some(data), Ok(count)) = (data, u32::try_from(pages)) else {
            return Err(ModelError::PoolSize { pages, page_tokens });
        };
        Ok(Self {
            shape,
            page_tokens,
            data,
            free: (0..count).rev().map(PageId).collect(),
            used: vec![false; pages],
        })
    }

    /// Gives the memory back to the operating system. The pages stay, with nothing on them, and must not be used until
    /// [`KvPool::restore`]: a step fails, and [`KvPool::page`] panics.
    pub fn release(&mut self) {
        self.data = Zeroed::empty();
    }

    /// Takes memory again after [`KvPool::release`]; else it does nothing.
    pub fn restore(&mut self) -> Result<(), ModelError> {
        let (pages, page_tokens) = (self.used.len(), self.page_tokens);
        if self.data.is_empty() {
            let memory = Zeroed::new(self.page_len() * pages);
            self.data = memory.map_err(|_| ModelError::PoolSize { pages, page_tokens })?;
        }
        Ok(())
    }

    /// Takes `count` pages, or none if there are fewer free ones.
    pub fn alloc(&mut self, count: usize) -> Option<Vec<PageId>> {
        let rest = self.free.len().checked_sub(count)?;
        let pages: Vec<PageId> = self.free.drain(rest..).rev().collect();
        for page in &pages {
            self.used[page.0 as usize] = true;
        }
        Some(pages)
    }

    /// Gives pages back. A page that is free already, or not of this pool, is ignored: it cannot come to two owners.
    pub fn free(&mut self, pages: &[PageId]) {
        for page in pages {
            if self.used.get(page.0 as usize) == Some(&true) {
                self.used[page.0 as usize] = false;
                self.free.push(*page);
            }
        }
    }

    /// Pages that can be allocated.
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// Pages in all.
    pub fn total_pages(&self) -> usize {
        self.used.len()
    }

    /// Positions a page.
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// Bytes a page.
    pub fn page_bytes(&self) -> usize {
        self.page_len() * size_of::<f32>()
    }

    /// Pages that `tokens` positions of a sequence take.
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens)
    }

    /// A page's bytes, [`KvPool::page_bytes`] of them.
    ///
    /// # Panics
    /// If the page is not of this pool.
    pub fn page(&self, page: PageId) -> &[u8] {
        let len = self.page_len();
        self.data[page.0 as usize * len..][..len].as_bytes()
    }

    /// A page's bytes, to be filled with those of a page of an equal pool.
    ///
    /// # Panics
    /// If the page is not of this pool.
    pub fn page_mut(&mut self, page: PageId) -> &mut [u8] {
        let len = self.page_len();
        self.data[page.0 as usize * len..][..len].as_mut_bytes()
    }

    /// The pool's pages hold keys and values of models of this shape.
    pub(crate) fn fits(&self, config: &ModelConfig) -> bool {
        self.shape == KvShape::of(config) && !self.data.is_empty()
    }

    /// Writes one layer's keys and values (all heads) of a position of a sequence.
    pub(crate) fn write(&mut self, layer: usize, pages: &[PageId], position: usize, kv: (&[f32], &[f32])) {
        let KvShape { head_dim, .. } = self.shape;
        let slot = position % self.page_tokens;
        let head_len = self.page_tokens * head_dim;
        let start = pages[position / self.page_tokens].0 as usize * self.page_len();
        let page_tokens = self.page_tokens;
        let keys = start + self.keys_start(layer);
        for (head, key) in kv.0.chunks_exact(head_dim).enumerate() {
            let block = &mut self.data[keys + head * head_len..][..head_len];
            for (slots, value) in block.chunks_exact_mut(page_tokens).zip(key) {
                slots[slot] = *value;
            }
        }
        let values = start + self.values_start(layer);
        for (head, value) in kv.1.chunks_exact(head_dim).enumerate() {
            self.data[values + head * head_len + slot * head_dim..][..head_dim].copy_from_slice(value);
        }
    }

    /// One layer of a sequence, to attend to with `group` query heads a key-value head.
    pub(crate) fn layer<'a>(&'a self, layer: usize, pages: &'a [PageId], group: usize) -> LayerKv<'a> {
        LayerKv {
            data: &self.data,
            pages,
            page_len: self.page_len(),
            keys: self.keys_start(layer),
            values: self.values_start(layer),
            page_tokens: self.page_tokens,
            head_dim: self.shape.head_dim,
            group,
        }
    }

    fn page_len(&self) -> usize {
        self.shape.token_len() * self.page_tokens
    }

    fn keys_start(&self, layer: usize) -> usize {
        layer * 2 * self.shape.kv_heads * self.shape.head_dim * self.page_tokens
    }

    fn values_start(&self, layer: usize) -> usize {
        self.keys_start(layer) + self.shape.kv_heads * self.shape.head_dim * self.page_tokens
    }
}

// === impl KvShape ===

impl KvShape {
    fn of(config: &ModelConfig) -> Self {
        Self {
            layers: config.num_hidden_layers,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        }
    }

    /// Floats a position.
    fn token_len(&self) -> usize {
        self.layers * 2 * self.kv_heads * self.head_dim
    }
}
