//! Backends for more connections than a test has descriptors for. Each greets by its number and echoes what
//! it receives, and answers datagrams by its number.
//!
//! `crowd_server NUMBER=ADDRESS...` prints `ready` when it listens, and ends when its standard input does.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for argument in std::env::args().skip(1) {
            let (number, address) = argument.split_once('=').expect("a number and an address");
            let greeting = format!("{number}\n");
            let listener =
                TcpListener::bind(address).await.unwrap_or_else(|problem| panic!("{address}: {problem}"));
            let socket =
                UdpSocket::bind(address).await.unwrap_or_else(|problem| panic!("{address}: {problem}"));
            tokio::spawn(serve(listener, greeting.clone()));
            tokio::spawn(answer(socket, greeting));
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

async fn answer(socket: UdpSocket, greeting: String) {
    let mut buffer = vec![0; 1024];
    while let Ok((_, from)) = socket.recv_from(&mut buffer).await {
        let _ = socket.send_to(greeting.as_bytes(), from).await;
    }
}
