//! A bucket as a real server of sockets plays it, and the service that tells a machine its role.

use super::*;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};

/// A call as a server sees it.
struct Call {
    method: String,
    target: String,
    /// In lowercase.
    head: String,
    body: Vec<u8>,
}

/// Answers calls one by one until nobody listens to what they were.
fn serve(answer: impl Fn(&Call) -> (u16, String) + Send + 'static) -> (String, Receiver<Call>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (seen, calls) = sync_channel(16);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let call = read_call(&mut stream);
            let (status, body) = answer(&call);
            let tag = "etag: \"tag\"\r\nconnection: close";
            let head = format!("HTTP/1.1 {status} x\r\n{tag}\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
            if seen.send(call).is_err() {
                return;
            }
        }
    });
    (address, calls)
}

fn read_call(stream: &mut TcpStream) -> Call {
    let mut reader = std::io::BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(std::io::BufRead::read_line(&mut reader, &mut head).unwrap() > 0, "the call is cut");
    }
    let mut words = head.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    Call { method, target, head, body }
}

fn bucket(variables: &[(&str, &str)]) -> Result<Bucket, S3Error> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Bucket::from_environment("runs", variables)
}

fn bucket_at(endpoint: &str) -> Bucket {
    let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "Secret")];
    bucket(&[keys[0], keys[1], ("AWS_SESSION_TOKEN", ""), ("AWS_ENDPOINT_URL", endpoint)]).unwrap()
}

fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// An error with its causes.
fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[test]
fn a_password_in_the_endpoint_is_not_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let bucket = bucket_at(&format!("http://me:PassWord@{address}"));
    drop(listener);
    let told = format!("{bucket:?} {}", told(&bucket.put("x", file_of(b"").path(), || {}).unwrap_err()));
    assert!(told.contains(&format!("cannot reach the server: http://{address}/runs/x: ")), "{told}");
    assert!(!told.contains("PassWord") && !told.contains("Secret"), "{told}");
}

#[test]
fn a_refusal_is_told_as_the_bucket_said_it() {
    for (status, code, calls_expected) in
        [(403, "AccessDenied", 1), (404, "NoSuchBucket", 1), (503, "SlowDown", 3)]
    {
        let (address, calls) = serve(move |_| (status, format!("<Code>{code}</Code>")));
        let error = bucket_at(&address).put("a b", file_of(b"x").path(), || {}).unwrap_err();
        let expected = format!("the server refuses ({status}): {address}/runs/a%20b: <Code>{code}</Code>");
        assert_eq!(told(&error), format!("cannot copy to the archive: {expected}"));
        // The server tells of a call after it has answered.
        let heads: Vec<String> = calls.iter().take(calls_expected).map(|call| call.head).collect();
        assert!(heads.iter().all(|head| head.contains("credential=id/")), "{heads:?}");
        assert!(calls.try_recv().is_err());
    }
}

#[test]
fn what_the_environment_says_is_looked_at_before_it_is_used() {
    let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "Secret")];
    for wrong in [
        ("AWS_ENDPOINT_URL", "localhost:9000"),
        ("AWS_ENDPOINT_URL_S3", "http://"),
        ("AWS_ENDPOINT_URL", "http://h/?q"),
        ("AWS_SESSION_TOKEN", "two\nlines"),
    ] {
        let error = bucket(&[keys[0], keys[1], wrong]).unwrap_err();
        assert_eq!(told(&error), format!("not usable as it stands in the environment: {}", wrong.0));
    }
    let error = told(&bucket(&keys[1..]).unwrap_err());
    assert!(error.starts_with("not as S3 has it: ") && !error.contains("Secret"), "{error}");
}

