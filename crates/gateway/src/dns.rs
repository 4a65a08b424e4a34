//! Addresses behind names: by the operating system, or asked of a DNS server.
//!
//! `NAME:PORT` means all addresses of a name (A and AAAA records). `_SERVICE._PROTOCOL.NAME` means all addresses of all
//! targets of a service (SRV records), each with its own port; their priorities and weights mean nothing here, since the
//! policies spread the load. The operating system knows no services, so its DNS servers are asked for those.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;

use futures_util::StreamExt as _;
use futures_util::stream;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RData;
use tokio::net::lookup_host;

/// A name that stands for workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// The addresses of a host, and the port.
    Host(String, u16),
    /// A service, which says the ports itself.
    Service(String),
}

/// The addresses behind a name, looked up again and again.
#[derive(Debug)]
pub(crate) struct Addresses {
    name: Name,
    /// Who is asked, if not whom the operating system asks.
    server: Option<SocketAddr>,
    /// What each question was answered last.
    known: BTreeMap<Question, BTreeSet<SocketAddr>>,
}

/// What a look at a name has found.
#[derive(Debug)]
pub(crate) struct Found {
    /// In order.
    pub(crate) addresses: BTreeSet<SocketAddr>,
    /// Why a part of the addresses is only as it was known before.
    pub(crate) trouble: Option<io::Error>,
}

/// What is asked at once: the addresses of one kind that one host has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Question {
    host: String,
    port: u16,
    family: Family,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    Ipv4,
    Ipv6,
    /// Whatever the operating system says.
    Any,
}

type Answer = (Question, io::Result<BTreeSet<SocketAddr>>);

/// Questions that are under way at once.
const MAX_ASKED: usize = 32;

// === impl Name ===

impl Name {
    /// Reads `NAME:PORT` or `_SERVICE._PROTOCOL.NAME`.
    pub(crate) fn parse(given: &str) -> Option<Self> {
        if given.starts_with('_') {
            return (given.contains("._") && !given.contains(':')).then(|| Self::Service(given.to_owned()));
        }
        let (host, port) = given.rsplit_once(':')?;
        // As URLs write an IPv6 address.
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Some(Self::Host(host.to_owned(), port.parse().ok()?))
    }
}

// === impl Addresses ===

impl Addresses {
    pub(crate) fn new(name: Name, server: Option<SocketAddr>) -> Self {
        Self { name, server, known: BTreeMap::new() }
    }

    /// Looks again. What can not be asked this time is what it was the last time, so that a server that fails for one kind
    /// of address, or for one host of a service, takes nobody out.
    pub(crate) async fn look(&mut self) -> io::Result<Found> {
        let answers = match (&self.name, self.server) {
            (Name::Host(host, port), None) => vec![ask_system(host, *port).await],
            _ => self.ask().await.map_err(io::Error::other)?,
        };
        self.settle(answers)
    }

    async fn ask(&self) -> Result<Vec<Answer>, NetError> {
        let by_ipv4 = resolver(self.server, LookupIpStrategy::Ipv4Only)?;
        let by_ipv6 = resolver(self.server, LookupIpStrategy::Ipv6Only)?;
        let targets = match &self.name {
            Name::Host(host, port) => BTreeSet::from([(host.clone(), *port)]),
            Name::Service(service) => {
                let found = by_ipv4.srv_lookup(service.as_str()).await?;
                let target = |data: &RData| match data {
                    RData::SRV(service) => Some((service.target.to_string(), service.port)),
                    _ => None,
                };
                found.answers().iter().filter_map(|record| target(&record.data)).collect()
            }
        };
        let questions = targets.into_iter().flat_map(|(host, port)| {
            let of = |family| Question { host: host.clone(), port, family };
            [(of(Family::Ipv4), &by_ipv4), (of(Family::Ipv6), &by_ipv6)]
        });
        let asked: Vec<_> = questions.map(|(question, by)| answer(question, by)).collect();
        Ok(stream::iter(asked).buffer_unordered(MAX_ASKED).collect().await)
    }

