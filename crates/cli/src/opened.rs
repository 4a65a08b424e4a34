//! The run that a command reads: a folder, or a foreign file that becomes a run for as long as the command lasts.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgMatches, value_parser};
use rollscope_formats::{FormatError, ImportNotes, ImportOptions, import};
use rollscope_record::{MakeGlance, OfflineRecorder, StepClosed, StepEnd};
use rollscope_run::{Run, RunInfo};
use rollscope_trace::{Record, StepNumber, UnixNs};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::exit::Failure;
use crate::output;

/// A run, and the folder that goes with it when it was made of a file.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) run: Run,
    /// What the user named.
    pub(crate) path: PathBuf,
    _made: Option<TempDir>,
}

/// So much of two files is held at a time while they are compared.
const COMPARED_BYTES: usize = 1 << 16;

/// The argument that names it.
pub(crate) fn run_argument() -> Arg {
    Arg::new("run")
        .value_name("RUN|FILE.pt")
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .help("Folder of the run, or a file as `import` takes it")
}

// === impl Opened ===

impl Opened {
    /// Opens what [`run_argument`] names.
    pub(crate) fn of(matches: &ArgMatches) -> Result<Self, Failure> {
        Self::at(matches.get_one::<PathBuf>("run").context("no run was given")?)
    }

    /// Opens a run's folder, or a file.
    pub(crate) fn at(path: &Path) -> Result<Self, Failure> {
        if !path.is_file() {
            let run = Run::open(path).map_err(anyhow::Error::from)?;
            return Ok(Self { run, path: path.to_owned(), _made: None });
        }
        let (run, made) = made_for(path)?;
        // It is read once: sealing it and computing its numbers would only make the user wait.
        let (recorder, notes) = import_into(&run, &[path.to_owned()], &ImportOptions::default())?;
        for note in notes {
            output::note(format_args!("rollscope: {note}"));
        }
        recorder.close(StepEnd::default()).map_err(anyhow::Error::from)?;
        Ok(Self { run, path: path.to_owned(), _made: Some(made) })
    }

    /// The steps of the run, or the one of them that was asked for.
    pub(crate) fn steps(&self, wanted: Option<u64>) -> Result<Vec<StepNumber>, Failure> {
        steps(&self.run, wanted)
    }
}

/// A run in a folder that is removed with the second of the two; pages show its name.
pub(crate) fn made_for(path: &Path) -> Result<(Run, TempDir), Failure> {
    let folder = TempDir::with_prefix("rollscope-").context("cannot make a folder for the run")?;
    let run = make_run(&folder.path().join(path.file_stem().unwrap_or_default()), &[path.to_owned()])?;
    Ok((run, folder))
}

/// The steps of a run, or the one of them that was asked for.
pub(crate) fn steps(run: &Run, wanted: Option<u64>) -> Result<Vec<StepNumber>, Failure> {
    let known = run.steps().map_err(anyhow::Error::from)?;
    let known: Vec<StepNumber> = known.iter().map(|summary| summary.step).collect();
    match wanted.map(StepNumber) {
        None => Ok(known),
        Some(step) if known.contains(&step) => Ok(vec![step]),
        Some(step) => {
            let names: Vec<String> = known.iter().map(ToString::to_string).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Err(Failure::Other(anyhow!("no step {step} in {}; it has {names}", run.dir().display())))
        }
    }
}

/// A new run for what is in files, or the run that is there.
pub(crate) fn make_run(dir: &Path, files: &[PathBuf]) -> Result<Run, Failure> {
    let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    create_run(dir, json!({ "imported": files }))
}

/// A run that is made now, with what it was made by; or the run that is there.
pub(crate) fn create_run(dir: &Path, config: Value) -> Result<Run, Failure> {
    let since =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
    let info = RunInfo {
        producer: format!("rollscope {}", env!("CARGO_PKG_VERSION")),
        created: UnixNs(i64::try_from(since.as_nanos()).context("the clock is beyond 2262")?),
        config,
    };
    Run::create(dir, &info).map_err(Failure::usage)
}

