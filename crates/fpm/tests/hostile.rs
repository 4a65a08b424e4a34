//! Payloads that mean harm: the reader refuses them or reads something plausible, and never breaks.
//!
//! What is made up knows the format: a record whose entries are well-formed or lie about their form, length or depth, under keys
//! that are known, unknown or no text, and then some bytes of all that changed. `cargo xtask fuzz` does so a million times.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use rollscope_fpm::{MAX_WORKER_ID_BYTES, decode, encode};

const KEYS: [&str; 16] = [
    "version",
    "worker_id",
    "dp_rank",
    "counter_id",
    "wall_time",
    "scheduled_requests",
    "queued_requests",
    "num_prefill_requests",
    "sum_prefill_tokens",
    "var_prefill_length",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
    "var_decode_kv_tokens",
    "later",
    "",
];
/// Cases of an ordinary test run; proptest's own variable asks for others.
const CASES: u32 = 4096;
const CASES_VARIABLE: &str = "PROPTEST_CASES";

/// A change of bytes.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Flip(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, u8),
    Repeat(Index, u8),
    Cut(Index),
}

/// The head of something with a length, in each form that may have it: a short one, or with as many bytes of length.
#[derive(Clone, Copy, Debug)]
struct Head {
    short: Option<(u8, u32)>,
    long: [Option<u8>; 3],
}

const TEXT: Head = Head { short: Some((0xa0, 31)), long: [Some(0xd9), Some(0xda), Some(0xdb)] };
const BYTES: Head = Head { short: None, long: [Some(0xc4), Some(0xc5), Some(0xc6)] };
const EXTENSION: Head = Head { short: None, long: [Some(0xc7), Some(0xc8), Some(0xc9)] };
const ARRAY: Head = Head { short: Some((0x90, 15)), long: [None, Some(0xdc), Some(0xdd)] };
const MAP: Head = Head { short: Some((0x80, 15)), long: [None, Some(0xde), Some(0xdf)] };

/// How a length is written: in which form, and what is told instead of it where that is a lie.
fn length() -> impl Strategy<Value = (usize, Option<u32>)> {
    let lie = prop_oneof![Just(0), Just(u32::MAX), 0..20_u32, any::<u32>()];
    (0..4_usize, prop::option::weighted(0.03, lie))
}

fn number(form: u8, bits: u64) -> Vec<u8> {
    let wide = bits.to_be_bytes();
    let bytes = match form {
        0xcc | 0xd0 => 1,
        0xcd | 0xd1 => 2,
        0xca | 0xce | 0xd2 => 4,
        _ => 8,
    };
    [&[form][..], &wide[8 - bytes..]].concat()
}

/// Numbers of every form, small and large, finite and not.
fn numbers() -> impl Strategy<Value = Vec<u8>> {
    let forms = select(vec![0xca_u8, 0xcb, 0xcc, 0xcd, 0xce, 0xcf, 0xd0, 0xd1, 0xd2, 0xd3]);
    let fraction = prop_oneof![0.0..10.0_f64, any::<f64>()];
    prop_oneof![
        4 => (0..0x80_u8).prop_map(|byte| vec![byte]),
        4 => fraction.prop_map(|number| [&[0xcb][..], &number.to_be_bytes()].concat()),
        2 => any::<f32>().prop_map(|number| [&[0xca][..], &number.to_be_bytes()].concat()),
        4 => (forms, any::<u64>()).prop_map(|(form, bits)| number(form, bits)),
        1 => (0xe0..=0xff_u8).prop_map(|byte| vec![byte]),
    ]
}

fn texts() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![
        8 => vec(any::<char>(), 0..40).prop_map(|chars| chars.into_iter().collect::<String>().into_bytes()),
        1 => vec(any::<u8>(), 0..40),
        1 => (0..400_usize).prop_map(|bytes| vec![b'w'; bytes]),
    ];
    (text, length()).prop_map(|(text, length)| [TEXT.of(text.len(), length), text].concat())
}

/// Any value, nested or not.
fn values() -> impl Strategy<Value = Vec<u8>> {
    let others = prop_oneof![
        (0xc0..=0xc3_u8).prop_map(|form| vec![form]),
        (vec(any::<u8>(), 0..40), length(), any::<bool>()).prop_map(|(bytes, length, is_extension)| {
            let head = if is_extension { EXTENSION } else { BYTES }.of(bytes.len(), length);
            let kind = if is_extension { &[7][..] } else { &[] };
            [&head, kind, &bytes].concat()
        }),
        // An extension of 2 to 16 bytes.
        (0..5_u8).prop_map(|power| [&[0xd4 + power, 7][..], &[0; 16][..1 << power]].concat()),
        // Deeper than anybody needs.
        (select(vec![0x91_u8, 0x81, 0xdc, 0xdd, 0xde, 0xdf]), 1..200_usize)
            .prop_map(|(form, depth)| vec![form; depth]),
    ];
    let leaf = prop_oneof![4 => numbers(), 2 => texts(), 2 => others];
    leaf.prop_recursive(5, 40, 6, |inner| {
        let items = vec(inner.clone(), 0..6);
        let entries = vec((inner.clone(), inner), 0..4);
        prop_oneof![
            (items, length())
                .prop_map(|(items, length)| [ARRAY.of(items.len(), length), items.concat()].concat()),
            (entries, length()).prop_map(|(entries, length)| map(&entries, length)),
        ]
    })
}

