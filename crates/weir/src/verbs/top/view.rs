//! The screen of `weir top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};
use weir_admin::status::{BackendStatus, ListenerStatus, PoolStatus};

use super::rates::{BackendRates, History, ListenerRates, Look};
use crate::client::CallError;
use crate::verbs::status::{name, quantiles, span};

/// A screen with fewer lines has no chart.
const LINES_FOR_PICTURE: u16 = 24;
const PICTURE_LINES: u16 = 6;
/// Lines of a table besides its rows: its frame and its header.
const TABLE_LINES: usize = 3;

/// A column's title, its width, and the width that a screen needs to show it.
struct Column(&'static str, Constraint, u16);

const LISTENER_COLUMNS: [Column; 13] = [
    Column("listener", Constraint::Max(16), 0),
    Column("protocol", Constraint::Max(12), 120),
    Column("bind", Constraint::Min(18), 0),
    Column("open", Constraint::Max(7), 0),
    Column("conn/s", Constraint::Max(7), 0),
    Column("req/s", Constraint::Max(7), 0),
    Column("4xx/s", Constraint::Max(7), 100),
    Column("5xx/s", Constraint::Max(7), 0),
    Column("refused/s", Constraint::Max(9), 0),
    Column("in", Constraint::Max(9), 110),
    Column("out", Constraint::Max(9), 110),
    Column("p50", Constraint::Max(8), 140),
    Column("p99", Constraint::Max(8), 90),
];

const BACKEND_COLUMNS: [Column; 11] = [
    Column("pool", Constraint::Max(12), 0),
    Column("backend", Constraint::Min(21), 0),
    Column("state", Constraint::Max(11), 0),
    Column("in flight", Constraint::Max(9), 0),
    Column("waiting", Constraint::Max(7), 120),
    Column("req/s", Constraint::Max(6), 0),
    Column("5xx/s", Constraint::Max(6), 90),
    Column("failed/s", Constraint::Max(8), 0),
    Column("p50", Constraint::Max(8), 140),
    Column("p99", Constraint::Max(8), 110),
    Column("why", Constraint::Min(9), 0),
];

/// A table with the columns that a screen of this width has room for.
fn table<'c>(columns: &[Column], width: u16, rows: impl Iterator<Item = Vec<Cell<'c>>>) -> Table<'c> {
    let is_shown = |index: usize| columns[index].2 <= width;
    let shown = || columns.iter().filter(|column| column.2 <= width);
    let rows = rows.map(|cells| {
        let cells = cells.into_iter().enumerate().filter(|(index, _)| is_shown(*index));
        Row::new(cells.map(|(_, cell)| cell))
    });
    let heads = Row::new(shown().map(|column| column.0)).bold();
    Table::new(rows, shown().map(|column| column.1)).header(heads)
}

/// What is shown, and how.
pub struct View {
    address: String,
    pub history: History,
    /// Why the last sample could not be taken.
    trouble: Option<String>,
    is_troubled_only: bool,
    pub is_paused: bool,
    /// Number of backends above the first one that is shown.
    above: usize,
    has_colours: bool,
}

impl View {
    pub fn new(address: String, first: Look, is_troubled_only: bool, has_colours: bool) -> View {
        let history = History::beginning(first);
        View { address, history, trouble: None, is_troubled_only, is_paused: false, above: 0, has_colours }
    }

    /// Adds a sample. If it could not be taken, the last one stays.
    pub fn look(&mut self, look: Result<Look, CallError>) {
        match look {
            Ok(look) => {
                self.history.add(look);
                self.trouble = None;
            }
            Err(CallError::NotRunning(why) | CallError::Broken(why)) => self.trouble = Some(why),
        }
    }

    pub fn toggle_troubled(&mut self) {
        self.is_troubled_only = !self.is_troubled_only;
        self.above = 0;
    }

    pub fn scroll(&mut self, lines: isize) {
        self.above = self.above.saturating_add_signed(lines);
    }

    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let listeners = self.history.last.status.listeners.len() + TABLE_LINES;
        let most = usize::from(area.height) / 3;
        let picture = if area.height >= LINES_FOR_PICTURE { PICTURE_LINES } else { 0 };
        let [head, picture, listeners, backends, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(picture),
            Constraint::Length(u16::try_from(listeners.min(most.max(TABLE_LINES + 1))).unwrap_or(u16::MAX)),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .areas(area);
        frame.render_widget(Paragraph::new(self.head()), head);
        self.draw_picture(frame, picture);
        self.draw_listeners(frame, listeners);
        self.draw_backends(frame, backends);
        frame.render_widget(Line::from(self.foot()).style(self.style(Color::DarkGray)), foot);
    }

