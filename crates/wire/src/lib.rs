//! The bytes of request and reply bodies: scanner, splicer, server-sent events.