/// What the viewer shows of a step without reading it, for recorders to make.
pub(crate) fn glance() -> MakeGlance {
    Arc::new(rollscope_view::glance)
}

/// What came of reading files into a run.
#[derive(Debug)]
pub(crate) struct Imported {
    /// The steps of which there was something new.
    pub(crate) steps: Vec<StepClosed>,
    /// What is to be told of the files, a sentence each.
    pub(crate) notes: Vec<String>,
}

/// Reads files into a run and closes its steps. Of files that cannot be read to their end nothing stays in the run.
pub(crate) fn import_files(
    run: &Run,
    files: &[PathBuf],
    options: &ImportOptions,
    end: StepEnd,
) -> Result<Imported, Failure> {
    let (recorder, notes) = import_into(run, files, options)?;
    let steps = recorder.finish(end, Some(&glance())).map_err(anyhow::Error::from)?;
    Ok(Imported { steps, notes })
}

fn import_into(
    run: &Run,
    files: &[PathBuf],
    options: &ImportOptions,
) -> Result<(OfflineRecorder, Vec<String>), Failure> {
    let mut recorder = OfflineRecorder::start(run.clone(), "import").map_err(anyhow::Error::from)?;
    match import_all(&mut recorder, files, options) {
        Ok(notes) => Ok((recorder, notes)),
        Err(error) => {
            recorder.abandon().map_err(anyhow::Error::from)?;
            Err(error)
        }
    }
}

fn import_all(
    recorder: &mut OfflineRecorder,
    files: &[PathBuf],
    options: &ImportOptions,
) -> Result<Vec<String>, Failure> {
    let mut notes = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let mut before = files[..index].iter();
        if let Some(same) = before.find(|before| has_same_content(before, file)) {
            notes.push(format!("{} is the same as {} and counts once", file.display(), same.display()));
            continue;
        }
        let told = import_one(file, options, |record| recorder.put(&record).map_err(FormatError::sink))?;
        let taken = recorder.next_file();
        if taken.passed_over > 0 {
            notes.push(format!(
                "{}: {} records were there already, of the run or another file, and count once",
                file.display(),
                taken.passed_over
            ));
        }
        notes.extend(notes_of(file, told));
    }
    Ok(notes)
}

/// Whether two files are one, or copies. One that cannot be read is told of when it is imported.
fn has_same_content(one: &Path, other: &Path) -> bool {
    let compare = || {
        let (mut one, mut other) = (File::open(one)?, File::open(other)?);
        if one.metadata()?.len() != other.metadata()?.len() || !one.metadata()?.is_file() {
            return Ok(false);
        }
        let (mut of_one, mut of_other) = (vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]);
        loop {
            let length = one.read(&mut of_one)?;
            if length == 0 {
                return Ok(true);
            }
            other.read_exact(&mut of_other[..length])?;
            if of_one[..length] != of_other[..length] {
                return Ok::<_, io::Error>(false);
            }
        }
    };
    compare().unwrap_or(false)
}

/// Hands over every record of a file.
pub(crate) fn import_one(
    file: &Path,
    options: &ImportOptions,
    mut put: impl FnMut(Record) -> Result<(), FormatError>,
) -> Result<ImportNotes, Failure> {
    let own_line = |line: &[u8]| Ok(rollscope_record::read_line(line)?);
    Ok(import(file, options, &own_line, &mut put).map_err(anyhow::Error::from)?)
}

/// What is to be told of a file beside its records.
pub(crate) fn notes_of(file: &Path, told: ImportNotes) -> Vec<String> {
    let of_each = [
        (told.repeated_lines, "lines are there twice and count once"),
        (told.unreadable_traces, "samples have a trace that cannot be read, wholly or in part"),
    ];
    let told = of_each.into_iter().filter(|(count, _)| *count > 0);
    told.map(|(count, what)| format!("{}: {count} {what}", file.display())).collect()
}
