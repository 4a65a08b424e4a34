//! The HTTP data plane between rollout code and inference workers.
//!
//! A request goes one way, whatever it asks for: it is read and planned, one or two legs are called, their replies
//! are merged, and the client is answered. Disaggregation and streaming are values of the plan.
//!
//! | module | what it does |
//! |---|---|
//! | `options`, `settings`, `refused` | the options, what they mean, and those of SGLang's router that there are not |
//! | `server`, `routes`, `serving`, `clients`, `watch`, `lane` | the gateway; which path leads where; clients' connections, how many, and what they do; the threads that serve them |
//! | `transport`, `tls` | the bytes of a connection, with or without TLS |
//! | `access`, `cors`, `limits` | who may call, from where, and how many at once |
//! | `request`, `inbound` | read, plan, run |
//! | `called_off` | aborts of what no worker has yet |
//! | `relay`, `farewell`, `stream`, `pair`, `prefill` | pass a reply on, and what is said when it breaks; a stream of events; two legs at once; the prefill's half |
//! | `leg`, `deadline`, `exchange`, `pool`, `connection`, `http1`, `outbound`, `abort` | one upstream call, when it is given up, down to the bytes |
//! | `flight`, `facts`, `reading`, `profiler` | what is known of a live request, and the profile it leaves |
//! | `reply`, `aborted`, `fault`, `body` | what clients get |
//! | `checks`, `loads`, `passes` | whether the workers are up, which processes they are, and what they have to do |
//! | `discovery`, `dns` | workers that a file or a DNS name tells of |
//! | `admin`, `shown`, `tags`, `control`, `secrets` | workers that come and go; calls to the first worker or to all; what is not told of them |
//! | `metrics`, `durations`, `calls`, `scrape`, `engine_metrics`, `exposition` | the gateway's figures, and the workers' |
//! | `choosing` | which workers, and why |
//! | `core`, `live`, `clock`, `ending` | what all requests share |
//!
//! Invariants: no body becomes a tree; a request and a leg end exactly once, in whatever way, and the books balance at
//! any moment; of recording the gateway knows only
//! [`ProfileSink::offer`](rollscope_trace::ProfileSink::offer), which never waits.

mod access;
mod choosing;
mod clients;
mod cors;
mod lane;
mod limits;
mod options;
mod refused;
mod routes;
mod server;
mod serving;
mod settings;
mod tls;
mod transport;
mod watch;

mod called_off;
mod inbound;
mod request;

mod farewell;
mod pair;
mod prefill;
mod relay;
mod stream;
mod texts;

mod abort;
mod connection;
mod deadline;
mod exchange;
mod http1;
mod leg;
mod outbound;
mod pool;

mod facts;
mod flight;
mod join;
mod profiler;
mod reading;

mod aborted;
mod body;
mod fault;
mod reply;

mod admin;
mod calls;
mod checks;
mod control;
mod discovery;
mod dns;
mod durations;
mod engine_metrics;
mod exposition;
mod loads;
mod metrics;
mod passes;
mod scrape;
mod secrets;
mod shown;
mod tags;

mod clock;
mod core;
mod ending;
mod live;
mod notices;

pub use body::{BoxError, ReplyBody};
pub use metrics::Counter;
pub use notices::Notices;
pub use options::{AssignmentName, GatewayOptions, LogLevel, PolicyName};
pub use passes::HeardPass;
pub use refused::RefusedOptions;
pub use server::{Gateway, Mount};
