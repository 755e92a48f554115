//! `weir demo`: a setup to try out, in one process and without a config.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use weir_control::reload::Source;

use crate::exit::Exit;
use crate::serve::{Plan, serve};

/// How long a stopped backend refuses connections.
const STOPPED: Duration = Duration::from_secs(15);
/// How long `/slow` takes.
const SLOW: Duration = Duration::from_secs(2);

const NAMES: [&str; 3] = ["apple", "banana", "cherry"];

/// Ports of the demo.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Port of the HTTP listener
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    http_port: u16,
    /// Port of the TCP listener
    #[arg(long, value_name = "PORT", default_value_t = 8081)]
    tcp_port: u16,
    /// Port of the admin API and status page
    #[arg(long, value_name = "PORT", default_value_t = 9900)]
    admin_port: u16,
}

/// Serves the demo until it is interrupted.
pub fn demo(arguments: &Arguments) -> Result<Exit, Exit> {
    let taken = taken_ports(arguments);
    if !taken.is_empty() {
        taken.iter().for_each(|taken| tell!("weir: {taken}"));
        return Err(Exit::Failed);
    }
    let backends = start_backends().map_err(|error| {
        Exit::Failed.saying(format_args!("the demo's backends could not be started: {error}"))
    })?;
    let text = config(arguments, &backends);
    let guide = guide(arguments, &backends);
    serve(Plan {
        upgradable: false,
        on_ready: Box::new(move || say!("{guide}")),
        ..Plan::of(Source::Text { name: "weir demo".to_owned(), text })
    })
}

/// The ports that are taken, each with the option that chooses another.
fn taken_ports(arguments: &Arguments) -> Vec<String> {
    let ports = [
        ("--http-port", arguments.http_port),
        ("--tcp-port", arguments.tcp_port),
        ("--admin-port", arguments.admin_port),
    ];
    let refusal = |(option, port)| {
        let error = std::net::TcpListener::bind(("127.0.0.1", port)).err()?;
        Some(match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("port {port} is taken by another program; choose another port with `{option}`")
            }
            _ => format!("port {port} can't be used: {error}; choose another with `{option}`"),
        })
    };
    ports.into_iter().filter_map(refusal).collect()
}

/// Addresses of the backends that run in this process.
#[derive(Debug)]
struct Backends {
    http: Vec<SocketAddr>,
    tcp: Vec<SocketAddr>,
}

fn config(arguments: &Arguments, backends: &Backends) -> String {
    let list = |all: &[SocketAddr]| all.iter().map(|it| format!("\"{it}\"")).collect::<Vec<_>>().join(", ");
    let Arguments { http_port, tcp_port, admin_port } = arguments;
    format!(
        "[admin]\nbind = \"127.0.0.1:{admin_port}\"\n\n\
         [listener.web]\nbind = \"127.0.0.1:{http_port}\"\npool = \"fruit\"\n\n\
         [pool.fruit]\nbackends = [{}]\n[pool.fruit.health]\npath = \"/healthz\"\ninterval = \"500ms\"\n\n\
         [listener.echo]\nprotocol = \"tcp\"\nbind = \"127.0.0.1:{tcp_port}\"\npool = \"echo\"\n\n\
         [pool.echo]\nbackends = [{}]\n",
        list(&backends.http),
        list(&backends.tcp)
    )
}

fn guide(arguments: &Arguments, backends: &Backends) -> String {
    let Arguments { http_port, tcp_port, admin_port } = arguments;
    let (first, seconds) = (backends.http[0], STOPPED.as_secs());
    let admin = if *admin_port == 9900 { String::new() } else { format!(" --admin 127.0.0.1:{admin_port}") };
    format!(
        "Weir balances http://127.0.0.1:{http_port} and tcp 127.0.0.1:{tcp_port} over three backends in this process.\n\n\
         see who answers          for i in 1 2 3 4 5 6; do curl -s http://127.0.0.1:{http_port}/; done\n\
         the same over TCP        nc 127.0.0.1 {tcp_port}\n\
         watch                    http://127.0.0.1:{admin_port}/   (or: weir status{admin})\n\
         kill {name}               curl http://{first}/stop      it refuses connections for {seconds} s, then returns\n\
         a slow request           curl http://127.0.0.1:{http_port}/slow\n\
         a failing backend        curl -i http://127.0.0.1:{http_port}/fail\n\
         why that backend?        weir explain http GET http://127.0.0.1:{http_port}/{admin}\n\
         take one out, and back   weir drain fruit {first}{admin} && weir enable fruit {first}{admin}\n\
         metrics                  curl -s http://127.0.0.1:{admin_port}/metrics | grep weir_requests_total\n\n\
         Ctrl-C ends it.",
        name = NAMES[0],
    )
}

