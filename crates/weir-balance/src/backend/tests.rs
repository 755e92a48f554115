use super::*;

fn backend(max_connections: Option<u32>) -> Backend {
    Backend::new("10.0.0.1:80", BackendSettings { max_connections, ..BackendSettings::default() })
}

#[test]
fn the_limit_is_exact_and_a_release_makes_room_again() {
    let backend = backend(Some(2));
    assert!(backend.try_acquire(UNLIMITED) && backend.try_acquire(UNLIMITED));
    assert!(!backend.try_acquire(UNLIMITED));
    backend.release();
    assert!(backend.try_acquire(UNLIMITED));
    assert_eq!((backend.in_flight(), backend.picks()), (2, 3));
}

#[test]
fn a_lowered_limit_lets_running_work_go_on_but_admits_none() {
    let backend = backend(None);
    for _ in 0..5 {
        assert!(backend.try_acquire(UNLIMITED));
    }
    backend.set_max_connections(Some(3));
    assert_eq!(backend.in_flight(), 5);
    assert!(!backend.try_acquire(UNLIMITED));
    (0..3).for_each(|_| backend.release());
    assert!(backend.try_acquire(UNLIMITED));
}

#[test]
fn slow_start_scales_the_limit_but_leaves_room_for_one() {
    let backend = backend(Some(5));
    backend.set_ramp_percent(10);
    assert!(backend.try_acquire(UNLIMITED));
    assert!(!backend.try_acquire(UNLIMITED));
    backend.set_ramp_percent(FULL_PERCENT);
    assert!(backend.try_acquire(UNLIMITED));
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "released more often than picked"))]
fn a_release_without_a_pick_never_wraps_the_count() {
    let backend = backend(Some(2));
    backend.release();
    assert_eq!((backend.in_flight(), backend.picks()), (0, 0));
}

#[test]
fn the_first_verdict_after_start_does_not_begin_slow_start_but_a_recovery_does() {
    let backend = backend(None);
    backend.set_health(Health::Up, Duration::from_secs(1));
    assert_eq!(backend.slow_start_began(), None);
    backend.set_health(Health::Down, Duration::from_secs(2));
    backend.set_health(Health::Up, Duration::from_secs(3));
    assert_eq!(backend.slow_start_began(), Some(Duration::from_secs(3)));
}

#[test]
fn before_the_first_verdict_the_assumption_decides() {
    assert!(backend(None).is_up());
    let cautious = Backend::new("a:1", BackendSettings { assumed_up: false, ..BackendSettings::default() });
    assert!(!cautious.is_up());
    cautious.set_health(Health::Up, Duration::ZERO);
    assert!(cautious.is_up());
}

#[test]
fn a_weight_above_the_maximum_is_refused_and_changes_nothing() {
    let backend = backend(None);
    assert_eq!(
        backend.set_weight(257).unwrap_err().to_string(),
        "weight 257 is too large, expected 0 to 256"
    );
    assert_eq!(backend.weight(), 1);
}

#[test]
fn a_backend_leaves_from_the_first_word_on_until_it_is_taken_back() {
    let backend = backend(None);
    let at = Duration::from_secs;
    assert_eq!(backend.leaving_since(), None);
    backend.set_admin_state(AdminState::Drain, at(3));
    backend.set_admin_state(AdminState::Maintenance, at(5));
    assert_eq!((backend.leaving_since(), backend.has_left()), (Some(at(3)), false));
    backend.set_left(true, at(2));
    backend.set_left(true, at(9));
    assert_eq!((backend.leaving_since(), backend.has_left()), (Some(at(2)), true));
    backend.set_left(false, at(10));
    backend.set_admin_state(AdminState::Ready, at(11));
    assert_eq!(backend.leaving_since(), None);
}
