//! Choosing by role, in a pool whose backends are servers of a replicated database.

use std::sync::Arc;
use std::time::Duration;
use weir_balance::*;

const START: Duration = Duration::from_secs(1);

const WRITE: PickInput<'static> = wanting(WantedRole::Primary);
const READ: PickInput<'static> = wanting(WantedRole::Read);

const fn wanting(role: WantedRole) -> PickInput<'static> {
    PickInput { now: START, draw: [0; 2], key: None, sticky: None, exclude: &[], role: Some(role) }
}

fn settings(readers: Readers) -> Settings {
    Settings { readers: Some(readers), ..Settings::default() }
}

/// A primary `a` and secondaries `b` and `c`.
fn three(settings: Settings) -> Picker {
    let members = ["a:1", "b:1", "c:1"].map(|name| Arc::new(Backend::new(name, BackendSettings::default())));
    let picker = Picker::new(Arc::new(Pool::new(settings, members.to_vec(), START)));
    roles(&picker, [Some(Role::Primary), Some(Role::Secondary), Some(Role::Secondary)]);
    picker
}

fn roles(picker: &Picker, roles: [Option<Role>; 3]) {
    picker.pool().set_roles(roles.into_iter().enumerate());
    picker.pool().refresh(START);
}

fn health(picker: &Picker, index: usize, health: Health) {
    picker.pool().set_health(index, health, START);
    picker.pool().refresh(START);
}

/// The names that so many choices give, in turn; each is given back at once.
fn names(picker: &Picker, input: &PickInput<'_>, times: usize) -> String {
    let name = |_| match picker.pick(input) {
        Ok(pick) => {
            picker.pool().release(pick.index);
            picker.pool().members()[pick.index].address().trim_end_matches(":1").to_owned()
        }
        Err(none) => format!("({none})"),
    };
    (0..times).map(name).collect()
}

#[test]
fn writes_go_to_the_primary_alone_and_reads_to_the_secondaries_in_turn() {
    let picker = three(settings(Readers::Secondaries));
    assert_eq!(names(&picker, &WRITE, 3), "aaa");
    let read = names(&picker, &READ, 4);
    assert!(read == "bcbc" || read == "cbcb", "{read}");
}

#[test]
fn reads_go_to_the_primary_once_no_secondary_is_up_and_leave_it_when_one_is() {
    let picker = three(settings(Readers::Secondaries));
    health(&picker, 1, Health::Down);
    assert_eq!(names(&picker, &READ, 2), "cc");
    health(&picker, 2, Health::Down);
    assert_eq!(names(&picker, &READ, 2), "aa");
    health(&picker, 1, Health::Up);
    assert_eq!(names(&picker, &READ, 2), "bb");
}

#[test]
fn a_read_that_failed_on_every_secondary_goes_to_the_primary() {
    let picker = three(settings(Readers::Secondaries));
    assert_eq!(names(&picker, &PickInput { exclude: &[1, 2], ..READ }, 2), "aa");
    assert_eq!(picker.pick(&PickInput { exclude: &[0, 1, 2], ..READ }), Err(NoPick::AllExcluded));
}

#[test]
fn reads_from_all_take_the_primary_in_turn() {
    let picker = three(settings(Readers::All));
    let mut read: Vec<char> = names(&picker, &READ, 6).chars().collect();
    read.sort_unstable();
    assert_eq!(read, ['a', 'a', 'b', 'b', 'c', 'c']);
}

#[test]
fn without_a_primary_nothing_is_written_and_reads_go_on() {
    let picker = three(settings(Readers::Secondaries));
    roles(&picker, [None, Some(Role::Secondary), Some(Role::Secondary)]);
    assert_eq!(picker.pick(&WRITE), Err(NoPick::NoneInRole));
    assert!(!names(&picker, &READ, 6).contains(['a', '(']), "a server without a role is not read from");
    roles(&picker, [None, None, None]);
    assert_eq!(picker.pick(&READ), Err(NoPick::NoneInRole));
}

