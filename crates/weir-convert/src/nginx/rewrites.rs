//! `set`, `if`, `rewrite` and `return`, in their order.

use weir_config::quoted;

use super::conditions::condition;
use super::conversion::Conversion;
use super::expression::{Compared, literal, translate};
use super::locations::LocationKind;
use super::proxy_target::{PathChange, QueryChange};
use super::request_test::RouteTest;
use super::route::NewRoute;
use super::scope::NginxScope;
use super::tree::NginxDirective;
use super::variables::{NginxPart, NginxPlace, parts};
use super::{headers, logs};

/// What becomes of some of the requests of a block.
pub struct RewriteStep<'c> {
    /// Which ones.
    pub test: RouteTest,
    /// What is known there.
    pub place: NginxPlace,
    /// The directive that says so.
    pub by: &'c NginxDirective,
    /// What is done.
    pub action: StepAction<'c>,
}

/// What a step does.
pub enum StepAction<'c> {
    /// Answers.
    Answer(NewRoute),
    /// Goes on to what the location does, perhaps with another path, and with the directives of an `if`.
    Content(PathChange, Option<&'c [NginxDirective]>),
    /// Looks for a location again, with another path.
    Search(String, QueryChange),
}

/// The steps of a block.
pub struct RewriteRun<'c> {
    /// In their order: the first that is for a request decides.
    pub steps: Vec<RewriteStep<'c>>,
    /// Whether nothing is left for what the block does besides.
    pub is_over: bool,
    /// Whether that is because a condition can't be asked, so that all are refused.
    pub is_closed: bool,
    /// What is known behind them.
    pub place: NginxPlace,
}

/// Where a block stands.
#[derive(Clone)]
pub struct RewriteBlock<'c, 's> {
    /// The scope of the block.
    pub scope: &'s NginxScope<'c>,
    /// How its location is compared; `None` for a server.
    pub kind: Option<&'s LocationKind>,
    /// A comment for its routes.
    pub comment: &'s str,
}

/// Runs through the directives of a block.
pub fn run<'c>(
    conversion: &mut Conversion<'_>,
    directives: &'c [NginxDirective],
    block: &RewriteBlock<'c, '_>,
    test: &RouteTest,
    place: &NginxPlace,
) -> RewriteRun<'c> {
    let mut run = RewriteRun { steps: Vec::new(), is_over: false, is_closed: false, place: place.clone() };
    for directive in directives {
        match directive.name.as_str() {
            "set" => set(conversion, directive, &mut run.place),
            "return" => {
                let route = answer(conversion, directive, block, test, &run.place);
                run.push(directive, test.clone(), StepAction::Answer(route));
                run.is_over = true;
            }
            "break" => {
                conversion.ledger.exact(directive, "no more rewrites behind it");
                run.push(directive, test.clone(), StepAction::Content(PathChange::Kept, None));
                run.is_over = true;
            }
            "rewrite" => rewrite(conversion, directive, block, test, &mut run),
            "if" => branch(conversion, directive, block, test, &mut run),
            _ => {}
        }
        if run.is_over {
            break;
        }
    }
    run
}

impl<'c> RewriteRun<'c> {
    fn push(&mut self, by: &'c NginxDirective, test: RouteTest, action: StepAction<'c>) {
        self.steps.push(RewriteStep { test, place: self.place.clone(), by, action });
    }
}

fn set(conversion: &mut Conversion<'_>, directive: &NginxDirective, place: &mut NginxPlace) {
    let name = directive.word(0).trim_start_matches('$').to_owned();
    let value = place.constant(directive.word(1));
    conversion.ledger.exact(directive, "its value stands where it is used");
    place.constants.insert(name, value);
}

