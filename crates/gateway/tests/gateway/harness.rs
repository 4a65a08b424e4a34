//! A gateway under test, and what it has counted and recorded.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use rollscope_config::{Options as _, Published};
use rollscope_gateway::{Gateway, GatewayOptions, HeardPass, LogLevel, Notices};
use rollscope_testkit::{Client, FakeWorker, Reply, eventually, patient};
use rollscope_trace::{Dropped, Profile, ProfileSink};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A gateway that serves.
pub(crate) struct TestGateway {
    pub(crate) address: SocketAddr,
    pub(crate) sink: Arc<TestSink>,
    /// Tells it of forward passes.
    pub(crate) hear: Hear,
    told: Arc<Mutex<Vec<String>>>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

/// Keeps what it is offered, up to a number.
#[derive(Debug)]
pub(crate) struct TestSink {
    profiles: Mutex<Vec<Profile>>,
    capacity: usize,
}

type Hear = Box<dyn Fn(&str, HeardPass) + Send + Sync>;

/// The whole numbers of `/metrics` by name and labels.
pub(crate) type Figures = BTreeMap<String, u64>;

// === impl TestGateway ===

impl TestGateway {
    /// A gateway with these arguments.
    pub(crate) async fn start(args: &str) -> Self {
        Self::with_sink(args, usize::MAX).await
    }

    /// A gateway whose recorder takes no more than so many profiles.
    pub(crate) async fn with_sink(args: &str, capacity: usize) -> Self {
        Self::listening(TcpListener::bind(("127.0.0.1", 0)).await.unwrap(), args, capacity)
    }

    /// The same at a listener.
    pub(crate) fn listening(listener: TcpListener, args: &str, capacity: usize) -> Self {
        // Most workers here are scripted for nothing but requests.
        let no_checks = Some("--disable-health-check").filter(|_| !args.contains("--health-"));
        let args = args.split_whitespace().chain(no_checks);
        let options = GatewayOptions::from_args(args).unwrap();
        let sink = Arc::new(TestSink { profiles: Mutex::default(), capacity });
        let told = Arc::new(Mutex::new(Vec::new()));
        let notices = Notices::new(LogLevel::Debug, {
            let told = Arc::clone(&told);
            move |_, what| told.lock().push(what.to_string())
        });
        let published = Published::publish(options);
        let gateway = Gateway::telling(published, Some(sink.clone()), None, notices).unwrap();
        let hear = Box::new(gateway.hear_passes());
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(gateway.serve(listener, async { drop(stopped.await) }));
        Self { address, sink, hear, told, stop, served }
    }

    /// A gateway of workers that do everything.
    pub(crate) async fn regular(workers: &[&FakeWorker]) -> Self {
        let urls: Vec<String> = workers.iter().map(|worker| worker.url()).collect();
        Self::start(&format!("--worker-urls {}", urls.join(" "))).await
    }

    /// A gateway of one pair.
    pub(crate) async fn pair(prefill: SocketAddr, decode: SocketAddr, more: &str) -> Self {
        let args =
            format!("--pd-disaggregation --prefill http://{prefill} 8998 --decode http://{decode} {more}");
        Self::start(&args).await
    }

    pub(crate) async fn generate(&self, body: &str) -> Reply {
        Client::post(self.address, "/generate", body).await
    }

    pub(crate) async fn figures(&self) -> Figures {
        let page = Client::get(self.address, "/metrics").await.text().await;
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        samples
            .map(|line| line.rsplit_once(' ').unwrap())
            .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
            .collect()
    }

    /// Waits until nothing is live and so many have ended, of which the first may not have begun; then the books must balance, and
    /// show these requests and no more.
    pub(crate) async fn settled(&self, expected: &[(&str, u64)]) -> Figures {
        let due: u64 = expected.iter().map(|(_, count)| count).sum();
        let sum = |figures: &Figures, prefix: &str| -> u64 {
            figures.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, n)| n).sum()
        };
        let figures = patient("the end of all requests", async {
            loop {
                let figures = self.figures().await;
                let live = sum(&figures, "rollscope_worker_in_flight") + figures["rollscope_requests_live"];
                if live == 0 && sum(&figures, "rollscope_requests_total{") >= due {
                    return figures;
                }
            }
        })
        .await;
        for (outcome, count) in expected {
            let ended = figures[&format!("rollscope_requests_total{{outcome=\"{outcome}\"}}")];
            assert_eq!(ended, *count, "requests {outcome}: {figures:#?}");
        }
        assert_eq!(figures["rollscope_requests_started_total"], sum(&figures, "rollscope_requests_total{"));
        for (name, started) in
            figures.iter().filter(|(name, _)| name.starts_with("rollscope_legs_started_total{"))
        {
            let labels = name.trim_start_matches("rollscope_legs_started_total{").trim_end_matches('}');
            assert_eq!(*started, sum(&figures, &format!("rollscope_legs_total{{{labels},")), "{labels}");
        }
        figures
    }

    /// Waits until it has told something with these words.
    pub(crate) async fn tells(&self, words: &str) {
        eventually(words, || self.told.lock().iter().any(|told| told.contains(words))).await;
    }

    /// What it has told so far.
    pub(crate) fn told(&self) -> Vec<String> {
        self.told.lock().clone()
    }

    /// The profiles, once there are so many.
    pub(crate) async fn profiles(&self, count: usize) -> Vec<Profile> {
        eventually("profiles", || self.sink.profiles.lock().len() >= count).await;
        let profiles = self.sink.profiles.lock().clone();
        assert_eq!(profiles.len(), count, "{profiles:#?}");
        profiles
    }

    /// Tells it to stop and waits until it has.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        patient("the gateway's end", self.served).await.unwrap();
    }

    /// Tells it to stop; gives what is waited for.
    pub(crate) fn begin_stop(self) -> JoinHandle<()> {
        self.stop.send(()).unwrap();
        self.served
    }
}

// === impl TestSink ===

impl TestSink {
    /// Profiles taken so far.
    pub(crate) fn taken(&self) -> usize {
        self.profiles.lock().len()
    }

    pub(crate) fn profiles(&self) -> Vec<Profile> {
        self.profiles.lock().clone()
    }
}

impl ProfileSink for TestSink {
    fn offer(&self, profile: Profile) -> Result<(), Dropped> {
        let mut profiles = self.profiles.lock();
        if profiles.len() >= self.capacity {
            return Err(Dropped);
        }
        profiles.push(profile);
        Ok(())
    }
}

/// The address of a listener for figures alone.
pub(crate) async fn metrics_listener() -> SocketAddr {
    let options = GatewayOptions::from_args([""; 0]).unwrap();
    let gateway = Gateway::new(Published::publish(options), None, None).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(gateway.serve_metrics(listener));
    address
}

/// How often the legs of a worker ended so.
pub(crate) fn legs(figures: &Figures, worker: SocketAddr, outcome: &str) -> u64 {
    let is_it = |name: &str| {
        name.starts_with("rollscope_legs_total{")
            && name.contains(&format!("worker=\"http://{worker}\""))
            && name.contains(&format!("outcome=\"{outcome}\""))
    };
    figures.iter().filter(|(name, _)| is_it(name)).map(|(_, count)| count).sum()
}
