//! A run with damaged parts, by the real program: what is missing is told first, and nothing is made of the rest unasked.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{run, run_well, stderr, stdout};
use serde_json::Value;
use tempfile::TempDir;

/// A run of one dump whose log is gone, so that nothing makes up for a part.
struct Damaged {
    dir: TempDir,
}

/// A way in which a part is damaged: what it is called, and what does it.
type Kind = (&'static str, fn(&Path));

/// All of them.
const KINDS: [Kind; 3] = [
    ("gone", |part| fs::remove_file(part).unwrap()),
    ("cut", |part| {
        let whole = fs::read(part).unwrap();
        fs::write(part, &whole[..whole.len() / 2]).unwrap();
    }),
    ("flipped", |part| {
        let mut bytes = fs::read(part).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fs::write(part, bytes).unwrap();
    }),
];

fn dump(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/data").join(name)
}

// === impl Damaged ===

impl Damaged {
    fn new() -> Self {
        let of = Self { dir: tempfile::tempdir().unwrap() };
        run_well(&["import", dump("turns.pt").to_str().unwrap(), "--out", of.run()]);
        of
    }

    fn run(&self) -> &str {
        self.dir.path().join("run").to_str().unwrap().to_owned().leak()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn part(&self, table: &str) -> PathBuf {
        self.path(&format!("run/steps/step=000000/{table}/import-000001.parquet"))
    }

    fn lose_log(&self) {
        fs::remove_file(self.path("run/log/import/000001.seg")).unwrap();
    }

    fn json(&self) -> Value {
        serde_json::from_str(&run_well(&["report", self.run(), "--json"])).unwrap()
    }
}

#[test]
fn damage_is_told_before_any_number_and_nothing_is_found_in_what_is_left() {
    for table in ["requests", "legs", "samples", "spans"] {
        for (kind, damage) in KINDS {
            let of = Damaged::new();
            let part = of.part(table);
            damage(&part);
            let whole = run_well(&["report", of.run()]);
            assert!(
                whole.starts_with("step 0: 4 samples") && whole.contains("slowest sample"),
                "{table} {kind}: {whole}"
            );
            assert_eq!(of.json()["steps"][0]["damage"], Value::Array(Vec::new()), "the log has it");

            of.lose_log();
            let told = run_well(&["report", of.run()]);
            let (head, rest) = told.split_once('\n').unwrap();
            assert!(head.starts_with("damaged: step 0, all that is told of it rests on "), "{told}");
            assert!(head.contains(part.to_str().unwrap()), "{table} {kind}: {told}");
            assert!(rest.contains("step 0, damaged: ") && rest.contains("  no findings: "), "{told}");
            assert!(!rest.contains("  * ") && !rest.contains("slowest sample"), "{told}");
            let step = &of.json()["steps"][0];
            assert_eq!(step["damage"][0]["path"], part.to_str().unwrap(), "{table} {kind}: {step}");
            assert_eq!(step["findings"], Value::Array(Vec::new()));
            let (count, recorded) = match table {
                "requests" | "legs" => ("requests", 7),
                "samples" => ("samples", 4),
                _ => ("user_spans", step["rests_on"]["user_spans"]["recorded"].as_u64().unwrap()),
            };
            let count = &step["rests_on"][count];
            assert_eq!(count["recorded"], recorded, "{table}: {step}");
            let may_be_less = table == "samples" || count["read"].as_u64().unwrap() < recorded;
            assert!(may_be_less, "{table} {kind}: {step}");
        }
    }
}

#[test]
fn what_is_damaged_is_exported_only_if_that_is_wanted() {
    for (kind, damage) in KINDS {
        let of = Damaged::new();
        let part = of.part("requests");
        let out = of.path("out");
        let export = |format: &str, more: &[&str]| {
            let file = out.to_str().unwrap();
            run(&[&["export", of.run(), "--to", format, file], more].concat())
        };
        damage(&part);
        assert!(export("perfetto", &[]).status.success(), "{kind}: the log has it");
        of.lose_log();
        for format in ["perfetto", "chrome", "otlp", "slime-json", "html"] {
            fs::write(&out, "notes").unwrap();
            let refused = export(format, &[]);
            assert_eq!(refused.status.code(), Some(1), "{kind} {format}");
            assert!(stderr(&refused).contains(part.to_str().unwrap()), "{format}: {}", stderr(&refused));
            assert_eq!(fs::read_to_string(&out).unwrap(), "notes");
            let to_pipe = run(&["export", of.run(), "--to", format, "/dev/stdout"]);
            assert_eq!((to_pipe.status.code(), &*to_pipe.stdout), (Some(1), &b""[..]), "{kind} {format}");
            let wanted = export(format, &["--allow-damaged"]);
            assert!(wanted.status.success(), "{kind} {format}: {}", stderr(&wanted));
            assert!(stderr(&wanted).contains(part.to_str().unwrap()), "{format}: {}", stderr(&wanted));
            assert_ne!(fs::read_to_string(&out).unwrap_or_default(), "notes");
        }
    }
}

#[test]
fn every_command_that_reads_a_damaged_step_says_so() {
    let of = Damaged::new();
    let whole = Damaged::new();
    let turns = dump("turns.pt");
    let eval = dump("eval_3.pt");
    let (turns, eval) = (turns.to_str().unwrap(), eval.to_str().unwrap());
    let sample = of.json()["steps"][0]["metrics"].as_object().map(|_| "no/such").unwrap();
    let part = of.part("requests");
    KINDS[0].1(&part);
    of.lose_log();
    let stats = of.path("run/steps/step=000000/stats.json");
    let before = fs::read(&stats).unwrap();
    let target = format!("jsonl:{}", of.path("sent.jsonl").display());
    for (args, code, on_stdout) in [
        (&["report", of.run(), "--sample", sample][..], 1, false),
        (&["report", of.run(), "--plan"], 0, true),
        (&["report", of.run(), "--plan", "--json"], 0, true),
        (&["report", of.run(), "--against", whole.run()], 0, true),
        (&["report", whole.run(), "--against", of.run()], 0, true),
        (&["import", turns, "--out", of.run()], 1, false),
        (&["import", eval, "--step", "0", "--out", of.run()], 1, false),
    ] {
        let output = run(args);
        let told = if on_stdout { stdout(&output) } else { stderr(&output) };
        assert_eq!(output.status.code(), Some(code), "{args:?}: {told}{}", stderr(&output));
        assert!(told.contains(part.to_str().unwrap()), "{args:?}: {told}");
    }
    let against = run_well(&["report", whole.run(), "--against", of.run()]);
    assert!(against.contains("nothing is compared, since records are missing"), "{against}");
    assert_eq!(fs::read(&stats).unwrap(), before, "numbers of when it was whole stay");
    // They were computed when it was whole, and so may be sent.
    assert!(run_well(&["track", of.run(), "--to", &target]).starts_with("1 steps sent"));
    // Another step is none of its business.
    run_well(&["import", eval, "--step", "9", "--out", of.run()]);
    assert_eq!(of.json()["steps"][1]["damage"], Value::Array(Vec::new()));
}

#[test]
fn a_step_whose_numbers_are_lost_is_not_passed_over_by_track() {
    let of = Damaged::new();
    let target = format!("jsonl:{}", of.path("sent.jsonl").display());
    let metrics = of.path("run/metrics.jsonl");
    let whole = fs::read(&metrics).unwrap();
    let (stats, aside) = (of.path("run/steps/step=000000/stats.json"), of.path("stats.json"));
    fs::rename(&stats, &aside).unwrap();
    for damage in [&b""[..], &whole[..whole.len() / 2], b"{\"step\": 0, \"data\": \n"] {
        fs::write(&metrics, damage).unwrap();
        let output = run(&["track", of.run(), "--to", &target]);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("have no numbers in metrics.jsonl, so none of them was sent: 0"), "{told}");
    }
    fs::rename(&aside, &stats).unwrap();
    assert!(run_well(&["track", of.run(), "--to", &target]).starts_with("1 steps sent"));
    assert!(fs::read(&metrics).unwrap().ends_with(&whole), "as it was when the step was imported");
    assert!(run_well(&["track", of.run(), "--to", &target]).starts_with("0 steps sent"));
}
