//! What a pool does, told through its public interface.

use std::sync::Arc;
use std::time::Duration;
use weir_balance::*;

const START: Duration = Duration::from_secs(1);

fn member(name: &str, settings: BackendSettings) -> Arc<Backend> {
    Arc::new(Backend::new(name, settings))
}

fn plain() -> BackendSettings {
    BackendSettings::default()
}

fn picker(settings: Settings, members: Vec<Arc<Backend>>) -> Picker {
    Picker::new(Arc::new(Pool::new(settings, members, START)))
}

fn three(algorithm: Algorithm) -> Picker {
    let members = ["a:1", "b:1", "c:1"].map(|name| member(name, plain())).to_vec();
    picker(Settings { algorithm, ..Settings::default() }, members)
}

fn name(picker: &Picker, input: &PickInput<'_>) -> String {
    match picker.pick(input) {
        Ok(pick) => picker.pool().members()[pick.index].address().trim_end_matches(":1").to_owned(),
        Err(none) => format!("({none})"),
    }
}

fn names(picker: &Picker, times: usize) -> String {
    (0..times).map(|_| name(picker, &PickInput::default())).collect()
}

fn down(picker: &Picker, index: usize) {
    picker.pool().set_health(index, Health::Down, START);
    picker.pool().refresh(START);
}

#[test]
fn a_newcomer_sees_a_b_c_in_turn_whichever_worker_answers() {
    let pool = Arc::clone(three(Algorithm::RoundRobin).pool());
    let workers = [Picker::new(Arc::clone(&pool)), Picker::new(Arc::clone(&pool))];
    let seen: String = [0, 1, 1, 0, 1, 0, 0].iter().map(|worker| names(&workers[*worker], 1)).collect();
    assert_eq!(seen, "abcabca");
}

#[test]
fn a_backend_that_goes_down_is_left_out_and_taken_back_in() {
    let picker = three(Algorithm::RoundRobin);
    down(&picker, 1);
    assert!(!names(&picker, 9).contains('b'));
    picker.pool().set_health(1, Health::Up, START);
    assert!(picker.pool().refresh(START).changed);
    assert_eq!(names(&picker, 9).matches('b').count(), 3);
}

#[test]
fn a_refresh_without_news_publishes_nothing() {
    let picker = three(Algorithm::Maglev);
    let generation = picker.pool().generation();
    picker.pool().set_health(0, Health::Up, START);
    assert_eq!(picker.pool().refresh(START), Refreshed { changed: false, readmitted: vec![] });
    assert_eq!(picker.pool().generation(), generation);
}

#[test]
fn a_full_backend_passes_its_turn_to_the_next() {
    let picker = three(Algorithm::RoundRobin);
    picker.pool().members()[0].set_max_connections(Some(1));
    assert_eq!(names(&picker, 4), "abcb");
    picker.pool().release(0);
    assert!(names(&picker, 3).contains('a'));
}

#[test]
fn least_connections_fills_the_gaps_and_rotates_when_idle() {
    let picker = three(Algorithm::LeastConnections);
    assert_eq!(names(&picker, 3), "abc");
    picker.pool().release(1);
    assert_eq!(names(&picker, 1), "b");
    picker.pool().release(2);
    picker.pool().release(0);
    let two: String = names(&picker, 2);
    assert!(two == "ac" || two == "ca", "{two}");
}

#[test]
fn least_connections_counts_per_weight() {
    let weighted = |name, weight| member(name, BackendSettings { weight, ..plain() });
    let settings = Settings { algorithm: Algorithm::LeastConnections, ..Settings::default() };
    let picker = picker(settings, vec![weighted("a:1", 3), weighted("b:1", 1)]);
    assert_eq!(names(&picker, 8).matches('a').count(), 6);
}

#[test]
fn first_fills_one_after_the_other() {
    let picker = three(Algorithm::First);
    picker.pool().members()[0].set_max_connections(Some(2));
    picker.pool().members()[1].set_max_connections(Some(1));
    assert_eq!(names(&picker, 5), "aabcc");
}

