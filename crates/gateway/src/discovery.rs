//! Workers that come and go with a file or a DNS name.
//!
//! A source is looked at from time to time. What it names that it did not name before is registered, unless somebody else
//! has registered it; what it no longer names is taken out, unless somebody else has registered it since. What has left by
//! another way comes back, unless a call has taken it out, or its server has said that it has no such rank. A source that
//! can not be read changes nothing: the workers that it named stay, and that it can not be read is told once.
//!
//! How names are resolved is told in `dns`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rollscope_route::{Role, UrlError, WorkerAddress};

use crate::admin::{Fit, Registration, Unfit};
use crate::core::Core;
use crate::dns::{Addresses, Name};
use crate::options::LogLevel;
use crate::pool::{Origin, PooledWorker};
use crate::tags::Tags;

/// Where workers are told of.
#[derive(Debug)]
enum Source {
    File(Box<Path>),
    Dns {
        /// As it was given.
        given: String,
        addresses: Addresses,
        role: Role,
    },
}

/// What a look at a source has found.
struct Look {
    workers: Vec<Fit>,
    /// Why a part of them is only as it was known before.
    trouble: Option<Trouble>,
}

/// What has become of a source's workers.
#[derive(Debug)]
struct Followed {
    origin: Origin,
    /// What was registered of it.
    workers: Vec<Fit>,
    trouble: Option<String>,
}

/// Why a source can not be read.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("cannot read the file: {0}")]
    Read(std::io::Error),
    #[error("the file is no array of workers: {0}")]
    Json(#[from] serde_json::Error),
    #[error("worker {number} of the file can not be: {why}")]
    Worker { number: usize, why: Unfit },
    #[error("the name can not be resolved: {0}")]
    Resolve(std::io::Error),
    #[error("a part of the name can not be resolved: {0}")]
    ResolvePart(std::io::Error),
    #[error(transparent)]
    Address(#[from] UrlError),
}

/// Between two looks at a file.
const FILE_INTERVAL: Duration = Duration::from_secs(1);

/// Looks at all sources for ever.
pub(crate) async fn follow_all(core: &Core) {
    let options = core.options.startup();
    let file = options.workers_file.iter().map(|path| Source::File(Path::new(path).into()));
    // Both have been checked.
    let server = options.discovery_dns_server().unwrap_or_default();
    let dns = |given: &String, role| {
        let addresses = Addresses::new(Name::parse(given)?, server);
        Some(Source::Dns { given: given.clone(), addresses, role })
    };
    let regular = options.discover.iter().filter_map(|name| dns(name, Role::Regular));
    let prefill = options
        .discover_prefill
        .iter()
        .filter_map(|(name, port)| dns(name, Role::Prefill { bootstrap_port: *port }));
    let decode = options.discover_decode.iter().filter_map(|name| dns(name, Role::Decode));
    let sources = file.chain(regular).chain(prefill).chain(decode);
    let numbered = sources.enumerate();
    join_all(numbered.map(|(number, source)| follow(core, source, Origin::Source(number)))).await;
}

async fn follow(core: &Core, mut source: Source, origin: Origin) {
    let interval = match source {
        Source::File(_) => FILE_INTERVAL,
        Source::Dns { .. } => Duration::from_secs(core.options.startup().discovery_interval_secs),
    };
    let mut followed = Followed { origin, workers: Vec::new(), trouble: None };
    loop {
        let trouble = match source.look(core).await {
            Ok(Look { workers, trouble }) => {
                followed.replace(core, &source, workers);
                trouble
            }
            Err(trouble) => Some(trouble),
        };
        let trouble = trouble.map(|trouble| trouble.to_string());
        if let Some(trouble) = trouble.as_ref().filter(|_| trouble != followed.trouble) {
            let (name, kept) = (source.name(), followed.workers.len());
            core.notices.tell(LogLevel::Error, format_args!("{name}: {trouble}; its {kept} workers stay"));
        }
        followed.trouble = trouble;
        tokio::time::sleep(interval).await;
    }
}

// === impl Source ===

impl Source {
    fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Dns { given, .. } => given.clone(),
        }
    }

    async fn look(&mut self, core: &Core) -> Result<Look, Trouble> {
        match self {
            Self::File(path) => {
                let text = tokio::fs::read(path).await.map_err(Trouble::Read)?;
                let listed: Vec<Registration> = serde_json::from_slice(&text)?;
                let fit = |(at, listed): (usize, &Registration)| {
                    listed.fit(core.mode).map_err(|why| Trouble::Worker { number: at + 1, why })
                };
                let workers = listed.iter().enumerate().map(fit).collect::<Result<_, _>>()?;
                Ok(Look { workers, trouble: None })
            }
            Self::Dns { addresses, role, .. } => {
                let found = addresses.look().await.map_err(Trouble::Resolve)?;
                let fit = |address| Ok(Fit::new(WorkerAddress::parse(&format!("http://{address}"))?, *role));
                let workers = found.addresses.into_iter().map(fit).collect::<Result<_, Trouble>>()?;
                Ok(Look { workers, trouble: found.trouble.map(Trouble::ResolvePart) })
            }
        }
    }
}