#[test]
fn a_large_file_comes_in_pieces() {
    let (address, calls) = serve(|call| {
        let body = match (&*call.method, call.target.split_once('?').map_or("", |(_, query)| query)) {
            ("POST", query) if query.starts_with("uploads") => {
                "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
            }
            ("POST", _) => "<CompleteMultipartUploadResult><ETag>tag</ETag></CompleteMultipartUploadResult>",
            _ => "",
        };
        (200, body.to_owned())
    });
    let bytes: Vec<u8> = (0..PIECE_BYTES as usize + 1000).map(|at| (at % 251) as u8).collect();
    let pieces = std::cell::Cell::new(0);
    let count = || pieces.set(pieces.get() + 1);
    bucket_at(&address).put("large", file_of(&bytes).path(), count).unwrap();
    assert_eq!(pieces.get(), 2);
    let calls: Vec<Call> = calls.iter().take(4).collect();
    assert!(calls.iter().all(|call| call.head.contains("signature=")));
    let parts = &calls[1..3];
    for (number, part) in (1..).zip(parts) {
        assert_eq!(part.target, format!("/runs/large?partNumber={number}&uploadId=u1"));
    }
    assert_eq!(parts.iter().flat_map(|part| part.body.clone()).collect::<Vec<u8>>(), bytes);
}

#[test]
fn a_piece_that_is_refused_is_the_end_of_them_all() {
    let (address, calls) = serve(|call| {
        let begun = "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>";
        if call.method == "PUT" { (403, "no".to_owned()) } else { (200, begun.to_owned()) }
    });
    let file = file_of(&vec![1; PIECE_BYTES as usize]);
    let error = told(&bucket_at(&address).put("large", file.path(), || {}).unwrap_err());
    assert!(error.ends_with("/runs/large: no"), "{error}");
    let calls: Vec<(String, String)> = calls.iter().take(3).map(|call| (call.method, call.target)).collect();
    assert_eq!(calls[2], ("DELETE".to_owned(), "/runs/large?uploadId=u1".to_owned()));
}

/// The service that a machine in EC2 asks who it is.
fn machine(call: &Call) -> (u16, String) {
    let path = "/latest/meta-data/iam/security-credentials/";
    let keys = r#"{"AccessKeyId":"role-id","SecretAccessKey":"Secret","Token":"role-token","Expiration":"2999-01-01T00:00:00Z"}"#;
    let answers = BTreeMap::from([
        (("PUT", "/latest/api/token".to_owned()), "session"),
        (("GET", path.to_owned()), "recorder"),
        (("GET", format!("{path}recorder")), keys),
    ]);
    let answer = answers.get(&(&*call.method, call.target.clone()));
    answer.map_or_else(|| (200, String::new()), |answer| (200, (*answer).to_owned()))
}

#[test]
fn without_keys_it_is_the_machine_s_role_that_puts() {
    let (address, calls) = serve(machine);
    let variables = [("AWS_METADATA_ENDPOINT", &*address), ("AWS_ENDPOINT_URL", &*address)];
    bucket(&variables).unwrap().put("x", file_of(b"bytes").path(), || {}).unwrap();
    let calls: Vec<Call> = calls.iter().take(4).collect();
    let put = &calls[3];
    assert_eq!((&*put.method, &*put.target, &*put.body), ("PUT", "/runs/x", &b"bytes"[..]));
    assert!(put.head.contains("credential=role-id/"), "{}", put.head);
    assert!(put.head.contains("x-amz-security-token: role-token"), "{}", put.head);
}

#[test]
fn a_machine_without_a_role_is_told_so() {
    let (address, _calls) = serve(|_| (404, String::new()));
    let error = told(&bucket(&[("AWS_METADATA_ENDPOINT", &address)]).unwrap_err());
    assert!(
        error.starts_with("no keys: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY nor a role"),
        "{error}"
    );
    assert!(error.ends_with(&format!("the server refuses (404): {address}/latest/api/token: ")), "{error}");
}

/// The token is in the query of a call that may not go without TLS.
#[test]
fn a_token_is_neither_sent_in_the_open_nor_shown() {
    let (address, calls) = serve(|_| (200, String::new()));
    let token = file_of(b"WebToken");
    let variables = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.path().to_str().unwrap()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
        ("AWS_ENDPOINT_URL_STS", &*address),
    ];
    let error = bucket(&variables).unwrap_err();
    assert!(told(&error).ends_with(&format!(": not called without TLS: {address}/")), "{}", told(&error));
    assert!(!format!("{error:?}").contains("WebToken"), "{error:?}");
    assert!(calls.try_recv().is_err());
}