#[test]
fn random_two_takes_the_less_loaded_and_each_only_once() {
    let picker = three(Algorithm::RandomTwo);
    // Draws at the start of a's third and of c's: both idle, so the first drawn; then the other.
    let input = PickInput { draw: [0, u32::MAX], ..PickInput::default() };
    assert_eq!(name(&picker, &input) + &name(&picker, &input), "ac");
}

#[test]
fn least_time_prefers_the_faster_of_two_and_tries_a_newcomer_once() {
    let picker = three(Algorithm::LeastTime);
    let at = |index: usize, milliseconds| {
        let latency = Duration::from_millis(milliseconds);
        picker.pool().observe(index, START, Outcome::Success { latency });
    };
    at(0, 5);
    at(2, 50);
    let input = |draw| PickInput { now: START, draw, ..PickInput::default() };
    assert_eq!(name(&picker, &input([0, u32::MAX])), "a");
    assert_eq!(name(&picker, &input([u32::MAX, 0])), "a");
    // b has never been tried: it gets one request, and no second before the first is answered.
    let middle = u32::MAX / 2;
    assert_eq!(name(&picker, &input([0, middle])), "b");
    assert_eq!(name(&picker, &input([0, middle])), "a");
}

#[test]
fn least_time_sends_nothing_to_ten_times_slower_until_the_queue_is_ten_times_longer() {
    let picker = three(Algorithm::LeastTime);
    down(&picker, 2);
    // A little over ten times, so that the eleventh is no tie.
    for (index, microseconds) in [(0, 1_000), (1, 10_500)] {
        let latency = Duration::from_micros(microseconds);
        picker.pool().observe(index, START, Outcome::Success { latency });
    }
    let input = PickInput { now: START, draw: [0, u32::MAX], ..PickInput::default() };
    let seen: String = (0..11).map(|_| name(&picker, &input)).collect();
    assert_eq!(seen, "aaaaaaaaaab");
}

#[test]
fn backups_serve_only_while_no_primary_does() {
    let backup = member("z:1", BackendSettings { backup: true, ..plain() });
    let picker = picker(Settings::default(), vec![backup, member("a:1", plain()), member("b:1", plain())]);
    assert_eq!(names(&picker, 4), "abab");
    down(&picker, 1);
    down(&picker, 2);
    assert_eq!(names(&picker, 2), "zz");
    picker.pool().set_health(2, Health::Up, START);
    picker.pool().refresh(START);
    assert_eq!(names(&picker, 2), "bb");
}

#[test]
fn busy_primaries_do_not_overflow_into_backups_but_tried_ones_do() {
    let one = BackendSettings { max_connections: Some(1), ..plain() };
    let backup = member("z:1", BackendSettings { backup: true, ..plain() });
    let picker = picker(Settings::default(), vec![member("a:1", one), backup]);
    assert_eq!(names(&picker, 1), "a");
    assert_eq!(picker.pick(&PickInput::default()), Err(NoPick::AllBusy));
    let retry = PickInput { exclude: &[0], ..PickInput::default() };
    assert_eq!(name(&picker, &retry), "z");
    let again = PickInput { exclude: &[1, 0], ..PickInput::default() };
    assert_eq!(picker.pick(&again), Err(NoPick::AllExcluded));
}

#[test]
fn an_empty_pool_and_one_that_is_all_down_say_none_is_up() {
    let empty = picker(Settings::default(), vec![]);
    assert_eq!(empty.pick(&PickInput::default()), Err(NoPick::NoneUp));
    for algorithm in Algorithm::ALL {
        let picker = three(algorithm);
        (0..3).for_each(|index| down(&picker, index));
        let input = PickInput { key: Some(7), ..PickInput::default() };
        assert_eq!(picker.pick(&input), Err(NoPick::NoneUp), "{algorithm}");
    }
}

