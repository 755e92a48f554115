//! What the publisher asks of a plane: stage, apply, put back.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use weir_proxy::plane::ProxyPlane;
use weir_state::Snapshot;
use weir_state::plane::{Next, Placements, Plane as _};

use crate::rig::{Backend, Rig, patient};

/// A backend that says one letter.
fn saying(letter: u8) -> SocketAddr {
    Backend::open().serve(move |mut stream| {
        let _ = stream.write_all(&[letter]);
    })
}

fn hears(address: SocketAddr) -> u8 {
    let mut letter = [0];
    patient(TcpStream::connect(address).unwrap()).read_exact(&mut letter).unwrap();
    letter[0]
}

fn snapshot(listener: &str, backend: SocketAddr, before: Option<&Snapshot>) -> Arc<Snapshot> {
    let text = format!(
        "[listener.{listener}]\nprotocol = 'tcp'\nbind = '127.0.0.1:0'\npool = 'app'\n\
         [pool.app]\nbackends = ['{backend}']\nhealth = 'off'\n"
    );
    let config = weir_config::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
    Arc::new(Snapshot::compile(Arc::new(config), &Default::default(), before, 1))
}

async fn listens_at(plane: &ProxyPlane) -> SocketAddr {
    let sockets = plane.listening_sockets().await.unwrap();
    socket2::SockRef::from(&sockets[0].1.socket).local_addr().unwrap().as_socket().unwrap()
}

#[tokio::test]
async fn a_step_that_is_put_back_leaves_sockets_routes_and_pools_as_they_were() {
    let plane = Rig::plane();
    let first = snapshot("web", saying(b'a'), None);
    plane
        .stage(Next::Config(&first.config, &Placements::default()))
        .await
        .unwrap()
        .apply(&first)
        .await
        .unwrap();
    let address = listens_at(&plane).await;
    assert_eq!(hears(address), b'a');

    let second = snapshot("web", saying(b'b'), Some(&first));
    let placements = Placements::default();
    let mut step = plane.stage(Next::Config(&second.config, &placements)).await.unwrap();
    step.apply(&second).await.unwrap();
    assert_eq!(hears(address), b'b');
    step.put_back(&first).await.unwrap();
    drop(step);
    assert_eq!((hears(address), listens_at(&plane).await), (b'a', address));
    assert!(Arc::ptr_eq(&plane.compiled().unwrap().snapshot, &first));

    let added = weir_config::Backend {
        address: saying(b'c').to_string(),
        weight: 1,
        ..weir_config::Backend::default()
    };
    let change = first.with_backend(0, added).unwrap().snapshot.without_backend(0, 0);
    let mut step = plane.stage(Next::Pool(0)).await.unwrap();
    step.apply(&change.snapshot).await.unwrap();
    assert_eq!(hears(address), b'c');
    step.put_back(&first).await.unwrap();
    assert_eq!(hears(address), b'a');
    drop(step);
    plane.stop();
}
