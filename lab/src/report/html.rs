//! The report as one HTML page that needs nothing else: style, charts and tables in the file itself, no
//! scripts.

mod scenario;

use std::fmt::Write as _;

use super::chart::escaped;
use super::number::{duration, plain, ratio};
use super::summary::{Against, Loss, Standing, Tally, losses, standings, tally};
use super::{Circumstances, Report};
use crate::rounds::SeriesOutcome;
use crate::sample::Participation;
use crate::scenario::VariantName;

const STYLE: &str = include_str!("style.css");

/// All of `report` as a page. `samples` is the name of the file with the raw samples beside it.
pub fn of(report: &Report, samples: &str) -> String {
    let it = &report.circumstances;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>Weir lab, {}</title>\n<style>\n{STYLE}</style></head>\n<body>\n",
        date(it.unix_time_seconds)
    );
    let _ = writeln!(
        page,
        "<header>\n<h1>Load balancers side by side</h1>\n<p class=\"facts\">{}</p>",
        facts(it)
    );
    page.push_str("<nav>");
    for series in &report.series {
        let name = escaped(&series.series.name);
        let _ = write!(page, "<a href=\"#{name}\">{name}: {}</a>", escaped(&series.series.title));
    }
    page.push_str("<a href=\"#how\">How to read it</a></nav>\n</header>\n<main>\n");
    page.push_str(&summary(&report.series));
    for series in &report.series {
        page.push_str(&of_series(series));
    }
    page.push_str("</main>\n");
    page.push_str(&footer(it, samples));
    page.push_str("</body></html>\n");
    page
}

/// Day and time in UTC, as `2026-11-22 01:30 UTC`.
fn date(unix_time_seconds: u64) -> String {
    let (days, rest) = (unix_time_seconds / 86_400, unix_time_seconds % 86_400);
    // Years begin in March here, so that the leap day comes last (Hinnant, 2013).
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12 + 1;
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest / 60 % 60)
}

fn facts(it: &Circumstances) -> String {
    let form = if it.full { "full form" } else { "short form" };
    let mut facts = vec![
        date(it.unix_time_seconds),
        format!("{form}, took {}", duration(it.took_seconds)),
        format!("{} cores of {}", it.cores, it.processor),
        format!("Linux {}", it.kernel),
        format!("Weir at commit {}", it.commit),
    ];
    facts.retain(|fact| !fact.ends_with(' '));
    escaped(&facts.join("  ·  "))
}

fn summary(series: &[SeriesOutcome]) -> String {
    let standings = standings(series);
    let Tally { better, worse, same, few } = tally(&standings);
    let mut text = "<section id=\"summary\">\n<div class=\"score\">".to_owned();
    for (class, count, said) in [
        ("better", better, "comparisons in which Weir is ahead"),
        ("same", same, "in which no difference is shown"),
        ("worse", worse, "in which Weir is behind"),
        ("few", few, "with too few rounds to tell"),
    ] {
        let _ = write!(text, "<div class=\"{class}\"><b>{count}</b><span>{said}</span></div>");
    }
    text.push_str(
        "</div>\n<p class=\"soft\">One comparison is Weir beside one rival at one point of one scenario, by the figure \
         that decides there. Ahead or behind is said only when the whole 95 % interval of the ratio says so, from \
         five rounds on.</p>\n<div class=\"wide\"><table><tr><th>scenario</th><th class=\"left\">settings</th>\
         <th class=\"left\">decided by</th><th class=\"left\">Weir beside</th></tr>\n",
    );
    for standing in &standings {
        text.push_str(&standing_row(standing));
    }
    text.push_str("</table></div>\n");
    text.push_str(&behind(&losses(series)));
    text.push_str("</section>\n");
    text
}

fn standing_row(standing: &Standing) -> String {
    let chips: String = standing.against.iter().map(|against| chip(standing, against)).collect();
    let absent: String = standing
        .absent
        .iter()
        .map(|(title, state)| {
            let (class, said) = match state {
                Participation::NotBuilt(_) => ("absent", "not built yet"),
                Participation::Failed(_) => ("failed", "failed"),
                Participation::Ran => ("absent", "no samples"),
            };
            format!("<span class=\"chip {class}\">{}: {said}</span>", escaped(title))
        })
        .collect();
    format!(
        "<tr><td><a href=\"#{}\">{}</a></td><td class=\"left soft\">{}</td><td class=\"left\">{}</td>\
         <td class=\"left wrap\">{chips}{absent}</td></tr>\n",
        anchor(&standing.scenario),
        escaped(&standing.scenario),
        standing.variant.map_or("", VariantName::name),
        standing.metric.title(),
    )
}

