//! Who may call what, by the key that is sent as `Authorization: Bearer KEY`.
//!
//! | route | needs |
//! |---|---|
//! | probes, figures | nothing |
//! | requests, what tells of the model and of the server | `--api-key`, or a key of the control plane with role admin |
//! | looking at the fleet | any key of the control plane; without any, `--api-key` |
//! | changing the fleet | one with role admin; without any, `--api-key` |
//!
//! Where no key is set that would do, nothing is needed. A key of the control plane is never sent on to a worker. A worker's key is
//! not used for a [`Caller::Stranger`].

use http::header::{AUTHORIZATION, HeaderMap};
use rollscope_config::ConfigError;
use subtle::{Choice, ConstantTimeEq as _};

use crate::fault::Refusal;
use crate::options::GatewayOptions;
use crate::settings::ControlKey;

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Open,
    /// Requests.
    Use,
    /// Looking at the fleet.
    Look,
    /// Changing the fleet.
    Change,
}

/// Who asks for what needs no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// One who may send requests.
    User,
    /// One who has not shown a key that would do for that.
    Stranger,
}

/// The keys.
#[derive(Debug)]
pub(crate) struct Keys {
    user: Option<String>,
    control: Vec<ControlKey>,
}

// === impl Keys ===

impl Keys {
    pub(crate) fn new(options: &GatewayOptions) -> Result<Self, ConfigError> {
        let mut control = options.control_keys()?;
        control.extend(options.admin_api_key.iter().map(|key| ControlKey {
            id: "admin".to_owned(),
            is_admin: true,
            key: key.clone(),
        }));
        Ok(Self { user: options.api_key.clone(), control })
    }

    /// Who asks for what needs no key.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Caller {
        match self.check(Access::Use, &mut headers.clone()) {
            Ok(_) => Caller::User,
            Err(_) => Caller::Stranger,
        }
    }

    /// Lets a call pass, or not. Gives the id of the control plane's key, which is taken off the call.
    pub(crate) fn check(&self, access: Access, headers: &mut HeaderMap) -> Result<Option<&str>, Refusal> {
        let has_control = !self.control.is_empty();
        let is_needed = match access {
            Access::Open => false,
            Access::Use => self.user.is_some(),
            Access::Look | Access::Change => has_control || self.user.is_some(),
        };
        if !has_control && !is_needed {
            return Ok(None);
        }
        let given = bearer(headers).map(<[u8]>::to_vec);
        let Some(given) = given else {
            return if is_needed { Err(Refusal::Unauthorized) } else { Ok(None) };
        };
        // All are looked at, so that the time tells nothing.
        let matching = self.control.iter().filter(|control| is_same(&control.key, &given));
        let control = matching.fold(None, |found, control| found.or(Some(control)));
        let is_user = self.user.as_ref().is_some_and(|user| is_same(user, &given));
        if control.is_some() {
            headers.remove(AUTHORIZATION);
        }
        let is_allowed = match (access, control) {
            _ if !is_needed => true,
            (Access::Use | Access::Change, Some(control)) => control.is_admin,
            (Access::Look | Access::Open, Some(_)) => true,
            (Access::Use | Access::Open, None) => is_user,
            (Access::Look | Access::Change, None) => is_user && !has_control,
        };
        match (is_allowed, control.is_some() || is_user) {
            (true, _) => Ok(control.map(|control| control.id.as_str())),
            (false, true) => Err(Refusal::Forbidden),
            (false, false) => Err(Refusal::Unauthorized),
        }
    }
}

/// The scheme in any case and one space at least, by RFC 9110, 11.4; space around the whole is none of it.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let given = headers.get(AUTHORIZATION)?.as_bytes().trim_ascii();
    let (scheme, key) = given.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii_start())
}

/// In a time that depends on the lengths alone.
fn is_same(key: &str, given: &[u8]) -> bool {
    let same: Choice = key.as_bytes().ct_eq(given);
    same.into()
}

#[cfg(test)]
mod tests {
    use rollscope_config::Options as _;

    use super::*;

    #[test]
    fn a_key_is_read_as_it_may_be_written() {
        for (given, key) in [
            ("Bearer k", Some("k")),
            ("bearer k", Some("k")),
            ("BEARER   k", Some("k")),
            ("Bearer k \t ", Some("k")),
            ("Bearer k l", Some("k l")),
            ("Bearerk", None),
            ("Bearer\tk", None),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic k", None),
            ("k", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, given.parse().unwrap())]);
            assert_eq!(bearer(&headers), key.map(str::as_bytes), "{given:?}");
        }
    }

    #[test]
    fn a_key_opens_what_it_is_for() {
        use Access::{Change, Look, Open, Use};
        let both = "--api-key user --control-plane-api-keys 1:a:admin:ad:min 2:b:user:look";
        for (args, key, opened) in [
            ("", "", &[Open, Use, Look, Change][..]),
            ("", "any", &[Open, Use, Look, Change]),
            ("--api-key user", "", &[Open]),
            ("--api-key user", "use", &[Open]),
            ("--api-key user", "user", &[Open, Use, Look, Change]),
            ("--admin-api-key root", "", &[Open, Use]),
            ("--admin-api-key root", "other", &[Open, Use]),
            ("--admin-api-key root", "root", &[Open, Use, Look, Change]),
            (both, "", &[Open]),
            (both, "user", &[Open, Use]),
            (both, "look", &[Open, Look]),
            (both, "ad:min", &[Open, Use, Look, Change]),
        ] {
            let keys = Keys::new(&GatewayOptions::from_args(args.split_whitespace()).unwrap()).unwrap();
            for access in [Open, Use, Look, Change] {
                let mut headers = HeaderMap::new();
                if !key.is_empty() {
                    headers.insert(AUTHORIZATION, format!("bearer {key}").parse().unwrap());
                }
                let checked = keys.check(access, &mut headers);
                assert_eq!(checked.is_ok(), opened.contains(&access), "{args}, {key}: {access:?}");
                let is_control = ["root", "look", "ad:min"].contains(&key);
                assert_eq!(
                    headers.contains_key(AUTHORIZATION),
                    !key.is_empty() && !is_control,
                    "{args}, {key}"
                );
            }
        }
    }
}