/// `if`: the steps of its block, for the requests for which it holds.
fn branch<'c>(
    conversion: &mut Conversion<'_>,
    directive: &'c NginxDirective,
    block: &RewriteBlock<'c, '_>,
    test: &RouteTest,
    run: &mut RewriteRun<'c>,
) {
    let referers = super::referers::words_of(block.scope);
    let mut found = condition(conversion, directive, &NginxPlace { referers, ..run.place.clone() });
    let inner = directive.inner();
    let inside = match found.route(test) {
        Ok(inside) => {
            if directive.words.iter().any(|word| word.contains("invalid_referer")) {
                for of in block.scope.all("valid_referers") {
                    conversion.ledger.exact(of, "conditions of routes (`header.referer`)");
                }
            }
            inside
        }
        Err(why) if found != super::conditions::IfTest::Never && refuses(directive) => {
            let note = format!("{why}: CLOSED: ALL THAT COME THIS FAR are refused, until you say which");
            conversion.ledger.unsupported(directive, note);
            found = super::conditions::IfTest::Always;
            run.is_closed = true;
            test.clone()
        }
        Err(why) => {
            if found == super::conditions::IfTest::Never {
                conversion.ledger.exact(directive, "it never holds here");
                conversion.ledger.judge_below(inner, crate::DirectiveVerdict::Exact, "never reached");
                return;
            }
            conversion.ledger.unsupported(directive, format!("{why}: left out"));
            conversion.ledger.judge_below(
                inner,
                crate::DirectiveVerdict::Unsupported,
                "left out with its `if`",
            );
            forget(inner, &mut run.place);
            return;
        }
    };
    match found.doubt() {
        Some(doubt) if doubt.holds_for_fewer && refuses(directive) => {
            let note =
                format!("conditions of a route; {}: SOME SUCH REQUESTS MAY NOT BE REFUSED", doubt.text);
            conversion.ledger.unsupported(directive, note);
        }
        Some(doubt) => {
            conversion.ledger.approximate(directive, format!("conditions of a route; {}", doubt.text));
        }
        None => conversion.ledger.exact(directive, "conditions of a route"),
    }
    for conditional in inner.iter().filter(|it| it.name == "set") {
        let note =
            "a variable that is set under a condition has no counterpart: what depends on it is left out";
        conversion.ledger.unsupported(conditional, note);
    }
    forget(inner, &mut run.place);
    let below = super::rewrites::run(
        conversion,
        inner,
        &RewriteBlock { scope: &block.scope.within(inner), ..block.clone() },
        &inside,
        &run.place,
    );
    let is_over = below.is_over;
    run.steps.extend(below.steps);
    let does_more =
        inner.iter().any(|it| !matches!(it.name.as_str(), "set" | "return" | "rewrite" | "break" | "if"));
    if !is_over && does_more {
        run.push(directive, inside, StepAction::Content(PathChange::Kept, Some(inner)));
        run.is_over = found == super::conditions::IfTest::Always;
    }
    run.is_over |= is_over && found == super::conditions::IfTest::Always;
}

/// Whether an `if` refuses requests. One that looks at files is about what nginx serves itself.
fn refuses(of: &NginxDirective) -> bool {
    let looks_at_files = of.words.iter().any(|word| word.trim_start_matches(['(', '!']).starts_with('-'));
    !looks_at_files && of.inner().iter().any(|it| it.name == "return" && it.word(0).starts_with('4'))
}

/// Forgets the values of variables that a block sets: they depend on its condition.
fn forget(inner: &[NginxDirective], place: &mut NginxPlace) {
    for directive in inner.iter().filter(|it| it.name == "set") {
        place.constants.remove(directive.word(0).trim_start_matches('$'));
    }
}

/// The route of a `return`.
fn answer(
    conversion: &mut Conversion<'_>,
    directive: &NginxDirective,
    block: &RewriteBlock<'_, '_>,
    test: &RouteTest,
    place: &NginxPlace,
) -> NewRoute {
    let first = directive.word(0);
    let (status, text) = match first.parse::<u16>() {
        Ok(status) => (status, directive.words.get(1).map(String::as_str)),
        Err(_) => (302, Some(first)),
    };
    let mut route = NewRoute::of(test.clone(), block.comment);
    match (status, text) {
        (301 | 302 | 303 | 307 | 308, Some(text)) => {
            redirect(conversion, directive, (text, status), place, &mut route);
        }
        (444, _) => {
            route.set("respond", "{ status = 403 }");
            conversion.ledger.approximate(directive, "403: the connection is not closed without an answer");
        }
        (200..=599, text) => respond(conversion, directive, block, (status, text), &mut route),
        _ => {
            route.set("respond", "{ status = 501 }");
            conversion.ledger.unsupported(directive, "no status of an answer: 501");
        }
    }
    headers::of_response(conversion, block.scope, place, &mut route);
    logs::of_route(conversion, block.scope, &mut route);
    route
}

