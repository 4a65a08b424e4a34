//! The record in MessagePack: maps with the fields' names as keys, in their order, every field present.
//!
//! A reader takes fields in any order, passes over what it does not know (keys that are numbers among it), and has 0 for what is missing, so that records of
//! publishers before version 1 was numbered (without `version` and `counter_id`) are read too. A whole number is taken
//! where a fraction is meant. What is not a map, has something behind it or is of another version is refused.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer as _, MapAccess, Visitor,
};
use serde::{Deserialize, Serialize};

use crate::record::{ForwardPassMetrics, MAX_WORKER_ID_BYTES, QueuedRequests, ScheduledRequests};

/// The version that is written, and the only one that is read.
const VERSION: u64 = 1;

/// How deep a value may nest that is passed over. A record has two levels; the stack has its limit too.
const MAX_DEPTH: usize = 16;

/// Why bytes are not a record.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not MessagePack, not maps, or a field of another type.
    #[error("not a forward-pass record")]
    Malformed {
        /// What the decoder met.
        #[source]
        source: rmp_serde::decode::Error,
    },
    /// A record, and something behind it.
    #[error("bytes behind the record: {0}")]
    Trailing(usize),
    /// Of a version that is not known here.
    #[error("unknown version of the record: {0}")]
    Version(u64),
    /// A worker's name that is too long to be kept.
    #[error("worker's name longer than {MAX_WORKER_ID_BYTES} bytes: {0}")]
    LongName(usize),
    /// A number that measures nothing.
    #[error("not a finite number that is 0 or above: {0}")]
    Implausible(&'static str),
}

/// [`ForwardPassMetrics`] as it is encoded.
#[derive(Serialize, Deserialize)]
#[serde(default)]
struct Record<'a> {
    version: u64,
    #[serde(borrow)]
    worker_id: Cow<'a, str>,
    dp_rank: u32,
    counter_id: u64,
    wall_time: f64,
    #[serde(deserialize_with = "map")]
    scheduled_requests: Scheduled,
    #[serde(deserialize_with = "map")]
    queued_requests: Queued,
}

/// [`ScheduledRequests`] as it is encoded.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Scheduled {
    num_prefill_requests: u64,
    sum_prefill_tokens: u64,
    var_prefill_length: f64,
    sum_prefill_kv_tokens: u64,
    num_decode_requests: u64,
    sum_decode_kv_tokens: u64,
    var_decode_kv_tokens: f64,
}

/// [`QueuedRequests`] as it is encoded.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Queued {
    num_prefill_requests: u64,
    sum_prefill_tokens: u64,
    var_prefill_length: f64,
    num_decode_requests: u64,
    sum_decode_kv_tokens: u64,
    var_decode_kv_tokens: f64,
}

/// Takes a map and nothing else: a derived `Deserialize` would take an array of the fields as well.
struct MapVisitor<T>(PhantomData<T>);

/// A map without the entries whose keys are no text: a derived `Deserialize` would take a number for a field's place.
struct Named<A>(A);

/// A key of a map; nothing if it is no text.
struct Name<'de>(Option<Cow<'de, str>>);

struct NameVisitor;

/// Appends the encoded record.
pub fn encode(metrics: &ForwardPassMetrics, buffer: &mut Vec<u8>) {
    let record = Record {
        version: VERSION,
        worker_id: Cow::Borrowed(&metrics.worker_id),
        dp_rank: metrics.dp_rank,
        counter_id: metrics.counter_id,
        wall_time: metrics.wall_time,
        scheduled_requests: Scheduled::of(&metrics.scheduled),
        queued_requests: Queued::of(&metrics.queued),
    };
    let written = record.serialize(&mut rmp_serde::Serializer::new(buffer).with_struct_map());
    debug_assert!(written.is_ok(), "memory takes every byte, and the record has no type that is refused");
}

/// Reads a record.
pub fn decode(bytes: &[u8]) -> Result<ForwardPassMetrics, DecodeError> {
    let mut left = bytes;
    let mut decoder = rmp_serde::Deserializer::new(&mut left);
    decoder.set_max_depth(MAX_DEPTH);
    let record: Record<'_> = map(&mut decoder).map_err(|source| DecodeError::Malformed { source })?;
    if !left.is_empty() {
        return Err(DecodeError::Trailing(left.len()));
    }
    record.metrics()
}

fn map<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_map(MapVisitor(PhantomData))
}

// === impl Record ===

