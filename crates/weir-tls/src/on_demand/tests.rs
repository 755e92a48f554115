use std::pin::pin;
use std::task::Context;

use super::*;
use crate::resolver::{Group, Resolver};

fn on_demand(change: impl FnOnce(&mut Settings)) -> Arc<OnDemand> {
    let mut settings = Settings { ask: "http://127.0.0.1:1/".to_owned(), ..Settings::default() };
    change(&mut settings);
    let acme =
        Acme { directory: "https://ca.example/dir".to_owned(), on_demand: Some(settings), ..Acme::default() };
    Arc::new(OnDemand::new(&acme).unwrap())
}

/// The next name that somebody wants; `None` when there is none now.
fn taken(on_demand: &Arc<OnDemand>) -> Option<Begun> {
    let mut next = pin!(on_demand.next());
    match next.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(taken) => taken,
        Poll::Pending => None,
    }
}

fn is_over(waiting: &mut Waiting) -> bool {
    waiting.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn stored(name: &str) -> Stored {
    let key = rcgen::KeyPair::generate().unwrap();
    let shown = rcgen::CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
    let facts = acme::look(&format!("{}{}", key.serialize_pem(), shown.pem())).unwrap();
    let der = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    let signing = provider::of(CipherPolicy::Default).key_provider.load_private_key(der.into()).unwrap();
    Stored(Loaded {
        key: Arc::new(CertifiedKey::new(vec![shown.der().clone()], signing)),
        facts,
        staple: None,
    })
}

#[test]
fn one_name_is_got_once_for_all_who_wait_and_they_go_on_together() {
    let on_demand = on_demand(|_| {});
    let mut waiting = [1, 2, 3].map(|_| on_demand.wanted("a.example").unwrap());
    let begun = taken(&on_demand).unwrap();
    assert_eq!((begun.name(), begun.is_renewal()), ("a.example", false));
    assert!(taken(&on_demand).is_none(), "it is ordered once");
    assert!(!waiting.iter_mut().any(is_over));
    begun.may_ask().unwrap();
    assert_eq!(on_demand.sizes(), [3, 1, 0]);
    begun.serve(stored("a.example"), NameResult::Issued);
    assert!(waiting.iter_mut().all(is_over));
    drop((begun, waiting));
    assert_eq!(on_demand.sizes(), [0, 0, 1]);
    assert_eq!(on_demand.counts.waits(WaitResult::Served), 3);
    assert!(on_demand.wanted("a.example").is_none() && on_demand.find("a.example").is_some());
}

#[test]
fn who_leaves_gives_the_place_back_and_the_order_goes_on_for_the_next() {
    let on_demand = on_demand(|settings| settings.max_waiting = 1);
    let waiting = on_demand.wanted("a.example").unwrap();
    let begun = taken(&on_demand).unwrap();
    begun.may_ask().unwrap();
    assert!(on_demand.wanted("a.example").is_none(), "there is one place");
    assert_eq!(on_demand.counts.waits(WaitResult::NoPlace), 1);
    drop(waiting);
    assert_eq!(on_demand.counts.waits(WaitResult::Left), 1);
    let mut next = on_demand.wanted("a.example").unwrap();
    begun.serve(stored("a.example"), NameResult::Issued);
    assert!(is_over(&mut next));
}

#[test]
fn a_name_that_was_refused_or_failed_is_left_alone_for_a_while() {
    let on_demand = on_demand(|_| {});
    let mut waiting = on_demand.wanted("no.example").unwrap();
    let begun = taken(&on_demand).unwrap();
    begun.answered(false);
    drop(begun);
    assert!(is_over(&mut waiting));
    assert_eq!(on_demand.verdict("no.example"), NameVerdict::Refused);
    drop(on_demand.wanted("bad.example"));
    let begun = taken(&on_demand).unwrap();
    begun.answered(true);
    begun.failed(NameResult::Failed, Duration::from_secs(60), "why not".to_owned());
    assert_eq!(begun.failures().unwrap().count, 1);
    drop(begun);
    assert_eq!(on_demand.verdict("bad.example"), NameVerdict::Failed("why not".to_owned()));
    assert!(on_demand.wanted("bad.example").is_none() && on_demand.wanted("no.example").is_none());
    assert!(taken(&on_demand).is_none());
    assert_eq!(on_demand.counts.waits(WaitResult::Remembered), 2);
    assert_eq!(on_demand.failures(9).len(), 1);
    on_demand.found("bad.example");
    assert_eq!(on_demand.verdict("bad.example"), NameVerdict::Unknown, "another process has got it");
}

/// A panic, or an end of the process: nobody waits for ever.
#[test]
fn whoever_gets_a_certificate_and_ends_lets_those_go_who_wait() {
    let on_demand = on_demand(|_| {});
    let mut waiting = on_demand.wanted("a.example").unwrap();
    drop(taken(&on_demand).unwrap());
    assert!(is_over(&mut waiting));
    let mut untaken = on_demand.wanted("b.example").unwrap();
    on_demand.close();
    assert!(is_over(&mut untaken));
    assert_eq!(on_demand.verdict("c.example"), NameVerdict::Closed);
    drop((waiting, untaken));
    assert_eq!((on_demand.sizes(), on_demand.counts.waits(WaitResult::Refused)), ([0, 0, 0], 2));
}

#[test]
fn names_at_once_and_orders_in_a_time_have_a_bound() {
    let on_demand = on_demand(|settings| {
        settings.max_names = 2;
        settings.max_waiting = 4;
        settings.burst = 3;
    });
    let names = ["a.example", "b.example", "c.example", "d.example", "e.example"];
    let waiting = names.map(|name| on_demand.wanted(name));
    // All may be in the store; what is not takes a place.
    assert_eq!((waiting.iter().flatten().count(), on_demand.sizes()[0]), (5, 0));
    let begun = [(); 3].map(|()| taken(&on_demand).unwrap());
    let may_ask = [0, 1, 2].map(|index| begun[index].may_ask());
    assert_eq!(may_ask, [Ok(()), Ok(()), Err(NotNow::Busy)]);
    assert_eq!((on_demand.counts.names(NameResult::Busy), on_demand.sizes()[1]), (1, 2));
    drop(begun);
    assert_eq!(on_demand.sizes()[1], 0);
    for number in 0..LOOKED_FOR + 2 {
        on_demand.begin(&format!("n{number}.example"));
    }
    assert_eq!(on_demand.verdict("k.example"), NameVerdict::Full, "QUIC begins no more either");
    for _ in 0..3 {
        on_demand.take_order().unwrap();
    }
    let wait = on_demand.take_order().unwrap_err();
    assert!(wait > Duration::from_secs(30) && wait <= Duration::from_secs(36), "{wait:?}");
}

/// One slow name has all places, and the others are in the store.
#[test]
fn who_waits_while_the_store_is_looked_into_takes_no_place_of_those_who_wait_for_orders() {
    let on_demand = on_demand(|settings| settings.max_waiting = 2);
    let wanted = |name| on_demand.wanted(name);
    let mut slow = [(); 3].map(|()| wanted("slow.example").unwrap());
    let ordered = taken(&on_demand).unwrap();
    ordered.may_ask().unwrap();
    assert_eq!(slow.each_mut().map(is_over), [false, false, true], "the third has no place");
    let mut stays = wanted("kept.example").unwrap();
    let begun = taken(&on_demand).unwrap();
    assert!(wanted("slow.example").is_none() && !is_over(&mut stays));
    begun.serve(stored("kept.example"), NameResult::Stored);
    assert!(is_over(&mut stays));
    // What is not there is not asked about for those alone who have no place to wait.
    let mut other = wanted("other.example").unwrap();
    let begun = taken(&on_demand).unwrap();
    assert_eq!((begun.may_ask(), on_demand.sizes()), (Err(NotNow::NoPlace), [2, 1, 1]));
    assert!(is_over(&mut other));
    drop((begun, other, stays));
    drop(slow);
    let waits = |result| on_demand.counts.waits(result);
    assert_eq!([WaitResult::NoPlace, WaitResult::Served, WaitResult::Left].map(waits), [3, 1, 2]);
    let state = on_demand.lock();
    assert_eq!((state.waiting, state.looking, state.turned_away.len()), (0, 0, 0));
}

#[test]
fn while_the_authority_is_away_the_store_is_looked_into_and_nobody_is_asked() {
    let on_demand = on_demand(|_| {});
    on_demand.note_authority(Some(Duration::from_secs(900)));
    assert_eq!(on_demand.verdict("a.example"), NameVerdict::Away);
    assert!(!on_demand.renew("b.example"));
    let mut waiting = on_demand.wanted("a.example").unwrap();
    let begun = taken(&on_demand).unwrap();
    assert_eq!(begun.may_ask(), Err(NotNow::Away));
    drop(begun);
    assert!(is_over(&mut waiting) && matches!(on_demand.verdict("a.example"), NameVerdict::Failed(_)));
    on_demand.forget();
    assert_eq!(on_demand.verdict("a.example"), NameVerdict::Unknown);
}

/// It may have given way to others in memory, and is good for weeks.
#[test]
fn a_renewal_that_is_refused_or_fails_does_not_keep_the_stored_certificate_from_clients() {
    let on_demand = on_demand(|settings| settings.max_names = 3);
    for name in ["a.example", "b.example"] {
        assert!(on_demand.renew(name));
    }
    assert!(!on_demand.renew("c.example"), "half of the places are for clients");
    let (refused, failed) = (taken(&on_demand).unwrap(), taken(&on_demand).unwrap());
    refused.answered(false);
    failed.failed(NameResult::Failed, Duration::from_secs(60), "why not".to_owned());
    assert_eq!(failed.failures().unwrap().count, 1);
    drop((refused, failed));
    for name in ["a.example", "b.example"] {
        assert_eq!(on_demand.verdict(name), NameVerdict::Unknown);
        assert!(!on_demand.renew(name));
    }
    assert_eq!((on_demand.failures(9).len(), on_demand.lock().renewing), (2, 0));
}

#[test]
fn who_asks_during_a_renewal_is_served_with_what_there_is() {
    let on_demand = on_demand(|_| {});
    assert!(on_demand.renew("a.example") && !on_demand.renew("a.example"));
    let begun = taken(&on_demand).unwrap();
    assert!(begun.is_renewal());
    let mut waiting = on_demand.wanted("a.example").unwrap();
    begun.serve(stored("a.example"), NameResult::Stored);
    assert!(is_over(&mut waiting) && on_demand.wanted("a.example").is_none());
}

#[test]
fn what_is_remembered_has_a_bound_and_what_ends_first_goes_first() {
    let now = Instant::now();
    let mut map: HashMap<Box<str>, Instant> =
        (0..REMEMBERED as u64).map(|n| (n.to_string().into(), now + Duration::from_secs(60 + n))).collect();
    make_room(&mut map, |until| *until);
    let quarter = REMEMBERED / 4;
    assert!(map.len() < REMEMBERED && map.len() >= REMEMBERED - quarter - 1, "{}", map.len());
    assert!(!map.contains_key("0") && map.contains_key(&*(quarter + 1).to_string()));
}

/// What a client that showed a certificate may ask for on its connection (threat B14).
#[test]
fn each_name_on_demand_is_a_group_of_its_own_whether_its_certificate_is_there_or_not() {
    let on_demand = on_demand(|_| {});
    let resolver = Resolver::new(vec![stored("own.example").0], vec![on_demand.clone()]);
    let group = |name| resolver.group(Some(name));
    for _ in 0..2 {
        assert!(
            group("a.example") == Group::OnDemand("a.example") && group("a.example.") == group("a.example")
        );
        assert!(group("a.example") != group("b.example") && group("a.example") != resolver.group(None));
        assert!(group("own.example") == Group::Served(0) && group("no_name") == Group::Served(0));
        on_demand.wanted("a.example").into_iter().for_each(drop);
        taken(&on_demand).into_iter().for_each(|begun| begun.serve(stored("a.example"), NameResult::Issued));
    }
    assert!(resolver.orders("own.example").is_none() && resolver.orders("a.example").is_some());
    assert!(resolver.orders("localhost").is_none());
}