fn respond(
    conversion: &mut Conversion<'_>,
    directive: &NginxDirective,
    block: &RewriteBlock<'_, '_>,
    (status, text): (u16, Option<&str>),
    route: &mut NewRoute,
) {
    let mut keys = Vec::new();
    if status != 200 || text.is_none() {
        keys.push(format!("status = {status}"));
    }
    let Some(text) = text else {
        route.set("respond", format!("{{ {} }}", keys.join(", ")));
        conversion.ledger.exact(directive, "`respond`, without a page");
        return;
    };
    let (mut body, mut has_variable) = (String::new(), false);
    for part in parts(text) {
        match part {
            NginxPart::Text(text) => body.push_str(&text),
            NginxPart::Variable(name) => {
                has_variable = true;
                body.push_str(&format!("${name}"));
            }
        }
    }
    let kind = block.scope.one("default_type").map_or("text/plain", |directive| directive.word(0));
    if let Some(directive) = block.scope.one("default_type") {
        conversion.ledger.exact(directive, "`content_type` of `respond`");
    }
    if matches!(status, 204 | 205 | 304) {
        conversion.ledger.exact(directive, "`respond`, which has no body by its status");
    } else {
        keys.push(format!("body = {}", quoted(&body)));
        keys.push(format!("content_type = {}", quoted(kind)));
        match has_variable {
            true => conversion.ledger.unsupported(
                directive,
                "`respond`: its text is always the same, and the variables in it stand as they are",
            ),
            false => conversion.ledger.exact(directive, "`respond`"),
        }
    }
    route.set("respond", format!("{{ {} }}", keys.join(", ")));
}

/// Sets a redirect, or 501 where its target cannot be said.
fn redirect(
    conversion: &mut Conversion<'_>,
    directive: &NginxDirective,
    (target, status): (&str, u16),
    place: &NginxPlace,
    route: &mut NewRoute,
) {
    let target = target.replace("$http_host", "$host").replace("${http_host}", "$host");
    match conversion.template(&target, place) {
        Ok(to) if !to.is_empty() => {
            route.set("redirect", format!("{{ to = {}, status = {status} }}", quoted(&to)));
            conversion.ledger.exact(directive, "`redirect`");
        }
        Ok(_) => {
            route.set("respond", format!("{{ status = {status} }}"));
            conversion.ledger.exact(directive, "`respond`");
        }
        Err(bad) => {
            route.set("respond", "{ status = 501 }");
            let note = format!("Weir has no `${bad}` there: such requests are answered with 501");
            conversion.ledger.unsupported(directive, note);
        }
    }
}

/// Expressions that match every path.
const TAKES_ALL: [&str; 12] =
    ["^", ".*", "^.*", "^.*$", "^(.*)$", "^(.*)", "(.*)", "(.*)$", "^(/.*)$", "^(/.*)", "^/", "/"];

/// The replacement of a `rewrite`: path, and what becomes of the query.
fn replacement(text: &str) -> (String, QueryChange) {
    match text.split_once('?') {
        None => (text.to_owned(), QueryChange::Kept),
        Some((path, query)) => match query.strip_suffix('?') {
            Some(query) => (path.to_owned(), QueryChange::Replaced(query.to_owned())),
            None if query.is_empty() => (path.to_owned(), QueryChange::Replaced(String::new())),
            None => (path.to_owned(), QueryChange::Added(query.to_owned())),
        },
    }
}