    fn head(&self) -> Vec<Line<'static>> {
        let status = &self.history.last.status;
        let first = format!(
            "weir {} at {}, {}, process {}, up {}, {} workers, {} sessions, generation {}",
            status.version,
            self.address,
            status.phase,
            status.pid,
            span(status.uptime_seconds),
            status.workers,
            status.sessions,
            status.generation
        );
        let refused = status.last_reload.as_ref().filter(|last| !last.result.is_good());
        let second = match (&self.trouble, refused) {
            (Some(why), _) => Span::styled(why.clone(), self.style(Color::Red)),
            (None, Some(last)) => {
                let text = format!(
                    "last reload {} at {} ({})",
                    last.result.word(),
                    last.time.rfc3339(),
                    last.trigger
                );
                Span::styled(text, self.style(Color::Red))
            }
            (None, None) if !status.maintenance.is_empty() => {
                let text = format!("in maintenance: {}", status.maintenance.join(", "));
                Span::styled(text, self.style(Color::Yellow))
            }
            (None, None) => Span::raw(format!("config {}", status.config_source)),
        };
        vec![Line::from(first).bold(), Line::from(second)]
    }

    fn foot(&self) -> String {
        let paused = if self.is_paused { "PAUSED  " } else { "" };
        let troubled = if self.is_troubled_only { "t all backends" } else { "t only troubled ones" };
        format!("{paused}q end  space pause  {troubled}  ↑ ↓ PgUp PgDn move")
    }

    fn draw_picture(&self, frame: &mut Frame<'_>, area: Rect) {
        let all = self.history.rates.last().copied().unwrap_or_default();
        let [requests, errors] =
            Layout::horizontal([Constraint::Percentage(70), Constraint::Percentage(30)]).areas(area);
        let series = |rate: fn(&ListenerRates) -> f64, area: Rect| -> Vec<u64> {
            let width = usize::from(area.width.saturating_sub(2));
            let from = self.history.rates.len().saturating_sub(width);
            self.history.rates[from..].iter().map(|it| rate(it).round() as u64).collect()
        };
        let (title, rate): (_, fn(&ListenerRates) -> f64) = match self.speaks_http() {
            true => (format!("requests/s: {}", count(all.requests)), |it| it.requests),
            false => (format!("connections/s: {}", count(all.connections)), |it| it.connections),
        };
        let sparkline = Sparkline::default().block(Block::bordered().title(title));
        let data = series(rate, requests);
        frame.render_widget(sparkline.data(&data).style(self.style(Color::Cyan)), requests);
        let failed = |it: &ListenerRates| it.server_errors + it.refused;
        let title = format!("5xx and refused/s: {}", count(failed(&all)));
        let data = series(failed, errors);
        let sparkline = Sparkline::default().block(Block::bordered().title(title));
        frame.render_widget(sparkline.data(&data).style(self.style(Color::Red)), errors);
    }

    fn speaks_http(&self) -> bool {
        self.history.last.status.listeners.iter().any(|it| it.protocol == "http")
    }

    fn draw_listeners(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.history.last.status.listeners.iter().map(|it| self.listener(it));
        let table = table(&LISTENER_COLUMNS, area.width, rows).block(Block::bordered().title("listeners"));
        frame.render_widget(table, area);
    }

    fn listener(&self, it: &ListenerStatus) -> Vec<Cell<'static>> {
        let rates = self.history.of_listener(it);
        let plane =
            if it.plane == "kernel" { format!("{} (kernel)", it.protocol) } else { it.protocol.clone() };
        let mut cells = vec![
            Cell::from(it.name.clone()),
            Cell::from(plane),
            Cell::from(it.bind.join(",")),
            Cell::from(it.connections.to_string()),
            Cell::from(count(rates.connections)),
        ];
        match it.protocol.as_str() {
            "http" => cells.extend([
                Cell::from(count(rates.requests)),
                Cell::from(count(rates.client_errors)),
                self.bad(rates.server_errors),
            ]),
            _ => cells.extend(["-", "-", "-"].map(Cell::from)),
        }
        cells.push(self.bad(rates.refused));
        cells.extend([rates.bytes_received, rates.bytes_sent].map(|it| Cell::from(bytes(it))));
        cells.extend(quantiles(it.request_seconds).map(Cell::from));
        cells
    }

    fn draw_backends(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let pools = &self.history.last.status.pools;
        let all = pools.iter().flat_map(|pool| pool.backends.iter().enumerate().map(move |it| (pool, it)));
        let known = all.map(|(pool, (index, it))| (pool, it, self.history.of_backend(pool, index)));
        let shown: Vec<_> =
            known.filter(|(_, it, rates)| !self.is_troubled_only || is_troubled(it, *rates)).collect();
        let room = usize::from(area.height).saturating_sub(TABLE_LINES);
        let above = self.above.min(shown.len().saturating_sub(room));
        let ready = pools.iter().map(|pool| pool.ready_count).sum::<usize>();
        let number = pools.iter().map(|pool| pool.backends.len()).sum::<usize>();
        let last = shown.len().min(above + room);
        let title = match shown.len() > room {
            true => {
                format!("backends: {ready} of {number} ready; {} to {last} of {}", above + 1, shown.len())
            }
            false => format!("backends: {ready} of {number} ready"),
        };
        let rows = shown[above..last].iter().map(|(pool, it, rates)| self.backend(pool, it, *rates));
        let table = table(&BACKEND_COLUMNS, area.width, rows).block(Block::bordered().title(title));
        self.above = above;
        frame.render_widget(table, area);
    }

    fn backend(&self, pool: &PoolStatus, it: &BackendStatus, rates: BackendRates) -> Vec<Cell<'static>> {
        let colour = match it.state.as_str() {
            "ready" => Color::Green,
            "down" => Color::Red,
            _ => Color::Yellow,
        };
        let [p50, p99] = quantiles(it.response_seconds);
        vec![
            Cell::from(pool.name.clone()),
            Cell::from(name(it)),
            Cell::from(it.state.clone()).style(self.style(colour)),
            Cell::from(it.in_flight.to_string()),
            Cell::from(pool.queue_depth.to_string()),
            Cell::from(count(rates.requests)),
            self.bad(rates.server_errors),
            self.bad(rates.failures),
            Cell::from(p50),
            Cell::from(p99),
            Cell::from(it.reason.clone()),
        ]
    }

    /// The cell of a rate that should be zero.
    fn bad(&self, rate: f64) -> Cell<'static> {
        let cell = Cell::from(count(rate));
        if rate > 0.0 { cell.style(self.style(Color::Red)) } else { cell }
    }

    fn style(&self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }
}

