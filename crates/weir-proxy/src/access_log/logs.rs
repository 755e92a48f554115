//! The logs that the lines of a listener and its routes go to, compiled with the listener.

use std::sync::Arc;

use weir_config::{Config, Listener};
use weir_http::ResponseHead;
use weir_template::Source;

use super::AccessLog;
use super::captured::{Asked, Captured};
use super::writer::OpenLog;

/// The logs of a listener. If a listener's lines only go to the log of `[log]`, in one of the fixed formats,
/// it has none of these: [`WorkerLog::write`](super::WorkerLog::write) is enough then.
pub struct Logs {
    sinks: Box<[(String, Arc<OpenLog>)]>,
    asked: Asked,
    /// Which sinks take lines without a route, one bit for each.
    of_listener: u32,
    /// The same for each route, by its index.
    of_routes: Box<[u32]>,
}

const _: () = assert!(weir_config::MOST_ACCESS_LOGS < 32, "one bit for each log");

impl Logs {
    /// The logs of `listener`, out of those that `access_log` has open.
    pub fn compile(config: &Config, listener: &Listener, access_log: &AccessLog) -> Option<Box<Logs>> {
        let is_usual =
            config.access_logs.is_empty() && AccessLog::is_usual(&config.log) && listener.access_log;
        if is_usual {
            return None;
        }
        let sinks = access_log.sinks(config);
        let mask = |is_logged: bool, names: &[String]| {
            let takes = |name: &String| is_logged && (names.is_empty() || names.contains(name));
            let bits = sinks.iter().enumerate().filter(|(_, (name, _))| takes(name));
            bits.fold(0, |mask, (number, _)| mask | 1 << number)
        };
        let of_listener = mask(listener.access_log, &listener.access_logs);
        let of_routes: Box<[u32]> =
            listener.routes.iter().map(|route| mask(route.access_log, &route.access_logs)).collect();
        let all = of_routes.iter().fold(of_listener, |all, mask| all | mask);
        let mut asked = Asked::default();
        for (number, (_, sink)) in sinks.iter().enumerate() {
            if all & 1 << number != 0 {
                asked.add(sink.rules().variables());
            }
        }
        Some(Box::new(Logs { sinks: sinks.into(), asked, of_listener, of_routes }))
    }

    fn mask(&self, route: Option<usize>) -> u32 {
        route.and_then(|route| self.of_routes.get(route).copied()).unwrap_or(self.of_listener)
    }

    /// Whether any log takes lines of this route, or without a route.
    #[inline]
    pub fn takes(&self, route: Option<usize>) -> bool {
        self.mask(route) != 0
    }

    /// Whether any log takes any line.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.of_listener != 0 || self.of_routes.iter().any(|mask| *mask != 0)
    }

    /// The logs that take lines of this route.
    pub(super) fn of(&self, route: Option<usize>) -> impl Iterator<Item = &Arc<OpenLog>> {
        let mask = self.mask(route);
        self.sinks
            .iter()
            .enumerate()
            .filter(move |(number, _)| mask & 1 << number != 0)
            .map(|(_, (_, it))| it)
    }

    /// The names of the logs that take lines of this route, if conditions and samples let them pass.
    pub fn names(&self, route: Option<usize>) -> Vec<String> {
        let mask = self.mask(route);
        let named = self.sinks.iter().enumerate().filter(|(number, _)| mask & 1 << number != 0);
        named.map(|(_, (name, _))| name.clone()).collect()
    }

    /// Copies what lines need from a request.
    pub fn note_request(&self, captured: &mut Captured, source: &impl Source) {
        captured.note_request(&self.asked, source);
    }

    /// Copies what lines need from the authenticated user.
    pub fn note_user(&self, captured: &mut Captured, source: &impl Source) {
        captured.note_user(&self.asked, source);
    }

    /// Whether lines contain anything about the user except the name.
    #[inline]
    pub fn asks_of_user(&self) -> bool {
        self.asked.is_of_user()
    }

    /// Copies what lines need from the response.
    pub fn note_response(&self, captured: &mut Captured, head: &ResponseHead, text: &[u8]) {
        captured.note_response(&self.asked, head, text);
    }

    /// Whether lines contain values of requests and responses that records do not have.
    #[inline]
    pub fn asks(&self) -> bool {
        !self.asked.is_empty()
    }
}
