//! TLS to clients and to workers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType, date_time_ymd};
use rollscope_config::{Options as _, Published};
use rollscope_gateway::{Gateway, GatewayOptions};
use rollscope_testkit::{CallEnd, FakeWorker, Script, patient, refusing_address};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::harness::TestGateway;

const REPLY: &str = r#"{"text":"x","meta_info":{"finish_reason":{"type":"stop"}}}"#;

/// An authority, and what it has signed, in a directory: `ca.pem`, `NAME.pem`, `NAME.key`.
struct Authority {
    dir: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

// === impl Authority ===

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2020, 1, 1);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { dir, issuer }
    }

    /// Signs a certificate for 127.0.0.1; gives the options that name it.
    fn sign(&self, name: &str) -> String {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (chain, secret) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        std::fs::write(&chain, certificate.pem()).unwrap();
        std::fs::write(&secret, key.serialize_pem()).unwrap();
        format!("--{name}-cert-path {chain} --{name}-key-path {secret}")
    }

    fn path(&self, file: &str) -> String {
        self.dir.path().join(file).display().to_string()
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        roots
    }

    /// A client of those it has signed.
    fn connector(&self) -> TlsConnector {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }

    /// A connection to a server at 127.0.0.1.
    async fn connect(&self, address: SocketAddr) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::from(std::net::IpAddr::from([127, 0, 0, 1]));
        self.connector().connect(name, stream).await.unwrap()
    }

    /// What a server at 127.0.0.1 answers by TLS until it closes the connection.
    async fn ask(&self, address: SocketAddr, request: &str) -> String {
        let mut stream = self.connect(address).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        patient("the reply", stream.read_to_string(&mut reply)).await.unwrap();
        reply
    }

    /// A listener that takes TLS off for a worker, for callers that it has signed as well.
    async fn before(&self, worker: SocketAddr) -> SocketAddr {
        self.sign("worker");
        let chain = vec![CertificateDer::from_pem_file(self.path("worker.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(self.path("worker.key")).unwrap();
        let provider = Arc::new(default_provider());
        let roots = Arc::new(self.roots());
        let callers =
            WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build().unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(callers)
            .with_single_cert(chain, key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut stream = acceptor.accept(stream).await?;
                    copy_bidirectional(&mut stream, &mut TcpStream::connect(worker).await?).await
                });
            }
        });
        address
    }
}

