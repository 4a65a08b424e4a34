//! Pickles as they are, cut, and damaged.

use std::rc::Rc;

use proptest::prelude::*;

use super::*;

/// `{"a": [1, 2.5, None, True], "b": ("x", b"y")}` in a protocol, by Python's own pickle module.
const PROTOCOLS: [&[u8]; 6] = [
    b"(dp0\nVa\np1\n(lp2\nI1\naF2.5\naNaI01\nasVb\np3\n(Vx\np4\nc_codecs\nencode\np5\n(Vy\np6\nVlatin1\np7\ntp8\nRp9\ntp10\ns.",
    b"}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01G@\x04\x00\x00\x00\x00\x00\x00NI01\neX\x01\x00\x00\x00bq\x03(X\x01\x00\x00\x00xq\x04c_codecs\nencode\nq\x05(X\x01\x00\x00\x00yq\x06X\x06\x00\x00\x00latin1q\x07tq\x08Rq\ttq\nu.",
    b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01G@\x04\x00\x00\x00\x00\x00\x00N\x88eX\x01\x00\x00\x00bq\x03X\x01\x00\x00\x00xq\x04c_codecs\nencode\nq\x05X\x01\x00\x00\x00yq\x06X\x06\x00\x00\x00latin1q\x07\x86q\x08Rq\t\x86q\nu.",
    b"\x80\x03}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01G@\x04\x00\x00\x00\x00\x00\x00N\x88eX\x01\x00\x00\x00bq\x03X\x01\x00\x00\x00xq\x04C\x01yq\x05\x86q\x06u.",
    b"\x80\x04\x95)\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01G@\x04\x00\x00\x00\x00\x00\x00N\x88e\x8c\x01b\x94\x8c\x01x\x94C\x01y\x94\x86\x94u.",
    b"\x80\x05\x95)\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01G@\x04\x00\x00\x00\x00\x00\x00N\x88e\x8c\x01b\x94\x8c\x01x\x94C\x01y\x94\x86\x94u.",
];

fn shown(bytes: &[u8]) -> Result<String, PickleError> {
    load(bytes, 0).map(|loaded| text(&loaded.root, 0))
}

fn text(value: &Value, depth: u32) -> String {
    let Value::Node(node) = value else {
        return format!("{value:?}");
    };
    if depth > 20 {
        return "…".to_owned();
    }
    let list = |items: &[Value]| items.iter().map(|item| text(item, depth + 1)).collect::<Vec<_>>().join(" ");
    match &*node.content() {
        Content::Tuple(items) => format!("({})", list(items)),
        Content::List(items) | Content::Set(items) => format!("[{}]", list(items)),
        Content::Dict(items) => {
            let pair = |(key, value)| format!("{}: {}", text(key, depth + 1), text(value, depth + 1));
            format!("{{{}}}", pairs(items).map(pair).collect::<Vec<_>>().join(" "))
        }
        Content::Global { module, name } => format!("{module}.{name}"),
        Content::Object(object) => {
            let state = object.state.as_ref().map(|state| text(state, depth + 1));
            format!("<{} {} {state:?}>", text(&object.class, depth + 1), text(&object.args, depth + 1))
        }
        Content::Persistent(name) => format!("@{}", text(name, depth + 1)),
        Content::BigInt => "large".to_owned(),
    }
}

#[test]
fn every_protocol_says_the_same() {
    let wanted = r#"{Text("a"): [Int(1) Float(2.5) None Bool(true)] Text("b"): (Text("x") Bytes([121]))}"#;
    for (protocol, bytes) in PROTOCOLS.iter().enumerate() {
        assert_eq!(shown(bytes).unwrap(), wanted, "protocol {protocol}");
    }
}

