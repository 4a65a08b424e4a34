//! The kinds of values: how words of a command line become a value, and which values are allowed.

use std::fmt;

use serde_json::{Number, Value};

/// What values an option may have.
///
/// Every value passes through here as JSON, whether it came as words or as an override, so that one check holds for all.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// `--flag`, or `--flag=true|false`.
    Flag,
    /// Any text.
    Text,
    /// A whole number within inclusive bounds.
    Integer {
        /// Least value.
        min: i128,
        /// Greatest value.
        max: i128,
    },
    /// A finite number within inclusive bounds.
    Number {
        /// Least value.
        min: f64,
        /// Greatest value.
        max: f64,
    },
    /// One of a closed set of spellings.
    Choice(Vec<&'static str>),
    /// A value that may be absent: JSON null, and (but for text) the word `none`.
    Optional(Box<Kind>),
    /// A value, and after it one that may be absent: `URL [PORT|none]`.
    Pair(Box<Kind>, Box<Kind>),
    /// Any number of values. A flag takes several words or is repeated; a flag of pairs is repeated.
    List(Box<Kind>),
}

/// A value or word that is not of the kind; what was expected is [`Kind`]'s display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unfit {
    /// What was given, quoted as JSON.
    pub(crate) given: String,
}

// === impl Kind ===

impl Kind {
    /// The value that these words, as a flag was given them occurrence by occurrence, stand for.
    pub(crate) fn parse(&self, occurrences: &[Vec<String>]) -> Result<Value, Unfit> {
        match self {
            Self::List(item) => {
                let items: Result<_, _> = match **item {
                    Self::Pair(..) => occurrences.iter().map(|words| item.item(words)).collect(),
                    _ => occurrences
                        .iter()
                        .flatten()
                        .map(|word| item.item(std::slice::from_ref(word)))
                        .collect(),
                };
                Ok(Value::Array(items?))
            }
            _ => self.item(occurrences.last().map_or(&[], Vec::as_slice)),
        }
    }

