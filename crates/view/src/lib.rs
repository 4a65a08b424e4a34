//! The timeline viewer: query API over a run, and the page.
