//! What every answer carries, and who gets one at all.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

/// No script and no style stands in the page itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What every answer carries: the page loads nothing from elsewhere and is framed by nobody.
pub(crate) fn headers() -> HeaderMap {
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    fixed.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
}

/// Sets headers on the answer.
pub(crate) async fn set_headers(headers: Arc<HeaderMap>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().extend((*headers).clone());
    response
}

/// Refuses requests to a loopback listener that name another host: a page of another site whose name was made to
/// point here (DNS rebinding).
pub(crate) async fn check_host(bound: SocketAddr, request: Request, next: Next) -> Response {
    if bound.ip().is_loopback() && !names_loopback(request.headers().get(header::HOST)) {
        return (StatusCode::FORBIDDEN, "this viewer answers only on this machine's own addresses\n")
            .into_response();
    }
    next.run(request).await
}

/// What a page that is served beyond this machine must bring: once in the URL, from then on in a cookie.
#[derive(Clone, Debug)]
pub struct Token(Arc<str>);

/// Where the token stands: in the URL under this name, in a cookie under this name and the port, since cookies are
/// shared by the ports of a host.
const TOKEN: &str = "token";

/// Refuses requests without the token. One that has it in the URL is sent on to the same page without it, so that it
/// does not stay in the address line, and is given the cookie. The cookie comes along when the page is opened by a link of another
/// site, as the URL with the token may be; all that is answered is GET, so that such a link can change nothing.
pub(crate) async fn check_token(token: Token, port: u16, request: Request, next: Next) -> Response {
    let cookie = format!("rollscope_{TOKEN}_{port}");
    if token.is_in_cookie(request.headers(), &cookie) {
        return next.run(request).await;
    }
    let query = request.uri().query().unwrap_or_default();
    let given = query.split('&').find_map(|pair| pair.strip_prefix(TOKEN)?.strip_prefix('='));
    if !given.is_some_and(|given| token.is(given)) {
        return (StatusCode::UNAUTHORIZED, "this viewer wants the token that stands in the URL it printed\n")
            .into_response();
    }
    let value = format!("{cookie}={}; Path=/; HttpOnly; SameSite=Lax", token.0);
    let path = request.uri().path().to_owned();
    if path.starts_with("/api/") {
        return next.run(request).await;
    }
    (StatusCode::SEE_OTHER, [(header::SET_COOKIE, value), (header::LOCATION, path)]).into_response()
}

fn names_loopback(host: Option<&HeaderValue>) -> bool {
    let authority = host.and_then(|host| host.to_str().ok()).and_then(|host| host.parse::<Authority>().ok());
    let Some(authority) = authority else {
        return false;
    };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

// === impl Token ===

impl Token {
    /// A token of these random bits.
    pub fn new(random: u128) -> Self {
        Self(format!("{random:032x}").into())
    }

    /// As it stands in the URL.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Takes as long whatever is given, so that nothing is learnt from how long it takes.
    fn is(&self, given: &str) -> bool {
        let (own, given) = (self.0.as_bytes(), given.as_bytes());
        own.len() == given.len() && own.iter().zip(given).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }

    fn is_in_cookie(&self, headers: &HeaderMap, name: &str) -> bool {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(other, value)| other == name && self.is(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in ["localhost", "LocalHost:80", "127.0.0.1:8080", "127.1.2.3", "[::1]:9", "[::1]"] {
            assert!(names_loopback(Some(&HeaderValue::from_static(host))), "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example:80", "10.0.0.1", "127.0.0.1.evil.example", "", "a b"]
        {
            assert!(!names_loopback(Some(&HeaderValue::from_static(host))), "{host}");
        }
        assert!(!names_loopback(None));
    }
}
