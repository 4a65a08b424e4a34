//! The cases: what workers answer, how it is asked for, who takes part, and which bars the gateway has to reach.

use super::figure::{Bar, Figure};
use super::system::System;

/// One row of the benchmark.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) load: Load,
    /// The worker that plain proxies, and gateways in regular mode, stand before.
    pub(super) plain: Shape,
    /// The workers of a disaggregated fleet; none makes it a case of regular mode.
    pub(super) pair: Option<Pair>,
    pub(super) systems: &'static [System],
    pub(super) bars: &'static [Bar],
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) prefill: Shape,
    pub(super) decode: Shape,
}

/// How requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// As fast as 16 connections go.
    Closed,
    /// As fast as 128 connections go, with each system held to the same small share of the processor, which is what limits it
    /// then.
    Held,
    /// One stream after the other; what counts is the first event.
    FirstEvent,
    /// Many streams at once, which stay open until their memory has been taken.
    Streams,
    /// As `Closed`, before gateways of their own each round, which serve a second each in turns, in steps as large as slime's
    /// that are ended as a trainer ends them: what recording costs until all is sealed.
    Recording,
}

/// What a worker answers: its options.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    pub(super) bytes: usize,
    pub(super) logprobs: usize,
    pub(super) events: usize,
    pub(super) delay_ms: u64,
    pub(super) is_held: bool,
}

const KB: usize = 1000;
const MB: usize = 1_000_000;
/// Events of a stream.
const EVENTS: usize = 8;

const SMALL: Shape = Shape { bytes: KB, logprobs: 0, events: 0, delay_ms: 0, is_held: false };
/// What a prefill worker says, which is little.
const PREFILL: Shape = Shape { bytes: 0, ..SMALL };
const LOGPROBS_1M: Shape = Shape { logprobs: MB, ..PREFILL };
const LOGPROBS_2M: Shape = Shape { logprobs: 2 * MB, ..PREFILL };
const LOGPROBS_FEW: Shape = Shape { logprobs: 1, ..PREFILL };
const STREAM: Shape = Shape { events: EVENTS, ..PREFILL };
const PREFILL_STREAM: Shape = Shape { events: 1, ..PREFILL };
const PREFILL_LATE: Shape = Shape { delay_ms: 400, ..PREFILL_STREAM };
const HELD: Shape = Shape { is_held: true, ..STREAM };

const EVERYONE: &[System] =
    &[System::Direct, System::Nginx, System::Haproxy, System::SglangRouter, System::Smg, System::Rollscope];
const GATEWAYS: &[System] = &[System::Direct, System::SglangRouter, System::Smg, System::Rollscope];