#[test]
fn what_would_be_called_is_kept_as_data() {
    for (bytes, wanted) in [
        // os.system("id") by REDUCE, by INST and by OBJ.
        (&b"cos\nsystem\n(S'id'\ntR."[..], r#"<os.system (Text("id")) None>"#),
        (b"(S'id'\nios\nsystem\n.", r#"<os.system (Text("id")) None>"#),
        (b"(cos\nsystem\nS'id'\no.", r#"<os.system (Text("id")) None>"#),
        // A class, its arguments and its state.
        (b"\x80\x02cm\nC\n)\x81}X\x01\x00\x00\x00kK\x05sb.", r#"<m.C () Some("{Text(\"k\"): Int(5)}")>"#),
        (b"ccollections\nOrderedDict\n]]q\x00(K\x01K\x02ea\x85R.", "{Int(1): Int(2)}"),
        (b"\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.", "large"),
        (b"\x80\x02\x8a\x01\xff.", "Int(-1)"),
        (b"L-12L\n.", "Int(-12)"),
        (b"Vcaf\\u00e9\\n\n.", r#"Text("café\n")"#),
        (b"(X\x01\x00\x00\x000Q1N.", "None"),
    ] {
        assert_eq!(shown(bytes).unwrap(), wanted, "{}", bytes.escape_ascii());
    }
}

#[test]
fn a_list_that_holds_itself_is_read_and_let_go() {
    let loaded = load(b"]q\x00h\x00a.", 0).unwrap();
    assert_eq!(text(&loaded.root, 15), "[[[[[[…]]]]]]");
    let node = match &loaded.root {
        Value::Node(node) => Rc::downgrade(node),
        other => panic!("{other:?}"),
    };
    drop(loaded);
    assert!(node.upgrade().is_none(), "the cycle is still held");
}

#[test]
fn faults_are_named_with_their_offset() {
    use PickleFault as F;
    let nested = |open: u8, close: u8| [vec![open; 3000], vec![close; 2999], vec![b'.']].concat();
    for (bytes, offset, fault) in [
        (b"".to_vec(), 0, F::Cut),
        (b"K".to_vec(), 0, F::Cut),
        (b"NX\xff\xff\xff\x7fabc".to_vec(), 1, F::Cut),
        (b"N\x8d\xff\xff\xff\xff\xff\xff\xff\xff.".to_vec(), 1, F::Cut),
        (b"NN\xfe.".to_vec(), 2, F::UnknownOpcode(0xfe)),
        (b"\x80\x06N.".to_vec(), 0, F::NewProtocol(6)),
        (b"Nh\x00.".to_vec(), 1, F::NoSuchMemo),
        (b"j\xff\xff\xff\xff.".to_vec(), 0, F::NoSuchMemo),
        (b"Ixyz\n.".to_vec(), 0, F::BadArgument(b'I')),
        (b"NNs.".to_vec(), 2, F::BadStack(b's')),
        (b"N0(1N0".to_vec(), 6, F::Cut),
        (b"0.".to_vec(), 0, F::BadStack(b'.')),
        (b"N(Ne.".to_vec(), 3, F::BadStack(b'e')),
        (b"(K\x01d.".to_vec(), 3, F::BadStack(b'd')),
        (b".".to_vec(), 0, F::BadStack(b'.')),
        (nested(b']', b'a'), 3000 + 199, F::TooDeep),
        ([vec![b')'], vec![0x85; 3000], vec![b'.']].concat(), 200, F::TooDeep),
    ] {
        let error = load(&bytes, 0).unwrap_err();
        assert_eq!(error, PickleError { offset, fault }, "{}", bytes[..bytes.len().min(40)].escape_ascii());
    }
}

#[test]
fn calls_copy_no_more_than_the_pickle_holds() {
    let pairs = [&b"]]("[..], &b"K\x01K\x02\x86".repeat(1000), b"ea"].concat();
    let long = [&b"(X\x10\x27\x00\x00"[..], &[b'y'; 10_000], b"X\x06\x00\x00\x00latin1t"].concat();
    for (class, args) in [("collections\nOrderedDict", pairs), ("_codecs\nencode", long)] {
        let call = |times| {
            let calls = b"h\x01h\x00R0".repeat(times);
            [&args[..], b"q\x000c", class.as_bytes(), b"\nq\x010", &calls, b"N."].concat()
        };
        load(&call(1), 0).unwrap();
        assert_eq!(load(&call(500), 0).unwrap_err().fault, PickleFault::CopiesTooMuch, "{class}");
    }
}

#[test]
fn a_chain_through_the_memo_is_let_go_without_recursion() {
    // Each list gets the next one while that is still empty, so that no depth is seen when they are put together.
    let mut bytes = Vec::new();
    for index in 0u32..60_000 {
        bytes.extend(*b"]r");
        bytes.extend(index.to_le_bytes());
    }
    for index in 0u32..59_999 {
        bytes.push(b'j');
        bytes.extend(index.to_le_bytes());
        bytes.push(b'j');
        bytes.extend((index + 1).to_le_bytes());
        bytes.extend(*b"a0");
    }
    bytes.push(b'.');
    load(&bytes, 0).unwrap();
}

#[test]
fn elements_are_handed_out_as_they_come_and_not_kept() {
    let pickled = b"}(X\x02\x00\x00\x00idK\x07X\x01\x00\x00\x00s](}(X\x01\x00\x00\x00aK\x01u}(X\x01\x00\x00\x00aK\x02ue\
        X\x01\x00\x00\x00zNu.";
    let mut seen = Vec::new();
    let mut take = |head: &[Value], element: &Value| {
        seen.push((head[1].int(), element.get("a").and_then(|a| a.int())));
        Ok::<_, PickleError>(())
    };
    let loaded = load_elements(pickled, 0, Elements { key: "s", take: &mut take }).unwrap();
    assert_eq!(seen, [(Some(7), Some(1)), (Some(7), Some(2))]);
    assert_eq!(text(&loaded.root, 0), r#"{Text("id"): Int(7) Text("s"): [] Text("z"): None}"#);
}

#[test]
fn every_cut_is_an_error() {
    for bytes in PROTOCOLS {
        for end in 0..bytes.len() {
            assert!(load(&bytes[..end], 0).is_err(), "{}", bytes[..end].escape_ascii());
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(loaded) = load(&bytes, 0) {
            text(&loaded.root, 0);
        }
    }

    #[test]
    fn damage_is_read_or_refused(
        protocol in 0usize..6,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = PROTOCOLS[protocol].to_vec();
        for (place, byte) in flips {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(loaded) = load(&bytes, 0) {
            text(&loaded.root, 0);
        }
    }

    #[test]
    fn any_opcodes_are_carried_out_or_refused(codes in prop::collection::vec(
        prop::sample::select(&b"(0129N]})ladtsueRboQq\x00h\x00q\x01h\x01\x85\x86\x87\x88\x8f\x90\x91\x81\x94K\x02c\n\n"[..]),
        0..300,
    )) {
        let bytes = [codes, vec![b'.']].concat();
        if let Ok(loaded) = load(&bytes, 0) {
            text(&loaded.root, 0);
        }
    }
}