/// Whether `--troubled` shows this backend.
fn is_troubled(it: &BackendStatus, rates: BackendRates) -> bool {
    it.state != "ready" || rates.failures > 0.0 || rates.server_errors > 0.0
}

/// A number in four figures or fewer: `0`, `0.3`, `12`, `9999`, `12k`.
fn count(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        _ if rate < 9.95 => format!("{rate:.1}"),
        _ if rate < 9_999.5 => format!("{rate:.0}"),
        _ if rate < 999_500.0 => format!("{:.0}k", rate / 1e3),
        _ => format!("{:.1}M", rate / 1e6),
    }
}

/// Formats a rate in bytes per second.
fn bytes(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        _ if rate < 999.5 => format!("{rate:.0}B/s"),
        _ if rate < 999_500.0 => format!("{:.0}kB/s", rate / 1e3),
        _ if rate < 999_500_000.0 => format!("{:.1}MB/s", rate / 1e6),
        _ => format!("{:.2}GB/s", rate / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;
    use std::time::{Duration, Instant};

    /// The sample of a Weir that has answered this many requests, 3 % of them with 502.
    fn look(at: Instant, requests: u64) -> Look {
        let counts = json!({"2xx": requests * 97 / 100, "5xx": requests * 3 / 100});
        let backend = |address: &str, state: &str, reason: &str, failures: u64| {
            json!({
                "address": address, "resolved": address, "state": state, "reason": reason, "admin": "ready", "health": "up",
                "backup": false, "weight": 1, "ramp_percent": 100, "in_flight": 4, "max_connections": null, "connections": 9,
                "requests": counts, "connect_failures": 0, "failures": failures, "ejections": 0,
                "ejected_for_seconds": null, "response_seconds": {"p50": 0.0021, "p90": 0.004, "p99": 1.5},
                "probes": {"check": "tcp", "history": [], "good_count": 0, "bad_count": 0}
            })
        };
        let status = json!({
            "version": "0.1.0", "pid": 7, "phase": "serving", "started": "2026-01-02T03:04:05.000Z", "uptime_seconds": 61.0,
            "workers": 2, "config_source": "weir.toml", "generation": 3, "sessions": 12, "last_reload": null,
            "listeners": [{
                "name": "web", "protocol": "http", "plane": "proxy", "plane_reason": null, "interfaces": [],
                "bind": ["10.0.0.1:80"], "pool": "app", "route_count": 0, "connections": 12, "max_connections": 100,
                "connections_total": requests / 10, "requests": counts, "rejected": {}, "bytes_received": 0,
                "bytes_sent": requests * 1000, "request_seconds": null, "certificates": []
            }],
            "pools": [{
                "name": "app", "balance": "round-robin", "ready_count": 1, "serving_from": "ordinary", "queue_depth": 0,
                "retries": 0, "backends": [
                    backend("10.0.1.1:80", "ready", "", 0),
                    backend("10.0.1.2:80", "down", "connection refused", requests / 100)
                ]
            }]
        });
        Look { status: serde_json::from_value(status).unwrap(), at }
    }

    fn drawn(view: &mut View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(190, 30)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        let begin = Instant::now();
        let mut view = View::new("127.0.0.1:9900".to_owned(), look(begin, 1000), false, true);
        let first = drawn(&mut view);
        assert!(first.contains("requests/s: 0 ") || first.contains("requests/s: 0─"), "{first}");
        view.look(Ok(look(begin + Duration::from_secs(2), 5000)));
        let text = drawn(&mut view);
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        let words =
            |name: &str| line(name).split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert!(words("web").contains("10.0.0.1:80 12 200 2000 0 60 0 0 2.0MB/s"), "{text}");
        assert!(words("10.0.1.2:80").contains("down 4 0 2000 60 20 2.1ms 1.5s connection refused"), "{text}");
        assert!(text.contains("requests/s: 2000") && text.contains("1 of 2 ready"), "{text}");
    }

    #[test]
    fn trouble_alone_can_be_looked_at_and_an_unanswered_look_leaves_the_last() {
        let begin = Instant::now();
        let mut view = View::new("127.0.0.1:9900".to_owned(), look(begin, 0), true, false);
        let text = drawn(&mut view);
        assert!(text.contains("10.0.1.2:80") && !text.contains("10.0.1.1:80"), "{text}");
        view.look(Err(CallError::NotRunning("no Weir answers".to_owned())));
        let text = drawn(&mut view);
        assert!(text.contains("no Weir answers") && text.contains("10.0.1.2:80"), "{text}");
    }

    #[test]
    fn a_new_process_begins_its_rates_anew() {
        let begin = Instant::now();
        let mut view = View::new(String::new(), look(begin, 5000), false, false);
        let mut other = look(begin + Duration::from_secs(1), 9000);
        other.status.pid = 8;
        view.look(Ok(other));
        assert_eq!(
            view.history.of_listener(&view.history.last.status.listeners[0]),
            ListenerRates::default()
        );
        assert!(view.history.rates.is_empty());
    }

    #[test]
    fn moving_ends_at_the_last_backend_and_any_size_can_be_drawn() {
        let mut view = View::new(String::new(), look(Instant::now(), 0), false, false);
        view.scroll(1000);
        assert!(drawn(&mut view).contains("10.0.1.1:80"));
        for (width, height) in [(1, 1), (20, 5), (80, 24), (10, 60)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| view.draw(frame)).unwrap();
        }
        for (rate, shown) in
            [(0.0, "0"), (0.34, "0.3"), (9.97, "10"), (12_345.0, "12k"), (2_500_000.0, "2.5M")]
        {
            assert_eq!(count(rate), shown);
        }
        assert_eq!(
            [0.0, 999.0, 1500.0, 2.5e6, 3e9].map(bytes),
            ["0", "999B/s", "2kB/s", "2.5MB/s", "3.00GB/s"]
        );
    }
}
