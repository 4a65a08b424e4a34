//! The engine as its clients see it: servers in this process, requests over HTTP.

#[cfg(test)]
mod control;
#[cfg(test)]
mod decode_peers;
#[cfg(test)]
mod generate;
#[cfg(test)]
mod invariance;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod openai;
#[cfg(test)]
mod pair;
#[cfg(test)]
mod peer;
#[cfg(test)]
mod prefill_peers;
#[cfg(test)]
mod ranks;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod support;
#[cfg(test)]
mod weights;