fn map(entries: &[(Vec<u8>, Vec<u8>)], length: (usize, Option<u32>)) -> Vec<u8> {
    let entries_bytes: Vec<u8> = entries.iter().flat_map(|(key, value)| [&key[..], value].concat()).collect();
    [MAP.of(entries.len(), length), entries_bytes].concat()
}

/// Keys that are known, each in some form, and some that are not.
fn keys() -> impl Strategy<Value = Vec<u8>> {
    let known = (select(&KEYS[..]), 0..4_usize)
        .prop_map(|(key, form)| [&TEXT.of(key.len(), (form, None))[..], key.as_bytes()].concat());
    prop_oneof![30 => known, 1 => texts(), 1 => numbers(), 1 => values()]
}

/// What a field may hold, or at most one level further down.
fn fields(deeper: BoxedStrategy<Vec<u8>>) -> BoxedStrategy<Vec<u8>> {
    let plain = (0..0x80_u8).prop_map(|byte| vec![byte]);
    let entry = (keys(), prop_oneof![20 => plain, 4 => numbers(), 4 => texts(), 6 => deeper, 1 => values()]);
    let entries = (vec(entry, 0..9), length());
    entries.prop_map(|(entries, length)| map(&entries, length)).boxed()
}

/// Almost a record.
fn records() -> impl Strategy<Value = Vec<u8>> {
    let change = prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        (any::<Index>(), vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, bytes)| Change::Remove(at, bytes)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, bytes)| Change::Repeat(at, bytes)),
        any::<Index>().prop_map(Change::Cut),
    ];
    let changes = prop_oneof![2 => Just(Vec::new()), 1 => vec(change, 1..6)];
    (fields(fields(values().boxed())), changes).prop_map(|(mut bytes, changes)| {
        for change in changes {
            change.make(&mut bytes);
        }
        bytes
    })
}

#[test]
fn almost_records_are_refused_or_read_and_break_nothing() {
    // Where the variable is not set, or is set to nothing that it may be, there are few.
    let asked = std::env::var(CASES_VARIABLE).ok().and_then(|cases| cases.parse().ok());
    let cases = asked.unwrap_or(CASES);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let (read, refused) = (Cell::new(0_u32), Cell::new(0_u32));
    let checked = TestRunner::new(config).run(&records(), |bytes| {
        let Ok(metrics) = decode(&bytes) else {
            refused.set(refused.get() + 1);
            return Ok(());
        };
        read.set(read.get() + 1);
        let of_prompts = [metrics.scheduled.var_prefill_length, metrics.queued.var_prefill_length];
        let of_sequences = [metrics.scheduled.var_decode_kv_tokens, metrics.queued.var_decode_kv_tokens];
        for number in [&[metrics.wall_time][..], &of_prompts, &of_sequences].concat() {
            prop_assert!(number.is_finite() && number >= 0.0, "{number}");
        }
        prop_assert!(metrics.worker_id.len() <= MAX_WORKER_ID_BYTES);
        let mut written = Vec::new();
        encode(&metrics, &mut written);
        prop_assert_eq!(decode(&written).unwrap(), metrics);
        Ok(())
    });
    let (read, refused) = (read.get(), refused.get());
    println!("{cases} payloads: {read} read, {refused} refused");
    if let Err(error) = checked {
        panic!("{error}");
    }
    assert_eq!(read + refused, cases);
    assert!(
        cases < 1000 || (read > cases / 20 && refused > cases / 20),
        "nearly all of one kind: {read} read, {refused} refused"
    );
}

// === impl Head ===

impl Head {
    /// The head of so many, in the form with this number if it has room for it.
    fn of(self, count: usize, (form, lie): (usize, Option<u32>)) -> Vec<u8> {
        let told = lie.unwrap_or(count as u32);
        let short = self.short.filter(|(_, most)| form == 0 && told <= *most);
        if let Some((first, _)) = short {
            return vec![first | told as u8];
        }
        let fits = [told <= 0xff, told <= 0xffff, true];
        let mut forms = (form.saturating_sub(1)..3).filter(|at| fits[*at]);
        let (at, first) = forms.find_map(|at| Some((at, self.long[at]?))).unwrap();
        [&[first][..], &told.to_be_bytes()[4 - (1 << at)..]].concat()
    }
}

// === impl Change ===

impl Change {
    fn make(self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let from = |at: Index, bytes: &[u8]| at.index(bytes.len());
        let part = |at: usize, count: u8, bytes: &[u8]| at..bytes.len().min(at + usize::from(count));
        match self {
            Self::Set(at, byte) => {
                let at = from(at, bytes);
                bytes[at] = byte;
            }
            Self::Flip(at, bit) => {
                let at = from(at, bytes);
                bytes[at] ^= 1 << bit;
            }
            Self::Insert(at, more) => {
                let at = from(at, bytes);
                bytes.splice(at..at, more);
            }
            Self::Remove(at, count) => {
                let at = from(at, bytes);
                bytes.drain(part(at, count, bytes));
            }
            Self::Repeat(at, count) => {
                let at = from(at, bytes);
                let again = bytes[part(at, count, bytes)].to_vec();
                bytes.splice(at..at, again);
            }
            Self::Cut(at) => bytes.truncate(from(at, bytes)),
        }
    }
}
