//! Reads the fields of a JSON object one by one, so that an error names the field.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::respond::ApiError;

/// The fields of an object that were not taken yet.
#[derive(Debug)]
pub(super) struct Fields {
    fields: Map<String, Value>,
}

/// A value for all requests of a batch, or one for each.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PerRequest<T> {
    All(T),
    Each(Vec<T>),
}

/// How many prompts there are, and how many requests each is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) prompts: usize,
    pub(super) n: usize,
}

/// A field that asks for what this engine does not do, unless it has a value that asks for nothing.
pub(super) struct Refused {
    pub(super) name: &'static str,
    pub(super) neutral: Neutral,
}

/// Values that ask for nothing, beside null.
#[derive(Clone, Copy)]
pub(super) enum Neutral {
    /// False, 0, an empty text, list or object.
    Empty,
    /// The number 1.
    One,
}

/// The fields of `/generate` that are refused.
pub(super) const REFUSED_FIELDS: &[Refused] = &[
    refused("input_embeds"),
    refused("positional_embed_overrides"),
    refused("image_data"),
    refused("video_data"),
    refused("audio_data"),
    refused("token_ids_logprob"),
    refused("return_hidden_states"),
    refused("return_routed_experts"),
    refused("return_entropy"),
    refused("session_params"),
    refused("lora_path"),
    refused("custom_logit_processor"),
];

/// The fields of `sampling_params` that are refused.
pub(super) const REFUSED_SAMPLING_FIELDS: &[Refused] = &[
    refused("json_schema"),
    refused("regex"),
    refused("ebnf"),
    refused("structural_tag"),
    refused("stop_regex"),
];

pub(super) const fn refused(name: &'static str) -> Refused {
    Refused { name, neutral: Neutral::Empty }
}

// === impl Fields ===

impl Fields {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self { fields }),
            Ok(_) => Err(ApiError::bad_request("the body is not a JSON object")),
            Err(error) => Err(ApiError::bad_request(format!("the body is not JSON: {error}"))),
        }
    }

    /// The fields of a body that may be left out.
    pub(super) fn parse_optional(body: &[u8]) -> Result<Self, ApiError> {
        if body.is_empty() { Ok(Self { fields: Map::new() }) } else { Self::parse(body) }
    }

    pub(super) fn of(fields: Map<String, Value>) -> Self {
        Self { fields }
    }

    /// Takes a field; one that is null counts as not given.
    pub(super) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.fields.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(name, value).map(Some),
        }
    }

    /// Takes a field that may have one value for all requests or a list of values, null being the default.
    pub(super) fn take_per_request<T: DeserializeOwned + Default>(
        &mut self,
        name: &str,
    ) -> Result<PerRequest<T>, ApiError> {
        let item = |value| if value == Value::Null { Ok(T::default()) } else { read(name, value) };
        match self.fields.remove(name) {
            None => Ok(PerRequest::All(T::default())),
            Some(Value::Array(values)) => {
                values.into_iter().map(item).collect::<Result<_, _>>().map(PerRequest::Each)
            }
            Some(value) => item(value).map(PerRequest::All),
        }
    }

    /// Takes such a field for a batch: one value a request.
    pub(super) fn take_each<T: DeserializeOwned + Default + Clone>(
        &mut self,
        name: &str,
        batch: Batch,
    ) -> Result<Vec<T>, ApiError> {
        self.take_per_request(name)?.spread(name, batch)
    }

    /// Refuses the request if one of these fields asks for something.
    pub(super) fn refuse(&self, refused: &[Refused]) -> Result<(), ApiError> {
        for Refused { name, neutral } in refused {
            if self.fields.get(*name).is_some_and(|value| !neutral.is(value)) {
                return Err(ApiError::bad_request(format!("{name} is not supported by this engine")));
            }
        }
        Ok(())
    }
}

fn read<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, ApiError> {
    serde_json::from_value(value).map_err(|error| ApiError::bad_request(format!("{name}: {error}")))
}

// === impl Batch ===

impl Batch {
    pub(super) fn requests(self) -> usize {
        self.prompts.saturating_mul(self.n)
    }
}

// === impl PerRequest ===

impl<T> PerRequest<T> {
    /// What becomes of each value, or the first error.
    pub(super) fn try_map<U, E>(self, map: impl Fn(T) -> Result<U, E>) -> Result<PerRequest<U>, E> {
        match self {
            Self::All(value) => map(value).map(PerRequest::All),
            Self::Each(values) => values.into_iter().map(map).collect::<Result<_, _>>().map(PerRequest::Each),
        }
    }
}

impl<T: Clone> PerRequest<T> {
    /// One value a request of a batch: given for all, for each prompt, or for each request.
    pub(super) fn spread(self, name: &str, batch: Batch) -> Result<Vec<T>, ApiError> {
        let Batch { prompts, n } = batch;
        match self {
            Self::All(value) => Ok(vec![value; batch.requests()]),
            Self::Each(values) if values.len() == batch.requests() => Ok(values),
            Self::Each(values) if values.len() == prompts => {
                Ok(values.into_iter().flat_map(|value| std::iter::repeat_n(value, n)).collect())
            }
            Self::Each(values) => Err(ApiError::bad_request(format!(
                "{name} has {} entries for {} requests",
                values.len(),
                batch.requests()
            ))),
        }
    }
}

// === impl Neutral ===

impl Neutral {
    fn is(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) => true,
            (Self::Empty, Value::Bool(value)) => !value,
            (Self::Empty, Value::String(value)) => value.is_empty(),
            // A list with an entry for each request asks for something if one of them does.
            (_, Value::Array(values)) => values.iter().all(|value| self.is(value)),
            (Self::Empty, Value::Object(value)) => value.is_empty(),
            (Self::Empty, Value::Number(value)) => value.as_f64() == Some(0.0),
            (Self::One, value) => value.as_f64() == Some(1.0),
        }
    }
}
