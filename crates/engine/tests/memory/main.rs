//! Released memory is the operating system's again: measured, so alone in its process.

#[cfg(test)]
#[cfg(target_os = "linux")]
mod release;
#[path = "../it/support.rs"]
#[cfg(test)]
#[cfg(target_os = "linux")]
#[expect(dead_code, reason = "the helpers are those of the other tests")]
mod support;
