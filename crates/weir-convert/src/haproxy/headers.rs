//! Changes of header fields, in the order in which rules make them.

use weir_config::{is_framing_field, is_written_request_field};

use super::output::{Keys, inline, is_token, said, said_all};

/// Which message is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The request towards the backend.
    Request,
    /// The response towards the client.
    Response,
}

/// A change of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The field, in lower case.
    pub name: String,
    /// What is done.
    pub act: Act,
}

/// What is done to a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// It gets this value.
    Set(String),
    /// It gets this one beside others.
    Add(String),
    /// It is taken out.
    Remove,
    /// Values of it become others.
    Replace(Replaced),
}

/// Values of a field that become others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Which.
    pub matching: String,
    /// What they become.
    pub to: String,
    /// Whether each element of a list is one.
    pub each_value: bool,
}

/// What becomes of a change that a rule asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This change.
    Edit(Edit),
    /// A key of the route, or of where the rule stands.
    Key(&'static str, String),
    /// Nothing, since Weir does it anyway.
    Anyway(String),
}

/// What a change becomes. `Err` says why Weir does not make it.
pub fn outcome(side: Side, name: &str, act: Act) -> Result<Outcome, String> {
    let name = name.to_ascii_lowercase();
    if !is_token(&name) {
        return Err(format!("`{name}` is no name of a field"));
    }
    let act = match act {
        Act::Set(value) if value.trim().is_empty() => Act::Remove,
        Act::Set(value) => Act::Set(value.trim().to_owned()),
        Act::Add(value) => Act::Add(value.trim().to_owned()),
        other => other,
    };
    if act == Act::Add(String::new()) {
        return Ok(Outcome::Anyway("a field without a value is left out".to_owned()));
    }
    if matches!(act, Act::Replace(_)) {
        return replaced(side, Edit { name, act });
    }
    let removes = act == Act::Remove;
    let anyway = |note: &str| Ok(Outcome::Anyway(note.to_owned()));
    match (name.as_str(), side) {
        ("via", _) if removes => Ok(Outcome::Key("via", "false".to_owned())),
        ("forwarded", Side::Request) if removes => Ok(Outcome::Key("forwarded", "false".to_owned())),
        ("via", _) | ("forwarded", Side::Request) => anyway("Weir writes this field itself"),
        ("host", Side::Request) => match act {
            Act::Set(value) => Ok(Outcome::Key("backend_host", said(&value))),
            _ => Err("a request has one host".to_owned()),
        },
        ("x-forwarded-for", Side::Request) if !removes => anyway(
            "Weir writes `x-forwarded-for` for every request; `trusted_proxies` says whose own value is believed",
        ),
        ("x-request-id", Side::Request) => anyway("Weir passes `x-request-id` on, or makes one"),
        ("proxy", Side::Request) if removes => anyway("Weir never passes it on"),
        (framing, _) if is_framing_field(framing) => {
            Err("it describes the connection or the body, which Weir writes itself".to_owned())
        }
        (single, Side::Request) if is_written_request_field(single) => {
            let act = if let Act::Add(value) = act { Act::Set(value) } else { act };
            Ok(Outcome::Edit(Edit { name, act }))
        }
        _ => Ok(Outcome::Edit(Edit { name, act })),
    }
}

/// Values can be replaced of what others send, and not of what Weir writes itself.
fn replaced(side: Side, edit: Edit) -> Result<Outcome, String> {
    let name = edit.name.as_str();
    let of_weir = ["forwarded", "host", "x-forwarded-for", "x-request-id"];
    let is_written = of_weir.contains(&name) || is_written_request_field(name);
    match name == "via" || is_framing_field(name) || (side == Side::Request && is_written) {
        true => Err("Weir writes this field itself, or needs it as it is".to_owned()),
        false => Ok(Outcome::Edit(edit)),
    }
}

/// What several changes of one side come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    edits: Vec<Edit>,
}

impl Edits {
    /// Makes one more change.
    pub fn push(&mut self, edit: Edit) {
        self.edits.push(edit);
    }

    /// Makes the changes of another list, after these.
    pub fn extend(&mut self, more: &Edits) {
        self.edits.extend(more.edits.iter().cloned());
    }

    /// Says the keys of a listener, a pool or a route, and what of it they can't say.
    pub fn say(&self, side: Side, keys: &mut Keys) -> Vec<String> {
        let mut lost = Vec::new();
        let word = if side == Side::Request { "request" } else { "response" };
        let (mut removed, mut set, mut added) = (Vec::new(), Vec::new(), Vec::new());
        let mut replaced: Vec<String> = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for edit in &self.edits {
            if !names.contains(&edit.name.as_str()) {
                names.push(&edit.name);
            }
        }
        for name in names {
            let (rules, missed) = self.replaced(name);
            replaced.extend(rules);
            lost.extend(missed);
            let (replaces, values) = self.net(name);
            let mut values = values.into_iter();
            match (replaces, values.len()) {
                (true, 0) => removed.push(name.to_owned()),
                (true, _) => set.extend(values.next().map(|value| (name.to_owned(), said(&value)))),
                (false, _) => {}
            }
            let more: Vec<String> = values.collect();
            match (name, more.len()) {
                (_, 0) => {}
                ("set-cookie", 2..) => {
                    lost.push("one `set-cookie` is added at each place, here the first".to_owned());
                    added.push((name.to_owned(), said(&more[0])));
                }
                // Lines of a field are one list.
                _ => added.push((name.to_owned(), said(&more.join(", ")))),
            }
        }
        if !removed.is_empty() {
            keys.set(&format!("remove_{word}_header"), said_all(&removed));
        }
        if !set.is_empty() {
            keys.set(&format!("set_{word}_header"), inline(&set));
        }
        if !added.is_empty() {
            keys.set(&format!("add_{word}_header"), inline(&added));
        }
        if !replaced.is_empty() {
            keys.set(&format!("replace_{word}_header"), format!("[{}]", replaced.join(", ")));
        }
        lost
    }