/// `HAProxy 0.86 × ahead at 2 of 3`.
fn chip(standing: &Standing, against: &Against) -> String {
    let (better, worse) = (against.better.len(), against.worse.len());
    let (class, sign) = match (better, worse) {
        (0, 0) if against.same == 0 => ("", "·"),
        (0, 0) => ("", "="),
        (_, 0) => ("better", "▲"),
        (0, _) => ("worse", "▼"),
        _ => ("", "◆"),
    };
    let mut parts = Vec::new();
    if standing.points > 1 {
        for (count, said) in
            [(better, "ahead"), (against.same, "level"), (worse, "behind"), (against.few, "too few rounds")]
        {
            if count > 0 {
                parts.push(format!("{said} at {count}"));
            }
        }
    } else if against.few > 0 {
        parts.push("too few rounds".to_owned());
    }
    let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    let of = if against.reference { "bound: " } else { "" };
    let class = if against.reference { "absent" } else { class };
    format!(
        "<span class=\"chip {class}\">{sign} {of}{} × {}{parts}</span>",
        ratio(against.ratio),
        escaped(&against.title)
    )
}

/// The list of scenarios in which Weir is behind, by any figure.
fn behind(losses: &[Loss]) -> String {
    if losses.is_empty() {
        return "<p>There is no figure by which this run shows Weir behind a rival.</p>\n".to_owned();
    }
    let mut text =
        "<h3>Where Weir is behind</h3>\n<p class=\"soft\">Every figure with a better side counts here, \
                    not only the one that decides; those that decide come first.</p>\n<ul>"
            .to_owned();
    for loss in losses {
        let at: Vec<String> = loss.against.worse.iter().flatten().map(|at| plain(*at)).collect();
        let at = if at.is_empty() { String::new() } else { format!(" at {}", at.join(", ")) };
        let settings =
            loss.variant.map(|variant| format!(", {} settings", variant.name())).unwrap_or_default();
        let title = loss.metric.title();
        let title = if loss.deciding { format!("<b>{title}</b>") } else { title.to_owned() };
        let _ = write!(
            text,
            "<li><a href=\"#{}\">{}</a>{settings}: {title} is {} × that of {}{at}</li>",
            anchor(&loss.scenario),
            escaped(&loss.scenario),
            ratio(loss.against.ratio),
            escaped(&loss.against.title),
        );
    }
    text.push_str("</ul>\n");
    text
}

/// The anchor of a scenario in the page.
fn anchor(scenario: &str) -> String {
    escaped(&scenario.replace('/', "-"))
}

fn of_series(outcome: &SeriesOutcome) -> String {
    let series = &outcome.series;
    let name = escaped(&series.name);
    let mut text = format!(
        "<section>\n<h2 id=\"{name}\"><span class=\"id\">{name}</span>{}</h2>\n",
        escaped(&series.title)
    );
    if !series.source.is_empty() {
        let _ = write!(text, "<p class=\"soft\">After: {}.<br>", escaped(&series.source));
        let _ = writeln!(text, "Published figures come from: {}.</p>", escaped(&series.machine));
    }
    for (said, points) in [
        ("What is known to be wrong with the published setup", &series.flaws),
        ("Where this lab differs from it in both variants", &series.differences),
    ] {
        if !points.is_empty() {
            let points: String = points.iter().map(|point| format!("<li>{}</li>", escaped(point))).collect();
            let _ = writeln!(text, "<details><summary>{said}</summary><ul>{points}</ul></details>");
        }
    }
    for scenario in &outcome.scenarios {
        text.push_str(&scenario::section(scenario));
    }
    text.push_str("</section>\n");
    text
}

