//! The command line: its verbs and their options.

use std::net::{IpAddr, SocketAddr};

use clap::{CommandFactory as _, Parser, Subcommand};

use weir_admin::explain::Question;

use crate::arguments::{
    Added, AskedSql, Change, Cleared, ConfigFiles, InMaintenance, Purge, Removed, Running, ShownLimits,
};
use crate::exit::Exit;
use crate::verbs;

/// Load balancer for HTTP, TCP, UDP and MySQL.
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 success, 1 failure, 2 invalid config or arguments, 3 not running, 4 timeout.\n\
                        Signals of `weir run`: HUP reloads the config, TERM and INT drain and exit (a second INT exits at once), \
                        USR1 reopens the log files, USR2 upgrades: starts the program again and hands over all listening sockets."
)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the load balancer until TERM or INT
    Run {
        #[command(flatten)]
        files: ConfigFiles,
        /// Number of worker threads [default: `runtime.workers` of the config]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
        workers: Option<u16>,
    },
    /// Run a demo that needs no config: three built-in backends, HTTP, TCP and the status page
    Demo(verbs::demo::Arguments),
    /// Balance one address over a list of backends, without a config file; prints the equivalent config
    Proxy(verbs::proxy::Arguments),
    /// Validate a config file and the files that it names, without changing anything
    ///
    /// Exit codes: 0 if the config is valid; 2 if `weir run` and `weir reload` would reject it; with
    /// `--online`, 1 if a backend is unreachable or a certificate or revocation list has expired.
    Check {
        #[command(flatten)]
        files: ConfigFiles,
        /// Also show when certificates expire, and resolve and connect to every backend
        #[arg(long)]
        online: bool,
    },
    /// Reload the config of the running Weir; returns when it is in effect
    Reload {
        #[command(flatten)]
        running: Running,
    },
    /// Show listeners, pools, backends and the last reload
    Status {
        #[command(flatten)]
        running: Running,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a backend out of service: it gets no new work, and existing work continues
    Drain {
        /// Wait until its last request has finished
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        change: Change,
    },
    /// Manage the response cache
    Cache {
        #[command(subcommand)]
        what: CacheVerb,
    },
    /// Show the state of rate and concurrency limits, or reset them
    Limits {
        #[command(subcommand)]
        what: LimitsVerb,
    },
    /// Show or change the entries of a map
    Map {
        #[command(subcommand)]
        what: verbs::map::MapVerb,
    },
    /// Switch maintenance mode (503) on or off for all HTTP listeners or a part of them
    Maintenance(InMaintenance),
    /// Put a drained backend back into service
    Enable {
        /// Wait until it takes new work; its health checks may have to pass first
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        change: Change,
    },
    /// Add a backend to a pool
    Add(Added),
    /// Remove a backend from its pool; existing work continues
    Remove(Removed),
    /// List the flows of the kernel plane
    Flows(verbs::flows::Arguments),
    /// Run on a backend to decapsulate packets of `forward = "ipip"`, until TERM or INT
    Decapsulate(verbs::decapsulate::Arguments),
    /// Explain which listener, route, pool and backend a request, connection, flow or SQL statement gets
    Explain {
        #[command(subcommand)]
        what: Explain,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
    /// Print the version
    Version,
    /// Start a program and exit: used for upgrades under a service manager
    #[command(name = weir_control::upgrade::HAND_ON, hide = true)]
    HandOn {
        program: std::ffi::OsString,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Show a live view of traffic and backends; `q` quits
    Top(verbs::top::Arguments),
    /// Convert another program's configuration to a weir.toml; each directive is marked exact, approximate or
    /// unsupported
    Convert(verbs::convert::Arguments),
}

#[derive(Debug, Subcommand)]
enum Explain {
    /// Explain an HTTP request
    Http {
        /// Request method: GET, POST, …
        method: String,
        /// URL: `http://host[:port]/path?query`
        url: String,
        /// Client address
        #[arg(long, value_name = "IP")]
        from: Option<IpAddr>,
        /// Request header field; can be repeated
        #[arg(long, value_name = "NAME:VALUE", value_parser = header)]
        header: Vec<(String, String)>,
        /// Listener name [default: the listener at the URL's port]
        #[arg(long, value_name = "NAME")]
        listener: Option<String>,
        /// Server name (SNI) in the TLS handshake [default: the URL's host]
        #[arg(long, value_name = "NAME")]
        server_name: Option<String>,
        #[command(flatten)]
        running: Running,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Explain a TCP connection
    Tcp {
        /// Client, as address:port
        source: SocketAddr,
        /// Listener, as address:port
        destination: SocketAddr,
        /// Server name (SNI) in the TLS handshake [default: none]
        #[arg(long, value_name = "NAME")]
        server_name: Option<String>,
        #[command(flatten)]
        running: Running,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Explain a UDP flow
    Udp {
        /// Client, as address:port
        source: SocketAddr,
        /// Listener, as address:port
        destination: SocketAddr,
        #[command(flatten)]
        running: Running,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Explain an SQL statement
    Sql {
        #[command(flatten)]
        sql: AskedSql,
        #[command(flatten)]
        running: Running,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
enum CacheVerb {
    /// Remove responses from the cache, or mark them as stale
    Purge(Purge),
}

#[derive(Debug, Subcommand)]
enum LimitsVerb {
    /// Show the state of limits, and which clients or keys they rejected most often
    Show(ShownLimits),
    /// Reset the counters of a client or key, which is let in again at once
    Clear(Cleared),
}

/// Parses the command line and runs its verb.
pub fn main() -> Exit {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap returns help and version as errors too; they go to standard output and are not failures.
            let refused = error.use_stderr();
            let _ = error.print();
            return if refused { Exit::Refused } else { Exit::Done };
        }
    };
    done(cli.verb).unwrap_or_else(|exit| exit)
}

/// Runs a verb. Errors have been printed already.
fn done(verb: Verb) -> Result<Exit, Exit> {
    match verb {
        Verb::Run { files, workers } => verbs::run::run(&files.into(), workers.map(usize::from)),
        Verb::Demo(arguments) => verbs::demo::demo(&arguments),
        Verb::Proxy(arguments) => verbs::proxy::proxy(&arguments),
        Verb::Check { files, online } => verbs::check::check(&files.into(), online),
        Verb::Reload { running } => verbs::reload::reload(&running),
        Verb::Status { running, json } => verbs::status::status(&running, json),
        Verb::Drain { wait, change } => verbs::backend::drain(&change, wait),
        Verb::Enable { wait, change } => verbs::backend::enable(&change, wait),
        Verb::Map { what } => verbs::map::map(&what),
        Verb::Maintenance(arguments) => verbs::maintenance::maintenance(&arguments),
        Verb::Add(added) => verbs::backend::add(&added),
        Verb::Remove(removed) => verbs::backend::remove(&removed),
        Verb::Cache { what: CacheVerb::Purge(purge) } => verbs::cache::purge(&purge),
        Verb::Limits { what: LimitsVerb::Show(shown) } => verbs::limits::show(&shown),
        Verb::Limits { what: LimitsVerb::Clear(cleared) } => verbs::limits::clear(&cleared),
        Verb::Flows(arguments) => verbs::flows::flows(&arguments),
        Verb::Decapsulate(arguments) => verbs::decapsulate::decapsulate(&arguments),
        Verb::Explain { what } => explain(what),
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "weir", &mut script);
            say!("{}", String::from_utf8_lossy(&script).trim_end());
            Ok(Exit::Done)
        }
        Verb::Man => {
            let page = verbs::man::page(Cli::command()).map_err(|_| Exit::Failed)?;
            say!("{}", String::from_utf8_lossy(&page).trim_end());
            Ok(Exit::Done)
        }
        Verb::Version => {
            say!("weir {}", env!("CARGO_PKG_VERSION"));
            Ok(Exit::Done)
        }
        Verb::HandOn { program, arguments } => {
            weir_control::upgrade::hand_on(&program, &arguments).map(|()| Exit::Done).map_err(|error| {
                Exit::Failed.saying(format_args!("{program:?} can't be started for the upgrade: {error}"))
            })
        }
        Verb::Top(arguments) => verbs::top::top(&arguments),
        Verb::Convert(arguments) => verbs::convert::convert(&arguments),
    }
}

fn explain(what: Explain) -> Result<Exit, Exit> {
    let (question, running, json) = match what {
        Explain::Http { method, url, from, header: headers, listener, server_name, running, json } => {
            (Question::Http { method, url, from, headers, listener, server_name }, running, json)
        }
        Explain::Tcp { source, destination, server_name, running, json } => {
            (Question::Tcp { source, destination, server_name }, running, json)
        }
        Explain::Udp { source, destination, running, json } => {
            (Question::Udp { source, destination }, running, json)
        }
        Explain::Sql { sql, running, json } => (Question::Sql(sql.question()), running, json),
    };
    verbs::explain::explain(&running, &question, json)
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once(':').ok_or_else(|| format!("{text:?} has no colon, expected NAME:VALUE"))?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_put_together_well() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_begins_by_what_the_program_is_for() {
        let help = Cli::command().render_help().to_string();
        assert!(help.starts_with("Load balancer for HTTP, TCP, UDP and MySQL\n"), "{help}");
    }

    #[test]
    fn every_verb_of_the_contract_is_understood() {
        for line in [
            "weir run --config w.toml --workers 2",
            "weir demo",
            "weir proxy :8080 -> 127.0.0.1:9001,127.0.0.1:9002",
            "weir proxy :8080 to 127.0.0.1:9001",
            "weir proxy :8080 127.0.0.1:9001",
            "weir check",
            "weir check w.toml --online",
            "weir check w.toml x.toml",
            "weir run -c w.toml -c x.toml",
            "weir reload --admin 127.0.0.1:9901",
            "weir status --json",
            "weir drain app 127.0.0.1:9001 --wait --timeout 5s",
            "weir enable app [::1]:9001",
            "weir add app 127.0.0.1:9003 --lasting --weight 2 --max-connections 10 --backup",
            "weir remove app 127.0.0.1:9003",
            "weir cache purge --host shop.example --path /a --soft",
            "weir cache purge --prefix /static/",
            "weir cache purge --tag news --json",
            "weir cache purge --all",
            "weir limits show",
            "weir limits show --listener web --route login --keys 5 --json",
            "weir limits clear --client 192.0.2.7",
            "weir limits clear --key ann --listener web --route login --json",
            "weir limits clear --all",
            "weir map show tenants",
            "weir map show tenants shop.example --json",
            "weir map show tenants --limit 10",
            "weir map set tenants shop.example gold",
            "weir map remove places 10.0.0.0/8",
            "weir maintenance",
            "weir maintenance on",
            "weir maintenance on --listener web --route shop",
            "weir maintenance off --pool app --json",
            "weir explain http GET http://shop.example/ --from 10.0.0.1 --header x-canary:1",
            "weir explain tcp 10.0.0.1:999 10.0.0.2:80",
            "weir explain tcp 10.0.0.1:999 10.0.0.2:443 --server-name shop.example",
            "weir explain udp 10.0.0.1:999 10.0.0.2:53 --json",
            "weir explain sql select 1",
            "weir explain sql --listener db --in-transaction --autocommit-off -- select 1",
            "weir explain sql --in-transaction=read-only --sql-mode ANSI --charset gbk select 1 --json",
            "weir flows --listener vip --client 10.9.9.9 --limit 10",
            "weir decapsulate --interface eth0 --interface eth1 --from 10.0.0.5 --from fd00::5 --to 10.0.9.9",
            "weir completions bash",
            "weir man",
            "weir version",
            "weir top",
            "weir top --interval 500ms --troubled --admin 127.0.0.1:9900",
            "weir convert arc2.toml",
            "weir convert arc2.toml --output weir.toml --strict",
        ] {
            if let Err(error) = Cli::try_parse_from(line.split(' ')) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn a_duration_without_a_unit_is_refused() {
        assert!(Cli::try_parse_from("weir drain app a:1 --timeout 5".split(' ')).is_err());
        assert!(Cli::try_parse_from("weir run --workers 0".split(' ')).is_err());
    }
}
