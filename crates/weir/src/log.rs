//! The program's own log: lines on standard error.

use std::io::{self, Write as _};
use std::time::Duration;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};
use weir_config::Level;
use weir_control::own_log::Lines;

/// Environment variable with filter directives that override the config's level, in the syntax of the
/// `tracing` crates: `info,weir_control::health=debug`.
const VARIABLE: &str = "WEIR_LOG";

/// Time to write the message of a panic, in case it ends the process.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Changes the level while the program runs.
#[derive(Clone)]
pub struct Threshold(Option<reload::Handle<EnvFilter, Registry>>);

/// Starts logging. Called once; a second call (in tests) changes nothing. The caller that ends the process
/// waits for the last lines.
///
/// # Errors
/// The thread that writes can't be started.
pub fn start(level: Level) -> io::Result<(Threshold, Lines)> {
    let from_environment = std::env::var(VARIABLE).ok().and_then(|text| EnvFilter::try_new(text).ok());
    let is_fixed = from_environment.is_some();
    let (filter, handle) = reload::Layer::new(from_environment.unwrap_or_else(|| filter(level)));
    let is_terminal = io::IsTerminal::is_terminal(&io::stderr());
    let colours = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = Lines::to(io::stderr())?;
    let of_layer = lines.clone();
    let writer = move || of_layer.clone();
    let layer = fmt::layer().with_writer(writer).with_target(false).with_ansi(colours);
    let started = tracing_subscriber::registry().with(filter).with(layer).try_init().is_ok();
    if started {
        say_panics(lines.clone());
    }
    Ok((Threshold((started && !is_fixed).then_some(handle)), lines))
}

/// Reports panics in the standard library's format but through the log's queue: a worker that panics goes on
/// afterwards, and must not wait for the reader of the log.
fn say_panics(lines: Lines) {
    std::panic::set_hook(Box::new(move |what| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let backtrace = std::backtrace::Backtrace::capture();
        let trace = match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => format!("\n{backtrace}"),
            _ => String::new(),
        };
        let _ = lines.clone().write_all(format!("\nthread '{name}' {what}{trace}\n").as_bytes());
        lines.finish(LAST_WORDS);
    }));
}

impl Threshold {
    /// Sets the level of a new config, unless the environment fixes it.
    pub fn set(&self, level: Level) {
        if let Some(handle) = &self.0 {
            let _ = handle.reload(filter(level));
        }
    }
}

/// The default filter for a level. It hides what libraries log about peers' mistakes: a client could fill a
/// disk with it (threat D11), and what matters of it is in metrics and in lines of our own.
fn filter(level: Level) -> EnvFilter {
    EnvFilter::new(match level {
        Level::Error => "error,h2=off,quinn_proto=off,rustls=off",
        Level::Warn => "warn,h2=off,quinn_proto=off,rustls=off",
        Level::Info => "info,h2=off,quinn_proto=off,rustls=off",
        Level::Debug => "debug",
        Level::Trace => "trace",
    })
}
