//! TCP and UDP through a running plane, over real sockets on loopback.

mod rig;
mod tcp;
mod udp;