// === impl Followed ===

impl Followed {
    fn replace(&mut self, core: &Core, source: &Source, workers: Vec<Fit>) {
        let source = source.name();
        for gone in self.workers.iter().filter(|worker| !workers.iter().any(|other| other.is_same(worker))) {
            core.left_out
                .lock()
                .retain(|(origin, address)| *origin != self.origin || !address.overlaps(&gone.address));
            // One that is told of otherwise than before takes its own place.
            if workers.iter().any(|other| other.address == gone.address) {
                continue;
            }
            self.take_out(core, &gone.address);
            core.notices.tell(LogLevel::Info, format_args!("{source} no longer names {}", gone.address));
        }
        let known = std::mem::take(&mut self.workers);
        for worker in workers {
            let before = known.iter().find(|before| before.address == worker.address);
            let noted = before.and_then(|before| self.noted(core, before, &worker));
            let is_kept =
                before.is_some_and(|before| before.is_same(&worker)) && !self.has_lost(core, &worker.address);
            if is_kept || self.register(core, &source, &worker) {
                if let Some(noted) = noted {
                    self.own(core, &worker.address).for_each(|there| *there.link.tags.lock() = noted.clone());
                }
                self.workers.push(worker);
            }
        }
    }

    /// What is to be noted of a worker that is told of otherwise than before; nothing if it is not there.
    fn noted(&self, core: &Core, before: &Fit, now: &Fit) -> Option<Tags> {
        if before.is_same(now) && before.tags == now.tags {
            return None;
        }
        let there = self.own(core, &now.address).next()?;
        let noted = there.link.tags.lock().edited(&before.tags, &now.tags);
        Some(noted)
    }

    /// Whether a worker that was registered is not there any more, and is to be.
    fn has_lost(&self, core: &Core, address: &WorkerAddress) -> bool {
        let is_left_out =
            |(origin, other): &(Origin, WorkerAddress)| *origin == self.origin && other.overlaps(address);
        at(core, address).is_empty() && !core.left_out.lock().iter().any(is_left_out)
    }

    /// Registers a worker; not one that somebody else has registered, as long as it is. Whether there is nothing more to
    /// do about it.
    fn register(&self, core: &Core, source: &str, worker: &Fit) -> bool {
        if at(core, &worker.address).iter().any(|known| known.link.origin != self.origin) {
            return false;
        }
        match worker.register(core, self.origin) {
            Ok(worker) => {
                let (name, role) = (&worker.name, worker.role.kind());
                core.notices.tell(LogLevel::Info, format_args!("{source} names {role} worker {name}"));
                true
            }
            Err(why) => {
                core.notices.tell(LogLevel::Error, format_args!("{source}: {}: {why}", worker.address));
                core.left_out.lock().push((self.origin, worker.address.clone()));
                true
            }
        }
    }

    /// Takes out a worker, or the ranks that stand in its place, unless somebody else has registered it since. What is in
    /// flight there goes on.
    fn take_out(&self, core: &Core, address: &WorkerAddress) {
        self.own(core, address).for_each(|worker| drop(core.registry.remove(worker.id.as_str())));
    }

    /// The workers at an address that nobody else has registered.
    fn own(&self, core: &Core, address: &WorkerAddress) -> impl Iterator<Item = Arc<PooledWorker>> {
        let origin = self.origin;
        at(core, address).into_iter().filter(move |worker| worker.link.origin == origin)
    }
}

/// The workers at an address: the one that it names, or those of a server's ranks.
fn at(core: &Core, address: &WorkerAddress) -> Vec<Arc<PooledWorker>> {
    let fleet = core.registry.fleet();
    fleet.all().filter(|worker| worker.address().overlaps(address)).cloned().collect()
}
