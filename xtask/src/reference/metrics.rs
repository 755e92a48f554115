//! The reference page of metrics, written from the table of metrics and the words of their labels.

use std::fmt::Write as _;

use weir_stats::expose::ALL;
use weir_stats::table::{CODE_CLASSES, CacheResult, Compressed, End, Handshake, Rejected};

/// `docs/reference/metrics.md`, whole.
pub fn page() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         `GET /metrics` of the admin API, in the Prometheus text format. Generated from `crates/weir-stats/src/expose.rs`; \
         do not edit.\n\n\
         | name | kind | labels | meaning |\n|---|---|---|---|\n",
    );
    for metric in ALL {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            metric.name,
            metric.kind.word(),
            labels.join(", "),
            metric.help
        );
    }
    let _ = write!(page, "\nLabel `code`: {}.\n", CODE_CLASSES.map(|class| format!("`{class}`")).join(", "));
    page.push_str("\n## `weir_rejected_total{reason}`\n\n| reason | meaning |\n|---|---|\n");
    for rejected in Rejected::ALL {
        let _ = writeln!(page, "| `{}` | {} |", rejected.word(), rejected.meaning());
    }
    page.push_str("\n## `weir_ends_total{reason}`, and the end reason in the access log\n\n| reason | meaning |\n|---|---|\n");
    for end in End::ALL {
        let _ = writeln!(page, "| `{}` | {} |", end.word(), end.meaning());
    }
    page.push_str("\n## `weir_cache_requests_total{result}`, and `cache` in the access log\n\n| result | meaning |\n|---|---|\n");
    for result in CacheResult::ALL {
        let _ = writeln!(page, "| `{}` | {} |", result.word(), result.meaning());
    }
    page.push_str("\n## `weir_tls_handshakes_total{result}`\n\n| result | meaning |\n|---|---|\n");
    for handshake in Handshake::ALL {
        let _ = writeln!(page, "| `{}` | {} |", handshake.word(), handshake.meaning());
    }
    page.push_str("\n## `weir_compressed_responses_total{coding}`\n\n| coding | meaning |\n|---|---|\n");
    for compressed in Compressed::ALL {
        let _ = writeln!(page, "| `{}` | {} |", compressed.word(), compressed.meaning());
    }
    page
}

#[test]
fn the_reference_page_names_every_metric_and_every_reason() {
    let page = page();
    for metric in ALL {
        assert!(page.contains(&format!("| `{}` |", metric.name)));
    }
    for reason in
        Rejected::ALL.iter().map(|reason| reason.word()).chain(End::ALL.iter().map(|end| end.word()))
    {
        assert!(page.contains(&format!("| `{reason}` |")));
    }
}
