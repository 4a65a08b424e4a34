//! The gateway on real sockets, between a client that sees every break and workers scripted to the byte.

#[cfg(test)]
mod harness;
#[cfg(test)]
mod regular;
