//! The codec, against bytes of other programs and against bytes of nobody.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Worker "w", message 5, everything else 0: as SGLang writes it.
const GOLDEN: &str = "87a776657273696f6e01a9776f726b65725f6964a177a764705f72616e6b00aa636f756e7465725f696405a9\
    77616c6c5f74696d65cb0000000000000000b27363686564756c65645f726571756573747387b46e756d5f70726566696c6c5f7265717565\
    73747300b273756d5f70726566696c6c5f746f6b656e7300b27661725f70726566696c6c5f6c656e677468cb0000000000000000b573756d\
    5f70726566696c6c5f6b765f746f6b656e7300b36e756d5f6465636f64655f726571756573747300b473756d5f6465636f64655f6b765f74\
    6f6b656e7300b47661725f6465636f64655f6b765f746f6b656e73cb0000000000000000af7175657565645f726571756573747386b46e75\
    6d5f70726566696c6c5f726571756573747300b273756d5f70726566696c6c5f746f6b656e7300b27661725f70726566696c6c5f6c656e67\
    7468cb0000000000000000b36e756d5f6465636f64655f726571756573747300b473756d5f6465636f64655f6b765f746f6b656e7300b476\
    61725f6465636f64655f6b765f746f6b656e73cb0000000000000000";

fn golden() -> Vec<u8> {
    let digits: Vec<u8> = GOLDEN.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn encoded(metrics: &ForwardPassMetrics) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(metrics, &mut bytes);
    bytes
}

/// A map of these entries, each given as MessagePack.
fn map_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0x80 | entries.len() as u8];
    for (key, value) in entries {
        bytes.push(0xa0 | key.len() as u8);
        bytes.extend_from_slice(key.as_bytes());
        bytes.extend_from_slice(value);
    }
    bytes
}

#[test]
fn the_bytes_are_those_of_sglang() {
    let metrics =
        ForwardPassMetrics { worker_id: "w".into(), counter_id: 5, ..ForwardPassMetrics::default() };
    assert_eq!(golden().len(), 408);
    assert_eq!(encoded(&metrics), golden());
    assert_eq!(decode(&golden()).unwrap(), metrics);
}

#[test]
fn a_reader_takes_what_it_knows() {
    let default = ForwardPassMetrics::default();
    let with = |change: fn(&mut ForwardPassMetrics)| {
        let mut metrics = default.clone();
        change(&mut metrics);
        metrics
    };
    let one_prefill = map_of(&[("num_prefill_requests", &[1]), ("later", &[0x91, 0x81, 0xa1, b'x', 0xc0])]);
    for (name, bytes, expected) in [
        ("nothing", vec![0x80], default.clone()),
        ("a map in its 16-bit form", vec![0xde, 0, 0], default.clone()),
        (
            "the first generation, without version and counter_id",
            map_of(&[
                ("worker_id", &[0xa1, b'w']),
                ("dp_rank", &[3]),
                ("wall_time", &[&[0xcb][..], &0.5_f64.to_be_bytes()].concat()),
                ("scheduled_requests", &map_of(&[("num_decode_requests", &[7])])),
                ("queued_requests", &map_of(&[("num_prefill_requests", &[2])])),
            ]),
            with(|metrics| {
                (metrics.worker_id, metrics.dp_rank, metrics.wall_time) = ("w".into(), 3, 0.5);
                metrics.scheduled.num_decode_requests = 7;
                metrics.queued.num_prefill_requests = 2;
            }),
        ),
        (
            "a whole number of seconds",
            map_of(&[("wall_time", &[2])]),
            with(|metrics| metrics.wall_time = 2.0),
        ),
        (
            "single precision",
            map_of(&[("wall_time", &[0xca, 0x3f, 0, 0, 0])]),
            with(|metrics| metrics.wall_time = 0.5),
        ),
        ("numbers for keys", vec![0x84, 2, 7, 0xff, 8, 0xcc, 4, 9, 0xc4, 1, b'x', 0xc0], default.clone()),
        ("a key of later", map_of(&[("later", &[0x82, 1, 2, 3, 4])]), default.clone()),
        (
            "a key of later, deeper",
            map_of(&[("scheduled_requests", &one_prefill)]),
            with(|metrics| metrics.scheduled.num_prefill_requests = 1),
        ),
    ] {
        assert_eq!(decode(&bytes).unwrap(), expected, "{name}");
    }
}

#[test]
fn what_is_no_record_is_refused() {
    let nan = [&[0xcb][..], &f64::NAN.to_be_bytes()].concat();
    let with_tail = [golden(), vec![0xc0]].concat();
    for (name, bytes, reason) in [
        ("empty", vec![], "not a forward-pass record"),
        ("an array", [vec![0x97], golden()[1..].to_vec()].concat(), "not a forward-pass record"),
        ("an array of nothing", vec![0x90], "not a forward-pass record"),
        ("an array within", map_of(&[("queued_requests", &[0x90])]), "not a forward-pass record"),
        ("a truth for a number", map_of(&[("dp_rank", &[0xc3])]), "not a forward-pass record"),
        ("a fraction for a count", map_of(&[("dp_rank", &[0xca, 0, 0, 0, 0])]), "not a forward-pass record"),
        ("a negative count", map_of(&[("counter_id", &[0xff])]), "not a forward-pass record"),
        ("nil", map_of(&[("scheduled_requests", &[0xc0])]), "not a forward-pass record"),
        ("cut short", golden()[..200].to_vec(), "not a forward-pass record"),
        ("something behind", with_tail, "bytes behind the record: 1"),
        ("a later version", map_of(&[("version", &[2])]), "unknown version of the record: 2"),
        ("no number", map_of(&[("wall_time", &nan)]), "not a finite number that is 0 or above: wall_time"),
        ("a length of 4 GiB", vec![0xdf, 0xff, 0xff, 0xff, 0xff], "not a forward-pass record"),
    ] {
        assert_eq!(decode(&bytes).unwrap_err().to_string(), reason, "{name}");
    }
    // A value that nests without end, under a key that is passed over.
    let deep = [vec![0x81, 0xa1, b'x'], vec![0x91; 1 << 20]].concat();
    assert!(matches!(decode(&deep), Err(DecodeError::Malformed { .. })));
}

