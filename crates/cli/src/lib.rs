//! The one binary, rollscope: puts the parts together.