    /// Whether a value has one of these variables.
    pub fn have_any(&self, variables: &[&str]) -> bool {
        self.edits.iter().any(|edit| match &edit.act {
            Act::Set(value) | Act::Add(value) | Act::Replace(Replaced { to: value, .. }) => {
                variables.iter().any(|variable| value.contains(variable))
            }
            Act::Remove => false,
        })
    }

    /// Whether what is there of a field is replaced, and the values that it gets.
    fn net(&self, name: &str) -> (bool, Vec<String>) {
        let mut net = (false, Vec::new());
        for edit in self.edits.iter().filter(|edit| edit.name == name) {
            match &edit.act {
                Act::Set(value) => net = (true, vec![value.clone()]),
                Act::Add(value) => net.1.push(value.clone()),
                Act::Remove => net = (true, Vec::new()),
                Act::Replace(_) => {}
            }
        }
        net
    }

    /// The rules that replace values of a field that others sent, one after the other, and what of them there
    /// is nothing like.
    fn replaced(&self, name: &str) -> (Vec<String>, Option<String>) {
        let mut rules: Vec<&Replaced> = Vec::new();
        let (mut is_sent, mut is_written, mut missed) = (true, false, false);
        for edit in self.edits.iter().filter(|edit| edit.name == name) {
            match &edit.act {
                Act::Set(_) | Act::Remove => {
                    rules.clear();
                    is_sent = false;
                    is_written = edit.act != Act::Remove;
                }
                Act::Add(_) => is_written = true,
                Act::Replace(rule) => {
                    missed |= is_written;
                    rules.extend(is_sent.then_some(rule));
                }
            }
        }
        let count = rules.len();
        let tables = rules.iter().enumerate().map(|(at, rule)| {
            let mut keys: Vec<(String, String)> =
                [("name", name), ("match", &rule.matching), ("to", &rule.to)]
                    .map(|(key, text)| (key.to_owned(), said(text)))
                    .into();
            keys.extend(rule.each_value.then(|| ("each_value".to_owned(), "true".to_owned())));
            keys.extend((at + 1 < count).then(|| ("last".to_owned(), "false".to_owned())));
            inline(&keys)
        });
        let note =
            format!("`{name}` stays as a rule before has set it: what is replaced is what others sent");
        (tables.collect(), missed.then_some(note))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_one_field_come_to_what_they_do_one_after_the_other() {
        let mut edits = Edits::default();
        let mut change = |name: &str, act: Act| edits.push(Edit { name: name.to_owned(), act });
        change("x-a", Act::Set("1".to_owned()));
        change("x-a", Act::Set("2".to_owned()));
        change("x-b", Act::Set("1".to_owned()));
        change("x-b", Act::Remove);
        change("x-c", Act::Remove);
        change("x-c", Act::Add("3".to_owned()));
        change("x-d", Act::Add("4".to_owned()));
        let mut keys = Keys::default();
        assert!(edits.say(Side::Response, &mut keys).is_empty());
        let mut body = String::new();
        keys.write(&mut body);
        assert_eq!(
            body,
            "remove_response_header = \"x-b\"\nset_response_header = { x-a = \"2\", x-c = \"3\" }\n\
             add_response_header = { x-d = \"4\" }\n"
        );
    }

    #[test]
    fn values_are_replaced_one_after_the_other_until_a_rule_sets_the_field() {
        let mut edits = Edits::default();
        let mut change = |name: &str, act: Act| edits.push(Edit { name: name.to_owned(), act });
        let rule = |matching: &str, each_value: bool| {
            Act::Replace(Replaced { matching: matching.to_owned(), to: "$1".to_owned(), each_value })
        };
        change("x-a", rule("~(a)", false));
        change("x-a", rule("~(b)", true));
        change("x-b", rule("~(c)", false));
        change("x-b", Act::Set("1".to_owned()));
        let mut keys = Keys::default();
        assert!(edits.say(Side::Response, &mut keys).is_empty());
        assert_eq!(
            keys.get("replace_response_header"),
            Some(
                "[{ name = \"x-a\", match = \"~(a)\", to = \"$1\", last = false }, \
                 { name = \"x-a\", match = \"~(b)\", to = \"$1\", each_value = true }]"
            )
        );
        edits.push(Edit { name: "x-b".to_owned(), act: rule("~(d)", false) });
        assert_eq!(edits.say(Side::Response, &mut keys).len(), 1, "what a rule has set stays");
        outcome(Side::Request, "Host", rule("~(d)", false)).expect_err("Weir writes it");
    }

    #[test]
    fn fields_that_weir_writes_itself_are_left_to_it() {
        let set = |name: &str| outcome(Side::Request, name, Act::Set("v".to_owned()));
        assert!(matches!(set("X-Forwarded-For"), Ok(Outcome::Anyway(_))));
        assert_eq!(set("Host"), Ok(Outcome::Key("backend_host", "\"v\"".to_owned())));
        set("Connection").expect_err("it is of the connection");
        let added = outcome(Side::Request, "X-Forwarded-Proto", Act::Add("https".to_owned()));
        assert!(matches!(added, Ok(Outcome::Edit(Edit { act: Act::Set(_), .. }))));
    }
}
