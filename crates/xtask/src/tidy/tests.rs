//! Tidy's checks, on files made up for the purpose.

use super::edges::{Crate, Dependency};
use super::{Level, docs, edges, modules, sources};
use crate::workspace::File;

fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}

fn package(name: &str, imports: &[(&str, Option<&str>)]) -> Crate {
    let dependency = |(name, kind): &(&str, Option<&str>)| Dependency {
        name: (*name).to_owned(),
        kind: kind.map(str::to_owned),
    };
    Crate { name: name.to_owned(), dependencies: imports.iter().map(dependency).collect() }
}

fn shown(findings: &[super::Finding]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_file_that_nobody_declares_is_found() {
    let files = [
        file("crates/a/src/lib.rs", "mod b;\nmod c;\n"),
        file("crates/a/src/b.rs", "#[cfg(test)]\nmod tests;\n"),
        file("crates/a/src/b/tests.rs", ""),
        file("crates/a/src/c/mod.rs", "mod d;\n"),
        file("crates/a/src/c/d.rs", ""),
        file("crates/a/src/c/e.rs", "mod b;"),
        file("crates/a/src/gone/tests.rs", ""),
        file("crates/a/tests/one.rs", "mod common;"),
        file("crates/a/tests/common/mod.rs", ""),
        file("crates/a/tests/two/main.rs", "mod make;"),
        file("crates/a/tests/two/make.rs", ""),
        file("crates/a/tests/two/lost.rs", ""),
        file("crates/a/examples/speed.rs", ""),
    ];
    assert_eq!(
        shown(&modules::check(&files)),
        [
            "crates/a/src/c/e.rs: error: no module: nothing declares it",
            "crates/a/src/gone/tests.rs: error: no module: nothing declares it",
            "crates/a/tests/two/lost.rs: error: no module: nothing declares it",
        ]
    );
}

#[test]
fn edges_follow_the_table() {
    let dev = Some("dev");
    let cases: [(Crate, &[&str]); 8] = [
        (
            package(
                "rollscope-gateway",
                &[("rollscope-trace", None), ("rollscope-wire", None), ("bytes", None)],
            ),
            &[],
        ),
        (
            package("rollscope-gateway", &[("rollscope-run", None)]),
            &["crates/gateway/Cargo.toml: error: gateway may not import run"],
        ),
        (package("rollscope-gateway", &[("rollscope-testkit", dev), ("rollscope-run", dev)]), &[]),
        (
            package("rollscope-trace", &[("rollscope-stats", None)]),
            &["crates/trace/Cargo.toml: error: trace may not import stats"],
        ),
        (
            package("rollscope-engine", &[("rollscope-trace", Some("build"))]),
            &["crates/engine/Cargo.toml: error: engine may not import trace"],
        ),
        (package("rollscope-cli", &[("rollscope-engine", None), ("rollscope-view", None)]), &[]),
        (
            package("rollscope-cli", &[("rollscope-testkit", None)]),
            &["crates/cli/Cargo.toml: error: cli may not import testkit"],
        ),
        (
            package("rollscope-attic", &[]),
            &[
                "crates/attic/Cargo.toml: error: crate is missing in the table of imports (xtask/src/tidy/edges.rs)",
            ],
        ),
    ];
    for (package, expected) in cases {
        assert_eq!(shown(&edges::check(std::slice::from_ref(&package))), expected, "{package:?}");
    }
}

#[test]
fn a_source_file_starts_with_its_purpose() {
    for (text, errors) in [("//! Does this.\n", 0), ("use std::fmt;\n", 1), ("//!\n", 1), ("", 1)] {
        assert_eq!(sources::check(&file("crates/a/src/b.rs", text)).len(), errors, "{text:?}");
    }
    assert_eq!(sources::check(&file("docs/b.py", "import os\n")).len(), 0);
}

#[test]
fn length_counts_production_lines_only() {
    let code = |lines: usize| format!("//! Purpose.\n{}", "fn f() {}\n".repeat(lines - 1));
    let tests =
        |lines: usize| format!("\n#[cfg(test)]\nmod tests {{\n{}}}\n", "    fn f() {}\n".repeat(lines));
    let cases = [
        ("crates/a/src/b.rs", code(400), None),
        ("crates/a/src/b.rs", code(401), Some(Level::Warning)),
        ("crates/a/src/b.rs", code(801), Some(Level::Error)),
        ("crates/a/src/b.rs", code(399) + &tests(900), None),
        ("crates/a/src/b.rs", code(200) + &tests(900) + &code(201), Some(Level::Warning)),
        ("crates/a/src/b.rs", code(397) + "#[cfg(test)]\nmod tests;\n" + "fn g() {}\n", None),
        ("crates/a/src/b/tests.rs", code(900), None),
        ("crates/a/tests/all.rs", code(900), None),
    ];
    for (path, text, expected) in cases {
        let level = sources::check(&file(path, &text)).first().map(|finding| finding.level);
        assert_eq!(level, expected, "{path}, {} lines", text.lines().count());
    }
}

#[test]
fn words_and_paths_stay_out() {
    let cases = [
        ("crates/a/src/b.rs", concat!("fn f() { to", "do!() }"), 1),
        ("web/page.js", concat!("// FIX", "ME later"), 1),
        ("crates/a/src/b.rs", concat!("/// `XX", "XX` of a code unit"), 0),
        ("crates/a/src/b.rs", concat!("masto", "do!"), 0),
        ("crates/a/tests/b.rs", concat!("#[ig", "nore = \"slow\"]"), 1),
        ("README.md", concat!("cd /wo", "rk/main"), 1),
        ("README.md", concat!("see https://example.org/wo", "rk/main"), 0),
        ("README.md", concat!("ipc:///t", "mp/fpm"), 0),
        ("crates/a/src/b.rs", concat!("const A: &str = \"/t", "mp/x\";"), 1),
        (".ci/run", concat!("pip install -i https://py", "pi.org/simple"), 1),
        ("crates/model/assets/x.json", concat!("FIX", "ME"), 0),
        ("crates/a/src/b.rs", concat!("bind(\"0.0.", "0.0:0\")"), 1),
        ("crates/a/src/b.rs", concat!("// never 0.0.", "0.0"), 0),
        ("crates/a/tests/b.rs", concat!("bind(\"0.0.", "0.0:0\")"), 0),
        ("crates/a/src/b.rs", concat!("#[expect(unsafe", "_code, reason = \"speed\")]"), 1),
        ("crates/model/src/b.rs", concat!("#[expect(unsafe", "_code, reason = \"speed\")]"), 0),
        ("crates/a/Cargo.toml", "[lints]\nworkspace = true\n", 0),
        ("crates/a/Cargo.toml", "[package]\n", 1),
    ];
    for (path, line, errors) in cases {
        let text = if sources::has_extension(path, "rs") {
            format!("//! Purpose.\n{line}\n")
        } else {
            line.to_owned()
        };
        let findings = sources::check(&file(path, &text));
        assert_eq!(findings.len(), errors, "{path}: {line}: {:?}", shown(&findings));
    }
}

#[test]
fn the_map_names_every_crate_and_links_lead_somewhere() {
    let crates = [package("rollscope-trace", &[]), package("rollscope-run", &[])];
    let map =
        "`trace` is the model.\n[style](docs/STYLE.md#names) [there](https://example.org) [here](#words)\n";
    let files = [
        file("ARCHITECTURE.md", map),
        file("crates/run/src/lib.rs", "//! The run directory.\n"),
        file(
            "docs/STYLE.md",
            "[map](../ARCHITECTURE.md) [docs](.) [gone](GONE.md)\n`crates/run/src` `crates/*` `crates/attic/a.rs`\n```\n[code](nowhere)\n```\n",
        ),
    ];
    assert_eq!(
        shown(&docs::check(&files, &crates)),
        [
            "ARCHITECTURE.md: error: says nothing of `run`",
            "docs/STYLE.md:1: error: link to a file that does not exist: GONE.md",
            "docs/STYLE.md:2: error: names a file that does not exist: crates/attic/a.rs",
        ]
    );
    assert_eq!(shown(&docs::check(&[], &[])), ["ARCHITECTURE.md: error: is missing"]);
    let long = file("ARCHITECTURE.md", &"line\n".repeat(251));
    assert_eq!(shown(&docs::check(&[long], &[])), ["ARCHITECTURE.md: error: 251 lines, at most 250"]);
}

#[test]
fn configuration_is_no_global() {
    let global = "configuration is a handle that is passed down, never a global of the process";
    for (path, line, is_found) in [
        ("crates/config/src/published.rs", "pub(crate) static NOW: AtomicU64 = AtomicU64::new(0);", true),
        ("crates/config/src/published.rs", "use std::sync::OnceLock;", true),
        ("crates/config/src/published.rs", "    shared: &'static str, // no static", false),
        ("crates/config/src/published/tests.rs", "static NOW: u8 = 0;", false),
        ("crates/gateway/src/core.rs", "static OPTIONS: Mutex<Option<Published<Options>>> = none();", true),
        ("crates/gateway/src/core.rs", "    options: OnceLock<Published<Options>>,", true),
        ("crates/gateway/src/core.rs", "    options: Published<Options>,", false),
        ("crates/gateway/src/core.rs", "static HOPS: [u8; 1] = [0];", false),
    ] {
        let found = shown(&sources::check(&file(path, &format!("//! Purpose.\n{line}\n"))));
        let expected = is_found.then(|| format!("{path}:2: error: {global}"));
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{line}");
    }
}
