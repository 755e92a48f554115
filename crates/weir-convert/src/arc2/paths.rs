//! The paths of a domain that are served, and how long their responses are cached.
//!
//! ARC2's documentation calls `rule_type` an allow list or a deny list of paths. It is read like this:
//! `path_rules` apply in their order, then `paths`. Paths that a Whitelist names are served and cached;
//! others get 403. Paths that a Blacklist names get 403; others are served and cached.

use super::bag::Bag;
use super::{Match, quoted};
use crate::verdicts::Verdicts;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is forwarded, and the response is cached for this long; `None` means not at all.
    Served { ttl_seconds: Option<u64> },
    /// It gets 403.
    Refused,
}

/// A future route: its paths as Weir writes them, empty for every path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRoute {
    pub paths: Vec<String>,
    pub outcome: Outcome,
}

/// An entry of `path_rules`.
struct PathRule {
    path: String,
    kind: Match,
    outcome: Outcome,
}

/// Longest `cache.ttl` that Weir accepts, in seconds.
const LONGEST_TTL: u64 = 365 * 86_400;

/// Takes all keys about paths. `caching` is the global switch.
pub fn read(bag: &mut Bag, caching: bool) -> (Vec<PathRoute>, Verdicts) {
    let mut notes = super::Notes::default();
    let ttl = |seconds: u64| Some(seconds.min(LONGEST_TTL)).filter(|seconds| caching && *seconds > 0);
    let ttl_seconds = bag.number("max_age_seconds").and_then(|taken| {
        match (caching, taken.value) {
            (false, _) => notes.exact(&taken, "`add_caching` is off: nothing is kept"),
            (true, 0) => notes.exact(&taken, "nothing is kept"),
            (true, _) => notes.approximate(
                &taken,
                "`cache.ttl`; what an answer itself says of its freshness comes first (RFC 9111), and one that sets a cookie is not kept",
            ),
        }
        ttl(taken.value)
    });
    let rules = path_rules(bag, &ttl, &mut notes);
    let whitelist = match bag.text("rule_type") {
        Some(taken) if matches!(taken.value.as_str(), "Whitelist" | "Blacklist") => {
            let whitelist = taken.value == "Whitelist";
            let note = if whitelist {
                "what `paths` names is served, anything else gets 403"
            } else {
                "what `paths` names gets 403"
            };
            notes.exact(&taken, note);
            whitelist
        }
        Some(taken) => {
            notes.unsupported(&taken, "neither Whitelist nor Blacklist: every path is served");
            false
        }
        None => false,
    };
    let prefixes = bag.texts("paths").map_or_else(Vec::new, |taken| {
        let prefixes: Vec<String> = taken.value.iter().map(|path| prefix(path)).collect();
        match taken.value.iter().all(|path| path == "/") {
            true => notes.exact(&taken, "every path begins so"),
            false => notes.approximate(
                &taken,
                format!(
                    "read as beginnings of paths: {}; leave out the `*` where one path was meant",
                    super::texts(&prefixes)
                ),
            ),
        }
        prefixes
    });
    let served = Outcome::Served { ttl_seconds };
    let rest = match (whitelist, prefixes.is_empty() || prefixes.contains(&"/*".to_owned())) {
        // The list covers every path, or there is no list.
        (true, true) => vec![PathRoute { paths: Vec::new(), outcome: served }],
        (false, _) if prefixes.is_empty() => vec![PathRoute { paths: Vec::new(), outcome: served }],
        (false, true) => vec![PathRoute { paths: Vec::new(), outcome: Outcome::Refused }],
        (true, false) => vec![
            PathRoute { paths: prefixes, outcome: served },
            PathRoute { paths: Vec::new(), outcome: Outcome::Refused },
        ],
        (false, false) => vec![
            PathRoute { paths: prefixes, outcome: Outcome::Refused },
            PathRoute { paths: Vec::new(), outcome: served },
        ],
    };
    (steps(&rules, rest, &mut notes), notes.verdicts)
}

/// The pattern for all paths that begin with `path`.
fn prefix(path: &str) -> String {
    let slash = if path.starts_with('/') { "" } else { "/" };
    format!("{slash}{}*", path.trim_end_matches('*'))
}

