//! Putting an object into a bucket that speaks S3.
//!
//! A request is signed by Signature Version 4: a hash of the request in a canonical form, signed by a key that is derived
//! from the secret, the day, the region and the service ("Authenticating Requests: Using the Authorization Header",
//! Amazon S3 API Reference). `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION` and
//! `AWS_ENDPOINT_URL` are taken from the environment; with an endpoint the bucket is a part of the path, as other servers than
//! Amazon's want it.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit as _, Mac as _};
use rollscope_config::without_user_info;
use sha2::{Digest as _, Sha256};
use ureq::Agent;

/// Why an object could not be put.
#[derive(Debug, thiserror::Error)]
pub enum S3Error {
    /// Nothing tells who we are.
    #[error("not in the environment: {0}")]
    NoKey(&'static str),
    /// The bucket could not be reached.
    #[error("cannot reach the bucket: {url}")]
    Unreachable {
        /// What was called.
        url: String,
        /// Why not.
        source: Box<ureq::Error>,
    },
    /// The bucket refused.
    #[error("the bucket refuses ({status}): {url}: {answer}")]
    Refused {
        /// What was called.
        url: String,
        /// HTTP status.
        status: u16,
        /// The begin of what it said.
        answer: String,
    },
}

/// A bucket, and who we are to it.
pub(crate) struct Bucket {
    agent: Agent,
    /// Address that names are put behind.
    base: String,
    host: String,
    /// Path that names are put behind.
    path: String,
    keys: Keys,
}

struct Keys {
    id: String,
    secret: String,
    token: Option<String>,
    region: String,
}

/// What is signed of a request.
struct Signed<'a> {
    method: &'a str,
    /// Path as it is sent.
    path: &'a str,
    /// Names in lowercase, in order.
    headers: &'a [(&'a str, &'a str)],
    payload_sha256: &'a str,
    /// As `20130524T000000Z`.
    time: &'a str,
}

/// A call that takes longer has failed: so long, and what its bytes take on a slow link.
const TIMEOUT: Duration = Duration::from_mins(1);
const SLOW_BYTES_PER_S: u64 = 128 << 10;
/// Tries of an object, and the pause after the first.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);
/// Of a refusal this much is told; characters.
const TOLD: usize = 300;

// === impl Bucket ===

impl Bucket {
    pub(crate) fn from_environment(
        bucket: &str,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, S3Error> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let needed = |name: &'static str| get(name).ok_or(S3Error::NoKey(name));
        let region = get("AWS_REGION").or_else(|| get("AWS_DEFAULT_REGION"));
        let keys = Keys {
            id: needed("AWS_ACCESS_KEY_ID")?,
            secret: needed("AWS_SECRET_ACCESS_KEY")?,
            token: get("AWS_SESSION_TOKEN"),
            region: region.unwrap_or_else(|| "us-east-1".to_owned()),
        };
        let endpoint = get("AWS_ENDPOINT_URL_S3").or_else(|| get("AWS_ENDPOINT_URL"));
        let (base, path) = match endpoint {
            Some(endpoint) => (endpoint.trim_end_matches('/').to_owned(), format!("/{bucket}")),
            None => (format!("https://{bucket}.s3.{}.amazonaws.com", keys.region), String::new()),
        };
        let host = base.split_once("://").map_or(&*base, |(_, host)| host).to_owned();
        let config = Agent::config_builder().http_status_as_error(false);
        Ok(Self { agent: config.build().into(), base, host, path, keys })
    }

    /// Puts an object. What may pass is tried again.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Result<(), S3Error> {
        let mut tries = 0;
        loop {
            let error = match self.try_put(name, bytes) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            tries += 1;
            let may_pass = match &error {
                S3Error::Unreachable { .. } => true,
                S3Error::Refused { status, .. } => *status >= 500 || *status == 429,
                S3Error::NoKey(_) => false,
            };
            if tries == TRIES || !may_pass {
                return Err(error);
            }
            std::thread::sleep(PAUSE * tries);
        }
    }

    fn try_put(&self, name: &str, bytes: &[u8]) -> Result<(), S3Error> {
        let (path, time, payload) =
            (format!("{}/{}", self.path, escaped(name)), now(), hex(&Sha256::digest(bytes)));
        let mut headers =
            vec![("host", &*self.host), ("x-amz-content-sha256", &*payload), ("x-amz-date", &*time)];
        headers.extend(self.keys.token.as_deref().map(|token| ("x-amz-security-token", token)));
        let signed =
            Signed { method: "PUT", path: &path, headers: &headers, payload_sha256: &payload, time: &time };
        let url = format!("{}{path}", self.base);
        let call = self.agent.put(&url).config().timeout_global(Some(timeout(bytes.len() as u64))).build();
        let mut request = call.header("authorization", self.keys.authorization(&signed));
        for (name, value) in headers.iter().filter(|(name, _)| *name != "host") {
            request = request.header(*name, *value);
        }
        // The endpoint may hold a password.
        let url = without_user_info(&url).into_owned();
        let unreachable = |source| S3Error::Unreachable { url: url.clone(), source: Box::new(source) };
        let mut reply = request.send(bytes).map_err(unreachable)?;
        if reply.status().is_success() {
            return Ok(());
        }
        let answer = reply.body_mut().read_to_string().unwrap_or_default().chars().take(TOLD).collect();
        Err(S3Error::Refused { url, status: reply.status().as_u16(), answer })
    }
}

