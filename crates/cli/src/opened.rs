//! The run that a command reads: a folder, or a foreign file that becomes a run for as long as the command lasts.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgMatches, value_parser};
use rollscope_formats::{FormatError, ImportOptions, import};
use rollscope_record::{OfflineRecorder, StepClosed, StepEnd};
use rollscope_run::{Run, RunInfo};
use rollscope_trace::{StepNumber, UnixNs};
use serde_json::json;
use tempfile::TempDir;

use crate::exit::Failure;

/// A run, and the folder that goes with it when it was made of a file.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) run: Run,
    /// What the user named.
    pub(crate) path: PathBuf,
    _made: Option<TempDir>,
}

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
        let made = TempDir::with_prefix("rollscope-").context("cannot make a folder for the run")?;
        // The page shows the folder's name.
        let dir = made.path().join(path.file_stem().unwrap_or_default());
        let run = make_run(&dir, &[path.to_owned()])?;
        import_files(run.clone(), &[path.to_owned()], &ImportOptions::default(), StepEnd::default())?;
        Ok(Self { run, path: path.to_owned(), _made: Some(made) })
    }

    /// The steps of the run, or the one of them that was asked for.
    pub(crate) fn steps(&self, wanted: Option<u64>) -> Result<Vec<StepNumber>, Failure> {
        steps(&self.run, wanted)
    }
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
    let since =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
    let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    let info = RunInfo {
        producer: format!("rollscope {}", env!("CARGO_PKG_VERSION")),
        created: UnixNs(i64::try_from(since.as_nanos()).context("the clock is beyond 2262")?),
        config: json!({ "imported": files }),
    };
    Run::create(dir, &info).map_err(Failure::usage)
}

/// Reads files into a run and closes its steps.
pub(crate) fn import_files(
    run: Run,
    files: &[PathBuf],
    options: &ImportOptions,
    end: StepEnd,
) -> Result<Vec<StepClosed>, Failure> {
    let mut recorder = OfflineRecorder::start(run, "import").map_err(anyhow::Error::from)?;
    let own_line = |line: &[u8]| Ok(rollscope_record::read_line(line)?);
    for file in files {
        let mut put = |record| recorder.put(&record).map_err(FormatError::sink);
        import(file, options, &own_line, &mut put).map_err(anyhow::Error::from)?;
    }
    Ok(recorder.finish(end).map_err(anyhow::Error::from)?)
}