/// Starts the backends on a thread of their own, apart from the Weir that the demo shows.
fn start_backends() -> std::io::Result<Backends> {
    let bind = || -> std::io::Result<std::net::TcpListener> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let http = NAMES.iter().map(|_| bind()).collect::<Result<Vec<_>, _>>()?;
    let tcp = NAMES.iter().map(|_| bind()).collect::<Result<Vec<_>, _>>()?;
    let addresses = |all: &[std::net::TcpListener]| {
        all.iter().map(std::net::TcpListener::local_addr).collect::<Result<Vec<_>, _>>()
    };
    let backends = Backends { http: addresses(&http)?, tcp: addresses(&tcp)? };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("demo-backends".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let mut all = JoinSet::new();
            for (name, listener) in NAMES.into_iter().zip(http) {
                all.spawn(http_backend(name, listener));
            }
            for (name, listener) in NAMES.into_iter().zip(tcp) {
                all.spawn(tcp_backend(name, listener));
            }
            while all.join_next().await.is_some() {}
        });
    })?;
    Ok(backends)
}

/// Serves HTTP. When told to stop, closes everything and refuses connections for a while.
async fn http_backend(name: &'static str, listener: std::net::TcpListener) {
    let Ok(address) = listener.local_addr() else { return };
    let mut listener = TcpListener::from_std(listener).ok();
    loop {
        let stop = Arc::new(Notify::new());
        if let Some(open) = listener.take() {
            // The end of this block drops the listening socket and every connection.
            let mut connections = JoinSet::new();
            loop {
                while connections.try_join_next().is_some() {}
                tokio::select! {
                    () = stop.notified() => break,
                    accepted = open.accept() => if let Ok((stream, _)) = accepted {
                        connections.spawn(http_connection(name, stream, stop.clone()));
                    },
                }
            }
            // Long enough to send the response that says so.
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(open);
            drop(connections);
            tokio::time::sleep(STOPPED).await;
        }
        listener = TcpListener::bind(address).await.ok();
        if listener.is_none() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

async fn http_connection(name: &'static str, stream: TcpStream, stop: Arc<Notify>) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let stop = stop.clone();
        async move { Ok::<_, Infallible>(answer(name, request.uri().path(), &stop).await) }
    });
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(name: &str, path: &str, stop: &Notify) -> Response<Full<Bytes>> {
    let (status, text) = match path {
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/slow" => {
            tokio::time::sleep(SLOW).await;
            (StatusCode::OK, format!("{name}, slowly\n"))
        }
        "/fail" => (StatusCode::INTERNAL_SERVER_ERROR, format!("{name} fails as you wished\n")),
        "/stop" => {
            stop.notify_one();
            (StatusCode::OK, format!("{name} stops for {} s\n", STOPPED.as_secs()))
        }
        _ => (StatusCode::OK, format!("{name}\n")),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert("content-type", hyper::header::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Sends its name and then echoes what it receives.
async fn tcp_backend(name: &'static str, listener: std::net::TcpListener) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((mut stream, _)) = listener.accept().await else { continue };
        connections.spawn(async move {
            let mut buffer = [0; 4096];
            if stream.write_all(format!("{name} here, echoing\n").as_bytes()).await.is_err() {
                return;
            }
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..length]).await.is_err() {
                    return;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(port: u16) -> Arguments {
        Arguments { http_port: port, tcp_port: port, admin_port: port }
    }

    #[test]
    fn the_demos_config_is_one_that_is_taken() {
        let backend = SocketAddr::from(([127, 0, 0, 1], 9001));
        let backends = Backends { http: vec![backend; 1], tcp: vec![backend; 1] };
        let ports = Arguments { http_port: 8080, tcp_port: 8081, admin_port: 9900 };
        let text = config(&ports, &backends);
        if let Err(report) = weir_config::parse("demo", &text) {
            panic!("{text}\n{report}");
        }
    }

    #[test]
    fn a_taken_port_is_named_with_the_option_that_chooses_another() {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = holder.local_addr().unwrap().port();
        let messages = taken_ports(&arguments(port));
        assert_eq!(messages.len(), 3, "{messages:?}");
        assert_eq!(
            messages[0],
            format!("port {port} is taken by another program; choose another port with `--http-port`")
        );
    }
}
