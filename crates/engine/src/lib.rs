//! The embedded inference server: HTTP, scheduler, prefill/decode disaggregation.
