//! Arguments that verbs of the command line take.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use weir_admin::explain::{SqlQuestion, Transaction};
use weir_config::AdminBind;

/// Which config file.
#[derive(Debug, Args)]
pub struct ConfigArgument {
    /// Config file; can be repeated [default: $WEIR_CONFIG, ./weir.toml or /etc/weir/weir.toml]
    #[arg(long, short, value_name = "FILE")]
    pub config: Vec<PathBuf>,
}

/// Which config file, of commands that are about nothing else: with `--config` or without.
#[derive(Debug, Args)]
pub struct ConfigFiles {
    /// Config file; can be repeated [default: $WEIR_CONFIG, ./weir.toml or /etc/weir/weir.toml]
    #[arg(value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Same as FILE
    #[arg(long, short, value_name = "FILE", conflicts_with = "file")]
    config: Vec<PathBuf>,
}

impl From<ConfigFiles> for ConfigArgument {
    fn from(files: ConfigFiles) -> ConfigArgument {
        let ConfigFiles { file, config } = files;
        ConfigArgument { config: if file.is_empty() { config } else { file } }
    }
}

/// Which running Weir.
#[derive(Debug, Args)]
pub struct Running {
    #[command(flatten)]
    pub config: ConfigArgument,
    /// Address of the admin API, or `unix:/path` [default: `admin.bind` of the config]
    #[arg(long, value_name = "ADDRESS", env = "WEIR_ADMIN")]
    pub admin: Option<AdminBind>,
    /// File with the admin token [default: `admin.token_file` of the config]
    #[arg(long, value_name = "FILE", env = "WEIR_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    #[command(flatten)]
    pub tls: AdminTrust,
}

/// With what TLS is spoken to the admin API. Any of it asks for TLS, as `[admin.tls]` of the config does.
#[derive(Debug, Args)]
pub struct AdminTrust {
    /// CA certificates to verify the admin API's certificate with [default: the certificate in `[admin.tls]`
    /// of the config, or the system's CA certificates]
    #[arg(long, value_name = "FILE", env = "WEIR_ADMIN_CA")]
    pub admin_ca: Option<PathBuf>,
    /// Host name to verify in the admin API's certificate [default: the host of its address]
    #[arg(long, value_name = "NAME", env = "WEIR_ADMIN_NAME")]
    pub admin_name: Option<String>,
    /// Client certificate for the admin API
    #[arg(long, value_name = "FILE", env = "WEIR_ADMIN_CERT", requires = "admin_key")]
    pub admin_cert: Option<PathBuf>,
    /// Key of the client certificate
    #[arg(long, value_name = "FILE", env = "WEIR_ADMIN_KEY", requires = "admin_cert")]
    pub admin_key: Option<PathBuf>,
}

/// What `weir cache purge` takes out.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("what").args(["path", "prefix", "tag", "all"]))]
#[command(group = clap::ArgGroup::new("any")
    .args(["host", "path", "prefix", "tag", "all"]).required(true).multiple(true))]
pub struct Purge {
    /// Only responses of this host [default: every host]
    #[arg(long, conflicts_with_all = ["tag", "all"])]
    pub host: Option<String>,
    /// Only this path, as backends see it, with any query
    #[arg(long)]
    pub path: Option<String>,
    /// Only paths with this prefix
    #[arg(long)]
    pub prefix: Option<String>,
    /// Only responses with this tag in `surrogate-key` or `cache-tag`
    #[arg(long)]
    pub tag: Option<String>,
    /// All responses
    #[arg(long)]
    pub all: bool,
    /// Mark them as stale instead: they are revalidated before they are used again
    #[arg(long)]
    pub soft: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub running: Running,
}

/// Which limits `weir limits show` shows.
#[derive(Args, Debug)]
pub struct ShownLimits {
    /// Only limits of this listener and its routes
    #[arg(long, value_name = "NAME")]
    pub listener: Option<String>,
    /// Only limits of routes with this name
    #[arg(long, value_name = "NAME")]
    pub route: Option<String>,
    /// Maximum number of keys per limit; those rejected most often are shown
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub keys: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub running: Running,
}

