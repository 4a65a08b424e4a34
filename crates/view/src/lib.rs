//! The timeline viewer: query API over a run, and the page.
//!
//! [`serve()`] answers on a listener that the caller has opened; nothing is served but the page, which is embedded
//! in the program, and the JSON described in `api.rs`. The run is followed while it is being written. On a
//! loopback listener only requests for a loopback host are answered, so that no web page can reach the run
//! through a name of its own. Steps that are read from a foreign file are shown as far as they are read ([`Given`]).
//! [`glance()`] makes what is shown of a step without reading it, for the run to keep when the step is sealed.
//! [`export_html()`] writes the page and the answers for a run into one file, which needs no server.

mod columns;
mod latest;
mod strings;
mod tracks;

mod calls;
mod details;
mod numbers;
mod passes;
mod places;
mod search;
mod table;
mod tile;
mod workers;

mod sight;

mod pyramid;

mod folder;
mod given;
mod glance;
mod reach;
mod source;
mod step;
mod tail;

mod api;
mod bundle;
mod guard;
mod page;

mod html;
mod serve;

pub use given::Given;
pub use glance::glance;
pub use guard::Token;
pub use html::{HtmlError, export_html};
pub use serve::{Served, Shown, ViewError, serve};
