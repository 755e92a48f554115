//! The metadata schema that MySQL Router asks for the members.
//!
//! MySQL Shell would make it, but no package registry has that. This schema was found by watching which
//! queries Router 9.7 logs and which of them fail, and holds only the tables and columns that they name.
//! Router accepts tables where it expects views.

use std::io;

use super::member::Member;
use super::{GROUP, METADATA_CLUSTER};

/// Makes the schema through `primary`, which must see all members online. Also makes accounts for this many
/// `routers`, with ids from 1.
pub fn make(primary: &Member, routers: u32) -> io::Result<()> {
    let cluster = METADATA_CLUSTER;
    let mut statements = vec![
        "DROP DATABASE IF EXISTS mysql_innodb_cluster_metadata".to_owned(),
        "CREATE DATABASE mysql_innodb_cluster_metadata".to_owned(),
        table("schema_version (major INT PRIMARY KEY, minor INT NOT NULL, patch INT NOT NULL)"),
        // The last version without routing guidelines, which would need another table that is not used here.
        row("schema_version VALUES (2, 2, 0)"),
        table("v2_this_instance (cluster_id VARCHAR(36) PRIMARY KEY, cluster_type VARCHAR(8) NOT NULL)"),
        row(&format!("v2_this_instance VALUES ('{cluster}', 'gr')")),
        // Stays empty: the cluster is in no cluster set.
        table("v2_cs_members (cluster_id VARCHAR(36) PRIMARY KEY, clusterset_id VARCHAR(36))"),
        table(
            "v2_gr_clusters (cluster_id VARCHAR(36) PRIMARY KEY, cluster_name VARCHAR(80) NOT NULL, \
             group_name VARCHAR(36) NOT NULL)",
        ),
        row(&format!("v2_gr_clusters VALUES ('{cluster}', '{cluster}', '{GROUP}')")),
        table(
            "v2_instances (mysql_server_uuid VARCHAR(36) PRIMARY KEY, cluster_id VARCHAR(36) NOT NULL, \
             endpoint VARCHAR(80) NOT NULL, xendpoint VARCHAR(80), attributes JSON, label VARCHAR(80))",
        ),
        row(&format!(
            "v2_instances SELECT MEMBER_ID, '{cluster}', CONCAT(MEMBER_HOST, ':', MEMBER_PORT), NULL, '{{}}', \
             CONCAT(MEMBER_HOST, ':', MEMBER_PORT) FROM performance_schema.replication_group_members"
        )),
        table("v2_router_options (router_id INT PRIMARY KEY, router_options JSON)"),
        table(
            "v2_routers (router_id INT PRIMARY KEY, address VARCHAR(80), router_name VARCHAR(80), \
             version VARCHAR(40), last_check_in TIMESTAMP NULL, attributes JSON, options JSON)",
        ),
    ];
    for router in 1..=routers {
        statements.push(row(&format!("v2_router_options VALUES ({router}, '{{}}')")));
        statements.push(row(&format!(
            "v2_routers VALUES ({router}, '127.0.0.1', 'router_{router}', NULL, NULL, '{{}}', '{{}}')"
        )));
    }
    let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    primary.execute(&statements)
}

fn table(definition: &str) -> String {
    format!("CREATE TABLE mysql_innodb_cluster_metadata.{definition}")
}

fn row(values: &str) -> String {
    format!("INSERT INTO mysql_innodb_cluster_metadata.{values}")
}