#[test]
fn a_primary_that_is_down_is_no_primary_but_is_tried_where_it_merely_answered_late() {
    let picker = three(settings(Readers::Secondaries));
    health(&picker, 0, Health::Down);
    assert_eq!(picker.pick(&WRITE), Err(NoPick::NoneInRole));
    picker.pool().members()[0].set_late(true);
    picker.pool().refresh(START);
    let pick = picker.pick(&WRITE).unwrap();
    assert_eq!((pick.index, pick.tier, pick.on_trial), (0, TierKind::LastResort, true));
}

#[test]
fn the_role_passes_on_without_a_moment_with_two_primaries() {
    let picker = three(settings(Readers::Secondaries));
    let pool = picker.pool();
    std::thread::scope(|scope| {
        let refresher = scope.spawn(|| {
            for _ in 0..2_000 {
                pool.refresh(START);
                let statuses = pool.status();
                let primaries = statuses.iter().filter(|one| one.role == Some(Role::Primary)).count();
                assert_eq!(primaries, 1, "{statuses:?}");
            }
        });
        for turn in 0.. {
            let now = |index| Some(if index == turn % 3 { Role::Primary } else { Role::Secondary });
            pool.set_roles((0..3).map(|index| (index, now(index))));
            if refresher.is_finished() {
                break;
            }
        }
    });
}

#[test]
fn what_the_config_settles_comes_before_what_was_found_out() {
    let settled = |role| Backend::new("a:1", BackendSettings { role, ..BackendSettings::default() });
    let backend = settled(Some(Role::Primary));
    backend.set_role(Some(Role::Secondary));
    assert_eq!(backend.role(), Some(Role::Primary));
    backend.reconfigure(BackendSettings::default());
    assert_eq!(backend.role(), Some(Role::Secondary), "found out before, and true still");
}

#[test]
fn roles_outlive_a_reload() {
    let picker = three(settings(Readers::Secondaries));
    let members = picker.pool().members().to_vec();
    let pool = picker.pool().rebuilt(settings(Readers::All), members, START);
    assert_eq!(names(&Picker::new(Arc::new(pool)), &WRITE, 2), "aa");
}

#[test]
fn a_pool_without_roles_makes_nothing_of_them() {
    let picker = three(Settings::default());
    let generation = picker.pool().generation();
    roles(&picker, [None, Some(Role::Primary), None]);
    assert_eq!(picker.pool().generation(), generation, "no view was made for it");
    let mut chosen: Vec<char> = names(&picker, &WRITE, 3).chars().collect();
    chosen.sort_unstable();
    assert_eq!(chosen, ['a', 'b', 'c']);
    assert_eq!(picker.pool().status()[1].role, None);
}

#[test]
fn a_sticky_client_is_not_kept_on_a_backend_of_another_role() {
    let picker = three(settings(Readers::Secondaries));
    let sticky = Some(picker.pool().members()[1].id());
    assert_eq!(names(&picker, &PickInput { sticky, ..WRITE }, 1), "a");
    assert_eq!(names(&picker, &PickInput { sticky, ..READ }, 3), "bbb");
}

#[test]
fn what_runs_stays_where_the_role_is_and_leaves_where_it_was() {
    let picker = three(settings(Readers::Secondaries));
    let pool = picker.pool();
    assert!(pool.keeps_in_role(0, WantedRole::Primary) && !pool.keeps_in_role(1, WantedRole::Primary));
    roles(&picker, [Some(Role::Secondary), Some(Role::Primary), Some(Role::Secondary)]);
    assert!(!pool.keeps_in_role(0, WantedRole::Primary) && pool.keeps_in_role(0, WantedRole::Read));
    pool.set_admin_state(2, AdminState::Drain, START);
    pool.refresh(START);
    assert!(!pool.keeps_in_role(2, WantedRole::Read));
}

#[test]
fn explain_says_the_roles_and_why_the_others_were_not_chosen() {
    let picker = three(settings(Readers::Secondaries));
    let text = picker.explain(&WRITE).to_string();
    assert!(text.contains("a:1 ready primary, 0 in flight"), "{text}");
    assert!(
        text.contains("b:1 ready secondary, 0 in flight, weight 1: not chosen, not the primary"),
        "{text}"
    );
    let text = picker.explain(&READ).to_string();
    assert!(text.contains("not chosen, the primary, and a secondary takes new work"), "{text}");
}
