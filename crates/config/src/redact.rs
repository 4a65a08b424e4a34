//! What is shown of a text that may hold secrets: no user and no password of a URL.

use std::borrow::Cow;

use serde_json::Value;

/// What is shown in a secret's place.
pub(crate) const REDACTED: &str = "<redacted>";

/// The text with `<redacted>` for what stands before the host in its URLs: `http://<redacted>@host`. A worker's rank,
/// `http://host:port@1`, is none of it.
///
/// ```
/// use rollscope_config::without_user_info;
/// assert_eq!(without_user_info("no answer from http://me:pw@h:5/x"), "no answer from http://<redacted>@h:5/x");
/// ```
pub fn without_user_info(text: &str) -> Cow<'_, str> {
    hiding(text, |user_info, host| !is_rank(user_info, host))
}

/// The same where no rank is meant.
pub(crate) fn without_any_user_info(text: &str) -> Cow<'_, str> {
    hiding(text, |_, _| true)
}

/// Whether a text is a worker's URL and a rank.
pub(crate) fn is_worker(text: &str) -> bool {
    let address = text.split_once("://").map_or(text, |(_, address)| address);
    address.rsplit_once('@').is_some_and(|(address, rank)| is_rank(address, rank))
}

/// The text with `<redacted>` for what stands before the host in its URLs, where that, with the host, is who logs in.
fn hiding(text: &str, is_user_info: impl Fn(&str, &str) -> bool) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, authority) = rest.split_at(at + "://".len());
        shown.push_str(before);
        let (authority, after) = authority.split_at(authority_end(authority));
        match authority.rsplit_once('@') {
            Some((user_info, host)) if is_user_info(user_info, host) => {
                shown.extend([REDACTED, "@", host]);
            }
            _ => shown.push_str(authority),
        }
        rest = after;
    }
    if shown.is_empty() {
        return Cow::Borrowed(text);
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// An argument that is refused, with `<redacted>` for whatever may be a secret in it. Since it is not what it should be, it does
/// not say where a password ends, nor that a number is a rank: all from the scheme to the last `@` is left out, and of a query all
/// but the names.
///
/// ```
/// use rollscope_config::refused;
/// assert_eq!(refused("http://me:a/b#c@h/x?token=t&n=1"), "http://<redacted>@h/x?token=<redacted>&n=<redacted>");
/// ```
pub fn refused(argument: &str) -> String {
    let begin = argument.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = argument.split_at(begin);
    let mut shown = scheme.to_owned();
    let rest = match rest.rsplit_once('@') {
        Some((_, rest)) => {
            shown.extend([REDACTED, "@"]);
            rest
        }
        None => rest,
    };
    let Some((address, query)) = rest.split_once('?') else { return shown + rest };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((key, _)) => format!("{key}={REDACTED}"),
        None => REDACTED.to_owned(),
    });
    shown + address + "?" + &pairs.collect::<Vec<_>>().join("&")
}

/// Whether something in a value is not shown.
pub(crate) fn is_redacted(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(REDACTED),
        Value::Array(items) => items.iter().any(is_redacted),
        _ => false,
    }
}

/// Where an authority ends: with its URL's path, or where the next URL of a list begins.
fn authority_end(text: &str) -> usize {
    let end = text.find(ends_authority).unwrap_or(text.len());
    let Some(before) = text[..end].strip_suffix(':').filter(|_| text[end..].starts_with("//")) else {
        return end;
    };
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    before.trim_end_matches(is_scheme).len()
}

/// Quotes end a URL too: messages have URLs within them.
fn ends_authority(c: char) -> bool {
    matches!(c, '/' | '?' | '#' | '"' | '\\' | '<' | '>' | '`') || c.is_whitespace() || c.is_control()
}

/// Whether what stands before and after an @ is the address of a worker and one of its ranks.
fn is_rank(address: &str, rank: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // A list of workers goes on behind the rank.
    let rank = rank.split([',', ':', ';']).next().unwrap_or_default();
    let host = match address.rsplit_once(':') {
        Some((host, port)) if is_number(port) => host,
        _ => address,
    };
    let is_host = !host.contains([':', '@']) || (host.starts_with('[') && host.ends_with(']'));
    is_number(rank) && is_host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_argument_shows_no_secret_wherever_it_ends() {
        for (argument, shown) in [
            ("http://me:a/b@h", "http://<redacted>@h"),
            ("http://me:a#b@h:x", "http://<redacted>@h:x"),
            ("http://me:a b\"c@h", "http://<redacted>@h"),
            ("http://me:a?b=c@h", "http://<redacted>@h"),
            ("me:pw@h:5", "<redacted>@h:5"),
            ("http://admin:12345@5", "http://<redacted>@5"),
            ("http://h/x?token=t&key", "http://h/x?token=<redacted>&<redacted>"),
            ("h:5", "h:5"),
            ("", ""),
        ] {
            assert_eq!(refused(argument), shown);
        }
    }

    #[test]
    fn users_and_passwords_are_not_shown_and_all_else_is() {
        for (text, shown) in [
            ("http://u:pw@h", "http://<redacted>@h"),
            ("mlflow:https://u:p@w@h:5/x?y=a@b", "mlflow:https://<redacted>@h:5/x?y=a@b"),
            ("s3://key:secret@bucket/a, http://token@h", "s3://<redacted>@bucket/a, http://<redacted>@h"),
            ("got \"http://u:pw@h\"", "got \"http://<redacted>@h\""),
            ("tcp://u:pw@[::1]:5", "tcp://<redacted>@[::1]:5"),
            ("http://u:@5.example", "http://<redacted>@5.example"),
            ("http://h:30000@1", "http://h:30000@1"),
            ("http://h@1,http://[::1]:30000@0 x", "http://h@1,http://[::1]:30000@0 x"),
            ("http://u:pw@h:30000@1", "http://<redacted>@1"),
            ("http://a,http://u:pw@h,http://u@b", "http://a,http://<redacted>@h,http://<redacted>@b"),
            ("x://http://u:pw@h", "x://http://<redacted>@h"),
            ("http://h/a@b", "http://h/a@b"),
            ("u:pw@h and ://", "u:pw@h and ://"),
            ("", ""),
        ] {
            assert_eq!(without_user_info(text), shown);
        }
        for (text, shown) in [
            ("http://admin:12345@5", "http://<redacted>@5"),
            ("mlflow:http://admin:12345@5, http://h", "mlflow:http://<redacted>@5, http://h"),
        ] {
            assert_eq!(without_any_user_info(text), shown);
        }
        let shown = serde_json::json!([["http://<redacted>@h", 5], "x", null]);
        assert!(is_redacted(&shown) && !is_redacted(&shown[1]));
        for (text, is_one) in [
            ("http://h:1@0", true),
            ("http://[::1]:1@0", true),
            ("http://me:a/b@0", false),
            ("http://me:pw@h:1@0", false),
            ("http://h:1", false),
        ] {
            assert_eq!(is_worker(text), is_one, "{text}");
        }
    }
}