#[test]
fn a_cookie_is_honoured_while_draining_or_without_weight_but_not_when_down_or_in_maintenance() {
    let picker = three(Algorithm::RoundRobin);
    let pool = picker.pool();
    let sticky = PickInput { sticky: Some(pool.members()[1].id()), ..PickInput::default() };
    let tries = || (0..3).map(|_| name(&picker, &sticky)).collect::<String>();
    assert_eq!(tries(), "bbb");
    pool.set_admin_state(1, AdminState::Drain, START);
    pool.refresh(START);
    assert_eq!(tries(), "bbb");
    assert!(!names(&picker, 6).contains('b'), "no new work while draining");
    pool.set_admin_state(1, AdminState::Ready, START);
    pool.set_weight(1, 0).unwrap();
    pool.refresh(START);
    assert_eq!(tries(), "bbb");
    assert!(!names(&picker, 6).contains('b'), "no new work at weight 0");
    pool.set_weight(1, 1).unwrap();
    pool.set_admin_state(1, AdminState::Maintenance, START);
    pool.refresh(START);
    assert!(!tries().contains('b'));
    pool.set_admin_state(1, AdminState::Ready, START);
    down(&picker, 1);
    assert!(!tries().contains('b'));
}

#[test]
fn a_cookie_of_an_unknown_full_or_tried_backend_is_no_obstacle() {
    let picker = three(Algorithm::RoundRobin);
    let b = picker.pool().members()[1].id();
    let unknown = PickInput { sticky: Some(42), ..PickInput::default() };
    assert_eq!(name(&picker, &unknown), "a");
    let tried = PickInput { sticky: Some(b), exclude: &[1], ..PickInput::default() };
    assert_eq!(name(&picker, &tried), "c");
    picker.pool().members()[1].set_max_connections(Some(0));
    let full = PickInput { sticky: Some(b), ..PickInput::default() };
    assert!(picker.pick(&full).is_ok_and(|pick| pick.index != 1));
}

#[test]
fn without_a_key_the_hashes_take_turns() {
    for algorithm in [Algorithm::Source, Algorithm::Hash, Algorithm::Maglev] {
        assert_eq!(names(&three(algorithm), 6), "abcabc", "{algorithm}");
    }
}

#[test]
fn a_key_moves_on_when_its_owner_was_tried_and_always_to_the_same_other() {
    for algorithm in [Algorithm::Source, Algorithm::Hash, Algorithm::Maglev] {
        let picker = three(algorithm);
        for key in 0..50 {
            let owner = picker.pick(&PickInput { key: Some(key), ..PickInput::default() }).unwrap();
            assert_eq!(owner.reason, PickReason::OwnsKey);
            let exclude = [owner.index];
            let input = PickInput { key: Some(key), exclude: &exclude, ..PickInput::default() };
            let others = [picker.pick(&input).unwrap(), picker.pick(&input).unwrap()];
            assert_ne!(others[0].index, owner.index);
            assert_eq!(others[0], others[1]);
            assert_eq!(others[0].reason, PickReason::NextAfterOwner);
        }
    }
}

#[test]
fn an_ejected_backend_returns_when_its_time_is_over_and_starts_slowly() {
    let passive = Passive { errors: 2, eject: Duration::from_secs(10), ..Passive::default() };
    let slow_start = Some(Duration::from_secs(20));
    let members = ["a:1", "b:1"].map(|name| member(name, plain())).to_vec();
    let picker = picker(Settings { passive: Some(passive), slow_start, ..Settings::default() }, members);
    let pool = picker.pool();
    assert_eq!(pool.observe(0, START, Outcome::Failure), None);
    let ejection = pool.observe(0, START, Outcome::Failure).expect("the second failure ejects");
    assert!(pool.refresh(START).changed);
    assert_eq!(names(&picker, 4), "bbbb");
    assert_eq!(pool.next_change(START), Some(ejection.until));
    assert_eq!(pool.refresh(ejection.until), Refreshed { changed: true, readmitted: vec![0] });
    assert_eq!(names(&picker, 110).matches('a').count(), 10, "a tenth of an equal weight");
    let mut now = ejection.until;
    while let Some(next) = pool.next_change(now) {
        now = next;
        assert!(pool.refresh(now).changed, "every step is felt");
    }
    assert_eq!(now, ejection.until + Duration::from_secs(20));
    assert_eq!(names(&picker, 10).matches('a').count(), 5);
}