impl Default for Record<'_> {
    fn default() -> Self {
        Self {
            version: VERSION,
            worker_id: Cow::Borrowed(""),
            dp_rank: 0,
            counter_id: 0,
            wall_time: 0.0,
            scheduled_requests: Scheduled::default(),
            queued_requests: Queued::default(),
        }
    }
}

impl Record<'_> {
    fn metrics(self) -> Result<ForwardPassMetrics, DecodeError> {
        if self.version != VERSION {
            return Err(DecodeError::Version(self.version));
        }
        if self.worker_id.len() > MAX_WORKER_ID_BYTES {
            return Err(DecodeError::LongName(self.worker_id.len()));
        }
        let (scheduled, queued) = (&self.scheduled_requests, &self.queued_requests);
        for (name, value) in [
            ("wall_time", self.wall_time),
            ("scheduled_requests.var_prefill_length", scheduled.var_prefill_length),
            ("scheduled_requests.var_decode_kv_tokens", scheduled.var_decode_kv_tokens),
            ("queued_requests.var_prefill_length", queued.var_prefill_length),
            ("queued_requests.var_decode_kv_tokens", queued.var_decode_kv_tokens),
        ] {
            if !value.is_finite() || value < 0.0 {
                return Err(DecodeError::Implausible(name));
            }
        }
        Ok(ForwardPassMetrics {
            worker_id: self.worker_id.into(),
            dp_rank: self.dp_rank,
            counter_id: self.counter_id,
            wall_time: self.wall_time,
            scheduled: self.scheduled_requests.requests(),
            queued: self.queued_requests.requests(),
        })
    }
}

// === impl Scheduled ===

impl Scheduled {
    fn of(requests: &ScheduledRequests) -> Self {
        Self {
            num_prefill_requests: requests.num_prefill_requests,
            sum_prefill_tokens: requests.sum_prefill_tokens,
            var_prefill_length: requests.var_prefill_length,
            sum_prefill_kv_tokens: requests.sum_prefill_kv_tokens,
            num_decode_requests: requests.num_decode_requests,
            sum_decode_kv_tokens: requests.sum_decode_kv_tokens,
            var_decode_kv_tokens: requests.var_decode_kv_tokens,
        }
    }

    fn requests(self) -> ScheduledRequests {
        ScheduledRequests {
            num_prefill_requests: self.num_prefill_requests,
            sum_prefill_tokens: self.sum_prefill_tokens,
            var_prefill_length: self.var_prefill_length,
            sum_prefill_kv_tokens: self.sum_prefill_kv_tokens,
            num_decode_requests: self.num_decode_requests,
            sum_decode_kv_tokens: self.sum_decode_kv_tokens,
            var_decode_kv_tokens: self.var_decode_kv_tokens,
        }
    }
}

// === impl Queued ===

impl Queued {
    fn of(requests: &QueuedRequests) -> Self {
        Self {
            num_prefill_requests: requests.num_prefill_requests,
            sum_prefill_tokens: requests.sum_prefill_tokens,
            var_prefill_length: requests.var_prefill_length,
            num_decode_requests: requests.num_decode_requests,
            sum_decode_kv_tokens: requests.sum_decode_kv_tokens,
            var_decode_kv_tokens: requests.var_decode_kv_tokens,
        }
    }

    fn requests(self) -> QueuedRequests {
        QueuedRequests {
            num_prefill_requests: self.num_prefill_requests,
            sum_prefill_tokens: self.sum_prefill_tokens,
            var_prefill_length: self.var_prefill_length,
            num_decode_requests: self.num_decode_requests,
            sum_decode_kv_tokens: self.sum_decode_kv_tokens,
            var_decode_kv_tokens: self.var_decode_kv_tokens,
        }
    }
}

// === impl MapVisitor ===

impl<'de, T: Deserialize<'de>> Visitor<'de> for MapVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(Named(map)))
    }
}

// === impl Named ===

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Named<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(Name(name)) = self.0.next_key()? {
            match name {
                Some(name) => return seed.deserialize(name.into_deserializer()).map(Some),
                None => drop(self.0.next_value::<IgnoredAny>()?),
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.0.next_value_seed(seed)
    }
}

// === impl Name ===

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NameVisitor)
    }
}

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Name<'de>, E> {
        Ok(Name(Some(Cow::Borrowed(name))))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Name<'de>, E> {
        Ok(Name(Some(Cow::Owned(name.to_owned()))))
    }

    fn visit_bytes<E: Error>(self, _: &[u8]) -> Result<Name<'de>, E> {
        Ok(Name(None))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Name<'de>, E> {
        Ok(Name(None))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Name<'de>, E> {
        Ok(Name(None))
    }
}

#[cfg(test)]
mod tests;
