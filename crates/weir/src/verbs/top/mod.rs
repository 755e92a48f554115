//! `weir top`

mod rates;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use clap::Args;
use hyper::Method;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_admin::status::Status;

use crate::arguments::{Running, duration};
use crate::client::{CallError, Client};
use crate::exit::Exit;
use crate::verbs::status::has_colours;
use rates::Look;
use view::View;

/// Longest delay before a key press is handled.
const TICK: Duration = Duration::from_millis(50);

/// How `weir top` looks.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Refresh interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Only backends that are not ready or had failures since the last refresh
    #[arg(long)]
    troubled: bool,
    #[command(flatten)]
    running: Running,
}

/// Shows the running Weir's traffic and backends until `q`.
pub fn top(arguments: &Arguments) -> Result<Exit, Exit> {
    if !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        return Err(
            Exit::Refused.saying("`weir top` needs a terminal; use `weir status` to print the state once")
        );
    }
    let client = Client::new(&arguments.running)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| Exit::Failed.saying(format_args!("the runtime can't be started: {error}")))?;
    // An error of the first call is reported like that of any other verb.
    let first = runtime.block_on(look(&client)).map_err(|error| error.report())?;
    let mut view = View::new(client.address().to_string(), first, arguments.troubled, has_colours());
    let shown = ratatui::try_init().and_then(|mut terminal| {
        let shown = Live { runtime, client, interval: arguments.interval }.show(&mut terminal, &mut view);
        ratatui::restore();
        shown
    });
    shown.map_err(|error| Exit::Failed.saying(format_args!("the terminal can't be used: {error}")))?;
    Ok(Exit::Done)
}

/// The Weir to ask, and how often.
struct Live {
    runtime: Runtime,
    client: Client,
    interval: Duration,
}

impl Live {
    /// Runs until the user or a signal ends it.
    fn show(&self, terminal: &mut DefaultTerminal, view: &mut View) -> io::Result<()> {
        let mut ends = {
            let _guard = self.runtime.enter();
            [
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
                signal(SignalKind::interrupt())?,
            ]
        };
        let mut next = Instant::now() + self.interval;
        // Keys are handled even while a Weir that hangs is being asked.
        let mut asking = None;
        let mut is_old = true;
        loop {
            if std::mem::take(&mut is_old) {
                terminal.draw(|frame| view.draw(frame))?;
            }
            while event::poll(Duration::ZERO)? {
                // The screen may have been resized.
                is_old = true;
                if let Event::Key(key) = event::read()?
                    && key.kind == KeyEventKind::Press
                    && !heed(view, key)
                {
                    return Ok(());
                }
            }
            if asking.is_none() && !view.is_paused && Instant::now() >= next {
                asking = Some(Box::pin(look(&self.client)));
            }
            match self.runtime.block_on(happens(&mut ends, asking.as_mut())) {
                Happened::Asked => return Ok(()),
                Happened::Looked(result) => {
                    view.look(*result);
                    (asking, is_old) = (None, true);
                    next = Instant::now() + self.interval;
                }
                Happened::Nothing => {}
            }
        }
    }
}

/// The event that happened first.
enum Happened {
    /// A signal asks the program to end.
    Asked,
    /// An answer has arrived, or an error.
    Looked(Box<Result<Look, CallError>>),
    /// Nothing has happened for [`TICK`].
    Nothing,
}

async fn happens<F>(ends: &mut [Signal; 3], asking: Option<&mut F>) -> Happened
where
    F: Future<Output = Result<Look, CallError>> + Unpin,
{
    let [terminate, hangup, interrupt] = ends;
    let looked = async {
        match asking {
            Some(asking) => asking.await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = terminate.recv() => Happened::Asked,
        _ = hangup.recv() => Happened::Asked,
        _ = interrupt.recv() => Happened::Asked,
        result = looked => Happened::Looked(Box::new(result)),
        () = tokio::time::sleep(TICK) => Happened::Nothing,
    }
}

/// Handles a key; `false` if it ends the program.
fn heed(view: &mut View, key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char(' ' | 'p') => view.is_paused = !view.is_paused,
        KeyCode::Char('t') => view.toggle_troubled(),
        KeyCode::Up | KeyCode::Char('k') => view.scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => view.scroll(1),
        KeyCode::PageUp => view.scroll(-20),
        KeyCode::PageDown => view.scroll(20),
        KeyCode::Home => view.scroll(isize::MIN),
        _ => {}
    }
    true
}

/// Fetches the current status.
async fn look(client: &Client) -> Result<Look, CallError> {
    let answer = client.call(Method::GET, "/v1/status", None).await?;
    if !answer.status.is_success() {
        return Err(CallError::Broken(answer.error()));
    }
    let status: Status = serde_json::from_value(answer.body).map_err(|error| {
        let address = client.address();
        CallError::Broken(format!("the running Weir at {address} is of another version: {error}"))
    })?;
    Ok(Look { status, at: Instant::now() })
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    match interval {
        _ if interval < Duration::from_millis(100) => Err("expected 100ms or more".to_owned()),
        _ => Ok(interval),
    }
}