fn path_rules(
    bag: &mut Bag,
    ttl: &impl Fn(u64) -> Option<u64>,
    notes: &mut super::Notes,
) -> Vec<(PathRule, usize)> {
    let mut rules = Vec::new();
    let Some(taken) = bag.tables("path_rules") else { return rules };
    for (line, mut rule) in taken.value {
        let (path, word) = (rule.text("path"), rule.text("match_type"));
        let (kind, seconds) = (rule.text("rule_type"), rule.number("max_age_seconds"));
        if let (Some(path), Some(word), Some(kind)) = (&path, &word, &kind)
            && let Some(comparison) = Match::of(&word.value)
            && matches!(kind.value.as_str(), "Whitelist" | "Blacklist")
        {
            let refused = kind.value == "Blacklist";
            let outcome = match refused {
                true => Outcome::Refused,
                false => {
                    Outcome::Served { ttl_seconds: seconds.as_ref().and_then(|seconds| ttl(seconds.value)) }
                }
            };
            notes.exact(path, format!("a route of its own: {}", quoted(&comparison.pattern(&path.value))));
            notes.exact(word, format!("`{}`", word.value));
            notes.exact(kind, if refused { "403" } else { "served" });
            if let Some(seconds) = &seconds {
                match refused {
                    true => notes.exact(seconds, "says nothing of what is refused"),
                    false => notes.approximate(
                        seconds,
                        "`cache.ttl`; what an answer itself says of its freshness comes first",
                    ),
                }
            }
            rules.push((PathRule { path: path.value.clone(), kind: comparison, outcome }, line));
        } else {
            for part in [&path, &word, &kind].into_iter().flatten() {
                notes
                    .unsupported(part, "the rule is not whole, or of another kind than ARC2 takes: left out");
            }
        }
        notes.leftover(rule);
    }
    rules
}

/// Converts the rules to routes, of which the first that matches applies. A rule that matches everything but
/// something ends the list: only what it does not match goes on to the rules behind it.
fn steps(rules: &[(PathRule, usize)], rest: Vec<PathRoute>, notes: &mut super::Notes) -> Vec<PathRoute> {
    let mut steps = Vec::new();
    for (index, (rule, line)) in rules.iter().enumerate() {
        let slash = if rule.path.starts_with('/') { "" } else { "/" };
        let path = match rule.kind {
            Match::Equals | Match::DoesNotEqual => format!("{slash}{}", rule.path),
            Match::StartsWith => format!("{slash}{}*", rule.path),
            Match::EndsWith => format!("*{}", rule.path),
            Match::Contains | Match::DoesNotContain => format!("*{}*", rule.path),
        };
        if !matches!(rule.kind, Match::DoesNotEqual | Match::DoesNotContain) {
            steps.push(PathRoute { paths: vec![path], outcome: rule.outcome });
            continue;
        }
        let behind = rules.get(index + 1..).unwrap_or_default();
        // What the rule does not match is either one path, whose outcome is known, or all paths that contain
        // something. The outcome of those is known only if everything that follows treats them alike.
        let one = rule.kind == Match::DoesNotEqual;
        let left_over = match one {
            true => outcome_of(&path, behind, &rest),
            false => rest.last().map_or(Outcome::Refused, |step| step.outcome),
        };
        if !one && (!behind.is_empty() || rest.len() > 1) {
            let note = format!(
                "what stands behind DoesNotContain {} is not looked at for the paths that contain it",
                quoted(&rule.path)
            );
            notes.verdicts.approximate(*line, "path_rules", note);
        }
        steps.push(PathRoute { paths: vec![path], outcome: left_over });
        steps.push(PathRoute { paths: Vec::new(), outcome: rule.outcome });
        return steps;
    }
    steps.extend(rest);
    steps
}

/// The outcome for one path.
fn outcome_of(path: &str, rules: &[(PathRule, usize)], rest: &[PathRoute]) -> Outcome {
    let by_rule = rules.iter().find(|(rule, _)| {
        let text = rule.path.as_str();
        match rule.kind {
            Match::Equals => path == text,
            Match::StartsWith => path.starts_with(text),
            Match::EndsWith => path.ends_with(text),
            Match::Contains => path.contains(text),
            Match::DoesNotEqual => path != text,
            Match::DoesNotContain => !path.contains(text),
        }
    });
    if let Some((rule, _)) = by_rule {
        return rule.outcome;
    }
    let takes = |step: &&PathRoute| {
        step.paths.is_empty()
            || step.paths.iter().any(|prefix| path.starts_with(prefix.trim_end_matches('*')))
    };
    rest.iter().find(takes).map_or(Outcome::Refused, |step| step.outcome)
}
