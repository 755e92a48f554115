//! TCP and UDP through a running plane, over real sockets on loopback.

mod rig;
mod steps;
mod tcp;
mod udp;
