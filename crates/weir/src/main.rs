//! The program: arguments, limits of the process, signals, wiring. The other crates do the work.
//!
//! Start reading at [`cli`] (what can be asked for), then [`serve`] (what `weir run` is).
#![forbid(unsafe_code)]

/// Prints a line on standard output without the panics of `println!`. An error shows in the exit code
/// ([`exit::Exit::of_output`]).
macro_rules! say {
    ($($text:tt)*) => {
        crate::exit::print(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Prints a line on standard error without the panics of `eprintln!`: it may be a pipe that nobody reads, or
/// on a full disk. The exit code still tells the result.
macro_rules! tell {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($text)*)));
    }};
}

mod arguments;
mod cli;
mod client;
mod copying;
mod exit;
mod limits;
mod log;
mod serve;
mod table;
mod verbs;

use std::process::ExitCode;

/// Worker threads allocate per connection, never per request; mimalloc's thread-local heaps keep that off
/// each other's caches.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::main().of_output().into()
}
