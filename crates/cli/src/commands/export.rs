//! `rollscope export`: a run for other programs.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgMatches, Command, value_parser};
use rollscope_config::{Choice, Options as _, options};
use rollscope_formats::{ExportFormat, Exporter};
use rollscope_trace::StepNumber;
use tempfile::NamedTempFile;

use super::report::missing_of_run;
use super::{block_on, resolve};
use crate::damage::{StepDamage, Wanted};
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
            /// Write what is left of steps of which records are lost. Without it nothing is written where any are.
            allow_damaged: bool = false;
        }
    }
}

/// What is written.
enum Output {
    /// A file that takes its place when it is whole: until then what was there stays.
    Beside(NamedTempFile, PathBuf),
    /// A pipe or a device, which is written as it is.
    Stream(File),
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
    let cannot = || format!("cannot write {}", file.display());
    let wanted = file.canonicalize().unwrap_or_else(|_| file.clone());
    if let Some(source) = source_of(&opened, &wanted) {
        let why = anyhow!("{} is in what is exported: {}", file.display(), source.display());
        return Err(Failure::Usage(why));
    }
    let parts = if options.to == Target::SlimeJson { Wanted::Records } else { Wanted::Passes };
    if !options.allow_damaged {
        refuse(&StepDamage::of_each(&opened.run, &steps, parts)?)?;
    }
    let mut output = Output::at(wanted).with_context(cannot)?;
    let out = BufWriter::new(&mut output);
    match format {
        Some(format) => write(&opened, &steps, format, out).with_context(cannot)?,
        None => write_html(&opened, &steps, out)?.with_context(cannot)?,
    }
    // Of parts without a checksum it is known now.
    let damaged = StepDamage::of_each(&opened.run, &steps, parts)?;
    if !options.allow_damaged {
        refuse(&damaged)?;
    }
    output.finish().with_context(cannot)?;
    let missing = damaged.iter().map(StepDamage::sentence).chain(missing_of_run(&opened.run)?);
    for missing in missing {
        output::note(format_args!("rollscope: {missing}"));
    }
    output::note(format_args!("rollscope: {} steps are in {}", steps.len(), file.display()));
    Ok(())
}

/// What is not whole is not exported unless that is wanted.
fn refuse(damaged: &[StepDamage]) -> Result<(), Failure> {
    let told: Vec<String> = damaged.iter().map(StepDamage::sentence).collect();
    if told.is_empty() {
        return Ok(());
    }
    Err(anyhow!("{}; nothing is written, --allow-damaged writes what is left", told.join("; ")).into())
}

/// The file or the folder that is exported, if a file is or lies in it.
fn source_of<'a>(opened: &'a Opened, file: &Path) -> Option<&'a Path> {
    let source = opened.path.canonicalize().ok()?;
    let folder = folder_of(file).canonicalize().ok()?;
    (file == source || folder.starts_with(&source)).then_some(&*opened.path)
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn write_html(
    opened: &Opened,
    steps: &[StepNumber],
    mut out: BufWriter<&mut Output>,
) -> Result<anyhow::Result<()>, Failure> {
    let run = opened.run.clone();
    block_on(async {
        Ok(async {
            rollscope_view::export_html(run, steps, &mut out).await?;
            Ok(out.flush()?)
        }
        .await)
    })
}

/// One step at a time: a run is larger than the memory.
fn write(
    opened: &Opened,
    steps: &[StepNumber],
    format: ExportFormat,
    out: BufWriter<&mut Output>,
) -> anyhow::Result<()> {
    let mut exporter = Exporter::new(format, out)?;
    for step in steps {
        exporter.step(&opened.run.step(*step)?, &opened.run.forward_passes(*step)?)?;
    }
    Ok(exporter.finish()?)
}

// === impl Output ===

impl Output {
    fn at(path: PathBuf) -> io::Result<Self> {
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            return Ok(Self::Stream(File::create(path)?));
        }
        // As any new file: what the user's mask leaves.
        let permissions = Permissions::from_mode(0o666);
        let file = tempfile::Builder::new()
            .prefix(".rollscope-export-")
            .permissions(permissions)
            .tempfile_in(folder_of(&path))?;
        Ok(Self::Beside(file, path))
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Beside(file, path) => file.persist(path).map(drop).map_err(|error| error.error),
            Self::Stream(_) => Ok(()),
        }
    }
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Beside(file, _) => file.write(bytes),
            Self::Stream(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Beside(file, _) => file.flush(),
            Self::Stream(file) => file.flush(),
        }
    }
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