    /// Takes what was answered. Fails, and keeps what was known, if that is nothing.
    fn settle(&mut self, answers: Vec<Answer>) -> io::Result<Found> {
        let has_answer = answers.iter().any(|(_, answer)| answer.is_ok());
        let (mut known, mut trouble) = (BTreeMap::new(), None);
        for (question, answer) in answers {
            let addresses = match answer {
                Ok(addresses) => addresses,
                Err(error) => {
                    trouble = Some(error);
                    self.known.get(&question).cloned().unwrap_or_default()
                }
            };
            known.insert(question, addresses);
        }
        let addresses: BTreeSet<SocketAddr> = known.values().flatten().copied().collect();
        if !has_answer || addresses.is_empty() {
            let nothing = || io::Error::new(io::ErrorKind::NotFound, "it has no address");
            return Err(trouble.unwrap_or_else(nothing));
        }
        self.known = known;
        Ok(Found { addresses, trouble })
    }
}

async fn ask_system(host: &str, port: u16) -> Answer {
    let question = Question { host: host.to_owned(), port, family: Family::Any };
    (question, lookup_host((host, port)).await.map(Iterator::collect))
}

async fn answer(question: Question, by: &TokioResolver) -> Answer {
    let port = question.port;
    let answer = match by.lookup_ip(question.host.as_str()).await {
        Ok(found) => Ok(found.iter().map(|address| SocketAddr::new(address, port)).collect()),
        // That there is none is an answer.
        Err(error) if error.is_no_records_found() => Ok(BTreeSet::new()),
        Err(error) => Err(io::Error::other(error)),
    };
    (question, answer)
}

/// Made for one look, so that it remembers nothing and follows a changed configuration.
fn resolver(server: Option<SocketAddr>, strategy: LookupIpStrategy) -> Result<TokioResolver, NetError> {
    let mut builder = match server {
        None => TokioResolver::builder_tokio()?,
        Some(server) => {
            let by = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
            let by = by.map(|mut by| {
                by.port = server.port();
                by
            });
            let server = NameServerConfig::new(server.ip(), true, by.to_vec());
            let config = ResolverConfig::from_name_servers(vec![server]);
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        }
    };
    builder.options_mut().ip_strategy = strategy;
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hosts_with_ports_or_services() {
        for (given, expected) in [
            ("workers:30000", Some(Name::Host("workers".to_owned(), 30000))),
            ("fd00::1:80", Some(Name::Host("fd00::1".to_owned(), 80))),
            ("[fd00::1]:80", Some(Name::Host("fd00::1".to_owned(), 80))),
            ("_http._tcp.workers", Some(Name::Service("_http._tcp.workers".to_owned()))),
            ("workers", None),
            ("workers:x", None),
            ("workers:70000", None),
            ("_http._tcp.workers:80", None),
            ("_workers", None),
        ] {
            assert_eq!(Name::parse(given), expected, "{given}");
        }
    }
    #[test]
    fn what_can_not_be_asked_is_as_it_was() {
        let question = |host: &str, family| Question { host: host.to_owned(), port: 1, family };
        let [a, b] = ["a", "b"].map(|host| question(host, Family::Ipv4));
        let a6 = question("a", Family::Ipv6);
        let told = |addresses: &[&str]| {
            Ok(addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 1)).collect())
        };
        let fails = || Err(io::ErrorKind::TimedOut.into());
        let mut addresses = Addresses::new(Name::Service("_http._tcp.x".to_owned()), None);
        for (what, answers, expected, is_trouble) in [
            (
                "all",
                vec![(&a, told(&["10.0.0.1"])), (&a6, told(&["::1"])), (&b, told(&["10.0.0.2"]))],
                3,
                false,
            ),
            (
                "a kind and a host fail",
                vec![(&a, told(&["10.0.0.3"])), (&a6, fails()), (&b, fails())],
                3,
                true,
            ),
            ("a kind is gone", vec![(&a, told(&["10.0.0.3"])), (&a6, told(&[])), (&b, fails())], 2, true),
            ("a host is gone", vec![(&a, told(&["10.0.0.3"])), (&a6, told(&[]))], 1, false),
            ("all fail", vec![(&a, fails()), (&a6, fails())], 0, true),
            ("others, and all fail", vec![(&b, fails())], 0, true),
            ("none has an address", vec![(&a, told(&[]))], 0, true),
            ("a host is not there again", vec![(&a, fails()), (&b, told(&["10.0.0.2"]))], 2, true),
        ] {
            let answers = answers.into_iter().map(|(question, answer)| (question.clone(), answer)).collect();
            let found = addresses.settle(answers);
            let found = found.map_or((0, true), |found| (found.addresses.len(), found.trouble.is_some()));
            assert_eq!(found, (expected, is_trouble), "{what}");
        }
    }
}
