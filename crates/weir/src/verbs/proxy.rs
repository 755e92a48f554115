//! `weir proxy`

use std::fmt::Write as _;
use std::net::SocketAddr;

use clap::Args;
use weir_admin::server::WhenTaken;
use weir_control::reload::Source;

use crate::copying;
use crate::exit::Exit;
use crate::serve::{Plan, serve};

/// The one-liner.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Address to listen on: `:8080`, `127.0.0.1:8080`, `[::]:8080`
    #[arg(value_name = "LISTEN")]
    listen: String,
    /// Backends, separated by commas or spaces; `to` or `'->'` (quoted for the shell) may stand before them
    #[arg(value_name = "BACKENDS", required = true, num_args = 1..)]
    backends: Vec<String>,
    /// The arrow: to the parser of arguments it looks like an option.
    #[arg(short = '>', hide = true)]
    arrow: bool,
    /// Proxy TCP instead of HTTP
    #[arg(long)]
    tcp: bool,
    /// Address of the admin API, or `off` [default: 127.0.0.1:9900, or a free port if that is in use]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
}

/// Prints the equivalent config and serves it.
pub fn proxy(arguments: &Arguments) -> Result<Exit, Exit> {
    copying::avoid_slow_moves();
    let text = config(arguments).map_err(|error| Exit::Refused.saying(error))?;
    say!("# the same as weir.toml:\n{text}");
    let source = Source::Text { name: "weir proxy".to_owned(), text };
    let admin_taken = match arguments.admin {
        Some(_) => WhenTaken::Refuse,
        None => WhenTaken::TakeFreePort,
    };
    serve(Plan { admin_taken, ..Plan::of(source) })
}

/// The config that the arguments are short for.
fn config(arguments: &Arguments) -> Result<String, String> {
    let bind = address(&arguments.listen, "0.0.0.0").ok_or_else(|| {
        format!("{:?} is no address to accept at, expected :PORT or ADDRESS:PORT", arguments.listen)
    })?;
    // If `->` is not quoted, the shell passes a bare `-` and redirects the output to a file named after the
    // first backend.
    let words = arguments.backends.iter().map(String::as_str).filter(|word| !matches!(*word, "to" | "-"));
    let backends: Vec<String> = words
        .flat_map(|word| word.split(','))
        .filter(|word| !word.is_empty())
        .map(|word| {
            backend(word).ok_or_else(|| format!("{word:?} is no backend, expected HOST:PORT or :PORT"))
        })
        .collect::<Result<_, _>>()?;
    if backends.is_empty() {
        return Err("no backends given, expected `weir proxy :8080 to 127.0.0.1:9001,127.0.0.1:9002` (quote '->' for the shell)".to_owned());
    }
    let mut text = String::new();
    if let Some(admin) = &arguments.admin {
        let _ = write!(text, "[admin]\nbind = {admin:?}\n\n");
    }
    let protocol = if arguments.tcp { "protocol = \"tcp\"\n" } else { "" };
    let list = backends.iter().map(|backend| format!("{backend:?}")).collect::<Vec<_>>().join(", ");
    let _ = write!(
        text,
        "[listener.web]\n{protocol}bind = \"{bind}\"\npool = \"app\"\n\n[pool.app]\nbackends = [{list}]\n"
    );
    Ok(text)
}

/// Parses `:8080`, which means that port at `host`, or a full address.
fn address(text: &str, host: &str) -> Option<SocketAddr> {
    let whole = if text.starts_with(':') { format!("{host}{text}") } else { text.to_owned() };
    whole.parse().ok()
}

/// Parses `:9001`, which means that port on this machine, or `host:port`.
fn backend(text: &str) -> Option<String> {
    let whole = if text.starts_with(':') { format!("127.0.0.1{text}") } else { text.to_owned() };
    let (host, port) = whole.rsplit_once(':')?;
    (!host.is_empty() && !host.contains(['"', '\\']) && port.parse::<u16>().is_ok()).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// The config for a command line after `weir proxy`.
    fn text(listen: &str, words: &[&str]) -> Result<String, String> {
        let line = ["proxy", listen].into_iter().chain(words.iter().copied());
        let parsed = <Line as clap::Parser>::try_parse_from(line).map_err(|error| error.to_string())?;
        config(&parsed.arguments)
    }

    #[test]
    fn every_way_to_write_the_arrow_gives_the_same_config() {
        let expected = "[listener.web]\nbind = \"0.0.0.0:8080\"\npool = \"app\"\n\n[pool.app]\nbackends = [\"127.0.0.1:9001\", \"b:9002\"]\n";
        for words in [
            &["->", ":9001,b:9002"][..],
            &["to", ":9001,b:9002"],
            &[":9001,b:9002"],
            &[":9001", "b:9002"],
            &["->", ":9001,", "b:9002"],
        ] {
            assert_eq!(text(":8080", words).as_deref(), Ok(expected), "{words:?}");
        }
        assert!(weir_config::parse("proxy", expected).is_ok());
    }

    #[test]
    fn options_may_stand_behind_the_backends() {
        let config = text(":8080", &["->", ":9001", "--tcp", "--admin", "off"]).unwrap();
        assert!(config.starts_with("[admin]\nbind = \"off\"\n"), "{config}");
        assert!(config.contains("protocol = \"tcp\""), "{config}");
    }

    #[test]
    fn what_can_not_be_read_says_what_was_expected() {
        assert!(text("8080", &[":9001"]).unwrap_err().contains("expected :PORT"));
        assert!(text(":8080", &["nonsense"]).unwrap_err().contains("expected HOST:PORT"));
        assert!(text(":8080", &["to"]).unwrap_err().contains("no backends"));
        assert!(text(":8080", &["a\"b:1"]).is_err());
    }
}
