//! For which listeners, and on which plane, a key has an effect.

/// The listeners for which a key has an effect.
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
    /// `protocol = "http"` and `"mysql"`, whose connections to backends are reused.
    Kept,
    /// `protocol = "mysql"`.
    Mysql,
}

/// The planes on which a key has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planes {
    /// On both.
    All,
    /// The kernel plane.
    Kernel,
    /// The proxy plane; the reason why the kernel plane does not support it. Ignoring the key would do less
    /// than was asked for.
    Proxy(&'static str),
    /// The proxy plane, for a key that tunes something that the kernel plane never does; the reason. Ignoring
    /// the key still does all that was asked for.
    ProxyTuning(&'static str),
}
