//! `rollscope export`: a run for other programs.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command, value_parser};
use rollscope_config::{Choice, Options as _, options};
use rollscope_formats::{ExportFormat, Exporter};
use rollscope_trace::StepNumber;

use super::{block_on, resolve};
use crate::exit::Failure;
use crate::opened::{Opened, run_argument};
use crate::output;

/// A format, as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Perfetto,
    Chrome,
    Otlp,
    SlimeJson,
    Html,
}

options! {
    /// Write a run for another program: a timeline, OpenTelemetry spans, slime's dump, one page.
    pub(crate) struct ExportOptions, environment "ROLLSCOPE_EXPORT" {
        observability {
            /// What to write.
            to: Target, value_name("FORMAT");
            /// Only this step.
            step: Option<u64> = None;
        }
    }
}

/// What the command takes.
pub(crate) type Options = ExportOptions;

pub(crate) fn command() -> Command {
    ExportOptions::command("export").arg(run_argument()).arg(
        Arg::new("file")
            .value_name("FILE")
            .required(true)
            .value_parser(value_parser!(PathBuf))
            .help("File to write"),
    )
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let options = resolve::<Options>(matches)?;
    let file = matches.get_one::<PathBuf>("file").context("no file was given")?;
    let opened = Opened::of(matches)?;
    let steps = opened.steps(options.step)?;
    let format = match options.to {
        Target::Perfetto => Some(ExportFormat::Perfetto),
        Target::Chrome => Some(ExportFormat::Chrome),
        Target::Otlp => Some(ExportFormat::Otlp),
        Target::SlimeJson => Some(ExportFormat::SlimeJson),
        Target::Html => None,
    };
    match format {
        Some(format) => write(&opened, &steps, format, file)?,
        None => write_html(&opened, &steps, file)?,
    }
    output::note(format_args!("rollscope: {} steps are in {}", steps.len(), file.display()));
    Ok(())
}

fn write_html(opened: &Opened, steps: &[StepNumber], path: &Path) -> Result<(), Failure> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut out = BufWriter::new(file);
    let written = async { Ok(rollscope_view::export_html(opened.run.clone(), steps, &mut out).await) };
    Ok(block_on(written)?.map_err(anyhow::Error::from)?)
}

/// One step at a time: a run is larger than the memory.
fn write(opened: &Opened, steps: &[StepNumber], format: ExportFormat, path: &Path) -> Result<(), Failure> {
    let cannot = || format!("cannot write {}", path.display());
    let file = File::create(path).with_context(cannot)?;
    let mut exporter = Exporter::new(format, BufWriter::new(file)).with_context(cannot)?;
    for step in steps {
        let trace = opened.run.step(*step).map_err(anyhow::Error::from)?;
        let passes = opened.run.forward_passes(*step).map_err(anyhow::Error::from)?;
        exporter.step(&trace, &passes).with_context(cannot)?;
    }
    exporter.finish().with_context(cannot)?;
    Ok(())
}

// === impl Target ===

impl Choice for Target {
    const SPELLINGS: &'static [(&'static str, Self)] = &[
        ("perfetto", Self::Perfetto),
        ("chrome", Self::Chrome),
        ("otlp", Self::Otlp),
        ("slime-json", Self::SlimeJson),
        ("html", Self::Html),
    ];
}
