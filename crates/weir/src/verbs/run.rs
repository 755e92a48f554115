//! `weir run`

use weir_control::reload::Source;

use crate::arguments::ConfigArgument;
use crate::client::config_paths;
use crate::copying;
use crate::exit::Exit;
use crate::serve::{Plan, serve};

/// Serves as the config file says.
pub fn run(config: &ConfigArgument, workers: Option<usize>) -> Result<Exit, Exit> {
    copying::avoid_slow_moves();
    let paths = config_paths(config);
    if paths.is_empty() {
        return Err(Exit::Refused.saying(
            "no config file: looked for $WEIR_CONFIG, ./weir.toml and /etc/weir/weir.toml; try `weir demo`",
        ));
    }
    serve(Plan { workers, ..Plan::of(Source::Files(paths)) })
}
