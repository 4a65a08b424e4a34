//! A run's steps out, for other programs.

mod chrome;
mod group;
mod lanes;
mod otlp;
mod perfetto;
mod proto;

use std::io::{self, Write};

use rollscope_trace::{ForwardPass, StepTrace};

use crate::slime;

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// Perfetto's own, protobuf.
    Perfetto,
    /// JSON of Chrome's trace viewer, which Perfetto reads too.
    Chrome,
    /// OpenTelemetry: an `ExportTraceServiceRequest` in protobuf, as `POST /v1/traces` takes it.
    Otlp,
    /// slime's dump with its trace carriers, in JSON, a line for each step.
    SlimeJson,
}

/// Writes one step after the other.
#[derive(Debug)]
pub struct Exporter<W> {
    out: W,
    format: ExportFormat,
    /// What has been written so far needs these numbers to go on.
    tracks: u64,
    events: u64,
}

// === impl Exporter ===

impl<W: Write> Exporter<W> {
    /// Begins a file.
    pub fn new(format: ExportFormat, mut out: W) -> io::Result<Self> {
        if format == ExportFormat::Chrome {
            out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        }
        Ok(Self { out, format, tracks: 0, events: 0 })
    }

    /// Writes a step with the forward passes of its workers, for which slime's dump has no place.
    pub fn step(&mut self, trace: &StepTrace, passes: &[ForwardPass]) -> io::Result<()> {
        match self.format {
            ExportFormat::Perfetto => perfetto::step(trace, passes, &mut self.tracks, &mut self.out),
            ExportFormat::Chrome => {
                let mut written = chrome::Written { threads: &mut self.tracks, events: &mut self.events };
                chrome::step(trace, passes, &mut written, &mut self.out)
            }
            ExportFormat::Otlp => otlp::step(trace, passes, &mut self.out),
            ExportFormat::SlimeJson => {
                serde_json::to_writer(&mut self.out, &slime::dump_json(trace))?;
                self.out.write_all(b"\n")
            }
        }
    }

    /// Ends the file.
    pub fn finish(mut self) -> io::Result<()> {
        if self.format == ExportFormat::Chrome {
            self.out.write_all(b"]}\n")?;
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests;