fn rewrite<'c>(
    conversion: &mut Conversion<'_>,
    directive: &'c NginxDirective,
    block: &RewriteBlock<'c, '_>,
    test: &RouteTest,
    run: &mut RewriteRun<'c>,
) {
    let flag = directive.word(2);
    let moved = slash_before_group(directive.word(0), directive.word(1));
    let (expression, target) = match &moved {
        Some((expression, target)) => (expression.as_str(), target.as_str()),
        None => (directive.word(0), directive.word(1)),
    };
    let leads_away = matches!(flag, "redirect" | "permanent")
        || ["http://", "https://", "$scheme"].iter().any(|front| target.starts_with(front));
    if let (Some(LocationKind::Prefix(prefix)), "break") = (block.kind, flag)
        && let Some(new) = new_prefix(prefix, expression, target)
    {
        conversion.ledger.exact(directive, "`rewrite = { prefix = … }`");
        run.push(directive, test.clone(), StepAction::Content(PathChange::Prefix(new), None));
        run.is_over = true;
        return;
    }
    let translated = match translate(expression, false, Compared::Path) {
        Ok(translated) if translated.is_same => translated,
        other => {
            let why = other.map_or_else(|why| why, |_| "it takes more than linear time".to_owned());
            let note = format!("`{expression}` has no counterpart ({why}): left out");
            conversion.ledger.unsupported(directive, note);
            return;
        }
    };
    let takes_all = TAKES_ALL.contains(&expression);
    let mut place = run.place.clone();
    place.group_count = translated.groups.len();
    place.whole_path = (takes_all && place.group_count == 1).then_some(1);
    place.groups = translated.groups;
    let narrowed = match takes_all {
        true => Some(test.clone()),
        false => test.and_path_first(&format!("~{}", translated.text)),
    };
    let Some(narrowed) = narrowed else {
        conversion.ledger.unsupported(
            directive,
            "a route cannot ask for this together with what stands around it: left out",
        );
        return;
    };
    let (path, query) = replacement(target);
    let by = |action, test| RewriteStep { test, place: place.clone(), by: directive, action };
    if leads_away {
        let mut route = NewRoute::of(narrowed.clone(), block.comment);
        let status = if flag == "permanent" { 301 } else { 302 };
        let to = match &query {
            QueryChange::Kept if path.contains("request_uri") => path.clone(),
            QueryChange::Kept => format!("{path}$is_args$args"),
            QueryChange::Replaced(text) if text.is_empty() => path.clone(),
            QueryChange::Replaced(text) | QueryChange::Added(text) => format!("{path}?{text}"),
        };
        redirect(conversion, directive, (&to, status), &place, &mut route);
        if let QueryChange::Added(_) = query {
            conversion
                .ledger
                .approximate(directive, "`redirect`, without the query of the request, which nginx adds");
        }
        headers::of_response(conversion, block.scope, &place, &mut route);
        logs::of_route(conversion, block.scope, &mut route);
        run.steps.push(by(StepAction::Answer(route), narrowed));
    } else {
        match (&query, flag) {
            (QueryChange::Added(_), _) => conversion.ledger.approximate(
                directive,
                "`rewrite`: the new parameter stands behind those of the request, nginx puts it in front",
            ),
            _ => conversion.ledger.exact(directive, "`rewrite`"),
        }
        let action = match flag {
            "break" => StepAction::Content(PathChange::Whole(path, query), None),
            _ => StepAction::Search(path, query),
        };
        run.steps.push(by(action, narrowed));
    }
    run.is_over = takes_all;
}

/// The expression with the slash that its first group begins with in front of that, and the replacement with
/// the slash that it begins with then: Weir's paths begin with one (`^/api(/.*)$` with `$1`).
fn slash_before_group(expression: &str, target: &str) -> Option<(String, String)> {
    let rest = target.strip_prefix("$1").filter(|rest| !rest.contains("$1"))?;
    let at = expression.find('(')?;
    let (before, group) = expression.split_at(at);
    // A path begins with a slash, whatever else the group takes.
    for any in ["(.+)", "(.*)"] {
        if let (Some(behind), "^", false) = (group.strip_prefix(any), before, TAKES_ALL.contains(&expression))
        {
            return Some((format!("^/(.*){behind}"), format!("/$1{rest}")));
        }
    }
    let inner = group.strip_prefix("(/")?;
    let (inside, behind) = inner.split_once(')')?;
    let is_closed = inside.matches('[').count() == inside.matches(']').count() && !inside.ends_with('\\');
    let is_plain = is_closed && !inside.contains(['(', '|']) && !inside.starts_with(['?', '*', '+', '{']);
    let is_once =
        !behind.starts_with(['?', '*', '+', '{']) && !behind.contains('|') && !before.contains(['|', '\\']);
    (is_plain && is_once && !TAKES_ALL.contains(&expression))
        .then(|| (format!("{before}/({inside}){behind}"), format!("/$1{rest}")))
}

/// What takes the place of a location's prefix, where a rewrite does no more than that.
fn new_prefix(prefix: &str, expression: &str, target: &str) -> Option<String> {
    let front = format!("^{}", literal(prefix));
    let plain = format!("^{prefix}");
    let rest = expression.strip_prefix(front.as_str()).or_else(|| expression.strip_prefix(plain.as_str()))?;
    let new = target.strip_suffix("$1")?;
    (matches!(rest, "(.*)" | "(.*)$") && !new.contains(['$', '?']) && new.starts_with('/'))
        .then(|| new.to_owned())
}