/// What `weir limits clear` has forgotten.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("whose").args(["client", "key", "all"]).required(true))]
pub struct Cleared {
    /// Reset the counters of this address, or of its network
    #[arg(long, value_name = "IP")]
    pub client: Option<IpAddr>,
    /// Reset the counters of this value of a header, cookie or text, as shown by `weir explain http`
    #[arg(long, value_name = "TEXT")]
    pub key: Option<String>,
    /// Reset the counters of all clients and keys
    #[arg(long)]
    pub all: bool,
    /// Only limits of this listener and its routes
    #[arg(long, value_name = "NAME")]
    pub listener: Option<String>,
    /// Only limits of routes with this name
    #[arg(long, value_name = "NAME")]
    pub route: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub running: Running,
}

/// What `weir maintenance` takes.
#[derive(Args, Debug)]
pub struct InMaintenance {
    /// Switch it on or off [default: show what is in maintenance]
    #[arg(value_enum)]
    pub state: Option<OnOff>,
    /// Only this listener, or with `--route` this route of it
    #[arg(long, value_name = "NAME", requires = "state")]
    pub listener: Option<String>,
    /// Only routes with this `name`; a route without a name can't be switched alone
    #[arg(long, value_name = "NAME", requires = "state")]
    pub route: Option<String>,
    /// Only requests to this pool; connections and flows of other protocols continue
    #[arg(long, value_name = "NAME", requires = "state", conflicts_with_all = ["listener", "route"])]
    pub pool: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub running: Running,
}

/// One way or the other.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum OnOff {
    /// Clients get 503
    On,
    /// Clients are served again
    Off,
}

/// What `weir explain sql` takes.
#[derive(Args, Debug)]
pub struct AskedSql {
    /// Listener name [default: the only one that speaks MySQL]
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// The statement is in an open transaction
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "read-write"
    )]
    in_transaction: Option<InTransaction>,
    /// The session has `autocommit = 0`
    #[arg(long)]
    autocommit_off: bool,
    /// The session's `sql_mode`
    #[arg(long, value_name = "MODES", default_value = "")]
    sql_mode: String,
    /// The session's `character_set_client`
    #[arg(long, value_name = "NAME")]
    charset: Option<String>,
    /// Client address
    #[arg(long, value_name = "IP")]
    from: Option<IpAddr>,
    /// The statement; several words are joined by spaces. Put `--` before it if it begins with a hyphen
    #[arg(required = true)]
    statement: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum InTransaction {
    /// A transaction that may write
    ReadWrite,
    /// A transaction that began with READ ONLY
    ReadOnly,
}

impl AskedSql {
    /// The question that these arguments ask.
    pub fn question(self) -> SqlQuestion {
        SqlQuestion {
            statement: self.statement.join(" "),
            listener: self.listener,
            transaction: self.in_transaction.map(|kind| match kind {
                InTransaction::ReadWrite => Transaction::ReadWrite,
                InTransaction::ReadOnly => Transaction::ReadOnly,
            }),
            autocommit: !self.autocommit_off,
            sql_mode: self.sql_mode,
            charset: self.charset,
            from: self.from,
        }
    }
}

/// What `weir drain` and `weir enable` take.
#[derive(Debug, Args)]
pub struct Change {
    /// Pool name
    pub pool: String,
    /// Backend address, as written in the config
    pub backend: String,
    /// Maximum time to wait
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub running: Running,
}

/// What `weir add` takes.
#[derive(Debug, Args)]
pub struct Added {
    /// Pool name
    pub pool: String,
    /// Backend address, host:port
    pub backend: String,
    /// Weight: its share of the load
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=256))]
    pub weight: u32,
    /// Maximum number of connections or requests in flight [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: Option<u32>,
    /// Use it only if no other backend is up
    #[arg(long)]
    pub backup: bool,
    /// Keep it across reloads and upgrades; otherwise the next reload removes it
    #[arg(long)]
    pub lasting: bool,
    #[command(flatten)]
    pub running: Running,
}

/// What `weir remove` takes.
#[derive(Debug, Args)]
pub struct Removed {
    /// Pool name
    pub pool: String,
    /// Backend address, as shown by `weir status`
    pub backend: String,
    #[command(flatten)]
    pub running: Running,
}

/// Parses a duration with its unit, as in configs.
pub fn duration(text: &str) -> Result<Duration, String> {
    weir_config::units::duration(text).map_err(|refused| format!("{}: {}", refused.message, refused.hint))
}
