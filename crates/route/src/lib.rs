//! Worker registry, load accounting and routing policies.
