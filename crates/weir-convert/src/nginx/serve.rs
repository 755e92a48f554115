//! A server: its routes, in the order in which nginx decides.

use super::access::answer_fields;
use super::content::{LocationContent, of_location};
use super::conversion::Conversion;
use super::expression::Translated;
use super::locations::{LocationKind, PlacedLocation, encoded, in_order};
use super::proxy_target::PathChange;
use super::request_test::RouteTest;
use super::rewrites::{RewriteBlock, StepAction, run};
use super::route::NewRoute;
use super::scope::NginxScope;
use super::timers::NginxTimers;
use super::tree::NginxDirective;
use super::variables::{NginxPart, NginxPlace, parts};
use crate::DirectiveVerdict;

/// A server as its routes need it.
pub struct NginxServer<'c> {
    /// Its directive.
    pub directive: &'c NginxDirective,
    /// Its scope.
    pub scope: NginxScope<'c>,
    /// Its locations in order.
    pub locations: Vec<PlacedLocation<'c>>,
    /// The timers of its listener.
    pub timers: NginxTimers,
}

impl<'c> NginxServer<'c> {
    /// A server within `http`.
    pub fn of(outer: &NginxScope<'c>, directive: &'c NginxDirective, timers: NginxTimers) -> NginxServer<'c> {
        let scope = outer.within(directive.inner());
        NginxServer { directive, scope, locations: in_order(directive.inner()), timers }
    }

    /// The scope of a location.
    pub fn scope_of(&self, location: &PlacedLocation<'c>) -> NginxScope<'c> {
        location.chain.iter().fold(self.scope.clone(), |scope, each| scope.within(each.inner()))
    }
}

/// Requests on their way to a location.
struct Arriving {
    test: RouteTest,
    place: NginxPlace,
    /// What was done to their path.
    change: PathChange,
}

/// The routes of a server for these hosts.
pub fn routes<'c>(
    conversion: &mut Conversion<'c>,
    server: &NginxServer<'c>,
    hosts: &[String],
    place: &NginxPlace,
) -> Vec<NewRoute> {
    let mut routes = Vec::new();
    let test = RouteTest::of_hosts(hosts);
    conversion.ledger.exact(server.directive, "routes of a listener");
    let comment = comment(server.directive, None);
    let block = RewriteBlock { scope: &server.scope, kind: None, comment: &comment };
    let before = run(conversion, server.directive.inner(), &block, &test, place);
    let place = before.place;
    for step in before.steps {
        match step.action {
            StepAction::Answer(route) => conversion.add(route, step.by, &mut routes),
            StepAction::Search(path, query) => {
                let change = PathChange::Whole(path, query);
                let arriving = Arriving { test: step.test, place: step.place, change };
                search(conversion, server, step.by, arriving, &mut routes);
            }
            StepAction::Content(PathChange::Kept, _) => {
                let note =
                    "of a server: holds for its `return` and `rewrite` alone, what else is in it is left out";
                conversion.ledger.approximate(step.by, note);
            }
            StepAction::Content(..) => {
                let note = "`break` of a server has no counterpart: such requests are answered with 501";
                conversion.ledger.unsupported(step.by, note);
                conversion.add(NewRoute::answering(step.test, comment.clone(), 501), step.by, &mut routes);
            }
        }
    }
    if before.is_closed {
        for location in server.directive.inner().iter().filter(|it| it.name == "location") {
            conversion.ledger.unsupported(location, CLOSED);
            conversion.ledger.void(location.inner(), CLOSED);
        }
        return routes;
    }
    if before.is_over {
        let note = "never reached: the server answers before its locations are looked at";
        let locations = server.directive.inner().iter().filter(|it| it.name == "location");
        for location in locations {
            conversion.ledger.exact(location, note);
            conversion.ledger.judge_below(location.inner(), DirectiveVerdict::Exact, note);
        }
        return routes;
    }
    for location in &server.locations {
        one_location(conversion, server, location, (&test, &place), &mut routes);
    }
    let is_whole =
        |it: &PlacedLocation<'_>| it.chain.len() == 1 && it.kind == LocationKind::Prefix("/".to_owned());
    if !server.locations.iter().any(is_whole) {
        // Without a location nginx looks for a file.
        let mut route = NewRoute::answering(test, format!("{comment}: no location"), 404);
        super::headers::of_response(conversion, &server.scope, &place, &mut route);
        super::logs::of_route(conversion, &server.scope, &mut route);
        if let Some(root) = server.scope.own("root").first() {
            let note = "Weir serves no files: what no location takes is answered with 404";
            conversion.ledger.unsupported(root, note);
        }
        conversion.add(route, server.directive, &mut routes);
    }
    routes
}

/// Said of what an `if` that can't be asked keeps from being reached.
const CLOSED: &str = "never reached: an `if` before it refuses all";