pub(super) const CASES: &[Case] = &[
    Case {
        name: "regular",
        summary: "regular mode, replies of 1 KB",
        load: Load::Closed,
        plain: SMALL,
        pair: None,
        systems: EVERYONE,
        bars: &[Bar::at_most(Figure::Cpu, 1.2, System::Nginx)],
    },
    Case {
        name: "pd",
        summary: "disaggregated, replies of 1 KB, the prefill's timings merged in; nginx and HAProxy only pass on",
        load: Load::Closed,
        plain: SMALL,
        pair: Some(Pair { prefill: PREFILL, decode: SMALL }),
        systems: EVERYONE,
        bars: &[
            Bar::at_most(Figure::Cpu, 0.2, System::SglangRouter),
            Bar::at_most(Figure::Cpu, 2.2, System::Nginx),
        ],
    },
    Case {
        name: "logprobs-prefill",
        summary: "disaggregated, 1 MB of log-probabilities from prefill; nginx and HAProxy pass 1 MB on",
        load: Load::Closed,
        plain: LOGPROBS_1M,
        pair: Some(Pair { prefill: LOGPROBS_1M, decode: LOGPROBS_FEW }),
        systems: EVERYONE,
        bars: &[
            Bar::at_most(Figure::Cpu, 1.3, System::Haproxy),
            Bar::at_most(Figure::Cpu, 0.04, System::SglangRouter),
        ],
    },
    Case {
        name: "logprobs-decode",
        summary: "disaggregated, 1 MB of log-probabilities from decode; nginx and HAProxy pass 1 MB on",
        load: Load::Closed,
        plain: LOGPROBS_1M,
        pair: Some(Pair { prefill: LOGPROBS_FEW, decode: LOGPROBS_1M }),
        systems: EVERYONE,
        bars: &[
            Bar::at_most(Figure::Cpu, 1.3, System::Haproxy),
            Bar::at_most(Figure::Cpu, 0.04, System::SglangRouter),
        ],
    },
    Case {
        name: "logprobs-both",
        summary: "disaggregated, 1 MB of log-probabilities from each; nginx and HAProxy pass 2 MB on",
        load: Load::Closed,
        plain: LOGPROBS_2M,
        pair: Some(Pair { prefill: LOGPROBS_1M, decode: LOGPROBS_1M }),
        systems: EVERYONE,
        bars: &[Bar::at_most(Figure::Cpu, 1.2, System::Haproxy)],
    },
    Case {
        name: "sse",
        summary: "regular mode, streams of 8 events",
        load: Load::Closed,
        plain: STREAM,
        pair: None,
        systems: EVERYONE,
        bars: &[
            Bar::at_most(Figure::Cpu, 1.3, System::Nginx),
            Bar::at_least(Figure::Rate, 4.0, System::SglangRouter),
        ],
    },
    Case {
        name: "sse-pd",
        summary: "disaggregated, streams of 8 events; nginx and HAProxy only pass on",
        load: Load::Closed,
        plain: STREAM,
        pair: Some(Pair { prefill: PREFILL_STREAM, decode: STREAM }),
        systems: EVERYONE,
        bars: &[
            Bar::at_most(Figure::Cpu, 2.0, System::Nginx),
            Bar::at_least(Figure::Rate, 4.0, System::SglangRouter),
        ],
    },
    Case {
        name: "sse-held",
        summary: "as sse, each system with the same small share of the processor",
        load: Load::Held,
        plain: STREAM,
        pair: None,
        systems: EVERYONE,
        bars: &[Bar::at_least(Figure::Rate, 4.0, System::Smg)],
    },
    Case {
        name: "sse-pd-held",
        summary: "as sse-pd, each system with the same small share of the processor",
        load: Load::Held,
        plain: STREAM,
        pair: Some(Pair { prefill: PREFILL_STREAM, decode: STREAM }),
        systems: EVERYONE,
        bars: &[Bar::at_least(Figure::Rate, 4.0, System::Smg)],
    },
    Case {
        name: "first-event",
        summary: "regular mode, one stream at a time",
        load: Load::FirstEvent,
        plain: STREAM,
        pair: None,
        systems: EVERYONE,
        bars: &[Bar::over(Figure::FirstEventP50, 0.3, System::Direct)],
    },
    Case {
        name: "first-event-pd",
        summary: "disaggregated, one stream at a time; nginx and HAProxy only pass on",
        load: Load::FirstEvent,
        plain: STREAM,
        pair: Some(Pair { prefill: PREFILL_STREAM, decode: STREAM }),
        systems: EVERYONE,
        bars: &[Bar::over(Figure::FirstEventP50, 0.3, System::Direct)],
    },
    Case {
        name: "prefill-late",
        summary: "disaggregated, prefill answers after 400 ms and decode at once",
        load: Load::FirstEvent,
        plain: STREAM,
        pair: Some(Pair { prefill: PREFILL_LATE, decode: STREAM }),
        systems: GATEWAYS,
        // Far below the delay, and far above what a waking thread takes on a busy machine.
        bars: &[Bar::below(Figure::FirstEventP50, 10.0)],
    },
    Case {
        name: "streams",
        summary: "regular mode, 5,000 open streams (fewer where there are not so many descriptors)",
        load: Load::Streams,
        plain: HELD,
        pair: None,
        systems: &[System::Nginx, System::Haproxy, System::Rollscope],
        bars: &[Bar::below(Figure::StreamMemory, 64.0), Bar::below(Figure::Failed, 0.0)],
    },
    Case {
        name: "streams-pd",
        summary: "disaggregated, 5,000 open streams (fewer where there are not so many descriptors)",
        load: Load::Streams,
        plain: HELD,
        pair: Some(Pair { prefill: PREFILL_STREAM, decode: HELD }),
        systems: &[System::Nginx, System::Haproxy, System::Rollscope],
        bars: &[Bar::below(Figure::StreamMemory, 64.0), Bar::below(Figure::Failed, 0.0)],
    },
    Case {
        name: "recording",
        summary: "disaggregated, replies of 1 KB, without and with --record until everything is sealed",
        load: Load::Recording,
        plain: SMALL,
        pair: Some(Pair { prefill: PREFILL, decode: SMALL }),
        systems: &[System::Rollscope, System::Recording],
        bars: &[
            Bar::at_most(Figure::ServingCpu, 1.03, System::Rollscope).of(System::Recording),
            Bar::over(Figure::WholeCpu, 15.0, System::Rollscope).of(System::Recording),
            Bar::below(Figure::Dropped, 0.0).of(System::Recording),
        ],
    },
];

// === impl Case ===

impl Case {
    /// What is told beside the bars: latency against no proxy at all, and against a plain one.
    pub(super) fn told(&self) -> Vec<Bar> {
        let figure = match self.load {
            Load::Closed => Figure::P50,
            Load::FirstEvent => Figure::FirstEventP50,
            Load::Held | Load::Streams | Load::Recording => return Vec::new(),
        };
        let takes_part = |system: &System| self.systems.contains(system);
        let against = [System::Direct, System::Nginx].into_iter().filter(takes_part);
        against.map(|system| Bar::told(figure, system)).collect()
    }

    /// What is posted: 128 tokens, and what the case is about.
    pub(super) fn request(&self) -> String {
        let ids: Vec<String> = (0..128_u32).map(|token| (token * 7919 % 50_000).to_string()).collect();
        let shapes = self.pair.as_ref().map_or([&self.plain; 2], |pair| [&pair.prefill, &pair.decode]);
        let logprobs = shapes.iter().any(|shape| shape.logprobs > 0);
        let stream = self.plain.events > 0;
        format!(
            "{{\"input_ids\":[{}],\"sampling_params\":{{\"temperature\":0.8,\"top_p\":0.95,\"max_new_tokens\":8}},\
             \"return_logprob\":{logprobs},\"stream\":{stream}}}",
            ids.join(",")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_of_the_size_that_the_bars_were_set_with() {
        for case in CASES {
            let request: serde_json::Value = serde_json::from_str(&case.request()).unwrap();
            assert_eq!(request["input_ids"].as_array().unwrap().len(), 128, "{}", case.name);
            assert!((700..900).contains(&case.request().len()), "{}: {}", case.name, case.request().len());
        }
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
    }
}
