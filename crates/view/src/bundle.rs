//! The page's modules as one script: they come in one answer, where a browser would find and ask for them level by level.
//!
//! Each module becomes a function that is called at once and gives what the module exports; those that import it come
//! after it. That is all it takes, as the modules are written: an import names what it takes on one line, an export stands
//! before what it exports, which is never assigned anew, and no two modules need each other.

use std::collections::BTreeMap;

/// How a line that imports begins, and what stands between the names and the module.
const IMPORT: &str = "import { ";
const FROM: &str = " } from '#";
/// How a line that exports begins.
const EXPORT: &str = "export ";

/// The modules that are needed by one of them, and the order in which they are written.
struct Bundle<'a> {
    sources: BTreeMap<&'a str, &'a str>,
    /// Those that were written or are about to be.
    begun: Vec<&'a str>,
    script: String,
}

/// One script of a module and all that it needs, of sources by the names of the modules.
pub(crate) fn bundle<'a>(main: &'a str, sources: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut bundle = Bundle { sources: sources.collect(), begun: Vec::new(), script: String::new() };
    bundle.put(main);
    bundle.script
}

/// The names and the module of a line that imports.
fn import(line: &str) -> Option<(&str, &str)> {
    let (names, module) = line.strip_prefix(IMPORT)?.split_once(FROM)?;
    Some((names, module.strip_suffix("';")?))
}

/// The name that a line exports, and the line without the word.
fn export(line: &str) -> Option<(&str, &str)> {
    let plain = line.strip_prefix(EXPORT)?;
    let kinds = ["async function ", "function ", "class ", "const "];
    let named = kinds.into_iter().find_map(|kind| plain.strip_prefix(kind))?;
    let end = named.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').unwrap_or(named.len());
    Some((&named[..end], plain))
}

// === impl Bundle ===

impl<'a> Bundle<'a> {
    /// Writes a module behind those that it needs.
    fn put(&mut self, module: &'a str) {
        let Some(source) = self.sources.get(module).copied().filter(|_| !self.begun.contains(&module)) else {
            return;
        };
        self.begun.push(module);
        for (_, needed) in source.lines().filter_map(import) {
            self.put(needed);
        }
        let mut exported = Vec::new();
        self.line(&["const $", module, " = (() => {"]);
        for line in source.lines() {
            if let Some((names, needed)) = import(line) {
                self.line(&["const { ", names, " } = $", needed, ";"]);
            } else if let Some((name, plain)) = export(line) {
                exported.push(name);
                self.line(&[plain]);
            } else {
                self.line(&[line]);
            }
        }
        self.line(&["return { ", &exported.join(", "), " };"]);
        self.line(&["})();"]);
    }

    fn line(&mut self, parts: &[&str]) {
        self.script.extend(parts.iter().copied().chain(["\n"]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page;

    #[test]
    fn a_module_comes_once_and_behind_what_it_needs() {
        let sources = [
            ("main", "import { a, B } from '#one';\nimport { c } from '#two';\na(B, c);"),
            ("one", "import { c } from '#two';\nexport async function a() {}\nexport class B {}"),
            ("two", "// Of nothing.\nexport const c = 1;"),
            ("three", "export function unused() {}"),
        ];
        let expected = "const $two = (() => {\n// Of nothing.\nconst c = 1;\nreturn { c };\n})();\n\
            const $one = (() => {\nconst { c } = $two;\nasync function a() {}\nclass B {}\nreturn { a, B };\n})();\n\
            const $main = (() => {\nconst { a, B } = $one;\nconst { c } = $two;\na(B, c);\nreturn {  };\n})();\n";
        assert_eq!(bundle("main", sources.into_iter()), expected);
    }

    #[test]
    fn every_module_of_the_page_is_written_as_a_bundle_needs_it() {
        let modules: Vec<_> = page::modules().collect();
        let script = bundle("main", modules.iter().copied());
        for (name, source) in modules {
            assert!(script.contains(&format!("const ${name} = ")), "{name} is needed by none");
            for line in source.lines() {
                let word = line.split_whitespace().next().unwrap_or_default();
                match word {
                    "import" => {
                        let (names, needed) = import(line).unwrap_or_else(|| panic!("{name}: {line}"));
                        assert!(!names.contains(" as "), "{name}: {line}");
                        let [of, to] = [needed, name].map(|name| script.find(&format!("const ${name} = ")));
                        assert!(of < to, "{name} and {needed} need each other");
                    }
                    "export" => assert!(export(line).is_some(), "{name}: {line}"),
                    _ => {}
                }
            }
        }
    }
}
