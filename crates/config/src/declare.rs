//! The declaration of options: the macro, and what it implements.

use std::ffi::OsString;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use clap::{ArgMatches, Command};
use serde_json::{Map, Value};

use crate::command;
use crate::error::{ConfigError, Place};
use crate::kind::Unfit;
use crate::sources::Sources;
use crate::spec::{Namespace, OptionSpec};
use crate::value::{Numeric, OptionValue};

/// A server's options, as [`options!`](crate::options) declares them.
pub trait Options: OptionSet + std::fmt::Debug + Clone + Send + Sync + 'static {
    /// The declaration's doc comment.
    const ABOUT: &'static str;

    /// Each option with its value, secrets in clear.
    #[doc(hidden)]
    fn values(&self) -> Vec<(OptionSpec, Value)>;

    /// The declaration's `check`, whose errors may tell secrets.
    #[doc(hidden)]
    fn check_plainly(&self) -> Result<(), ConfigError>;

    /// The values as JSON, secrets redacted.
    fn to_json(&self) -> Map<String, Value> {
        self.values().into_iter().map(|(spec, value)| (spec.name.to_owned(), spec.shown(value))).collect()
    }

    /// Whether the values agree with each other, by the declaration's `check`.
    ///
    /// # Errors
    /// What the check says, with each value that it tells as a refused one is shown.
    fn check(&self) -> Result<(), ConfigError> {
        self.check_plainly().map_err(|error| error.hiding(&self.values()))
    }

    /// Sets one field of a value that is not published yet (a published one is behind a shared reference).
    /// Returns the value as it may be shown.
    #[doc(hidden)]
    fn set(&mut self, field: &str, value: &Value, source: &str) -> Result<Value, ConfigError>;

    /// The command with one flag per option.
    fn command(name: &'static str) -> Command {
        Self::args(
            Command::new(name).about(command::short(Self::ABOUT)).long_about(command::long(Self::ABOUT)),
        )
    }

    /// The options of a list of arguments (without a program's name), no environment and no file consulted.
    fn from_args<I: IntoIterator<Item: Into<OsString> + Clone>>(args: I) -> Result<Self, ConfigError> {
        let matches = Self::command("options").no_binary_name(true).try_get_matches_from(args)?;
        Self::resolve(&matches, &Sources::none())
    }
}

/// Options that are resolved together, since one command takes them all: one declaration, or a tuple of them.
pub trait OptionSet: Sized {
    /// The table of options, in the order of declaration.
    fn specs() -> Vec<OptionSpec>;

    #[doc(hidden)]
    fn read_all(values: &dyn Fn(&OptionSpec) -> Result<Value, ConfigError>) -> Result<Self, ConfigError>;

    /// Adds one flag per option to a command.
    fn args(command: Command) -> Command {
        command.args(Self::specs().iter().map(command::arg))
    }

    /// The options: a flag beats an environment variable beats the file beats the default.
    ///
    /// A flag that the matches' command does not have counts as not given.
    ///
    /// # Errors
    /// A value that an option may not have, an option without default that is given nowhere, a key of the file's
    /// section that is no option, values that contradict each other.
    fn resolve(matches: &ArgMatches, sources: &Sources<'_>) -> Result<Self, ConfigError> {
        sources.refuse_unknown(&Self::specs())?;
        Self::read_all(&|spec| Ok(sources.origin(spec, matches)?.0))
    }

    /// Every option with its value as it may be shown (nothing where it must be given and is not), and where that came
    /// from.
    ///
    /// # Errors
    /// As for [`Self::resolve`], but for options that are given nowhere; where there are some, the others need not agree.
    fn origins(
        matches: &ArgMatches,
        sources: &Sources<'_>,
    ) -> Result<Vec<(OptionSpec, Option<Value>, Place)>, ConfigError> {
        let specs = Self::specs();
        sources.refuse_unknown(&specs)?;
        let origin = |spec: OptionSpec| match sources.origin(&spec, matches) {
            Ok((value, place)) => {
                let shown = spec.shown(value);
                Ok((spec, Some(shown), place))
            }
            Err(ConfigError::Missing { .. }) => {
                let place = Place::Default(spec.name);
                Ok((spec, None, place))
            }
            Err(error) => Err(error),
        };
        let origins: Vec<_> = specs.into_iter().map(origin).collect::<Result<_, _>>()?;
        if origins.iter().all(|(_, value, _)| value.is_some()) {
            Self::resolve(matches, sources)?;
        }
        Ok(origins)
    }
}

