//! The Rust types that an option may have.

use serde_json::{Number, Value};

use crate::kind::{Bound, Kind};

/// A type that an option may have: text, a number, `bool`, a [`Choice`], an `Option` or a `Vec` of these, or a `Vec`
/// of pairs `(A, Option<B>)`.
pub trait OptionValue: Clone + Send + Sync + 'static {
    /// What a default is written as: `&'static str` for `String`, slices for lists, otherwise the type itself.
    type Literal: Copy + 'static;
    /// Which values are allowed, before a declaration narrows them.
    fn kind() -> Kind;
    /// The value of a default.
    fn from_literal(literal: Self::Literal) -> Self;
    /// The value as JSON.
    fn to_json(&self) -> Value;
    /// The value of JSON; `None` if the JSON is not of this type's [`kind`](Self::kind).
    fn from_json(value: &Value) -> Option<Self>;
}

/// A value that is one word on the command line.
pub trait Scalar: OptionValue {}

/// A value that may be one of many.
pub trait Element: OptionValue {}

/// A value that is a number or holds numbers, so that a declaration may bound it.
pub trait Numeric: OptionValue {
    /// The number.
    type Number: Into<Bound>;
}

/// A closed set of values, each with its spelling; implemented by the enums of the servers.
pub trait Choice: Copy + PartialEq + Send + Sync + 'static {
    /// Every value with its spelling, in the order of the help.
    const SPELLINGS: &'static [(&'static str, Self)];

    /// The value's spelling.
    fn spelling(self) -> &'static str {
        Self::SPELLINGS.iter().find(|(_, value)| *value == self).map_or("", |(spelling, _)| spelling)
    }
}

// === impl OptionValue ===

impl OptionValue for String {
    type Literal = &'static str;

    fn kind() -> Kind {
        Kind::Text
    }

    fn from_literal(literal: &'static str) -> Self {
        literal.to_owned()
    }

    fn to_json(&self) -> Value {
        Value::String(self.clone())
    }

    fn from_json(value: &Value) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }
}

impl OptionValue for bool {
    type Literal = Self;

    fn kind() -> Kind {
        Kind::Flag
    }

    fn from_literal(literal: Self) -> Self {
        literal
    }

    fn to_json(&self) -> Value {
        Value::Bool(*self)
    }

    fn from_json(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

impl OptionValue for f64 {
    type Literal = Self;

    fn kind() -> Kind {
        Kind::Number { min: Self::MIN, max: Self::MAX }
    }

    fn from_literal(literal: Self) -> Self {
        literal
    }

    fn to_json(&self) -> Value {
        Number::from_f64(*self).map_or(Value::Null, Value::Number)
    }

    fn from_json(value: &Value) -> Option<Self> {
        value.as_f64()
    }
}

macro_rules! integers {
    ($($integer:ty),+) => {$(
        impl OptionValue for $integer {
            type Literal = Self;

            fn kind() -> Kind {
                Kind::Integer { min: widen(Self::MIN), max: widen(Self::MAX) }
            }

            fn from_literal(literal: Self) -> Self {
                literal
            }

            fn to_json(&self) -> Value {
                Value::from(*self)
            }

            fn from_json(value: &Value) -> Option<Self> {
                Self::try_from(value.as_number()?.as_i128()?).ok()
            }
        }

        impl From<$integer> for Bound {
            fn from(number: $integer) -> Self {
                Self::Integer(widen(number))
            }
        }

        impl Scalar for $integer {}

        impl Numeric for $integer {
            type Number = Self;
        }
    )+};
}

/// Any machine word fits; `usize` alone lacks the lossless conversion, hence the generic one.
fn widen(number: impl TryInto<i128>) -> i128 {
    number.try_into().unwrap_or(i128::MAX)
}

integers!(u16, u32, u64, usize, i64);

impl<T: Choice> OptionValue for T {
    type Literal = Self;

    fn kind() -> Kind {
        Kind::Choice(Self::SPELLINGS.iter().map(|(spelling, _)| *spelling).collect())
    }

    fn from_literal(literal: Self) -> Self {
        literal
    }

    fn to_json(&self) -> Value {
        Value::from(self.spelling())
    }

    fn from_json(value: &Value) -> Option<Self> {
        let word = value.as_str()?;
        Self::SPELLINGS.iter().find(|(spelling, _)| *spelling == word).map(|(_, value)| *value)
    }
}

impl<T: Scalar> OptionValue for Option<T> {
    type Literal = Option<T::Literal>;

    fn kind() -> Kind {
        Kind::Optional(Box::new(T::kind()))
    }

    fn from_literal(literal: Self::Literal) -> Self {
        literal.map(T::from_literal)
    }

    fn to_json(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::to_json)
    }

    fn from_json(value: &Value) -> Option<Self> {
        if value.is_null() { Some(None) } else { T::from_json(value).map(Some) }
    }
}

impl<A: Scalar, B: Scalar> OptionValue for (A, Option<B>) {
    type Literal = (A::Literal, Option<B::Literal>);

    fn kind() -> Kind {
        Kind::Pair(Box::new(A::kind()), Box::new(Option::<B>::kind()))
    }

    fn from_literal((first, second): Self::Literal) -> Self {
        (A::from_literal(first), second.map(B::from_literal))
    }

    fn to_json(&self) -> Value {
        Value::Array(vec![self.0.to_json(), self.1.to_json()])
    }

    fn from_json(value: &Value) -> Option<Self> {
        match value.as_array()?.as_slice() {
            [first, second] => Some((A::from_json(first)?, Option::from_json(second)?)),
            _ => None,
        }
    }
}

impl<T: Element> OptionValue for Vec<T> {
    type Literal = &'static [T::Literal];

    fn kind() -> Kind {
        Kind::List(Box::new(T::kind()))
    }

    fn from_literal(literal: Self::Literal) -> Self {
        literal.iter().map(|item| T::from_literal(*item)).collect()
    }

    fn to_json(&self) -> Value {
        self.iter().map(T::to_json).collect()
    }

    fn from_json(value: &Value) -> Option<Self> {
        value.as_array()?.iter().map(T::from_json).collect()
    }
}

// === impl Scalar, Element, Numeric ===

impl Scalar for String {}
impl Scalar for bool {}
impl Scalar for f64 {}
impl<T: Choice> Scalar for T {}

impl<T: Scalar> Element for T {}
impl<A: Scalar, B: Scalar> Element for (A, Option<B>) {}

impl Numeric for f64 {
    type Number = Self;
}
impl<T: Scalar + Numeric> Numeric for Option<T> {
    type Number = T::Number;
}
impl<T: Element + Numeric> Numeric for Vec<T> {
    type Number = T::Number;
}

impl From<f64> for Bound {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}
