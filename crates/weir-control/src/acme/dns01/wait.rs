//! Waits until name servers have a record: an authority asks any of them, and what one does not have yet is a
//! proof that failed.

use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::rr::{Name, RData, RecordType};

use super::message;

/// Between two rounds of questions, the first time; half as often each time, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A name server, which is asked at its addresses one after the other until one answers.
pub struct Server {
    pub addresses: Vec<SocketAddr>,
}

/// Name servers of one address each.
pub fn alone(addresses: &[SocketAddr]) -> Vec<Server> {
    addresses.iter().map(|address| Server { addresses: vec![*address] }).collect()
}

/// Asks until all have it; at once when there are none.
///
/// # Errors
/// One had not after `longest`; says which, and what it said.
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
