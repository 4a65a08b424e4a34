//! The gateway on real sockets, between a client that sees every break and workers scripted to the byte.

#[cfg(test)]
mod admin;
#[cfg(test)]
mod called_off;
#[cfg(test)]
mod checks;
#[cfg(test)]
mod choosing;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod discovery;
#[cfg(test)]
mod ending;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod field;
#[cfg(test)]
mod figures;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod pair;
#[cfg(test)]
mod ranks;
#[cfg(test)]
mod record;
#[cfg(test)]
mod regular;
#[cfg(test)]
mod router;
#[cfg(test)]
mod slime;
#[cfg(test)]
mod stream;
#[cfg(test)]
mod surface;
#[cfg(test)]
mod texts;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod tries;
