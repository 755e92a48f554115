//! For whom a key is: which listeners, on which plane.

/// Which listeners a key means something to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// All.
    Any,
    /// `protocol = "http"`.
    Http,
    /// `protocol = "http"`, `"tcp"` and `"mysql"`: connections.
    Stream,
    /// `protocol = "http"` and `"tcp"`, which have routes.
    Routed,
    /// `protocol = "tcp"`.
    Tcp,
    /// `protocol = "tcp"` and `"udp"`.
    Transport,
    /// `protocol = "udp"`: datagrams.
    Udp,
    /// `protocol = "http"` and `"mysql"`, whose connections to backends are kept for others.
    Kept,
    /// `protocol = "mysql"`.
    Mysql,
}

/// On which planes a key means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planes {
    /// On both.
    All,
    /// The kernel plane.
    Kernel,
    /// The proxy plane; why the kernel plane cannot do it. Without it a listener would do less than was asked
    /// for.
    Proxy(&'static str),
    /// The proxy plane, where it tunes what the kernel plane never does; why not. Without it a listener does
    /// all that was asked for.
    ProxyTuning(&'static str),
}
