//! `rollscope import`: files of others become a run.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command, value_parser};
use rollscope_config::{Options as _, options};
use rollscope_formats::ImportOptions;
use rollscope_record::StepEnd;
use rollscope_trace::{Nanos, StepNumber};

use super::resolve;
use crate::exit::Failure;
use crate::opened::{import_files, make_run};
use crate::output;

options! {
    /// Make a run of other programs' files: slime's rollout dumps, SGLang's request exports, JSON lines.
    pub(crate) struct ImportCommandOptions, environment "ROLLSCOPE_IMPORT" {
        observability {
            /// Folder of the run; one that is there already is added to.
            out: String, value_name("RUN");
            /// Put everything into this step instead of the one that the file names.
            step: Option<u64> = None, range(0..=(1 << 53) - 1);
            /// Which of several rewards of a sample counts.
            reward_key: Option<String> = None, value_name("KEY");
            /// Which of several rewards of a sample names its category.
            category_key: Option<String> = None, value_name("KEY");
            /// The samples are an evaluation's; files named eval_… are without it.
            evaluation: bool = false;
            /// Seconds that the rollout took; from its first to its last event otherwise.
            rollout_time: Option<f64> = None, value_name("SECONDS"), range(0.0..=1e9);
            /// Accelerators that served it.
            gpus: Option<u32> = None;
        }
    }
}

/// What the command takes.
pub(crate) type Options = ImportCommandOptions;

pub(crate) fn command() -> Command {
    ImportCommandOptions::command("import").arg(
        Arg::new("files")
            .value_name("FILE")
            .required(true)
            .num_args(1..)
            .value_parser(value_parser!(PathBuf))
            .help("Files to read"),
    )
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let options = resolve::<Options>(matches)?;
    let files: Vec<PathBuf> = matches.get_many("files").context("no file was given")?.cloned().collect();
    let how = ImportOptions {
        step: options.step.map(StepNumber),
        reward_key: options.reward_key,
        category_key: options.category_key,
        evaluation: options.evaluation,
    };
    let end =
        StepEnd { rollout_time: options.rollout_time.and_then(Nanos::from_secs_f64), gpus: options.gpus };
    let out = Path::new(&options.out);
    let (was_folder, was_run) = (out.exists(), out.join("run.json").exists());
    let run = make_run(out, &files)?;
    let imported = import_files(&run, &files, &how, end).inspect_err(|_| {
        // A run that is only begun is in the way of the next try.
        let removed = match (was_folder, was_run) {
            (false, _) => std::fs::remove_dir_all(out),
            (true, false) => {
                std::fs::remove_file(out.join("run.json")).and_then(|()| std::fs::remove_dir(out.join("log")))
            }
            (true, true) => Ok(()),
        };
        if let Err(error) = removed {
            output::note(format_args!(
                "rollscope: cannot remove what was begun in {}: {error}",
                out.display()
            ));
        }
    })?;
    for closed in imported.steps {
        let count = |name: &str| closed.metrics.get(name).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
        output::line(format_args!("step {}: {} requests", closed.step, count("perf/request/count")))?;
    }
    for note in imported.notes {
        output::note(format_args!("rollscope: {note}"));
    }
    output::note(format_args!("rollscope: the run is {}", run.dir().display()));
    Ok(())
}
