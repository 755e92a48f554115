//! Waits until all name servers have a record: an authority may ask any of them, and a missing record means a
//! failed proof.

use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::rr::{Name, RData, RecordType};

use super::message;

/// First pause between two rounds of questions; it doubles each time, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A name server; its addresses are tried in turn until one answers.
pub struct Server {
    pub addresses: Vec<SocketAddr>,
}

/// Name servers with one address each.
pub fn alone(addresses: &[SocketAddr]) -> Vec<Server> {
    addresses.iter().map(|address| Server { addresses: vec![*address] }).collect()
}

/// Asks until all of them have the record; returns at once if there are none.
///
/// # Errors
/// A server did not have it after `longest`; says which one, and its last answer.
pub async fn until_all_have(
    servers: &[Server],
    name: &str,
    value: &str,
    longest: Duration,
) -> Result<(), String> {
    let parsed = message::name(name)?;
    let mut last = String::new();
    let asking = async {
        let mut pause = PAUSE;
        let mut rest = servers;
        while let Some((first, others)) = rest.split_first() {
            match first.has(&parsed, value).await {
                Ok(()) => rest = others,
                Err(reason) => {
                    last = reason;
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    };
    match tokio::time::timeout(longest, asking).await {
        Ok(()) => Ok(()),
        Err(_) if last.is_empty() => Err(format!("{name} could not be looked up within {longest:?}")),
        Err(_) => Err(format!("{name} was not there within {longest:?}: {last}")),
    }
}

impl Server {
    async fn has(&self, name: &Name, value: &str) -> Result<(), String> {
        let mut last = "a name server without an address".to_owned();
        for address in &self.addresses {
            match message::ask(*address, name, RecordType::TXT).await {
                Ok(answer) => {
                    let values = answer.answers.iter().filter_map(|record| match &record.data {
                        RData::TXT(text) => Some(text.txt_data.concat()),
                        _ => None,
                    });
                    let values: Vec<Vec<u8>> = values.collect();
                    if values.iter().any(|found| found == value.as_bytes()) {
                        return Ok(());
                    }
                    let (code, count) = (answer.metadata.response_code, values.len());
                    return Err(format!("name server {address} answers {code} with {count} other records"));
                }
                Err(reason) => last = reason,
            }
        }
        Err(last)
    }
}