#[test]
fn ejection_alone_never_empties_a_pool() {
    let passive = Passive { errors: 1, max_ejected: 1.0, ..Passive::default() };
    let members = ["a:1", "b:1"].map(|name| member(name, plain())).to_vec();
    let picker = picker(Settings { passive: Some(passive), ..Settings::default() }, members);
    for index in [0, 1] {
        assert!(picker.pool().observe(index, START, Outcome::Failure).is_some());
    }
    picker.pool().refresh(START);
    let pick = picker.pick(&PickInput { now: START, ..PickInput::default() }).unwrap();
    assert_eq!(pick.tier, TierKind::LastResort);
}

fn down_late(picker: &Picker, index: usize, late: bool) {
    picker.pool().members()[index].set_late(late);
    down(picker, index);
}

#[test]
fn when_all_are_down_only_those_that_were_merely_late_are_tried() {
    let picker = three(Algorithm::RoundRobin);
    down_late(&picker, 0, true);
    down_late(&picker, 1, false);
    assert_eq!(names(&picker, 3), "ccc", "as long as one is up it gets everything");
    down_late(&picker, 2, true);
    assert_eq!(picker.pool().tier(), Some(TierKind::LastResort));
    // What could move stays where it is, or it would move back and forth between them.
    assert_eq!([0, 1, 2].map(|index| picker.pool().keeps(index)), [true, false, true]);
    let seen = names(&picker, 6);
    assert_eq!((seen.matches('a').count(), seen.matches('c').count()), (3, 3), "{seen}");
    picker.pool().set_health(1, Health::Up, START);
    picker.pool().refresh(START);
    assert_eq!(names(&picker, 3), "bbb");
}

#[test]
fn the_last_resort_can_be_every_backend_or_none() {
    for (last_resort, expected) in
        [(LastResort::All, "abab"), (LastResort::Off, "(no backend takes new work)")]
    {
        let members = ["a:1", "b:1"].map(|name| member(name, plain())).to_vec();
        let picker = picker(Settings { last_resort, ..Settings::default() }, members);
        down_late(&picker, 0, true);
        down_late(&picker, 1, false);
        let seen = names(&picker, if last_resort == LastResort::Off { 1 } else { 4 });
        assert_eq!(seen, expected);
    }
}

#[test]
fn what_an_operator_took_out_is_never_the_last_resort() {
    for (state, weight) in [(AdminState::Drain, 1), (AdminState::Maintenance, 1), (AdminState::Ready, 0)] {
        let settings = Settings { last_resort: LastResort::All, ..Settings::default() };
        let picker = picker(settings, vec![member("a:1", plain())]);
        picker.pool().set_admin_state(0, state, START);
        picker.pool().set_weight(0, weight).unwrap();
        down_late(&picker, 0, true);
        assert_eq!(picker.pick(&PickInput::default()), Err(NoPick::NoneUp), "{state:?}, weight {weight}");
    }
}

#[test]
fn trials_at_a_backend_that_is_down_are_bounded_and_the_end_of_one_lets_in_the_next() {
    let picker = three(Algorithm::LeastConnections);
    (0..3).for_each(|index| down_late(&picker, index, true));
    let mut trials = vec![];
    while let Ok(pick) = picker.pick(&PickInput::default()) {
        assert!(pick.on_trial);
        trials.push(pick);
        assert!(trials.len() < 1000, "unbounded");
    }
    assert_eq!(trials.len(), 96, "32 at each of three");
    assert_eq!(picker.pick(&PickInput::default()), Err(NoPick::AllBusy));
    let explained = picker.explain(&PickInput::default());
    assert!(explained.backends.iter().all(|(_, refusal)| *refusal == Some(Refusal::OnTrial)));
    // Answered: no longer a trial, though the exchange goes on.
    picker.pool().end_trial(trials[5].index);
    let pick = picker.pick(&PickInput::default()).expect("a place");
    assert_eq!(pick.index, trials[5].index);
    // A backend with long-lived work is not full for that: only trials count.
    assert_eq!(picker.pool().members()[pick.index].in_flight(), 33);
}