fn footer(it: &Circumstances, samples: &str) -> String {
    let core =
        |core: Option<usize>| core.map_or_else(|| "any core".to_owned(), |core| format!("core {core}"));
    let priority = match (it.realtime, it.nice_in_force) {
        (true, _) => format!("nice {}, real-time round robin", it.nice),
        (false, true) => format!("nice {}", it.nice),
        (false, false) => format!("nice {} was refused: not root", it.nice),
    };
    let network = if it.private_network { "a private one" } else { "the machine's own" };
    let rows = [
        (
            "Machine",
            format!(
                "{} cores of {}, {:.1} GiB of memory",
                it.cores,
                it.processor,
                it.memory_bytes as f64 / f64::from(1 << 30)
            ),
        ),
        ("Kernel", format!("Linux {}, {} congestion control", it.kernel, it.congestion_control)),
        ("Network", network.to_owned()),
        (
            "Placement",
            format!(
                "load balancer on {}, load and backends on {}, {priority}",
                core(it.proxy_core),
                core(it.load_core)
            ),
        ),
        ("Load average at the start", it.load_average.split(' ').take(3).collect::<Vec<_>>().join(", ")),
        ("Called as", it.command.clone()),
        ("Commit", it.commit.clone()),
        ("Raw samples", samples.to_owned()),
    ];
    let rows: String =
        rows.iter().map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>", escaped(value))).collect();
    format!(
        "<footer id=\"how\">\n<h3>How to read it</h3>\n\
         <p>Contenders take turns: in each round every one runs once at every point, each time freshly started, with an \
         uncounted warm-up before the counted load. Figures are medians over the rounds. Strokes on bars and dots reach \
         from the least to the greatest round. Hollow diamonds are published figures, from their own machine.</p>\n\
         <p>A ratio is Weir's median over the other one's; the interval in brackets comes from drawing whole rounds anew \
         10,000 times (bootstrap, 95 %). When it holds 1, no difference is shown, whatever the medians say. \
         <b>Published settings</b> repeat what was published, flaws included; <b>fair settings</b> give everyone the same: \
         one worker, the same use of connections, the same limits and logs.</p>\n\
         <p>CPU per request is what the kernel's scheduler counted, in nanoseconds, for all processes and threads of the \
         load balancer. On few cores a rate is soon the load generator's; the CPU figure stays the load balancer's own. \
         In a closed loop latency is the number of connections over the rate, and says no more than that.</p>\n\
         <h3>The run</h3>\n<dl>{rows}</dl>\n</footer>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::{outcome, scenario};
    use super::*;

    fn page(series: Vec<SeriesOutcome>) -> String {
        of(&Report::new(Circumstances::default(), series), "samples.json")
    }

    #[test]
    fn a_page_needs_no_other_resource() {
        let page = page(vec![scenario(vec![outcome("weir", &[8.0; 5]), outcome("nginx", &[10.0; 5])])]);
        for outside in ["http://", "https://", "<script", "<link", "@import", "url("] {
            assert!(!page.contains(outside), "{outside} in {page}");
        }
    }

    #[test]
    fn the_summary_says_who_is_ahead_and_where_weir_is_behind() {
        let page = page(vec![scenario(vec![
            outcome("weir", &[8.0; 5]),
            outcome("nginx", &[10.0; 5]),
            outcome("b", &[4.0; 5]),
        ])]);
        assert!(page.contains("<b>1</b><span>comparisons in which Weir is ahead"), "{page}");
        assert!(page.contains("▲ 0.80 × nginx"), "{page}");
        assert!(page.contains("<b>CPU per request</b> is 2.00 × that of b</li>"), "{page}");
    }

    #[test]
    fn what_is_not_built_and_what_failed_are_told_apart() {
        let mut weir = outcome("weir", &[]);
        weir.state = Participation::NotBuilt("comes later".to_owned());
        let mut broken = outcome("broken", &[]);
        broken.state = Participation::Failed("line 3: <lisener>".to_owned());
        let page = page(vec![scenario(vec![weir, broken])]);
        assert!(page.contains("weir: not built yet") && page.contains("comes later"), "{page}");
        assert!(page.contains("broken: failed") && page.contains("line 3: &lt;lisener&gt;"), "{page}");
    }

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date(1_795_309_355), "2026-11-22 01:02 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
    }
}