macro_rules! option_sets {
    ($( ($($set:ident),+) )+) => {$(
        impl<$($set: OptionSet),+> OptionSet for ($($set,)+) {
            fn specs() -> Vec<OptionSpec> {
                [$($set::specs()),+].concat()
            }

            fn read_all(
                values: &dyn Fn(&OptionSpec) -> Result<Value, ConfigError>,
            ) -> Result<Self, ConfigError> {
                Ok(($($set::read_all(values)?,)+))
            }
        }
    )+};
}

option_sets! { (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) }

/// An option while it is being declared. The names after an option's default in [`options!`](crate::options) are
/// methods of this type.
#[derive(Debug)]
#[must_use]
pub struct Declaration<V> {
    spec: OptionSpec,
    value: PhantomData<fn() -> V>,
}

/// Declares a server's options: see the [crate's documentation](crate).
///
/// An option reads `name: Type = default, modifier(…), …;`. Without `= default` it must be given. The modifiers are the
/// methods of [`Declaration`]. `check FUNCTION` after the environment's name is called with the resolved struct, and
/// with the result of each override, to refuse contradictions.
#[macro_export]
macro_rules! options {
    (
        $(#[doc = $about:literal])+
        $vis:vis struct $name:ident, environment $environment:literal $(, check $check:path)? {
            $( $namespace:ident {
                $(
                    $(#[doc = $help:literal])+
                    $field:ident : $type:ty $(= $default:expr)? $(, $modifier:ident($($argument:tt)*))* ;
                )*
            } )*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, PartialEq)]
        $vis struct $name {
            $($( $(#[doc = $help])+ pub $field: $type, )*)*
        }

        const _: () = {
            struct Declarations {
                $($( $field: $crate::Declaration<$type>, )*)*
            }

            $(
                #[allow(
                    non_camel_case_types, clippy::struct_field_names, clippy::allow_attributes,
                    reason = "it bears the namespace's name, and the fields theirs"
                )]
                pub struct $namespace {
                    $( $(#[doc = $help])+ pub $field: $type, )*
                }

                impl $crate::HasBag<$crate::namespace::$namespace> for $name {
                    type Fields = $namespace;

                    fn fields(&self) -> $namespace {
                        $namespace { $( $field: ::std::clone::Clone::clone(&self.$field), )* }
                    }
                }

                impl ::std::fmt::Debug for $namespace {
                    fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                        let declarations = Declarations::new();
                        f.debug_map().entries([$( declarations.$field.entry(&self.$field), )*]).finish()
                    }
                }
            )*

            impl Declarations {
                fn new() -> Self {
                    Self { $($(
                        $field: $crate::Declaration::<$type>::new(
                            stringify!($field),
                            $crate::options!(@namespace $namespace),
                            $environment,
                            concat!($($help, "\n"),+),
                        )
                        $(.default($default))?
                        $(.$modifier($($argument)*))*,
                    )*)* }
                }
            }

            impl $crate::OptionSet for $name {
                fn specs() -> ::std::vec::Vec<$crate::OptionSpec> {
                    let declarations = Declarations::new();
                    vec![$($( declarations.$field.into_spec(), )*)*]
                }

                fn read_all(
                    values: &dyn Fn(
                        &$crate::OptionSpec,
                    ) -> ::std::result::Result<$crate::macro_support::Value, $crate::ConfigError>,
                ) -> ::std::result::Result<Self, $crate::ConfigError> {
                    let declarations = Declarations::new();
                    let options = Self { $($( $field: declarations.$field.read(values)?, )*)* };
                    $crate::Options::check(&options)?;
                    Ok(options)
                }
            }

            impl $crate::Options for $name {
                const ABOUT: &'static str = concat!($($about, "\n"),+);

                fn values(&self) -> ::std::vec::Vec<($crate::OptionSpec, $crate::macro_support::Value)> {
                    let declarations = Declarations::new();
                    vec![$($( declarations.$field.with_value(&self.$field), )*)*]
                }

                fn check_plainly(&self) -> ::std::result::Result<(), $crate::ConfigError> {
                    $( $check(self)?; )?
                    Ok(())
                }

                fn set(
                    &mut self,
                    field: &str,
                    value: &$crate::macro_support::Value,
                    source: &str,
                ) -> ::std::result::Result<$crate::macro_support::Value, $crate::ConfigError> {
                    let declarations = Declarations::new();
                    match field {
                        $($( stringify!($field) => declarations.$field.set(&mut self.$field, value, source), )*)*
                        _ => Err($crate::ConfigError::UnknownField {
                            override_source: source.to_owned(),
                            field: field.to_owned(),
                        }),
                    }
                }
            }

            impl ::std::fmt::Debug for $name {
                fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                    write!(f, concat!(stringify!($name), " {:?}"), $crate::Options::to_json(self))
                }
            }
        };
    };
    (@namespace device) => { $crate::Namespace::Device };
    (@namespace model) => { $crate::Namespace::Model };
    (@namespace exec) => { $crate::Namespace::Exec };
    (@namespace schedule) => { $crate::Namespace::Schedule };
    (@namespace memory) => { $crate::Namespace::Memory };
    (@namespace spec) => { $crate::Namespace::Spec };
    (@namespace lora) => { $crate::Namespace::Lora };
    (@namespace mm) => { $crate::Namespace::Mm };
    (@namespace disagg) => { $crate::Namespace::Disagg };
    (@namespace serving) => { $crate::Namespace::Serving };
    (@namespace observability) => { $crate::Namespace::Observability };
}

// === impl Declaration ===

impl<V: OptionValue> Declaration<V> {
    #[doc(hidden)]
    pub fn new(name: &'static str, namespace: Namespace, environment: &str, help: &str) -> Self {
        let spec = OptionSpec {
            name,
            flag: name.replace('_', "-"),
            aliases: Vec::new(),
            env: vec![format!("{environment}_{}", name.to_ascii_uppercase())],
            section: environment.trim_start_matches("ROLLSCOPE_").to_ascii_lowercase(),
            namespace,
            help: command::long(help),
            value_name: None,
            default: None,
            kind: V::kind(),
            hidden: false,
            secret: false,
            ranked: false,
        };
        Self { spec, value: PhantomData }
    }

    #[doc(hidden)]
    pub fn default(mut self, literal: V::Literal) -> Self {
        self.spec.default = Some(V::from_literal(literal).to_json());
        self
    }

    /// Another name for the flag, without dashes.
    pub fn alias(mut self, flag: &'static str) -> Self {
        self.spec.aliases.push(flag);
        self
    }

    /// Another environment variable, consulted after the option's own.
    pub fn env(mut self, name: &'static str) -> Self {
        self.spec.env.push(name.to_owned());
        self
    }

    /// What the help calls a value: `URL`.
    pub fn value_name(mut self, name: &'static str) -> Self {
        self.spec.value_name = Some(name);
        self
    }

    /// Leaves the option out of the help.
    pub fn hidden(mut self) -> Self {
        self.spec.hidden = true;
        self
    }

    /// Shows the value as `<redacted>` everywhere.
    pub fn secret(mut self) -> Self {
        self.spec.secret = true;
        self
    }

    /// Its values name workers, which may be ranks of a server: `http://host:port@1`.
    pub fn ranked(mut self) -> Self {
        self.spec.ranked = true;
        self
    }

    /// Allows only numbers in this range.
    pub fn range(mut self, range: RangeInclusive<V::Number>) -> Self
    where
        V: Numeric,
    {
        let (from, to) = range.into_inner();
        self.spec.kind.narrow(from.into(), to.into());
        self
    }

    #[doc(hidden)]
    pub fn into_spec(self) -> OptionSpec {
        self.spec
    }

    #[doc(hidden)]
    pub fn entry(&self, value: &V) -> (&'static str, Value) {
        (self.spec.name, self.spec.shown(value.to_json()))
    }

    #[doc(hidden)]
    pub fn with_value(self, value: &V) -> (OptionSpec, Value) {
        (self.spec, value.to_json())
    }

    #[doc(hidden)]
    pub fn read(&self, values: &dyn Fn(&OptionSpec) -> Result<Value, ConfigError>) -> Result<V, ConfigError> {
        let value = values(&self.spec)?;
        V::from_json(&value)
            .ok_or_else(|| self.spec.invalid(&Unfit::value(&value), Place::Default(self.spec.name)))
    }

    #[doc(hidden)]
    pub fn set(&self, slot: &mut V, value: &Value, source: &str) -> Result<Value, ConfigError> {
        let place = || Place::Override { field: self.spec.name, source: source.to_owned() };
        let value = self.spec.admit(value.clone(), place)?;
        *slot = V::from_json(&value).ok_or_else(|| self.spec.invalid(&Unfit::value(&value), place()))?;
        Ok(self.spec.shown(value))
    }
}

// === impl OptionSpec ===

impl OptionSpec {
    /// The value if it is allowed.
    pub(crate) fn admit(&self, value: Value, place: impl FnOnce() -> Place) -> Result<Value, ConfigError> {
        self.kind.admit(&value).map_err(|unfit| self.invalid(&unfit, place()))?;
        Ok(value)
    }

    pub(crate) fn invalid(&self, unfit: &Unfit, place: Place) -> ConfigError {
        ConfigError::Invalid { place, expected: self.kind.to_string(), value: self.refused(&unfit.given) }
    }
}