/// What stands above a route.
fn comment(server: &NginxDirective, location: Option<&NginxDirective>) -> String {
    let of = location.unwrap_or(server);
    let place =
        if of.file.is_empty() { format!("line {}", of.line) } else { format!("{}:{}", of.file, of.line) };
    match location {
        Some(location) => format!("{place}: {}", location.shown()),
        None => format!("{place}: server"),
    }
}

/// What is known in a location: the groups of its expression.
fn place_of(place: &NginxPlace, kind: &LocationKind) -> NginxPlace {
    let mut place = place.clone();
    if let LocationKind::Expression(Translated { groups, .. }) = kind {
        place.groups.clone_from(groups);
        place.group_count = groups.len();
        place.whole_path = None;
    }
    place
}

fn one_location<'c>(
    conversion: &mut Conversion<'c>,
    server: &NginxServer<'c>,
    location: &PlacedLocation<'c>,
    (outer, place): (&RouteTest, &NginxPlace),
    routes: &mut Vec<NewRoute>,
) {
    let own = location.own();
    let comment = comment(server.directive, Some(own));
    let mut test = outer.clone();
    for (holds, each) in &location.tests {
        test = match holds {
            false => test.and_not(each),
            true => match test.and(each) {
                Some(test) => test,
                None => {
                    let note =
                        "a route cannot ask for so many paths at once: such requests are answered with 501";
                    conversion.ledger.unsupported(own, note);
                    conversion.add(NewRoute::answering(test, comment, 501), own, routes);
                    return;
                }
            },
        };
    }
    match &location.kind {
        LocationKind::Slash(path) => {
            let mut route = NewRoute::of(test, format!("{comment}: its missing slash"));
            let to = format!("{}$query", encoded(path).replace('$', "$$"));
            route.set("redirect", format!("{{ to = {}, status = 301 }}", weir_config::quoted(&to)));
            conversion.add(route, own, routes);
            return;
        }
        LocationKind::Unknown(why) => {
            let note = format!(
                "the expression has no counterpart ({why}): IT COULD BE FOR ANY REQUEST, so all that come this far are answered with 501"
            );
            conversion.ledger.unsupported(own, note.clone());
            conversion.ledger.judge_below(
                own.inner(),
                DirectiveVerdict::Unsupported,
                "left out with its location",
            );
            conversion.add(NewRoute::answering(test, comment, 501), own, routes);
            return;
        }
        LocationKind::Expression(translated) if !translated.is_same => {
            inexact(conversion, server, location, NewRoute::answering(test, comment, 501), routes);
            return;
        }
        _ => {}
    }
    let place = place_of(place, &location.kind);
    let arriving = Arriving { test, place, change: PathChange::Kept };
    in_location(conversion, server, location, arriving, routes);
}

/// A location whose expression takes more than linear time: Weir's matches more. Where the location refuses
/// all that it is for, it refuses more; anything else is answered with 501 rather than given to a backend
/// that it is not for.
fn inexact<'c>(
    conversion: &mut Conversion<'c>,
    server: &NginxServer<'c>,
    location: &PlacedLocation<'c>,
    closed: NewRoute,
    routes: &mut Vec<NewRoute>,
) {
    let own = location.own();
    let lists =
        super::networks::lists(&server.scope_of(location).any_of(&["allow", "deny"]), &mut conversion.ledger);
    let returns =
        own.inner().iter().find(|it| it.name == "return").and_then(|it| it.word(0).parse::<u16>().ok());
    let refuses = lists.refuses_all || returns.is_some_and(|status| status >= 400);
    if refuses {
        let note = "its expression has a part that takes more than linear time, which is left out: more requests than nginx's are refused";
        conversion.ledger.approximate(own, note);
        conversion.ledger.judge_below(own.inner(), DirectiveVerdict::Exact, "such requests are refused");
        let status = returns.filter(|status| *status != 444 && *status < 600).unwrap_or(403);
        conversion.add(NewRoute::answering(closed.test, closed.comment, status), own, routes);
        return;
    }
    let note = "its expression has a part that takes more than linear time, which is left out: what this matches is answered with 501";
    conversion.ledger.unsupported(own, note);
    conversion.ledger.judge_below(own.inner(), DirectiveVerdict::Unsupported, "left out with its location");
    conversion.add(closed, own, routes);
}

