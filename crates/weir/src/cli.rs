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
    after_help = "Exit codes: 0 done, 1 failed, 2 config or arguments refused, 3 not running, 4 timed out.\n\
                        Signals of `weir run`: HUP reload, TERM and INT drain and exit (a second INT: at once), USR1 reopen logs, \
                        USR2 start the program anew and hand it all listening sockets."
)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve until TERM or INT
    Run {
        #[command(flatten)]
        files: ConfigFiles,
        /// Worker threads; overrides `runtime.workers`
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
        workers: Option<u16>,
    },
    /// Show what Weir does without any config: three embedded backends, HTTP, TCP and the status page
    Demo(verbs::demo::Arguments),
    /// Balance one address over some backends; prints the equivalent config
    Proxy(verbs::proxy::Arguments),
    /// Check a config file, and the files that it names, without touching anything
    ///
    /// Exit code 0: good. 2: refused, as `weir run` and `weir reload` would refuse it. 1, with `--online`:
    /// a backend can't be reached, or a certificate or a list of revoked ones is out of date.
    Check {
        #[command(flatten)]
        files: ConfigFiles,
        /// Also say until when certificates are good, and resolve and connect to every backend
        #[arg(long)]
        online: bool,
    },
    /// Put the config file in force in the running Weir; returns when it is
    Reload {
        #[command(flatten)]
        running: Running,
    },
    /// Show listeners, pools, backends and the last reload
    Status {
        #[command(flatten)]
        running: Running,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a backend out of service: it gets no new work, and what runs goes on
    Drain {
        /// Return when its last request has ended
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        change: Change,
    },
    /// Purge responses that are kept in memory
    Cache {
        #[command(subcommand)]
        what: CacheVerb,
    },
    /// Show whom limits keep out, or let somebody in again
    Limits {
        #[command(subcommand)]
        what: LimitsVerb,
    },
    /// Show a map, or change lines of it
    Map {
        #[command(subcommand)]
        what: verbs::map::MapVerb,
    },
    /// Switch maintenance (503) on or off, for a part of the service or for all that speaks HTTP
    Maintenance(InMaintenance),
    /// Take a backend back in
    Enable {
        /// Return when it takes new work: its probes may have to find it up first
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        change: Change,
    },
    /// Add a backend to a pool
    Add(Added),
    /// Remove a backend from its pool; what runs there goes on
    Remove(Removed),
    /// Show the flows that the kernel plane remembers
    Flows(verbs::flows::Arguments),
    /// On a backend: remove the outer header of packets of `forward = "ipip"`, until TERM or INT
    Decapsulate(verbs::decapsulate::Arguments),
    /// Say which listener, route, pool and backend a request, connection, flow or statement gets, and why
    Explain {
        #[command(subcommand)]
        what: Explain,
    },
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
    /// Print the version
    Version,
    /// Begin a program and end: for a process that is upgraded under a service manager
    #[command(name = weir_control::upgrade::HAND_ON, hide = true)]
    HandOn {
        program: std::ffi::OsString,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Show rates and backends on the terminal, as they change, until `q`
    Top(verbs::top::Arguments),
    /// Make a weir.toml from another program's configuration (so far: ARC2), each directive marked exact,
    /// approximate or unsupported
    Convert(verbs::convert::Arguments),
}

#[derive(Debug, Subcommand)]
enum Explain {
    /// An HTTP request
    Http {
        /// GET, POST, …
        method: String,
        /// `http://host[:port]/path?query`
        url: String,
        /// Address of the client
        #[arg(long, value_name = "IP")]
        from: Option<IpAddr>,
        /// A header field
        #[arg(long, value_name = "NAME:VALUE", value_parser = header)]
        header: Vec<(String, String)>,
        /// Name of the listener; default by the URL's port
        #[arg(long, value_name = "NAME")]
        listener: Option<String>,
        /// Name that the client asks for in its TLS greeting; default the URL's host
        #[arg(long, value_name = "NAME")]
        server_name: Option<String>,
        #[command(flatten)]
        running: Running,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// A TCP connection
    Tcp {
        /// The client, address:port
        source: SocketAddr,
        /// The listener, address:port
        destination: SocketAddr,
        /// Name that the client asks for in its TLS greeting; default none
        #[arg(long, value_name = "NAME")]
        server_name: Option<String>,
        #[command(flatten)]
        running: Running,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// A UDP flow
    Udp {
        /// The client, address:port
        source: SocketAddr,
        /// The listener, address:port
        destination: SocketAddr,
        #[command(flatten)]
        running: Running,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// An SQL statement
    Sql {
        #[command(flatten)]
        sql: AskedSql,
        #[command(flatten)]
        running: Running,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
enum CacheVerb {
    /// Take kept responses out, or make them out of date
    Purge(Purge),
}

#[derive(Debug, Subcommand)]
enum LimitsVerb {
    /// Show how limits stand, and whom they refused most often
    Show(ShownLimits),
    /// Forget what was counted for somebody, who may come in again at once
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
        Verb::HandOn { program, arguments } => weir_control::upgrade::hand_on(&program, &arguments)
            .map(|()| Exit::Done)
            .map_err(|error| Exit::Failed.saying(format_args!("nobody upgrades to {program:?}: {error}"))),
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
