//! Pages in Prometheus' text format put together: every sample gets its worker as a label, and every family is
//! described once, whatever the pages have in common.
//!
//! Names are those of SGLang's router, so that what was made for its page reads this one: `_` for each colon, as in
//! `sglang_num_running_reqs`, and the label `worker_addr`.
//!
//! A line is taken or dropped by itself, so that no page can spoil another or the rest of its own. Dropped are lines
//! that are no sample, values that are not a number (`NaN`, `-nan`: readers make nothing of them, and some give up), a
//! sample that was there already, and samples of a family that an earlier page describes as something else, or that stands
//! beside the pages.

use std::collections::{HashMap, HashSet};

/// The label that tells whose a sample is.
pub(crate) const WORKER: &str = "worker_addr";
const EXPORTED_WORKER: &str = "exported_worker_addr";

/// Pages put together.
#[derive(Debug)]
pub(crate) struct Merged {
    /// Names of families that stand beside them on the page, and that no page may have.
    taken: &'static [&'static str],
    /// In order of appearance.
    families: Vec<Family>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Family {
    name: String,
    kind: Option<String>,
    help: Option<String>,
    lines: Vec<String>,
    /// The lines up to the value.
    series: HashSet<String>,
}

/// A line with a value.
#[derive(Debug)]
struct Sample<'a> {
    name: &'a str,
    /// Names and values, escaped as they came.
    labels: Vec<(&'a str, &'a str)>,
    /// As readers want it.
    value: String,
    timestamp: Option<&'a str>,
}

/// What one page says of its families.
#[derive(Debug, Default)]
struct Described<'a> {
    kinds: HashMap<&'a str, &'a str>,
    helps: HashMap<&'a str, &'a str>,
}

// === impl Merged ===

impl Merged {
    pub(crate) fn beside(taken: &'static [&'static str]) -> Self {
        Self { taken, families: Vec::new(), by_name: HashMap::new() }
    }

    /// Takes a worker's page; gives the number of lines that were dropped.
    pub(crate) fn add(&mut self, worker: &str, page: &str) -> u64 {
        let described = Described::of(page);
        let lines = page.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let taken = |line| Sample::parse(line).is_some_and(|sample| self.take(worker, &sample, &described));
        lines.map(taken).filter(|is_taken| !is_taken).count() as u64
    }

    /// The page of all.
    pub(crate) fn into_text(self) -> String {
        let mut text = String::new();
        for family in self.families.iter().filter(|family| !family.lines.is_empty()) {
            let name = &family.name;
            if let Some(help) = &family.help {
                text.extend(["# HELP ", name, " ", help, "\n"]);
            }
            text.extend(["# TYPE ", name, " ", family.kind.as_deref().unwrap_or("untyped"), "\n"]);
            text.extend(family.lines.iter().flat_map(|line| [line, "\n"]));
        }
        text
    }

    fn take(&mut self, worker: &str, sample: &Sample<'_>, described: &Described<'_>) -> bool {
        let (name, kind) = described.family_of(sample.name);
        let name_shown = without_colons(name);
        if self.taken.contains(&&*name_shown) {
            return false;
        }
        let family = self.family(&name_shown);
        match (&family.kind, kind) {
            (Some(known), Some(kind)) if known != kind => return false,
            (Some(known), None) if matches!(known.as_str(), "histogram" | "summary") => return false,
            (None, Some(kind)) => family.kind = Some(kind.to_owned()),
            _ => {}
        }
        if family.help.is_none() {
            family.help = described.helps.get(name).map(|&help| help.to_owned());
        }
        let series = sample.series(worker);
        let timestamp = sample.timestamp.map_or(String::new(), |at| format!(" {at}"));
        let line = format!("{series} {}{timestamp}", sample.value);
        let is_new = family.series.insert(series);
        if is_new {
            family.lines.push(line);
        }
        is_new
    }

    fn family(&mut self, name: &str) -> &mut Family {
        let next = self.families.len();
        let at = *self.by_name.entry(name.to_owned()).or_insert(next);
        if at == next {
            self.families.push(Family {
                name: name.to_owned(),
                kind: None,
                help: None,
                lines: Vec::new(),
                series: HashSet::new(),
            });
        }
        &mut self.families[at]
    }
}

