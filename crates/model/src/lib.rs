//! Checkpoints, kernels, paged KV cache and sampling of the embedded engine.
