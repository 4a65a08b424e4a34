//! TLS to clients and to workers: certificates and keys are read once, when the gateway starts.
//!
//! A worker's certificate must be signed by an authority that browsers know or by one of `--ca-cert-paths`, and be for the
//! host of its URL. A worker that wants to know who calls is shown `--client-cert-path`.

use std::sync::Arc;

use rollscope_config::ConfigError;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore, ServerConfig};

use crate::options::GatewayOptions;

/// A certificate with those that vouch for it, and its key.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// What clients' connections are wrapped in, if they are.
pub(crate) fn to_clients(options: &GatewayOptions) -> Result<Option<Arc<ServerConfig>>, ConfigError> {
    let flags = ["--tls-cert-path", "--tls-key-path"];
    let Some((chain, key)) = identity(flags, options.tls_cert_path.as_ref(), options.tls_key_path.as_ref())?
    else {
        return Ok(None);
    };
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|error| unfit(flags[0], &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}

/// What connections to workers with an https URL are wrapped in.
pub(crate) fn to_workers(options: &GatewayOptions) -> Result<Arc<ClientConfig>, ConfigError> {
    let mut roots: RootCertStore = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
    for path in &options.ca_cert_paths {
        for certificate in certificates("--ca-cert-paths", path)? {
            roots.add(certificate).map_err(|error| unfit("--ca-cert-paths", &error))?;
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit("--ca-cert-paths", &error))?
        .with_root_certificates(roots);
    let flags = ["--client-cert-path", "--client-key-path"];
    let config = match identity(flags, options.client_cert_path.as_ref(), options.client_key_path.as_ref())? {
        Some((chain, key)) => {
            builder.with_client_auth_cert(chain, key).map_err(|error| unfit(flags[0], &error))?
        }
        None => builder.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

/// What two files say, which are given together or not at all.
fn identity(
    flags: [&str; 2],
    chain: Option<&String>,
    key: Option<&String>,
) -> Result<Option<Identity>, ConfigError> {
    let (Some(chain), Some(path)) = (chain, key) else { return Ok(None) };
    let chain = certificates(flags[0], chain)?;
    let key = PrivateKeyDer::from_pem_file(path).map_err(|error| unreadable(flags[1], path, &error))?;
    Ok(Some((chain, key)))
}

/// All certificates of a file, of which there must be one.
fn certificates(flag: &str, path: &str) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| unreadable(flag, path, &error))?;
    if found.is_empty() {
        return Err(unreadable(flag, path, &pem::Error::NoItemsFound));
    }
    Ok(found)
}

fn unreadable(flag: &str, path: &str, error: &pem::Error) -> ConfigError {
    ConfigError::Conflict(format!("{flag}: cannot be read as PEM, {error}: {path}"))
}

fn unfit(flag: &str, error: &Error) -> ConfigError {
    ConfigError::Conflict(format!("{flag}: {error}"))
}
