//! The lesson of an answer that is not kept for others than its client (threat E9).
//!
//! Anybody can send a request that an origin refuses, or answers for its client alone. What that does to what
//! is kept, and to whoever asks for the same, is decided here.

use crate::request::RequestFacts;
use crate::response::NotStored;

/// The state of a key after an answer that is not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unkept {
    /// Whose requests need not wait for each other for a while, because each would be answered by itself;
    /// `None`: nobody's.
    pub passes: Option<Crowd>,
    /// The origin no longer has what is kept.
    pub drops: bool,
}

/// Requests of one key that an origin may well answer alike.
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
    /// The requests that a request belongs to.
    pub fn of(request: &RequestFacts) -> impl Iterator<Item = Crowd> {
        let with = |has: bool, crowd| has.then_some(crowd);
        let narrow =
            [with(request.authorization, Crowd::WithCredentials), with(request.cookie, Crowd::WithCookies)];
        narrow.into_iter().flatten().chain([Crowd::All])
    }

    /// The smallest of them.
    fn around(request: &RequestFacts) -> Crowd {
        Crowd::of(request).next().unwrap_or(Crowd::All)
    }
}

/// The lesson of an answer that is not kept for `reason`.
pub fn unkept(request: &RequestFacts, status: u16, reason: NotStored) -> Unkept {
    if request.demands() {
        // One client's wish must not put out what others have, every second anew.
        return Unkept::default();
    }
    match reason {
        // The reason is the request.
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
