//! The verdict on each option of the sections beside `[routing]`: those of the metadata, of logs, of the REST
//! API and of Router's process.

use super::Said;
use super::addresses::shown;
use super::pools::{PASSWORD_FILE, RouterCluster};
use super::{approximate, exact, unsupported};

/// What is said of options that only the REST API has.
const REST: &str = "Weir has an API of its own with other paths: `[admin]`, at 127.0.0.1:9900 unless `admin.bind` says otherwise";
/// What is said of options that say where files are that Weir has not.
const NO_FOLDER: &str = "not needed: Weir has no such files";

/// What is said of idle connections where each client has its own to a server.
const NO_IDLE: &str = "means nothing: each client has a connection of its own to a server";

/// The verdict on an option of `[DEFAULT]` that is not one of `[routing]`. `None` if Router has no such
/// option.
pub fn default(name: &str, value: &str, cluster: &RouterCluster) -> Option<Said> {
    Some(match name {
        "plugin_folder" | "config_folder" | "runtime_folder" | "data_folder" | "core_file" => {
            exact(NO_FOLDER)
        }
        "logging_folder" => {
            approximate("Weir's own log goes to standard error, which systemd keeps in its journal")
        }
        "user" => approximate("say it in the unit file (`User=`): Weir does not change its user"),
        "pid_file" => approximate("systemd knows the process; Weir writes no such file"),
        "name" => exact("a name in the cluster's metadata, where Weir does not register"),
        "keyring_path" | "master_key_path" | "master_key_reader" | "master_key_writer" => {
            approximate(format!(
                "not read: it has the password of Router's account; Weir has an account of its own, with its password in {PASSWORD_FILE}"
            ))
        }
        "max_total_connections" => {
            approximate("`max_connections` of each listener: all of them together may have more")
        }
        "max_idle_server_connections" if !cluster.keeps_connections => exact(NO_IDLE),
        "max_idle_server_connections" => idle_connections(value),
        "read_timeout" => approximate(
            "a server that does not say its role within `timeout` of the pool's `health` (1 s) has none until it does",
        ),
        "unknown_config_option" if value.eq_ignore_ascii_case("error") => {
            exact("Weir refuses what it does not know")
        }
        "unknown_config_option" => approximate("Weir refuses what it does not know"),
        "ssl_mode" | "ssl_cipher" | "ssl_ca" | "ssl_capath" | "ssl_crl" | "ssl_crlpath" | "tls_version" => {
            exact("means nothing here: it is an option of `[metadata_cache]`")
        }
        _ => return None,
    })
}

/// The verdict on an option of another section than `[routing]` and `[DEFAULT]`. `None` if Router has no such
/// option there.
pub fn verdict(section: &str, name: &str, value: &str, cluster: &RouterCluster) -> Option<Said> {
    match section {
        "metadata_cache" => metadata(name, value, cluster),
        "logger" => log(name, value),
        "consolelog" | "filelog" | "syslog" | "eventlog" => match name {
            "level" => {
                Some(approximate("Weir's own log goes to one place, with the level that `[logger]` says"))
            }
            _ => log(name, value),
        },
        "connection_pool" if !cluster.keeps_connections => {
            matches!(name, "max_idle_server_connections" | "idle_timeout").then(|| exact(NO_IDLE))
        }
        "connection_pool" => match name {
            "max_idle_server_connections" => Some(idle_connections(value)),
            "idle_timeout" => Some(match value.parse::<u64>() {
                Ok(1..=86_400) => exact("`keep_alive.idle` of the pool"),
                Ok(_) => approximate("`keep_alive.idle` of the pool, from 1s to a day"),
                Err(_) => refused(value, "a number of seconds"),
            }),
            _ => None,
        },
        "destination_status" => match name {
            "error_quarantine_threshold" | "error_quarantine_interval" => Some(approximate(
                "a server is taken out and brought back by probes (`health`) and by what becomes of real traffic (`health.passive`)",
            )),
            _ => None,
        },
        "io" => match name {
            "threads" if value.is_empty() || value == "0" => Some(exact("one worker for each CPU")),
            "threads" => Some(match value.parse::<u64>() {
                Ok(1..=1024) => exact("`workers` of `[runtime]`"),
                _ => refused(value, "a number from 0 to 1024"),
            }),
            "backend" => Some(exact("not needed: Weir uses epoll")),
            _ => None,
        },
        "keepalive" => matches!(name, "interval" | "runs")
            .then(|| exact("not needed: Weir stays while it has a listener")),
        "host_cache" => {
            Some(approximate("names are looked up as their records' TTLs say, within the bounds of `[dns]`"))
        }
        "router_openssl" | "router_protobuf" => None,
        _ if is_of_rest(section) => Some(unsupported(REST)),
        "mysql_rest_service" => {
            Some(unsupported("Weir does not serve the MySQL REST Service: keep a Router for it"))
        }
        _ => None,
    }
}

/// The verdict on a section without an option.
pub fn empty(section: &str) -> Option<Said> {
    Some(match section {
        "connection_pool" => {
            exact("Weir always keeps servers' connections for further sessions (`keep_alive`)")
        }
        "logger" => exact("`[log]`"),
        "io" => exact("one worker for each CPU"),
        "keepalive" => exact("not needed: Weir stays while it has a listener"),
        "destination_status" => exact("servers are taken out and brought back by `health` of the pool"),
        "host_cache" => exact("`[dns]`"),
        "router_openssl" | "router_protobuf" => exact("a part of Router that Weir does not need"),
        _ if is_of_rest(section) => unsupported(REST),
        "mysql_rest_service" => {
            unsupported("Weir does not serve the MySQL REST Service: keep a Router for it")
        }
        _ => return None,
    })
}