impl std::fmt::Debug for Bucket {
    /// Without its keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bucket")
            .field("base", &without_user_info(&self.base))
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

// === impl Keys ===

impl Keys {
    /// The header that says who sent a request, and that it was sent so.
    fn authorization(&self, request: &Signed<'_>) -> String {
        let names: Vec<&str> = request.headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let mut canonical = format!("{}\n{}\n\n", request.method, request.path);
        for (name, value) in request.headers {
            // Writing into a text does not fail.
            let _written = writeln!(canonical, "{name}:{}", value.trim());
        }
        let _written = write!(canonical, "\n{names}\n{}", request.payload_sha256);
        let day = request.time.get(..8).unwrap_or_default();
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let hash = hex(&Sha256::digest(canonical));
        let to_sign = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{hash}", request.time);
        let mut key = mac(format!("AWS4{}", self.secret).as_bytes(), day);
        for part in [&*self.region, "s3", "aws4_request"] {
            key = mac(&key, part);
        }
        let signature = hex(&mac(&key, &to_sign));
        format!("AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}", self.id)
    }
}

fn timeout(bytes: u64) -> Duration {
    TIMEOUT + Duration::from_secs(bytes / SLOW_BYTES_PER_S)
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    // A key of this kind may have any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _written = write!(text, "{byte:02x}");
        text
    })
}

/// A name as it stands in a path: all but letters, digits, `-`, `.`, `_`, `~` and `/` by their bytes.
fn escaped(name: &str) -> String {
    name.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/') {
            text.push(char::from(byte));
        } else {
            let _written = write!(text, "%{byte:02X}");
        }
        text
    })
}

fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    timestamp(seconds)
}

/// As `20130524T000000Z`. The day by Howard Hinnant's `civil_from_days` ("chrono-Compatible Low-Level Date Algorithms").
fn timestamp(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * from_march + 2) / 5 + 1, (from_march + 2) % 12 + 1);
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{:02}Z", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys {
            id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            token: None,
            region: "us-east-1".into(),
        }
    }

    #[test]
    fn a_password_in_the_endpoint_is_not_shown() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://me:PassWord@{}", listener.local_addr().unwrap());
        let get = |name: &str| match name {
            "AWS_ENDPOINT_URL" => Some(endpoint.clone()),
            "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY" => Some("key".to_owned()),
            _ => None,
        };
        let bucket = Bucket::from_environment("b", get).unwrap();
        drop(listener);
        let told = format!("{bucket:?} {}", bucket.try_put("x", b"").unwrap_err());
        assert!(told.contains("http://<redacted>@127.0.0.1") && !told.contains("PassWord"), "{told}");
    }

    /// The examples of "Signature Calculations for the Authorization Header", Amazon S3 API Reference.
    #[test]
    fn signatures_are_those_of_the_published_examples() {
        let empty = hex(&Sha256::digest(b""));
        let host = ("host", "examplebucket.s3.amazonaws.com");
        let get = [
            host,
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", &*empty),
            ("x-amz-date", "20130524T000000Z"),
        ];
        let payload = hex(&Sha256::digest(b"Welcome to Amazon S3."));
        let put = [
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            host,
            ("x-amz-content-sha256", &*payload),
            ("x-amz-date", "20130524T000000Z"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ];
        for (method, path, headers, payload_sha256, expected) in [
            (
                "GET",
                "/test.txt".to_owned(),
                &get[..],
                &empty,
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "PUT",
                format!("/{}", escaped("test$file.text")),
                &put[..],
                &payload,
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
        ] {
            let request = Signed { method, path: &path, headers, payload_sha256, time: "20130524T000000Z" };
            let said = keys().authorization(&request);
            assert!(said.ends_with(&format!("Signature={expected}")), "{said}");
            let credential =
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,";
            assert!(said.starts_with(credential), "{said}");
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (unix_s, expected) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_369_353_600, "20130524T000000Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(timestamp(unix_s), expected);
        }
    }
}
