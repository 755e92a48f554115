use proptest::prelude::*;

use super::*;

/// Gives each variable its own name in brackets as its value, and some no value.
struct Named;

impl Source for Named {
    fn put(&self, variable: &Variable, out: &mut Vec<u8>) {
        if *variable != Variable::ServerName {
            out.extend_from_slice(format!("[{}]", variable.name()).as_bytes());
        }
    }
}

fn rendered(text: &str) -> String {
    let mut out = Vec::new();
    Template::parse(text, 2).unwrap_or_else(|mistake| panic!("{text}: {mistake}")).render(&Named, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn variables_stand_anywhere_in_a_text_and_end_where_their_name_ends() {
    assert_eq!(rendered(""), "");
    assert_eq!(rendered("plain"), "plain");
    assert_eq!(rendered("$client_ip"), "[client_ip]");
    assert_eq!(rendered("https://$host$path$query"), "https://[host][path][query]");
    assert_eq!(rendered("$host:$listener_port"), "[host]:[listener_port]");
    assert_eq!(rendered("a$server_name.b"), "a.b");
    assert_eq!(rendered("$header.X-Tenant.internal"), "[header.x-tenant].internal");
    assert_eq!(rendered("$cookie.SID/$query.id"), "[cookie.SID]/[query.id]");
    assert_eq!(rendered("$query."), "[query].");
    assert_eq!(rendered("$host-a"), "[host]-a");
    assert_eq!(rendered("$user@$claim.realm_access.roles."), "[user]@[claim.realm_access.roles].");
    assert_eq!(rendered("$claim.sub..$claim.a-b/"), "[claim.sub]..[claim.a-b]/");
    assert_eq!(rendered("$1$2$10"), "[1][2][1]0");
}

#[test]
fn whether_anything_was_filled_in_is_told() {
    let any = |text: &str| {
        let mut out = Vec::new();
        let any = Template::parse(text, 0).unwrap().render_any(&Named, &mut out);
        (any, String::from_utf8(out).unwrap())
    };
    assert_eq!(any("a$server_name."), (false, "a.".to_owned()));
    assert_eq!(any("$server_name/$host"), (true, "/[host]".to_owned()));
    assert_eq!(any("a"), (false, "a".to_owned()));
}

#[test]
fn each_value_can_be_mended_and_the_text_around_it_stays() {
    let mut out = b"to ".to_vec();
    let template = Template::parse("($1)[$host]", 9).unwrap();
    template.render_mended(&Named, &mut out, |variable, out, start| {
        let value = out.split_off(start);
        out.extend(value.iter().map(|byte| match (variable, byte) {
            (Variable::Capture(_), b'[' | b']') => b'|',
            (_, byte) => *byte,
        }));
    });
    assert_eq!(String::from_utf8(out).unwrap(), "to (|1|)[[host]]");
    assert_eq!([template.captures(), Template::parse("$host", 9).unwrap().captures()], [1, 0]);
}

#[test]
fn two_dollars_are_one() {
    assert_eq!(rendered("$$"), "$");
    assert_eq!(rendered("US$$5, $$$$host, $$$host"), "US$5, $$host, $[host]");
    assert_eq!(Template::parse("a$$b", 0).unwrap().as_constant(), Some("a$b"));
    let constant = Template::constant("a$b");
    assert_eq!(constant, Template::parse(constant.as_written(), 0).unwrap());
}

#[test]
fn what_is_no_variable_is_a_mistake_and_never_sent_as_text() {
    let mistake = |text| Template::parse(text, 1).unwrap_err();
    assert_eq!(mistake("US$"), Mistake::Bare);
    assert_eq!(mistake("$ {host}"), Mistake::Bare);
    assert_eq!(mistake("${host}"), Mistake::Bare);
    assert_eq!(mistake("$hots"), Mistake::Unknown { name: "hots".to_owned() });
    assert_eq!(mistake("$host_name"), Mistake::Unknown { name: "host_name".to_owned() });
    assert_eq!(mistake("$Host"), Mistake::Unknown { name: "Host".to_owned() });
    assert_eq!(mistake("$header"), Mistake::Nameless { family: "header" });
    assert_eq!(mistake("$cookie.=a"), Mistake::Nameless { family: "cookie" });
    assert_eq!(mistake("$2"), Mistake::NoCapture { number: 2, captures: 1 });
    assert_eq!(mistake("$0"), Mistake::Unknown { name: "0".to_owned() });
}

#[test]
fn every_name_is_found_and_says_itself_again() {
    for name in NAMES {
        let template = Template::parse(&format!("${name}"), 0).unwrap();
        let names: Vec<String> = template.variables().map(Variable::name).collect();
        assert_eq!(names, [name]);
    }
}

#[test]
fn what_is_known_at_the_end_stands_in_lines_only() {
    let variables = |text: &str| -> Vec<String> {
        let template = Template::parse_line(text).unwrap_or_else(|mistake| panic!("{text}: {mistake}"));
        template.variables().map(Variable::name).collect()
    };
    assert_eq!(
        variables("$client_ip \"$method $target\" $status $response_header.X-App $total"),
        ["client_ip", "method", "target", "status", "response_header.x-app", "total"]
    );
    for outcome in Outcome::ALL {
        assert_eq!(variables(&format!("${}", outcome.name())), [outcome.name()]);
        let mistake = Template::parse(&format!("${}", outcome.name()), 0).unwrap_err();
        assert_eq!(mistake, Mistake::Unknown { name: outcome.name().to_owned() });
        assert!(Variable::of_name(outcome.name()).is_none(), "two variables are named {}", outcome.name());
    }
    assert_eq!(Template::parse_line("$user").unwrap().variables().next(), Some(&Variable::User));
    let unknown = Mistake::Unknown { name: "response_header".to_owned() };
    assert_eq!(Template::parse("$response_header.x", 0).unwrap_err(), unknown);
    assert_eq!(
        Template::parse_line("$response_header").unwrap_err(),
        Mistake::Nameless { family: "response_header" }
    );
    assert_eq!(Template::parse_line("$1").unwrap_err(), Mistake::NoCapture { number: 1, captures: 0 });
}

#[test]
fn control_bytes_and_outer_whitespace_do_not_reach_a_field() {
    let cleaned = |value: &[u8]| {
        let mut out = [b"x: ", value].concat();
        clean_field_value(&mut out, 3);
        String::from_utf8_lossy(&out[3..]).into_owned()
    };
    assert_eq!(cleaned(b"plain"), "plain");
    assert_eq!(cleaned(b"a\r\nset-cookie: b"), "a  set-cookie: b");
    assert_eq!(cleaned(b"\0\t a b\x7f "), "a b");
    assert_eq!(cleaned(b"\r\n"), "");
    assert_eq!(cleaned(b""), "");
}

proptest! {
    #[test]
    fn whatever_is_parsed_says_the_same_again_and_never_panics(text in ".{0,60}", captures in 0u8..10) {
        if let Ok(template) = Template::parse(&text, captures) {
            prop_assert_eq!(template.as_written(), text.as_str());
            let texts = template.pieces().windows(2).filter(|pair| matches!(pair, [Piece::Text(_), Piece::Text(_)]));
            prop_assert_eq!(texts.count(), 0);
        }
    }

    #[test]
    fn what_was_cleaned_is_a_field_value(value in proptest::collection::vec(any::<u8>(), 0..50)) {
        let mut out = b"x: ".to_vec();
        out.extend_from_slice(&value);
        clean_field_value(&mut out, 3);
        prop_assert!(out.starts_with(b"x: "));
        let value = &out[3..];
        prop_assert!(value.iter().all(|byte| *byte >= b' ' && *byte != 0x7f));
        prop_assert_eq!(value.trim_ascii(), value);
    }
}
