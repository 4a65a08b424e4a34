//! Bags: the options of one namespace in force, typed, to be read and never to be written.

use std::fmt;
use std::ops::Deref;

use crate::declare::Options;
use crate::published::Published;

/// A namespace's options, as they were in force when it was asked for: `published.serving().port`.
///
/// It is a copy of one namespace's fields under their own names, so a leaf of another namespace, or a namespace in which a server
/// has no options, does not compile, and neither does any way to write. What compiles:
///
/// ```
/// # use rollscope_config::{Options, Published, options};
/// # options! { /** Example. */ struct O, environment "O" {
/// #     serving { /** Port. */ port: u16 = 1; } memory { /** Pages. */ pages: Vec<u64> = &[]; } } }
/// let published = Published::publish(O::from_args([""; 0]).unwrap());
/// published.override_fields("who", [("port", 2.into())]).unwrap();
/// let (bag, memory) = (published.serving(), published.memory());
/// assert_eq!((bag.port, memory.pages.len()), (2, 0));
/// # options! { /** Another. */ struct L, environment "L" { lora { /** Adapters. */ adapters: u16 = 1; } } }
/// # // Its namespace is one that the other has no options in.
/// # assert_eq!(Published::publish(L::from_args([""; 0]).unwrap()).lora().adapters, 1);
/// ```
///
/// The same leaves, written or elsewhere:
///
/// ```compile_fail,E0594
/// # use rollscope_config::{Options, Published, options};
/// # options! { /** Example. */ struct O, environment "O" {
/// #     serving { /** Port. */ port: u16 = 1; } memory { /** Pages. */ pages: Vec<u64> = &[]; } } }
/// # let published = Published::publish(O::from_args([""; 0]).unwrap());
/// let mut bag = published.serving();
/// bag.port = 2;
/// ```
///
/// ```compile_fail,E0596
/// # use rollscope_config::{Options, Published, options};
/// # options! { /** Example. */ struct O, environment "O" {
/// #     serving { /** Port. */ port: u16 = 1; } memory { /** Pages. */ pages: Vec<u64> = &[]; } } }
/// # let published = Published::publish(O::from_args([""; 0]).unwrap());
/// let mut bag = published.memory();
/// bag.pages.push(2);
/// ```
///
/// ```compile_fail,E0609
/// # use rollscope_config::{Options, Published, options};
/// # options! { /** Example. */ struct O, environment "O" {
/// #     serving { /** Port. */ port: u16 = 1; } memory { /** Pages. */ pages: Vec<u64> = &[]; } } }
/// # let published = Published::publish(O::from_args([""; 0]).unwrap());
/// let of_another_namespace = published.memory().port;
/// ```
///
/// ```compile_fail,E0599
/// # use rollscope_config::{Options, Published, options};
/// # options! { /** Example. */ struct O, environment "O" {
/// #     serving { /** Port. */ port: u16 = 1; } memory { /** Pages. */ pages: Vec<u64> = &[]; } } }
/// # let published = Published::publish(O::from_args([""; 0]).unwrap());
/// let no_such_namespace = published.lora();
/// ```
pub struct Bag<F>(F);

/// Options of which some are in a namespace, one of [`namespace`]'s names; [`options!`](crate::options) implements it.
pub trait HasBag<N>: Options {
    /// The namespace's options, each with its name and type.
    type Fields: fmt::Debug;

    #[doc(hidden)]
    fn fields(&self) -> Self::Fields;
}

macro_rules! bags {
    ($( $namespace:ident $about:literal )+) => {
        /// The names of namespaces, where a type is wanted.
        #[expect(non_camel_case_types, reason = "the macro has a namespace's name as it is written in a declaration")]
        pub mod namespace {
            $( #[doc = $about] #[derive(Debug)] pub enum $namespace {} )+
        }

        /// A bag for each namespace: a copy of what is in force now.
        impl<T: Options> Published<T> {
            $(
                #[doc = $about]
                pub fn $namespace(&self) -> Bag<<T as HasBag<namespace::$namespace>>::Fields>
                where
                    T: HasBag<namespace::$namespace>,
                {
                    Bag(self.resolved().fields())
                }
            )+
        }
    };
}

bags! {
    device "The hardware that computes."
    model "The checkpoint and its tokenizer."
    exec "How the forward pass is computed."
    schedule "Batching and queueing."
    memory "The KV cache and other memory."
    spec "Speculative decoding."
    lora "Low-rank adapters."
    mm "Multimodal input."
    disagg "Prefill/decode disaggregation."
    serving "HTTP, addresses, peers."
    observability "Recording, metrics, logs."
}

// === impl Bag ===

impl<F> Deref for Bag<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.0
    }
}

impl<F: fmt::Debug> fmt::Debug for Bag<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
