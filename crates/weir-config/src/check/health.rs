//! Probes: times that fit into each other, and keys that fit the kind of probe.

use super::speaks;
use crate::build::Draft;
use crate::fields::Fields;
use crate::report::Findings;
use crate::schema::{Check, Pool, Protocol};
use crate::units::show_duration;
use crate::values::Value;

pub(super) fn check(draft: &Draft, pool: &Pool, fields: &Fields, findings: &mut Findings<'_>) {
    let Some(Value::Table(health)) = fields.value("health") else { return };
    times(pool, health, findings);
    keys_of_the_check(draft, pool, health, findings);
    let passive = health.table("passive");
    if let Some(entry) = passive.get("max_ejected")
        && passive.factor("max_ejected") == 0.0
        && !passive.is_bad("max_ejected")
    {
        findings.warning(
            entry.at,
            "no backend is ever ejected",
            "say `passive = \"off\"`, or a larger share",
        );
    }
}

fn times(pool: &Pool, health: &Fields, findings: &mut Findings<'_>) {
    if health.is_bad("interval") {
        return;
    }
    let interval = pool.health.interval;
    let said = match health.get("interval") {
        Some(entry) => format!("`interval` is {} ({})", show_duration(interval), findings.place(entry.at)),
        None => format!("`interval` is {} by default", show_duration(interval)),
    };
    if health.value("timeout").is_some() && pool.health.timeout > interval {
        let hint = format!("{said}; one probe must end before the next begins");
        findings.error(health.at("timeout"), "`timeout` is above `interval`", hint);
    }
    if health.value("fast_interval").is_some() && pool.health.fast_interval > interval {
        findings.error(
            health.at("fast_interval"),
            "`fast_interval` is above `interval`",
            format!("{said}; fast is at most that"),
        );
    }
}

fn keys_of_the_check(draft: &Draft, pool: &Pool, health: &Fields, findings: &mut Findings<'_>) {
    if health.is_bad("check") {
        return;
    }
    let by_default = health.get("check").is_none();
    let kind = match pool.health.check {
        Check::Http { .. } => return,
        Check::Tcp => "tcp",
        Check::Off => "off",
    };
    for name in ["path", "host", "expect_status"] {
        let Some(entry) = health.get(name) else { continue };
        let hint = if by_default {
            let other = draft
                .uses
                .of(&pool.name)
                .iter()
                .find(|place| place.protocol.is_some_and(|p| p != Protocol::Http));
            let why = other.map_or_else(String::new, |other| {
                format!(", because {}", speaks(draft, other.listener, findings))
            });
            format!("add `check = \"http\"`; by default it is \"{kind}\" here{why}")
        } else {
            format!("`check` is \"{kind}\" ({})", findings.place(health.at("check")))
        };
        findings.error(entry.key, format!("`{name}` is for `check = \"http\"`"), hint);
    }
    if kind == "off" {
        for name in ["interval", "fast_interval", "timeout", "rise", "fall", "last_resort"] {
            if let Some(entry) = health.get(name) {
                let hint = match health.get("check") {
                    Some(check) => format!("`check` is \"off\" ({})", findings.place(check.at)),
                    None => "`check` is \"off\" by default where only udp listeners use the pool".to_owned(),
                };
                findings.warning(entry.key, format!("`{name}` has no effect"), hint);
            }
        }
    }
}
