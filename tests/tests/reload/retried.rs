//! Requests whose first try outlasts the pool that it was made in.

use weir_tests::dialogue::{ScriptedBackend, Setup, Weir, Wire, free_address};

use super::named;

const CONFIG: &str = r#"
[runtime]
workers = 1
[listener.web]
bind = "@web"
pool = "app"
[pool.app]
backends = ["@old"]
balance = "first"
health = { check = "off", passive = "off" }
"#;

/// A client whose request is with the one backend there is, which leaves without an answer once `changes` has
/// been made.
fn answered_after(changes: impl FnOnce(&mut Weir)) -> (u16, String) {
    let old = ScriptedBackend::start();
    let mut weir = Setup::of(CONFIG).with("old", old.address()).start();
    let mut client: Wire = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut request = old.accepts();
    request.receives_request();
    changes(&mut weir);
    drop((old, request));
    let answer = client.receives_response();
    (answer.status, answer.text())
}

/// It was asked for among the backends of then, of which none is there any more.
#[test]
fn a_request_that_fails_behind_a_reload_is_sent_to_a_backend_of_the_pool_as_it_is_by_then() {
    let new = named("new");
    let answer = answered_after(|weir| {
        weir.knows("new", new.address());
        weir.reloads(&CONFIG.replace("@old", "@new"));
    });
    assert_eq!(answer, (200, "new".to_owned()));
}

#[test]
fn a_newcomer_that_fails_as_well_is_not_asked_again_where_there_is_another() {
    let new = named("new");
    let answer = answered_after(|weir| {
        weir.knows("nobody", free_address());
        weir.knows("new", new.address());
        weir.reloads(&CONFIG.replace("\"@old\"", "\"@nobody\", \"@new\""));
    });
    assert_eq!(answer, (200, "new".to_owned()));
}

#[test]
fn a_request_that_fails_behind_a_reload_which_takes_its_pool_out_is_tried_where_it_was() {
    let other = named("other");
    let answer = answered_after(|weir| {
        weir.knows("other", other.address());
        weir.reloads(&CONFIG.replace("@old", "@other").replace("app", "other"));
    });
    assert_eq!(answer.0, 502);
}
