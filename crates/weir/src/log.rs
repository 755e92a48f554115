//! The program's own log: lines on standard error.

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};
use weir_config::Level;

/// Filter directives that win over the config's level, in the form of the `tracing` crates:
/// `info,weir_control::health=debug`.
const VARIABLE: &str = "WEIR_LOG";

/// Changes the level while the program runs.
#[derive(Clone)]
pub struct Threshold(Option<reload::Handle<EnvFilter, Registry>>);

/// Starts logging. Called once; a second call (tests) changes nothing.
pub fn start(level: Level) -> Threshold {
    let from_environment = std::env::var(VARIABLE).ok().and_then(|text| EnvFilter::try_new(text).ok());
    let is_fixed = from_environment.is_some();
    let (filter, handle) = reload::Layer::new(from_environment.unwrap_or_else(|| filter(level)));
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let colours = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(colours);
    let started = tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok();
    Threshold((started && !is_fixed).then_some(handle))
}

impl Threshold {
    /// Takes over the level of a new config, unless the environment fixes it.
    pub fn set(&self, level: Level) {
        if let Some(handle) = &self.0 {
            let _ = handle.reload(filter(level));
        }
    }
}

/// What libraries have to say of a peer's mistakes is for those who look for them: a client could fill a disk
/// with it (threat D11), and what matters of it is in metrics and in lines of our own.
fn filter(level: Level) -> EnvFilter {
    EnvFilter::new(match level {
        Level::Error => "error,h2=off,quinn_proto=off,rustls=off",
        Level::Warn => "warn,h2=off,quinn_proto=off,rustls=off",
        Level::Info => "info,h2=off,quinn_proto=off,rustls=off",
        Level::Debug => "debug",
        Level::Trace => "trace",
    })
}
