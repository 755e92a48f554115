//! A backend for more connections than a test has descriptors for: greets each by a number and sends back
//! what it gets.
//!
//! `crowd_server NUMBER ADDRESS...` says `ready` when it listens, and ends with its standard input.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let greeting = format!("{}\n", arguments.next().expect("a number"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for address in arguments {
            let listener =
                TcpListener::bind(&address).await.unwrap_or_else(|problem| panic!("{address}: {problem}"));
            tokio::spawn(serve(listener, greeting.clone()));
        }
        println!("ready");
        let end = tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin()));
        let _ = end.await;
    });
}

async fn serve(listener: TcpListener, greeting: String) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(talk(stream, greeting.clone()));
    }
}

async fn talk(mut stream: TcpStream, greeting: String) {
    let mut buffer = vec![0; 1024];
    if stream.write_all(greeting.as_bytes()).await.is_err() {
        return;
    }
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
