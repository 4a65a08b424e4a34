//! The guide's lists of numbers are those of the table: `UPDATE_GUIDE=1 cargo test -p rollscope-stats --test guide` writes
//! them anew.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails here fails its test")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

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

fn guide(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/{language}/observability.md"))
}

/// What a guide in any language must have of a section: its heading's level, its tables' rows, its blocks of code, and the names
/// that stand as code in its sentences.
#[derive(Debug, Default, PartialEq, Eq)]
struct Section {
    level: usize,
    columns: Vec<usize>,
    code: Vec<String>,
    names: BTreeSet<String>,
}

fn sections(guide: &str) -> Vec<Section> {
    let (mut sections, mut is_code, mut text) = (Vec::new(), false, String::new());
    let mut section = Section::default();
    for line in guide.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        if is_code || line.starts_with("```") {
            section.code.push(line.to_owned());
        } else if line.starts_with('#') {
            let level = line.chars().take_while(|char| *char == '#').count();
            section.names = names(&std::mem::take(&mut text));
            sections.push(std::mem::replace(&mut section, Section { level, ..Section::default() }));
        } else {
            section.columns.extend(line.starts_with('|').then(|| line.matches('|').count()));
            // A name may go on in the next line.
            text.extend([line, " "]);
        }
    }
    section.names = names(&text);
    sections.push(section);
    sections
}

/// What stands as code; words of a language within braces, and spaces, are no part of it.
fn names(text: &str) -> BTreeSet<String> {
    let code = text.split('`').skip(1).step_by(2);
    code.map(|name| name.chars().filter(|char| char.is_ascii() && *char != ' ').collect::<String>())
        .map(|name| name.replace("seconds", ""))
        .collect()
}

#[test]
fn both_guides_have_the_same_sections_tables_code_and_names() {
    let of = |language| sections(&fs::read_to_string(guide(language)).unwrap());
    let (en, zh) = (of("en"), of("zh"));
    assert_eq!(en.len(), zh.len(), "sections");
    for (number, (en, zh)) in en.iter().zip(&zh).enumerate() {
        assert_eq!(en, zh, "section {number}");
    }
    assert!(en.iter().any(|section| section.columns.len() > 50 && !section.names.is_empty()));
}

#[test]
fn the_guide_lists_every_number() {
    let known = |name: &str| NUMBERS.iter().any(|number| number.name == name);
    let unknown: Vec<_> = TEXTS.iter().map(|text| text.0).filter(|name| !known(name)).collect();
    assert_eq!(unknown, [""; 0], "texts of numbers that there are not");
    for (language, chinese) in [("en", false), ("zh", true)] {
        let path = guide(language);
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