#[test]
fn a_sticky_client_stays_on_its_backend_when_all_are_tried_as_the_last_resort() {
    let picker = three(Algorithm::RoundRobin);
    (0..3).for_each(|index| down_late(&picker, index, true));
    let id = picker.pool().members()[1].id();
    for _ in 0..3 {
        let pick = picker.pick(&PickInput { sticky: Some(id), ..PickInput::default() }).unwrap();
        assert_eq!((pick.index, pick.reason, pick.on_trial), (1, PickReason::Sticky, true));
    }
}

#[test]
fn the_last_resort_tries_primaries_before_backups_and_what_traffic_spoke_against_first() {
    let passive = Passive { errors: 1, max_ejected: 1.0, ..Passive::default() };
    let backup = BackendSettings { backup: true, ..plain() };
    let members = vec![member("a:1", plain()), member("b:1", backup), member("c:1", plain())];
    let picker = picker(Settings { passive: Some(passive), ..Settings::default() }, members);
    assert!(picker.pool().observe(2, START, Outcome::Failure).is_some());
    down_late(&picker, 0, true);
    down_late(&picker, 1, true);
    let input = |exclude| PickInput { now: START, exclude, ..PickInput::default() };
    let order = [&[][..], &[2], &[2, 0]].map(|exclude| picker.pick(&input(exclude)).map(|pick| pick.index));
    assert_eq!(order, [Ok(2), Ok(0), Ok(1)]);
    assert!(
        picker.explain(&input(&[2])).to_string().contains("down by its probes, but nothing else is left")
    );
}

#[test]
fn a_reload_keeps_counts_health_and_rotation() {
    let members = ["a:1", "b:1", "c:1"].map(|name| member(name, plain())).to_vec();
    let before = picker(Settings::default(), members);
    assert_eq!(names(&before, 1), "a");
    down(&before, 2);
    let mut members = before.pool().members().to_vec();
    members.push(member("d:1", plain()));
    let pool = before.pool().rebuilt(Settings::default(), members, START);
    let after = Picker::new(Arc::new(pool));
    assert_eq!(after.pool().members()[0].in_flight(), 1);
    assert_eq!(after.pool().state(2), State::Down);
    assert_eq!(names(&after, 3), "bda");
    before.pool().release(0);
    assert_eq!(after.pool().members()[0].in_flight(), 1);
}

#[test]
fn a_bound_survives_a_reload_and_counts_what_the_old_pool_gives_back() {
    let settings = Settings { algorithm: Algorithm::Hash, hash_bound: Some(1.25), ..Settings::default() };
    let members = ["a:1", "b:1"].map(|name| member(name, plain())).to_vec();
    let before = picker(settings.clone(), members.clone());
    let hot = PickInput { key: Some(1), ..PickInput::default() };
    let held: Vec<_> = (0..40).map(|_| before.pick(&hot).unwrap().index).collect();
    let after = Picker::new(Arc::new(before.pool().rebuilt(settings, members, START)));
    // What the old pool has in flight is load too: without it the bound would look exceeded everywhere and be
    // given up.
    let during: Vec<_> = (0..10).map(|_| after.pick(&hot).unwrap()).collect();
    assert!(during.iter().all(|pick| pick.reason != PickReason::AnyWithRoom), "{during:?}");
    let most = (1.25 * 50.0 / 2.0_f64).ceil() as u32;
    assert!(after.pool().members().iter().all(|backend| backend.in_flight() <= most));
    for pick in during {
        after.pool().release(pick.index);
    }
    for index in held {
        before.pool().release(index);
    }
    // Nothing is in flight any more, so the hot key's owner takes it again, and its neighbour takes what is
    // over the bound.
    let first = after.pick(&hot).unwrap();
    let second = after.pick(&hot).unwrap();
    let third = after.pick(&hot).unwrap();
    assert_eq!(first.reason, PickReason::OwnsKey);
    assert_eq!([second.index == first.index, third.index == first.index], [true, false]);
}

