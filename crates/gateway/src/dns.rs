//! Addresses behind names: by the operating system, or asked of a DNS server.
//!
//! `NAME:PORT` means all addresses of a name (A and AAAA records). `_SERVICE._PROTOCOL.NAME` means all addresses of all
//! targets of a service (SRV records), each with its own port; their priorities and weights mean nothing here, since the
//! policies spread the load. The operating system knows no services, so its DNS servers are asked for those.

use std::io;
use std::net::SocketAddr;

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

// === impl Name ===

impl Name {
    /// Reads `NAME:PORT` or `_SERVICE._PROTOCOL.NAME`.
    pub(crate) fn parse(given: &str) -> Option<Self> {
        if given.starts_with('_') {
            return (given.contains("._") && !given.contains(':')).then(|| Self::Service(given.to_owned()));
        }
        let (host, port) = given.rsplit_once(':')?;
        Some(Self::Host(host.to_owned(), port.parse().ok()?))
    }

    /// All addresses, in order. They are asked of this server, or else of whom the operating system asks.
    pub(crate) async fn addresses(&self, server: Option<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
        let mut addresses = match (self, server) {
            (Self::Host(host, port), None) => lookup_host((host.as_str(), *port)).await?.collect(),
            _ => self.ask(server).await.map_err(io::Error::other)?,
        };
        // A resolver may tell one twice, and each time in another order.
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses)
    }

    async fn ask(&self, server: Option<SocketAddr>) -> Result<Vec<SocketAddr>, NetError> {
        let resolver = resolver(server)?;
        let targets = match self {
            Self::Host(host, port) => vec![(host.clone(), *port)],
            Self::Service(service) => {
                let found = resolver.srv_lookup(service.as_str()).await?;
                let target = |data: &RData| match data {
                    RData::SRV(service) => Some((service.target.to_string(), service.port)),
                    _ => None,
                };
                found.answers().iter().filter_map(|record| target(&record.data)).collect()
            }
        };
        let mut addresses = Vec::new();
        for (host, port) in targets {
            let found = resolver.lookup_ip(host).await?;
            addresses.extend(found.iter().map(|address| SocketAddr::new(address, port)));
        }
        Ok(addresses)
    }
}

/// Made for one look, so that it remembers nothing and follows a changed configuration.
fn resolver(server: Option<SocketAddr>) -> Result<TokioResolver, NetError> {
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
    builder.options_mut().ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
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
}
