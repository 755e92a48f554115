//! For whom a key is: which listeners, on which plane, in which version.

/// Which listeners a key means something to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// All.
    Any,
    /// `protocol = "http"`.
    Http,
    /// `protocol = "http"` and `"tcp"`.
    Stream,
    /// `protocol = "tcp"`.
    Tcp,
    /// `protocol = "tcp"` and `"udp"`.
    Transport,
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

/// Whether this version does what a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Built {
    /// It does.
    Yes,
    /// It does not. The words are values that ask for what happens anyway, and are therefore taken.
    Not(&'static [&'static str]),
}
