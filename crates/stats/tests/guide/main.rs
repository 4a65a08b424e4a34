//! The guide's lists of numbers are those of the table: `UPDATE_GUIDE=1 cargo test -p rollscope-stats --test guide` writes
//! them anew.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails here fails its test")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use rollscope_stats::{Kind, NUMBERS};

mod texts;

use texts::TEXTS;

const BEGIN: &str = "<!-- numbers: begin -->\n";
const END: &str = "<!-- numbers: end -->";

/// The lists in a language.
fn lists(chinese: bool) -> String {
    let mut lists = String::new();
    for kind in [Kind::Perf, Kind::Rollout] {
        let head = if chinese {
            "| 名称 | 单位 | 含义 | 偏高或异常时 |"
        } else {
            "| name | unit | what it is | what to do |"
        };
        write!(lists, "\n### `{}/…`\n\n{head}\n|---|---|---|---|\n", kind.prefix()).unwrap();
        for number in NUMBERS.iter().filter(|number| number.kind == kind) {
            let text = TEXTS.iter().find(|text| text.0 == number.name);
            let (_, en, en_advice, zh, zh_advice) =
                text.unwrap_or_else(|| panic!("no text: {}", number.name));
            let (meaning, advice) = if chinese { (zh, zh_advice) } else { (en, en_advice) };
            let more = if number.statistics().is_empty() { "" } else { "/…" };
            writeln!(lists, "| `{}{more}` | {} | {meaning} | {advice} |", number.name, number.unit).unwrap();
        }
    }
    lists.push('\n');
    lists
}

#[test]
fn the_guide_lists_every_number() {
    let known = |name: &str| NUMBERS.iter().any(|number| number.name == name);
    let unknown: Vec<_> = TEXTS.iter().map(|text| text.0).filter(|name| !known(name)).collect();
    assert_eq!(unknown, [""; 0], "texts of numbers that there are not");
    for (language, chinese) in [("en", false), ("zh", true)] {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/{language}/observability.md"));
        let guide = fs::read_to_string(&path).unwrap();
        let (before, rest) = guide.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let expected = format!("{before}{BEGIN}{}{END}{after}", lists(chinese));
        if std::env::var_os("UPDATE_GUIDE").is_some() {
            fs::write(&path, &expected).unwrap();
        }
        let guide = fs::read_to_string(&path).unwrap();
        assert!(guide == expected, "docs/{language}/observability.md is not as the table has it");
    }
}