#[tokio::test]
async fn clients_are_served_by_tls_and_not_without() {
    let authority = Authority::new();
    let worker = FakeWorker::start().await;
    let large = format!("{{\"text\":\"{}\"}}", "y".repeat(4 << 20));
    worker.on("/generate", Script::json(200, &large));
    let own = authority.sign("tls");
    let limit = "--request-head-timeout-secs 5";
    let gateway = TestGateway::start(&format!("--worker-urls {} {own} {limit}", worker.url())).await;
    let request = "POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    let reply = authority.ask(gateway.address, request).await;
    assert!(reply.starts_with("HTTP/1.1 200 OK") && reply.ends_with(&large));

    let mut plain = TcpStream::connect(gateway.address).await.unwrap();
    plain.write_all(b"GET /liveness HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut told = Vec::new();
    let _reset_is_an_end_too = patient("its end", plain.read_to_end(&mut told)).await;
    assert!(!told.starts_with(b"HTTP"));
    // One that says nothing is cut.
    let mut silent = TcpStream::connect(gateway.address).await.unwrap();
    let _reset_is_an_end_too = patient("its end", silent.read(&mut [0])).await;
    let page = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let failed = "rollscope_tls_handshakes_failed_total 2\n";
    patient("both failures", async { while !authority.ask(gateway.address, page).await.contains(failed) {} })
        .await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_by_tls_is_noticed() {
    let authority = Authority::new();
    let own = authority.sign("tls");
    let request = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
    // One that has sent more than its request is not listened to.
    for (more, is_half_closed) in [("", false), ("\r\n", false), ("", true), ("\r\n", true)] {
        let worker = FakeWorker::start().await;
        worker.on("/generate", Script::sse().event("{}").hang());
        let gateway = TestGateway::start(&format!("--worker-urls {} {own}", worker.url())).await;
        let mut client = authority.connect(gateway.address).await;
        client.write_all(format!("{request}{more}").as_bytes()).await.unwrap();
        worker.arrived("/generate", 1).await;
        if is_half_closed {
            client.shutdown().await.unwrap();
        }
        drop(client);
        let end = worker.ended("/generate", 1).await[0].end;
        assert_eq!(end, Some(CallEnd::PeerLeft), "{more:?}, half closed: {is_half_closed}");
    }
}

#[tokio::test]
async fn workers_are_called_by_tls_with_the_gateways_own_certificate() {
    let authority = Authority::new();
    let worker = FakeWorker::start().await;
    worker.on("/generate", Script::json(200, REPLY));
    let url = format!("https://{}", authority.before(worker.address()).await);
    let (own, roots) = (authority.sign("client"), format!("--ca-cert-paths {}", authority.path("ca.pem")));
    let gateway = TestGateway::start(&format!("--worker-urls {url} {own} {roots}")).await;
    let body = format!("{{\"text\":\"{}\"}}", "z".repeat(4 << 20));
    for _ in 0..3 {
        assert_eq!(gateway.generate(&body).await.text().await, REPLY);
    }
    let calls = worker.calls("/generate");
    assert!(calls.iter().all(|call| call.request.text() == body));
    // One more than one connection at most, by which it is asked meanwhile who it is.
    let connections: BTreeSet<usize> = calls.iter().map(|call| call.connection).collect();
    assert!(connections.len() < calls.len(), "connections are kept: {connections:?}");
    gateway.settled(&[("completed", 3)]).await;

    // An authority that nobody has named vouches for nobody, and a worker may want to know who calls.
    for (args, sentence) in [(own.as_str(), "no connection: "), (roots.as_str(), "connection lost")] {
        let gateway = TestGateway::start(&format!("--worker-urls {url} {args}")).await;
        let reply = gateway.generate("{}").await;
        let (status, text) = (reply.status, reply.text().await);
        assert!(status == 502 && text.contains(sentence), "{args}: {text}");
        gateway.settled(&[("failed", 1)]).await;
    }
    assert_eq!(worker.calls("/generate").len(), 3);
}

#[tokio::test]
async fn a_worker_is_asked_who_it_is_by_the_gateways_own_way() {
    let authority = Authority::new();
    let worker = FakeWorker::start().await;
    worker.on("/server_info", Script::json(200, r#"{"dp_size":2}"#));
    let url = format!("https://{}", authority.before(worker.address()).await);
    let trust = format!("{} --ca-cert-paths {}", authority.sign("client"), authority.path("ca.pem"));
    let args = format!("--worker-urls {url} http://{} --api-key k {trust}", refusing_address().await);
    let options = GatewayOptions::from_args(args.split_whitespace()).unwrap();
    let gateway = Gateway::new(Published::publish(options), None, None).unwrap();
    let (workers, ask) = (gateway.workers()(), gateway.server_info());
    assert_eq!(ask(workers[0].clone()).await, Some(serde_json::json!({ "dp_size": 2 })));
    assert_eq!(worker.calls("/server_info")[0].request.header("authorization"), Some("Bearer k"));
    assert_eq!(ask(workers[1].clone()).await, None);
}

#[test]
fn certificates_that_can_not_be_read_are_told_of_at_the_start() {
    let authority = Authority::new();
    authority.sign("tls");
    let (ca, key) = (authority.path("ca.pem"), authority.path("tls.key"));
    let missing = authority.path("none.pem");
    assert!(!Path::new(&missing).exists());
    for (args, flag) in [
        (format!("--tls-cert-path {missing} --tls-key-path {key}"), "--tls-cert-path: cannot be read"),
        (format!("--tls-cert-path {ca} --tls-key-path {ca}"), "--tls-key-path: cannot be read"),
        (format!("--tls-cert-path {ca} --tls-key-path {key}"), "--tls-cert-path: "),
        (format!("--client-cert-path {key} --client-key-path {key}"), "--client-cert-path: cannot be read"),
        (format!("--ca-cert-paths {key}"), "--ca-cert-paths: cannot be read"),
    ] {
        let options = GatewayOptions::from_args(args.split_whitespace()).unwrap();
        let error = Gateway::new(Published::publish(options), None, None).unwrap_err().to_string();
        assert!(error.contains(flag), "{args}: {error}");
    }
}