// === impl Described ===

impl<'a> Described<'a> {
    fn of(page: &'a str) -> Self {
        let mut described = Self::default();
        for line in page.lines() {
            let Some(comment) = line.trim().strip_prefix('#') else { continue };
            let mut words = comment.trim_start().splitn(3, [' ', '\t']);
            let (Some(what), Some(name)) = (words.next(), words.next()) else { continue };
            let rest = words.next().unwrap_or_default().trim();
            match what {
                "TYPE" if is_kind(rest) && is_name(name, true) => {
                    described.kinds.entry(name).or_insert(rest);
                }
                "HELP" if is_name(name, true) => {
                    described.helps.entry(name).or_insert(rest);
                }
                _ => {}
            }
        }
        described
    }

    /// The family of a sample, and its kind if the page tells it.
    fn family_of<'s>(&'s self, sample: &'s str) -> (&'s str, Option<&'s str>) {
        if let Some(kind) = self.kinds.get(sample) {
            return (sample, Some(kind));
        }
        for (suffix, kinds) in [
            ("_bucket", &["histogram"][..]),
            ("_sum", &["histogram", "summary"]),
            ("_count", &["histogram", "summary"]),
        ] {
            let family = sample.strip_suffix(suffix);
            let known = family.and_then(|family| self.kinds.get_key_value(family));
            if let Some((family, kind)) = known.filter(|(_, kind)| kinds.contains(kind)) {
                return (family, Some(kind));
            }
        }
        (sample, None)
    }
}

// === impl Sample ===

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
        let (name, rest) = line.split_at(end);
        let rest = rest.trim_start();
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Vec::new(), rest),
        };
        let mut words = rest.split_whitespace();
        let value = value(words.next()?)?;
        let timestamp = words.next();
        let is_whole = timestamp.is_none_or(|at| at.parse::<f64>().is_ok()) && words.next().is_none();
        (is_name(name, true) && is_whole).then_some(Self { name, labels, value, timestamp })
    }

    /// Name and labels. A worker's own label of the name of ours makes place for it, as Prometheus itself does it.
    fn series(&self, worker: &str) -> String {
        let worker = worker.replace('\\', "\\\\").replace('"', "\\\"");
        let own = self.labels.iter().map(|(name, value)| {
            let name = if *name == WORKER { EXPORTED_WORKER } else { name };
            format!(",{name}=\"{value}\"")
        });
        format!("{}{{{WORKER}=\"{worker}\"{}}}", without_colons(self.name), own.collect::<String>())
    }
}

/// The labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Option<(Vec<(&str, &str)>, &str)> {
    let mut labels: Vec<(&str, &str)> = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once('=')?;
        let name = name.trim_end();
        let quoted = after.trim_start().strip_prefix('"')?;
        let (value, after) = quoted.split_at(closing_quote(quoted)?);
        let is_new = !labels.iter().any(|(other, _)| *other == name);
        let is_taken = name == EXPORTED_WORKER && labels.iter().any(|(other, _)| *other == WORKER);
        if !is_name(name, false) || !is_new || is_taken {
            return None;
        }
        labels.push((name, value));
        rest = after[1..].trim_start();
        if !rest.starts_with('}') {
            rest = rest.strip_prefix(',')?;
        }
    }
}

fn closing_quote(quoted: &str) -> Option<usize> {
    let mut is_escaped = false;
    quoted.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })
}

/// A value as every reader takes it; none if it is not a number.
fn value(word: &str) -> Option<String> {
    let number: f64 = word.parse().ok()?;
    match number {
        number if number.is_nan() => None,
        f64::INFINITY => Some("+Inf".to_owned()),
        f64::NEG_INFINITY => Some("-Inf".to_owned()),
        _ => Some(word.to_owned()),
    }
}

/// Whether this may name a family or, without colons, a label.
fn is_name(name: &str, with_colons: bool) -> bool {
    let is_part = |c: char| c == '_' || c.is_ascii_alphanumeric() || (with_colons && c == ':');
    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(is_part)
}

