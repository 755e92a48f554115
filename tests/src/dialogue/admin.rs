//! The admin API as a test's client sees it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;

use super::message::Response;
use super::wire::Wire;

/// Calls the admin API, each call on a connection of its own.
#[derive(Clone, Copy, Debug)]
pub struct Admin {
    address: SocketAddr,
}

/// What the admin API answered.
#[derive(Debug)]
pub struct Answer {
    /// The response as it came.
    pub response: Response,
}

/// One line of the metrics page.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Name of the metric.
    pub name: String,
    /// Labels and their values.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

impl Answer {
    /// The body as JSON; panics when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.response.body)
            .unwrap_or_else(|problem| panic!("expected JSON ({problem}): {:?}", self.response))
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.response.status
    }
}

impl Admin {
    /// The API at this address.
    pub fn at(address: SocketAddr) -> Admin {
        Admin { address }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `GET path`.
    pub fn reads(&self, path: &str) -> Answer {
        self.calls("GET", path, &[], "")
    }

    /// `GET path`; `None` when nobody answers.
    pub fn tries_to_read(&self, path: &str) -> Option<Answer> {
        let mut wire = Wire::try_connect(self.address).ok()?;
        wire.tries_to_send(self.request("GET", path, &[], "")).ok()?;
        let response = wire.tries_to_receive_response("GET").ok()?;
        Some(Answer { response })
    }

    /// Any call. A `host` among `fields` replaces the usual one; a body is sent as JSON.
    pub fn calls(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Answer {
        let mut wire = Wire::connect(self.address);
        wire.sends(self.request(method, path, fields, body));
        Answer { response: wire.receives_response_to(method) }
    }

    fn request(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> String {
        let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !fields.iter().any(|(name, _)| *name == "host") {
            request += &format!("host: {}\r\n", self.address);
        }
        for (name, value) in fields {
            request += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            request += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        request + "\r\n" + body
    }

    /// The metrics page, parsed.
    pub fn metrics(&self) -> Vec<Sample> {
        let answer = self.reads("/metrics");
        assert_eq!(answer.status(), 200, "{:?}", answer.response);
        answer.response.text().lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
    }

    /// The sum of all samples of `name` that carry these labels; 0 when there is none.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |sample: &Sample| {
            labels.iter().all(|(key, value)| sample.labels.get(*key).map(String::as_str) == Some(value))
        };
        let all = self.metrics();
        all.iter().filter(|sample| sample.name == name && carries(sample)).map(|sample| sample.value).sum()
    }
}

/// Reads `name{a="b",c="d"} 1.5`. Escapes in label values are undone.
fn sample(line: &str) -> Option<Sample> {
    let line = line.trim();
    let Some((name, rest)) = line.split_once('{') else {
        let (name, value) = line.split_once(' ')?;
        let value = value.split(' ').next()?.parse().ok()?;
        return Some(Sample { name: name.to_owned(), labels: BTreeMap::new(), value });
    };
    let mut labels = BTreeMap::new();
    let mut characters = rest.chars();
    loop {
        let key: String = characters.by_ref().take_while(|&c| c != '=' && c != '}').collect();
        let key = key.trim_start_matches(',').trim().to_owned();
        if key.is_empty() {
            break;
        }
        if characters.next()? != '"' {
            return None;
        }
        let mut value = String::new();
        loop {
            match characters.next()? {
                '"' => break,
                '\\' => match characters.next()? {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                other => value.push(other),
            }
        }
        labels.insert(key, value);
        // Behind a value stands a comma, or the brace that ends the list.
        match characters.next()? {
            ',' => {}
            '}' => break,
            _ => return None,
        }
    }
    let rest: String = characters.collect();
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

#[cfg(test)]
mod tests {
    use super::sample;

    #[test]
    fn a_sample_line_is_read_with_its_labels_unescaped() {
        let read = sample(r#"weir_requests_total{code="2xx",host="a\"b\\c\nd, }"} 1.5e3"#).expect("a sample");
        assert_eq!((read.name.as_str(), read.value), ("weir_requests_total", 1500.0));
        assert_eq!(read.labels["host"], "a\"b\\c\nd, }");
        assert_eq!(sample("up 1").expect("a sample").value, 1.0);
        assert_eq!(sample(r#"up{} 1"#).expect("a sample").value, 1.0);
    }
}
