//! What follows from an answer that is not stored (threat E9).
//!
//! Anybody can send a request that an origin refuses or answers for that client alone. This module decides
//! how such an answer affects what is stored, and other requests for the same key.

use crate::request::RequestFacts;
use crate::response::NotStored;

/// What to do with a key after an answer that is not stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unkept {
    /// Requests that need not wait for each other for a while, because each needs an answer of its own;
    /// `None`: no requests.
    pub passes: Option<Crowd>,
    /// The origin no longer has what is stored: drop it.
    pub drops: bool,
}

/// Requests for one key that an origin probably answers in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Crowd {
    /// All of them.
    All,
    /// Requests with `cookie`.
    WithCookies,
    /// Requests with `authorization`.
    WithCredentials,
}

impl Crowd {
    /// The groups that a request belongs to.
    pub fn of(request: &RequestFacts) -> impl Iterator<Item = Crowd> {
        let with = |has: bool, crowd| has.then_some(crowd);
        let narrow =
            [with(request.authorization, Crowd::WithCredentials), with(request.cookie, Crowd::WithCookies)];
        narrow.into_iter().flatten().chain([Crowd::All])
    }

    /// The smallest of these groups.
    fn around(request: &RequestFacts) -> Crowd {
        Crowd::of(request).next().unwrap_or(Crowd::All)
    }
}

/// The consequences of an answer that is not stored for `reason`.
pub fn unkept(request: &RequestFacts, status: u16, reason: NotStored) -> Unkept {
    if request.demands() {
        // One client's demands must not remove what others use, again and again.
        return Unkept::default();
    }
    match reason {
        // The reason lies in the request.
        NotStored::Method | NotStored::RequestNoStore | NotStored::Status | NotStored::Partial => {
            Unkept::default()
        }
        NotStored::Authorization => Unkept { passes: Some(Crowd::WithCredentials), drops: false },
        _ => {
            let is_personal = request.cookie || request.authorization;
            let drops = matches!(status, 404 | 410) || (status < 500 && !is_personal);
            Unkept { passes: Some(Crowd::around(request)), drops }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::facts;

    #[test]
    fn what_the_origin_says_to_all_of_what_is_asked_for_counts() {
        let plain = facts("");
        for reason in [NotStored::NoStore, NotStored::Private, NotStored::NoLifetime, NotStored::TooLarge] {
            let expected = Unkept { passes: Some(Crowd::All), drops: true };
            assert_eq!(unkept(&plain, 200, reason), expected, "{reason:?}");
            assert!(!unkept(&plain, 503, reason).drops, "{reason:?}");
        }
    }

    #[test]
    fn what_one_request_brings_about_does_not() {
        for reason in [NotStored::Method, NotStored::RequestNoStore, NotStored::Status, NotStored::Partial] {
            assert_eq!(unkept(&facts(""), 400, reason), Unkept::default(), "{reason:?}");
        }
        for wanted in ["no-cache", "max-age=0", "min-fresh=9"] {
            assert_eq!(unkept(&facts(wanted), 200, NotStored::Private), Unkept::default(), "{wanted}");
        }
    }

    #[test]
    fn what_is_said_to_some_counts_for_those_alone() {
        let with = |cookie, authorization| RequestFacts { cookie, authorization, ..facts("") };
        let of = |request: RequestFacts, status| unkept(&request, status, NotStored::Private);
        assert_eq!(of(with(true, false), 200), Unkept { passes: Some(Crowd::WithCookies), drops: false });
        assert_eq!(of(with(true, true), 200), Unkept { passes: Some(Crowd::WithCredentials), drops: false });
        assert!(of(with(true, true), 410).drops, "gone is gone");
        let crowds = |request| Crowd::of(&request).collect::<Vec<_>>();
        assert_eq!(crowds(with(false, false)), [Crowd::All]);
        assert_eq!(crowds(with(true, true)), [Crowd::WithCredentials, Crowd::WithCookies, Crowd::All]);
    }
}