/// A value of MessagePack of each form, and some that lie about their length or nest.
fn hostile_values() -> Vec<Vec<u8>> {
    let forms = (0xc0..=0xdf_u8).chain([0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xe0, 0xff]);
    let bodies = [&[][..], &[0; 8], &[0xff; 8], &[0, 0, 0, 1, 0xa1, b'x'], &[0xff; 64]];
    let of_form = |form: u8| bodies.map(|body| [&[form][..], body].concat());
    let nested = [0x91, 0x81, 0xdc, 0xde].map(|form| vec![form; 4096]);
    let floats = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e308, -0.0, f64::MIN_POSITIVE];
    let floats = floats.map(|number| [&[0xcb][..], &number.to_be_bytes()].concat());
    forms.flat_map(of_form).chain(nested).chain(floats).collect()
}

/// Every key with every hostile value, at both levels, twice, and with the rest of a record behind.
#[test]
fn hostile_values_are_refused_or_read_and_break_nothing() {
    let keys = ["version", "worker_id", "dp_rank", "counter_id", "wall_time", "var_prefill_length", "later"];
    let whole = map_of(&[("num_decode_requests", &[7])]);
    let mut read = 0;
    for value in hostile_values() {
        for key in keys {
            let entry: &[(&str, &[u8])] = &[(key, &value)];
            let inner = map_of(entry);
            for bytes in [
                inner.clone(),
                map_of(&[entry[0], entry[0]]),
                map_of(&[entry[0], ("scheduled_requests", &whole)]),
                map_of(&[("scheduled_requests", &inner), ("queued_requests", &inner)]),
                [&[0xdf, 0xff, 0xff, 0xff, 0xff][..], &inner[1..]].concat(),
            ] {
                let Ok(metrics) = decode(&bytes) else { continue };
                read += 1;
                // What is taken is plausible, and can be written and read again.
                assert!(metrics.wall_time.is_finite() && metrics.wall_time >= 0.0, "{bytes:02x?}");
                assert_eq!(decode(&encoded(&metrics)).unwrap(), metrics, "{bytes:02x?}");
            }
        }
    }
    assert!(read > 0, "everything was refused");
}

fn metrics() -> impl Strategy<Value = ForwardPassMetrics> {
    let variance = || prop_oneof![Just(0.0), 0.0..1e12];
    let scheduled = (any::<[u64; 5]>(), variance(), variance());
    let queued = (any::<[u64; 4]>(), variance(), variance());
    (".{0,80}", any::<u32>(), any::<u64>(), variance(), scheduled, queued).prop_map(
        |(worker_id, dp_rank, counter_id, wall_time, (s, s_prefill, s_decode), (q, q_prefill, q_decode))| {
            ForwardPassMetrics {
                worker_id: worker_id.into(),
                dp_rank,
                counter_id,
                wall_time,
                scheduled: ScheduledRequests {
                    num_prefill_requests: s[0],
                    sum_prefill_tokens: s[1],
                    var_prefill_length: s_prefill,
                    sum_prefill_kv_tokens: s[2],
                    num_decode_requests: s[3],
                    sum_decode_kv_tokens: s[4],
                    var_decode_kv_tokens: s_decode,
                },
                queued: QueuedRequests {
                    num_prefill_requests: q[0],
                    sum_prefill_tokens: q[1],
                    var_prefill_length: q_prefill,
                    num_decode_requests: q[2],
                    sum_decode_kv_tokens: q[3],
                    var_decode_kv_tokens: q_decode,
                },
            }
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(metrics in metrics()) {
        prop_assert_eq!(decode(&encoded(&metrics)).unwrap(), metrics);
    }

    #[test]
    fn no_bytes_break_the_reader(bytes in vec(any::<u8>(), 0..600)) {
        drop(decode(&bytes));
    }

    /// Bytes that are almost a record go deeper than any others.
    #[test]
    fn no_change_of_a_record_breaks_the_reader(
        metrics in metrics(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = encoded(&metrics);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        drop(decode(&bytes));
    }

    #[test]
    fn a_record_cut_short_is_refused(metrics in metrics(), at in any::<prop::sample::Index>()) {
        let bytes = encoded(&metrics);
        prop_assert!(decode(&bytes[..at.index(bytes.len())]).is_err());
    }
}

#[test]
fn a_name_too_long_to_be_kept_is_refused() {
    let named = |bytes: usize| {
        encoded(&ForwardPassMetrics { worker_id: "w".repeat(bytes).into(), ..ForwardPassMetrics::default() })
    };
    assert_eq!(decode(&named(MAX_WORKER_ID_BYTES)).unwrap().worker_id.len(), MAX_WORKER_ID_BYTES);
    let error = decode(&named(MAX_WORKER_ID_BYTES + 1)).unwrap_err();
    assert_eq!(error.to_string(), "worker's name longer than 256 bytes: 257");
}
