//! Scriptable fake workers and fault proxies for tests.
