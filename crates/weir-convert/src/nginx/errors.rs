//! `error_page`: a file in place of an error.

use weir_config::quoted;

use super::conversion::Conversion;
use super::locations::{LocationKind, PlacedLocation};
use super::route::NewRoute;
use super::scope::NginxScope;
use super::tree::NginxDirective;

/// Sets the pages of a route. `locations` are those of its server, `server` the scope of that.
pub fn of_route<'c>(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'_>,
    (locations, server): (&[PlacedLocation<'c>], &NginxScope<'c>),
    route: &mut NewRoute,
) {
    let intercepts = scope.one("proxy_intercept_errors");
    let is_on = intercepts.is_some_and(|directive| directive.word(0) == "on");
    if let Some(directive) = intercepts {
        conversion.ledger.exact(directive, "`intercept` of the pages");
    }
    let mut pages = Vec::new();
    for directive in scope.all("error_page") {
        match page(conversion, directive, locations, server) {
            Ok(None) => {}
            Ok(Some((statuses, file))) => {
                let intercept = if is_on { ", intercept = true" } else { "" };
                pages.push(format!(
                    "{{ status = [{}], file = {}{intercept} }}",
                    statuses.join(", "),
                    quoted(&file)
                ));
            }
            Err(why) => conversion
                .ledger
                .unsupported(directive, format!("{why}: Weir's own line of text, and the backend's answer")),
        }
    }
    if !pages.is_empty() {
        route.set("error_page", format!("[{}]", pages.join(", ")));
    }
}

/// The statuses and the file of one `error_page`; `None` if it is of the sign-in, which `auth` has.
fn page<'c>(
    conversion: &mut Conversion<'_>,
    directive: &NginxDirective,
    locations: &[PlacedLocation<'c>],
    server: &NginxScope<'c>,
) -> Result<Option<(Vec<String>, String)>, String> {
    let Some((target, words)) = directive.words.split_last() else {
        return Err("it says nothing".to_owned());
    };
    let (answers, codes): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| word.starts_with('='));
    if codes.iter().any(|code| *code == "401") && conversion.ledger.is_judged(directive) {
        return Ok(None);
    }
    let statuses: Vec<String> = codes
        .iter()
        .filter(|code| matches!(code.parse::<u16>(), Ok(400..=599)))
        .map(|code| (*code).clone())
        .collect();
    if codes.iter().all(|code| code.as_str() == "497") {
        return Err(
            "who speaks plain HTTP to a listener with TLS gets no answer: the connection ends".to_owned()
        );
    }
    if !target.starts_with('/') {
        return Err(format!("a page is a file; `{target}` is none"));
    }
    if target.contains('$') {
        return Err("a page is a file that is always the same".to_owned());
    }
    let path = target.split('?').next().unwrap_or_default();
    let scope = match located(locations, path) {
        Some(location) => {
            let scope = location.chain.iter().fold(server.clone(), |scope, each| scope.within(each.inner()));
            let handlers = ["proxy_pass", "grpc_pass", "fastcgi_pass", "uwsgi_pass", "return", "rewrite"];
            if handlers.iter().any(|name| !scope.own(name).is_empty()) {
                return Err(format!("a page is a file, and `location {path}` asks a backend or redirects"));
            }
            scope
        }
        None => server.clone(),
    };
    let (file, of) = file_of(conversion, &scope, path)?;
    conversion.files.read(&file).map_err(|why| format!("`{file}` cannot be read here ({why})"))?;
    conversion.ledger.exact(of, "the folder of a page of `error_page`");
    if let Some(location) = located(locations, path).filter(|it| matches!(it.kind, LocationKind::Exact(_))) {
        match scope.own("internal").first() {
            Some(internal) => {
                conversion.ledger.exact(internal, "who asks for it himself gets 404");
                conversion
                    .ledger
                    .exact(location.own(), "the page of `error_page`; who asks for it himself gets 404");
            }
            None => conversion
                .ledger
                .approximate(location.own(), "the page of `error_page`; who asks for it himself gets 404"),
        }
    }
    if statuses.is_empty() {
        return Err("none of its statuses is one that Weir answers with".to_owned());
    }
    match (answers.is_empty(), statuses.len() == codes.len()) {
        (true, true) => conversion.ledger.exact(directive, "`error_page`"),
        (false, _) => conversion.ledger.approximate(directive, "`error_page`: the status stays as it is"),
        (_, false) => conversion.ledger.approximate(directive, "`error_page`, for statuses from 400 to 599"),
    }
    Ok(Some((statuses, file)))
}

/// The file of a path, and the directive that says where it is.
fn file_of<'c>(
    conversion: &Conversion<'_>,
    scope: &NginxScope<'c>,
    path: &str,
) -> Result<(String, &'c NginxDirective), String> {
    let alias = scope.own("alias").last().copied();
    let of = alias.or_else(|| scope.one("root")).ok_or("there is no `root`")?;
    if of.word(0).contains('$') {
        return Err("`root` has variables".to_owned());
    }
    let folder = conversion.file(of.word(0));
    match alias {
        Some(_) => Ok((folder, of)),
        None => Ok((format!("{}{path}", folder.trim_end_matches('/')), of)),
    }
}

/// The location that a path is for, expressions left out.
pub fn located<'l, 'c>(locations: &'l [PlacedLocation<'c>], path: &str) -> Option<&'l PlacedLocation<'c>> {
    let exact = locations.iter().find(|it| matches!(&it.kind, LocationKind::Exact(own) if own == path));
    let prefixes = locations.iter().filter_map(|it| match &it.kind {
        LocationKind::Prefix(prefix) if path.starts_with(prefix.as_str()) => Some((prefix.len(), it)),
        _ => None,
    });
    exact.or_else(|| prefixes.max_by_key(|(length, _)| *length).map(|(_, it)| it))
}