/// A name as SGLang's router spells it.
fn without_colons(name: &str) -> String {
    name.replace(':', "_")
}

fn is_kind(kind: &str) -> bool {
    matches!(kind, "counter" | "gauge" | "histogram" | "summary" | "untyped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_put_together_family_by_family() {
        let mut merged = Merged::beside(&[]);
        let first = "# HELP sglang:run Running.\n# TYPE sglang:run gauge\nsglang:run{tp=\"0\",} 1\n\
             # TYPE lat histogram\nlat_bucket{le=\"+Inf\"} 2\nlat_sum 0.5\nlat_count 2\n";
        let second = "# TYPE lat histogram\nlat_bucket{le=\"+Inf\"} 1 1700000000\nlat_sum 0\nlat_count 1\n\
             # HELP sglang:run Other words.\n# TYPE sglang:run gauge\nsglang:run{dp_rank=\"1\",worker_addr=\"w:}\\\"\"} 3\nplain 4\n";
        assert_eq!((merged.add("http://a", first), merged.add("http://b", second)), (0, 0));
        assert_eq!(
            merged.into_text(),
            "# HELP sglang_run Running.\n# TYPE sglang_run gauge\n\
             sglang_run{worker_addr=\"http://a\",tp=\"0\"} 1\n\
             sglang_run{worker_addr=\"http://b\",dp_rank=\"1\",exported_worker_addr=\"w:}\\\"\"} 3\n\
             # TYPE lat histogram\n\
             lat_bucket{worker_addr=\"http://a\",le=\"+Inf\"} 2\n\
             lat_sum{worker_addr=\"http://a\"} 0.5\n\
             lat_count{worker_addr=\"http://a\"} 2\n\
             lat_bucket{worker_addr=\"http://b\",le=\"+Inf\"} 1 1700000000\n\
             lat_sum{worker_addr=\"http://b\"} 0\n\
             lat_count{worker_addr=\"http://b\"} 1\n\
             # TYPE plain untyped\n\
             plain{worker_addr=\"http://b\"} 4\n"
        );
    }

    #[test]
    fn a_bad_line_costs_only_itself() {
        for (line, taken) in [
            ("x 1", true),
            ("x 1e-3", true),
            ("x +Inf", true),
            ("x -inf", true),
            ("x{} 1", true),
            ("x{a=\"\\\\\"} 1", true),
            ("x{a=\"µ\"} 1 -5", true),
            ("x NaN", false),
            ("x -nan", false),
            ("x", false),
            ("x one", false),
            ("x{a=\"1\" 1", false),
            ("x{a=\"1\"b=\"2\"} 1", false),
            ("x{a=\"1\",a=\"2\"} 1", false),
            ("x{a:b=\"1\"} 1", false),
            ("x{worker_addr=\"1\",exported_worker_addr=\"2\"} 1", false),
            ("x 1 2 3", false),
            ("9x 1", false),
            ("{a=\"1\"} 1", false),
            ("<html>", false),
        ] {
            let mut merged = Merged::beside(&[]);
            let dropped = merged.add("w", &format!("before 1\n{line}\nafter 2\n"));
            assert_eq!(dropped, u64::from(!taken), "{line}");
            let text = merged.into_text();
            assert!(text.contains("before{") && text.contains("after{"), "{line}: {text}");
            assert_eq!(text.contains("\nx{"), taken, "{line}: {text}");
        }
    }

    #[test]
    fn what_contradicts_an_earlier_page_is_left_out() {
        let mut merged = Merged::beside(&[]);
        assert_eq!(merged.add("a", "# TYPE t gauge\nt 1\nt 1\n"), 1, "it is there already");
        let other = "# TYPE t histogram\nt_bucket{le=\"+Inf\"} 1\nt_sum 1\nt_count 1\n";
        assert_eq!(merged.add("b", other), 3, "it is a gauge");
        assert_eq!(merged.add("c", "t 2\n"), 0);
        assert_eq!(merged.into_text(), "# TYPE t gauge\nt{worker_addr=\"a\"} 1\nt{worker_addr=\"c\"} 2\n");
    }
}