    /// The value that an environment variable's text stands for: items of a list are separated by commas, the words of
    /// a pair by spaces.
    pub(crate) fn parse_text(&self, text: &str) -> Result<Value, Unfit> {
        match self {
            Self::List(_) => {
                let occurrences: Vec<Vec<String>> = text
                    .split(',')
                    .map(|item| item.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
                    .filter(|words| !words.is_empty())
                    .collect();
                self.parse(&occurrences)
            }
            _ => self.parse(&[vec![text.to_owned()]]),
        }
    }

    /// The value that a configuration file's value stands for. Files have no null, so the word `none` is it, as on the
    /// command line; one item may stand for a list of one, and a pair's second part may be left out.
    pub(crate) fn normalize(&self, value: Value) -> Value {
        match (self, value) {
            (Self::List(item), Value::Array(values)) => {
                values.into_iter().map(|value| item.normalize(value)).collect()
            }
            (Self::List(item), value) => Value::Array(vec![item.normalize(value)]),
            (Self::Pair(first, second), Value::Array(values)) if (1..=2).contains(&values.len()) => {
                let mut values = values.into_iter();
                let one = values.next().map_or(Value::Null, |value| first.normalize(value));
                let two = values.next().map_or(Value::Null, |value| second.normalize(value));
                Value::Array(vec![one, two])
            }
            (Self::Pair(first, _), value) => Value::Array(vec![first.normalize(value), Value::Null]),
            (Self::Optional(inner), Value::String(word)) if is_none(&word) && **inner != Self::Text => {
                Value::Null
            }
            (Self::Optional(inner), value) => inner.normalize(value),
            (_, value) => value,
        }
    }

    /// Whether the value is allowed.
    pub(crate) fn admit(&self, value: &Value) -> Result<(), Unfit> {
        let fits = match (self, value) {
            (Self::Flag, Value::Bool(_))
            | (Self::Text, Value::String(_))
            | (Self::Optional(_), Value::Null) => true,
            (Self::Integer { min, max }, Value::Number(number)) => {
                number.as_i128().is_some_and(|number| (*min..=*max).contains(&number))
            }
            (Self::Number { min, max }, Value::Number(number)) => {
                number.as_f64().is_some_and(|number| number.is_finite() && (*min..=*max).contains(&number))
            }
            (Self::Choice(spellings), Value::String(word)) => spellings.contains(&word.as_str()),
            (Self::Optional(inner), value) => return inner.admit(value),
            (Self::List(item), Value::Array(values)) => {
                return values.iter().try_for_each(|value| item.admit(value));
            }
            (Self::Pair(first, second), Value::Array(values)) if values.len() == 2 => {
                return first.admit(&values[0]).and_then(|()| second.admit(&values[1]));
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err(Unfit::value(value)) }
    }

    /// Narrows the bounds of a number, also inside an option or a list.
    pub(crate) fn narrow(&mut self, from: Bound, to: Bound) {
        match (self, from, to) {
            (Self::Integer { min, max }, Bound::Integer(from), Bound::Integer(to)) => {
                (*min, *max) = (from, to);
            }
            (Self::Number { min, max }, Bound::Number(from), Bound::Number(to)) => {
                (*min, *max) = (from, to);
            }
            (Self::Optional(inner) | Self::List(inner), from, to) => inner.narrow(from, to),
            _ => {}
        }
    }

    /// Whether the kind's display tells more than that a value is text, a number or a flag.
    pub(crate) fn is_telling(&self) -> bool {
        match self {
            Self::Flag | Self::Text => false,
            Self::Integer { max, .. } => *max < i128::from(i64::MAX),
            Self::Number { max, .. } => *max < f64::MAX,
            Self::Choice(_) => true,
            Self::Optional(inner) | Self::List(inner) => inner.is_telling(),
            Self::Pair(first, second) => first.is_telling() || second.is_telling(),
        }
    }

    fn item(&self, words: &[String]) -> Result<Value, Unfit> {
        let value = match (self, words) {
            (Self::Pair(first, second), [word, rest @ ..]) if rest.len() <= 1 => Value::Array(vec![
                first.item(std::slice::from_ref(word))?,
                if rest.is_empty() { Value::Null } else { second.item(rest)? },
            ]),
            (Self::Optional(inner), [word]) if is_none(word) && **inner != Self::Text => Value::Null,
            (Self::Optional(inner), _) => return inner.item(words),
            (Self::Flag, []) => Value::Bool(true),
            (_, [word]) => self.scalar(word).ok_or_else(|| Unfit::words(words))?,
            _ => return Err(Unfit::words(words)),
        };
        self.admit(&value).map_err(|_| Unfit::words(words))?;
        Ok(value)
    }

    fn scalar(&self, word: &str) -> Option<Value> {
        match self {
            Self::Flag => match word.to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => Some(Value::Bool(true)),
                "false" | "0" | "no" | "off" => Some(Value::Bool(false)),
                _ => None,
            },
            Self::Integer { .. } => Number::from_i128(word.trim().parse().ok()?).map(Value::Number),
            Self::Number { .. } => Number::from_f64(word.trim().parse().ok()?).map(Value::Number),
            _ => Some(Value::String(word.to_owned())),
        }
    }
}

/// In whatever case, as SGLang's router takes it.
fn is_none(word: &str) -> bool {
    word.eq_ignore_ascii_case("none")
}

/// What is allowed, as a noun phrase.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("true or false"),
            Self::Text => f.write_str("text"),
            // Bounds that are a machine word's say nothing to a reader.
            Self::Integer { min, max } if *max >= i128::from(i64::MAX) && *min == i128::from(i64::MIN) => {
                f.write_str("a whole number")
            }
            Self::Integer { min, max } if *max >= i128::from(i64::MAX) => {
                write!(f, "a whole number >= {min}")
            }
            Self::Integer { min, max } => write!(f, "a whole number in {min}..={max}"),
            Self::Number { min, max } if *min <= f64::MIN && *max >= f64::MAX => {
                f.write_str("a finite number")
            }
            Self::Number { min, max } => write!(f, "a number in {min}..={max}"),
            Self::Choice(spellings) => write!(f, "one of {}", spellings.join(", ")),
            Self::Optional(inner) if **inner == Self::Text => inner.fmt(f),
            Self::Optional(inner) => write!(f, "{inner}, or none"),
            Self::Pair(first, second) => write!(f, "{first}, then optionally {second}"),
            Self::List(item) => write!(f, "any number of: {item}"),
        }
    }
}

// === impl Unfit ===

impl Unfit {
    pub(crate) fn value(value: &Value) -> Self {
        Self { given: value.to_string() }
    }

    fn words(words: &[String]) -> Self {
        Self::value(&Value::String(words.join(" ")))
    }
}

/// One end of a range.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// Of whole numbers.
    Integer(i128),
    /// Of numbers.
    Number(f64),
}
