//! `weir-lab compare` as a person or a script runs it: two small files of results, what is printed, how it
//! ends.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

const WEIR: [f64; 5] = [8.0, 8.1, 8.2, 7.9, 8.0];
const NGINX: [f64; 5] = [10.0, 10.1, 10.2, 9.9, 10.0];
/// Latencies beside them, which do not decide.
const LATENCY: [f64; 5] = [300.0; 5];

fn contender(name: &str, cpu: [f64; 5], latency: [f64; 5]) -> Value {
    let samples: Vec<Value> = (0..5)
        .map(|round| {
            let figures = json!({ "cpu-per-request": cpu[round], "latency-p99": latency[round] });
            json!({ "round": round + 1, "figures": figures })
        })
        .collect();
    json!({
        "contender": name, "template": format!("{name}/http"), "title": name, "version": "1", "state": "ran",
        "samples": samples,
    })
}

/// The file that a run with these contenders would have written.
fn results(name: &str, contenders: &[Value]) -> PathBuf {
    let variant = json!({
        "variant": "fair", "about": "", "rounds": 5, "seconds": 1, "points": [null], "outcomes": contenders,
    });
    let scenario = json!({
        "scenario": "bench/http1", "title": "t", "about": "", "measures": ["cpu-per-request", "latency-p99"],
        "sweep": null, "published": [], "variants": [variant],
    });
    let series = json!({
        "series": { "name": "bench", "title": "b" }, "scenarios": [scenario],
    });
    let circumstances = json!({
        "processor": "p", "cores": 2, "kernel": "6", "congestion_control": "cubic", "private_network": true,
        "nice": 0, "nice_in_force": true, "realtime": false, "commit": "c", "unix_time_seconds": 0,
        "load_average": "0",
    });
    let report = json!({ "format": 2, "circumstances": circumstances, "series": [series] });
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("compare-{name}.json"));
    fs::write(&path, report.to_string()).unwrap();
    path
}

fn compare(old: &PathBuf, new: &PathBuf, more: &[&str]) -> (Option<i32>, String, String) {
    let lab = env!("CARGO_BIN_EXE_weir-lab");
    let Output { status, stdout, stderr } =
        Command::new(lab).arg("compare").args([old, new]).args(more).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn times(figures: [f64; 5], factor: f64) -> [f64; 5] {
    figures.map(|figure| figure * factor)
}

#[test]
fn a_slower_machine_ends_with_0_and_says_that_nothing_changed() {
    let old = results("steady-old", &[contender("weir", WEIR, LATENCY), contender("nginx", NGINX, LATENCY)]);
    let slower = |name, figures| contender(name, times(figures, 1.4), times(LATENCY, 1.4));
    let new = results("steady-new", &[slower("weir", WEIR), slower("nginx", NGINX)]);
    let (code, printed, _) = compare(&old, &new, &[]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("no difference shown"), "{printed}");
    assert!(printed.ends_with("\n2 figures compared, 0 worse.\n"), "{printed}");
}

#[test]
fn a_deciding_figure_that_became_worse_ends_with_1() {
    let old = results("worse-old", &[contender("weir", WEIR, LATENCY), contender("nginx", NGINX, LATENCY)]);
    let worse = contender("weir", times(WEIR, 1.3), LATENCY);
    let new = results("worse-new", &[worse, contender("nginx", NGINX, LATENCY)]);
    let (code, printed, _) = compare(&old, &new, &[]);
    assert_eq!(code, Some(1), "{printed}");
    let line = printed.lines().find(|line| line.contains("WORSE")).unwrap_or_else(|| panic!("{printed}"));
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    assert_eq!(cells[1..8], ["bench/http1", "fair", "", "CPU per request (µs)", "8", "10.40", "1.30"]);
    assert!(printed.ends_with("\n2 figures compared, 1 worse.\n"), "{printed}");

    // The other way round it is as much better, which is nobody's failure.
    let (code, printed, _) = compare(&new, &old, &[]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("better"), "{printed}");
    // A change that is allowed is none.
    assert_eq!(compare(&old, &new, &["--tolerance=40"]).0, Some(0));
}

#[test]
fn a_figure_that_does_not_decide_fails_only_when_all_are_to() {
    let old = results("all-old", &[contender("weir", WEIR, LATENCY), contender("nginx", NGINX, LATENCY)]);
    let slow = contender("weir", WEIR, times(LATENCY, 2.0));
    let new = results("all-new", &[slow, contender("nginx", NGINX, LATENCY)]);
    let (code, printed, _) = compare(&old, &new, &[]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("WORSE"), "{printed}");
    assert_eq!(compare(&old, &new, &["--all"]).0, Some(1));
}

#[test]
fn a_file_that_is_missing_or_of_another_form_is_named() {
    let good = results("good", &[contender("weir", WEIR, LATENCY)]);
    let missing = good.with_file_name("compare-missing.json");
    let (code, printed, said) = compare(&missing, &good, &[]);
    assert_eq!((code, printed.as_str()), (Some(1), ""));
    assert!(said.contains("compare-missing.json: No such file"), "{said}");
    let other = good.with_file_name("compare-other.json");
    fs::write(&other, "{\"format\": 1}").unwrap();
    let (code, _, said) = compare(&good, &other, &[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("compare-other.json: its format is 1, 2 was expected"), "{said}");
}
