//! `weir run`

use weir_admin::server::WhenTaken;
use weir_control::reload::{ReadError, Source};

use crate::arguments::ConfigArgument;
use crate::client::config_path;
use crate::copying;
use crate::exit::Exit;
use crate::serve::{Plan, serve};

/// Serves what the config file says.
pub fn run(config: &ConfigArgument, workers: Option<usize>) -> Exit {
    copying::avoid_slow_moves();
    let Some(path) = config_path(config) else {
        eprintln!(
            "weir: no config file: looked for --config, $WEIR_CONFIG, ./weir.toml and /etc/weir/weir.toml; try `weir demo`"
        );
        return Exit::Refused;
    };
    let source = Source::File(path);
    match source.read() {
        Ok(checked) => serve(Plan {
            source,
            checked,
            workers,
            upgradable: true,
            admin_taken: WhenTaken::Refuse,
            on_ready: Box::new(|| ()),
        }),
        Err(error) => refuse(&error),
    }
}

/// Prints why a config was not taken.
pub fn refuse(error: &ReadError) -> Exit {
    match error {
        ReadError::Unreadable { .. } => {
            eprintln!("weir: {error}");
            Exit::Refused
        }
        ReadError::Refused(report) => {
            eprint!("{report}");
            let count = report.error_count();
            eprintln!("\nweir: the config has {count} {}", if count == 1 { "mistake" } else { "mistakes" });
            Exit::Refused
        }
    }
}