#[test]
fn the_explanation_names_the_choice_and_what_spoke_against_each_other() {
    let picker = three(Algorithm::RoundRobin);
    down(&picker, 0);
    picker.pool().members()[1].set_max_connections(Some(0));
    let explanation = picker.explain(&PickInput::default());
    let reasons: Vec<_> = explanation.backends.iter().map(|(_, refusal)| *refusal).collect();
    assert_eq!(reasons, [Some(Refusal::State(State::Down)), Some(Refusal::Full), None]);
    assert_eq!(
        explanation.to_string(),
        "round-robin: c:1, next in turn\n  \
         a:1 down, 0 in flight, weight 1: not chosen, down\n  \
         b:1 ready, 0 in flight of 0, weight 1: not chosen, at its limit\n  \
         c:1 ready, 0 in flight, weight 1"
    );
}

#[test]
fn the_kernel_plane_sees_the_same_backends_as_the_pickers() {
    let picker = three(Algorithm::Maglev);
    down(&picker, 1);
    let eligible = picker.pool().eligible();
    assert_eq!(eligible.iter().map(|one| one.index).collect::<Vec<_>>(), [0, 2]);
    let table = maglev::fill(&eligible.iter().map(|one| (one.id, one.weight)).collect::<Vec<_>>());
    for key in 0..1000 {
        let pick = picker.pick(&PickInput { key: Some(key), ..PickInput::default() }).unwrap();
        assert_eq!(eligible[table[maglev::slot(key)] as usize].index, pick.index);
    }
}

/// Four ordinary backends and a backup, under a threshold of a half.
fn panicking() -> Pool {
    let settings = Settings { panic_below: Some(0.5), last_resort: LastResort::Late, ..Settings::default() };
    let member = |at: usize| {
        let settings = BackendSettings { backup: at == 4, ..BackendSettings::default() };
        Arc::new(Backend::new(format!("10.0.0.{at}:80"), settings))
    };
    Pool::new(settings, (0..5).map(member).collect(), Duration::ZERO)
}

fn with_down(pool: &Pool, down: &[usize]) -> (Option<TierKind>, Vec<usize>) {
    for index in 0..4 {
        let health = if down.contains(&index) { Health::Down } else { Health::Up };
        pool.set_health(index, health, Duration::ZERO);
    }
    pool.refresh(Duration::ZERO);
    (pool.tier(), pool.eligible().iter().map(|one| one.index).collect())
}

#[test]
fn below_the_threshold_all_ordinary_backends_are_used_and_above_it_the_healthy_ones() {
    let pool = panicking();
    assert_eq!(with_down(&pool, &[0]), (Some(TierKind::Ordinary), vec![1, 2, 3]));
    assert_eq!(with_down(&pool, &[0, 1]), (Some(TierKind::Ordinary), vec![2, 3]), "a half is enough");
    assert_eq!(with_down(&pool, &[0, 1, 2]), (Some(TierKind::Panic), vec![0, 1, 2, 3]));
    assert_eq!(with_down(&pool, &[0, 1, 2, 3]), (Some(TierKind::Backup), vec![4]), "the backup is well");
    pool.set_health(4, Health::Down, Duration::ZERO);
    assert_eq!(with_down(&pool, &[0, 1, 2, 3]).0, Some(TierKind::LastResort));
}

#[test]
fn what_an_operator_or_an_agent_took_out_is_not_used_in_a_panic_and_does_not_count_as_sick() {
    let pool = panicking();
    let at = Duration::ZERO;
    pool.set_admin_state(0, AdminState::Maintenance, at);
    let drained = AgentSays { admin: AdminState::Drain, ..AgentSays::default() };
    pool.members()[1].set_agent(&drained, at);
    assert_eq!(with_down(&pool, &[2]), (Some(TierKind::Ordinary), vec![3]), "one of two is a half");
    let down = AgentSays { is_down: true, ..AgentSays::default() };
    pool.members()[1].set_agent(&down, at);
    assert_eq!(with_down(&pool, &[2]), (Some(TierKind::Panic), vec![2, 3]), "an agent is believed");
}