fn is_of_rest(section: &str) -> bool {
    section.starts_with("rest_") || matches!(section, "http_server" | "http_auth_realm" | "http_auth_backend")
}

fn metadata(name: &str, value: &str, cluster: &RouterCluster) -> Option<Said> {
    Some(match name {
        "cluster_type" if cluster.is_replica_set => approximate(
            "`topology = \"replication\"`: the primary is the server that is not `read_only`; the metadata are not read",
        ),
        "cluster_type" if value.eq_ignore_ascii_case("gr") => exact("`topology = \"group-replication\"`"),
        "cluster_type" => refused(value, "`gr` or `rs`"),
        "metadata_cluster" => exact("the name of the pool"),
        "router_id" => unsupported(
            "Weir does not register in the cluster's metadata: MySQL Shell does not list it, and what is set for a Router there (`setRoutingOption`, routing guidelines, tags, `read_only_targets`, ClusterSet policies) is not read",
        ),
        "user" if cluster.is_replica_set => approximate(format!(
            "`user = \"weir\"` of the pool's `mysql`: CREATE USER 'weir'@'HOST' IDENTIFIED BY '…'; it needs no rights; and put the password into {PASSWORD_FILE}, which nobody else may read"
        )),
        "user" => approximate(format!(
            "`user = \"weir\"` of the pool's `mysql`: CREATE USER 'weir'@'HOST' IDENTIFIED BY '…'; GRANT SELECT ON performance_schema.replication_group_members TO 'weir'@'HOST'; and put the password into {PASSWORD_FILE}, which nobody else may read"
        )),
        "ttl" if cluster.interval_ms.is_some() => exact("`interval` of the pool's `mysql`"),
        "ttl" => approximate("every member is asked each 100 ms (`interval` of the pool's `mysql`)"),
        "use_gr_notifications" if matches!(value, "1" | "true") => approximate(
            "members are asked each 100 ms (`interval` of the pool's `mysql`), not over the X protocol",
        ),
        "use_gr_notifications" => exact("members are asked, not over the X protocol"),
        "auth_cache_ttl" | "auth_cache_refresh_interval" => {
            unsupported("for accounts of Router's REST API, which Weir has not (`admin.token_file`)")
        }
        "bootstrap_server_addresses" => exact("`backends` of the pool"),
        "connect_timeout" | "read_timeout" => approximate(
            "a server that does not say its role within `timeout` of the pool's `health` (1 s) has none until it does",
        ),
        "ssl_mode" | "ssl_ca" | "ssl_crl"
            if cluster.own_tls.is_none() && value.eq_ignore_ascii_case("disabled") =>
        {
            exact("no `tls` of the pool, unless `server_ssl_mode` wants it")
        }
        "ssl_mode" => approximate(
            "`tls` of the pool, which is `server_ssl_mode` first: Weir's questions go the same way as clients' statements",
        ),
        "ssl_cipher" | "ssl_ca" | "ssl_capath" | "ssl_crl" | "ssl_crlpath" | "tls_version"
            if value.is_empty() =>
        {
            exact("nothing is set")
        }
        "ssl_ca" | "ssl_crl" => approximate(
            "`tls` of the pool, which is `server_ssl_ca` and `server_ssl_crl` first: Weir's questions go the same way as clients' statements",
        ),
        "ssl_capath" | "ssl_crlpath" => unsupported("a folder: name its files in `tls` of the pool"),
        "ssl_cipher" | "tls_version" => approximate("TLS 1.2 and 1.3, with cipher suites of Weir's own"),
        "thread_stack_size" | "close_connection_after_refresh" => {
            exact("not needed: a connection to each member stays open")
        }
        _ => return None,
    })
}

fn log(name: &str, value: &str) -> Option<Said> {
    Some(match name {
        "level" => match level(value) {
            Some((level, true)) => exact(format!("`log.level = \"{level}\"`")),
            Some((level, false)) => approximate(format!("`log.level = \"{level}\"`")),
            None => refused(value, "a level such as `INFO`"),
        },
        "filename" | "destination" | "sinks" => {
            approximate("Weir's own log goes to standard error, which systemd keeps in its journal")
        }
        "timestamp_precision" => exact("Weir's own log has the time to the microsecond"),
        _ => return None,
    })
}

/// Weir's level for one of Router's, and whether it is the same.
pub fn level(value: &str) -> Option<(&'static str, bool)> {
    Some(match value.to_ascii_lowercase().as_str() {
        "fatal" | "system" => ("error", false),
        "error" => ("error", true),
        "warning" => ("warn", true),
        "note" => ("info", false),
        "info" => ("info", true),
        "debug" => ("debug", true),
        _ => return None,
    })
}

fn idle_connections(value: &str) -> Said {
    match value.parse::<u64>() {
        Ok(_) => approximate(
            "`keep_alive.max` of the pool, for each worker and server; with Router for all together",
        ),
        Err(_) => refused(value, "a number"),
    }
}

/// A value that Router itself refuses.
fn refused(value: &str, expected: &str) -> Said {
    unsupported(format!("Router refuses `{}`, too; expected {expected}: left out", shown(value)))
}