/// What a location does with the requests of a test.
fn in_location<'c>(
    conversion: &mut Conversion<'c>,
    server: &NginxServer<'c>,
    location: &PlacedLocation<'c>,
    arriving: Arriving,
    routes: &mut Vec<NewRoute>,
) {
    let Arriving { test, mut place, change } = arriving;
    let own = location.own();
    let scope = server.scope_of(location);
    let comment = comment(server.directive, Some(own));
    // Variables of the answer of `auth_request` are no values of this request.
    for name in answer_fields(conversion, &scope).keys() {
        place.constants.remove(name);
    }
    let block = RewriteBlock { scope: &scope, kind: Some(&location.kind), comment: &comment };
    let before = run(conversion, own.inner(), &block, &test, &place);
    let content = |test: RouteTest,
                   place: NginxPlace,
                   change: PathChange,
                   branch: Option<&'c [NginxDirective]>| LocationContent {
        server,
        location: Some(location),
        scope: branch.map_or_else(|| scope.clone(), |inner| scope.within(inner)),
        blocks: branch.into_iter().chain([own.inner()]).collect(),
        test,
        place,
        change,
        comment: comment.clone(),
        of: own,
    };
    for step in before.steps {
        match step.action {
            StepAction::Answer(route) => conversion.add(route, step.by, routes),
            StepAction::Content(to, branch) => {
                let to = if to == PathChange::Kept { change.clone() } else { to };
                of_location(conversion, &content(step.test, step.place, to, branch), routes);
            }
            StepAction::Search(path, query) => {
                let change = PathChange::Whole(path, query);
                let arriving = Arriving { test: step.test, place: step.place, change };
                search(conversion, server, step.by, arriving, routes);
            }
        }
    }
    conversion.ledger.exact(own, "a route");
    if before.is_closed {
        conversion.ledger.void(own.inner(), CLOSED);
    }
    if !before.is_over {
        of_location(conversion, &content(test, before.place, change, None), routes);
    }
}

/// Whether an expression could match a path that begins so: one that is anchored says how its texts begin.
fn could_begin(expression: &str, front: &str) -> bool {
    let Some(anchored) = expression.strip_prefix('^').filter(|rest| !rest.contains('|')) else { return true };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '%');
    let end = anchored.find(|c| !is_plain(c)).unwrap_or(anchored.len());
    // What is repeated may be missing.
    let is_repeated = anchored[end..].starts_with(['?', '*', '{']);
    let own = &anchored[..end.saturating_sub(usize::from(is_repeated))];
    own.starts_with(front) || front.starts_with(own)
}

/// Looks for the location of a rewritten path, as far as it is the same for all requests of the test.
fn search<'c>(
    conversion: &mut Conversion<'c>,
    server: &NginxServer<'c>,
    by: &'c NginxDirective,
    arriving: Arriving,
    routes: &mut Vec<NewRoute>,
) {
    let path = match &arriving.change {
        PathChange::Whole(path, _) => path.as_str(),
        _ => "",
    };
    let why = match location_of(server, path) {
        // Its rewrites would be for the new path, and routes compare the one that was sent.
        Some(found) if found.own().inner().iter().any(|it| it.name == "rewrite") => {
            "the location of the new path rewrites it again"
        }
        Some(found) => return in_location(conversion, server, found, arriving, routes),
        None => {
            "Weir looks for no route again, and the location of the new path is not the same for all requests (`break` in place of `last` has one)"
        }
    };
    conversion.ledger.unsupported(by, format!("{why}: such requests are answered with 501"));
    let closed = NewRoute::answering(arriving.test, comment(server.directive, Some(by)), 501);
    conversion.add(closed, by, routes);
}

/// The location of a path with variables, if it is the same whatever their values.
fn location_of<'s, 'c>(server: &'s NginxServer<'c>, path: &str) -> Option<&'s PlacedLocation<'c>> {
    let front: String = match parts(path).first() {
        Some(NginxPart::Text(text)) => text.clone(),
        _ => String::new(),
    };
    let is_fixed = front == path;
    let plain = || server.locations.iter().filter(|it| it.chain.len() == 1);
    let exact = plain().find(|it| is_fixed && it.kind == LocationKind::Exact(front.clone()));
    if exact.is_some() {
        return exact;
    }
    let prefixes = plain().filter_map(|it| match &it.kind {
        LocationKind::Prefix(prefix) if front.starts_with(prefix.as_str()) => Some((prefix.len(), it)),
        _ => None,
    });
    let (_, longest) = prefixes.max_by_key(|(length, _)| *length)?;
    let could_be_longer = |it: &PlacedLocation<'_>| match &it.kind {
        LocationKind::Prefix(prefix) | LocationKind::Exact(prefix) => {
            !is_fixed && prefix.len() > front.len() && prefix.starts_with(&front)
        }
        _ => false,
    };
    let could_match = |it: &PlacedLocation<'_>| match &it.kind {
        LocationKind::Expression(translated) => could_begin(&translated.text, &front),
        LocationKind::Unknown(_) => true,
        _ => false,
    };
    let is_early = super::locations::words_of(longest.own()).0 == "^~";
    let is_doubtful = plain().any(could_be_longer) || (!is_early && plain().any(could_match));
    (!is_doubtful).then_some(longest)
}
