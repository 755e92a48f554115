//! `weir decapsulate`

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use weir_l4::decap::{Decapsulator, TAKEN};

use crate::exit::Exit;

/// How often it checks that its interfaces run the program.
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// Number of checks after which it prints its counters if they have changed: once a minute.
const SAYS_AFTER: u32 = 60;

/// Which packets are taken out of others.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Interface on which encapsulated packets arrive; can be repeated
    #[arg(long, value_name = "NAME", required = true)]
    interface: Vec<String>,
    /// Address of a load balancer (its `source_address`); can be repeated
    #[arg(long, value_name = "ADDRESS", required = true)]
    from: Vec<IpAddr>,
    /// Listener address that inner packets may have; can be repeated [default: all addresses of this host]
    #[arg(long, value_name = "ADDRESS")]
    to: Vec<IpAddr>,
}

/// Removes outer headers until TERM or INT.
pub fn decapsulate(arguments: &Arguments) -> Result<Exit, Exit> {
    let failed = |error: &dyn std::fmt::Display| Exit::Failed.saying(error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(&error))?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).map_err(|error| failed(&error))?;
        let mut int = signal(SignalKind::interrupt()).map_err(|error| failed(&error))?;
        let mut program =
            Decapsulator::load(&arguments.from, &arguments.to).map_err(|error| failed(&error))?;
        for interface in &arguments.interface {
            program.attach(interface).map_err(|error| failed(&error))?;
        }
        say!("takes outer headers off at {}", arguments.interface.join(", "));
        let mut said = [0; TAKEN.len()];
        let mut told = Told::default();
        told.of_unseen(&arguments.interface);
        for look in 1_u32.. {
            let ends = tokio::select! {
                _ = term.recv() => true,
                _ = int.recv() => true,
                () = tokio::time::sleep(LOOKS_EVERY) => false,
            };
            if !ends {
                told.look_again(&mut program, &arguments.interface);
                if look % SAYS_AFTER != 0 {
                    continue;
                }
                told.of_unseen(&arguments.interface);
            }
            let counts = program.counts().map_err(|error| failed(&error))?;
            if counts != said || ends {
                let words: Vec<String> =
                    TAKEN.iter().zip(counts).map(|(name, count)| format!("{name} {count}")).collect();
                say!("{}", words.join(", "));
                said = counts;
            }
            if ends {
                break;
            }
        }
        Ok(Exit::Done)
    })
}

/// What was printed already.
#[derive(Default)]
struct Told {
    failures: BTreeSet<String>,
    unseen: BTreeSet<String>,
}

impl Told {
    /// Attaches the program to interfaces that have lost it or are new, and says so. Prints each reason for a
    /// failure once.
    fn look_again(&mut self, program: &mut Decapsulator, interfaces: &[String]) {
        let (attached, failed) =
            program.attach_again(interfaces).unwrap_or_else(|error| (vec![], vec![error]));
        for interface in attached {
            say!("takes outer headers off again at {interface}, which ran the program no more");
        }
        let failed: BTreeSet<String> = failed.iter().map(ToString::to_string).collect();
        for error in failed.difference(&self.failures) {
            say!("{error}");
        }
        self.failures = failed;
    }

    /// Warns of other interfaces whose frames the program does not see where it is, once of each.
    fn of_unseen(&mut self, interfaces: &[String]) {
        // Interfaces that can't be listed are reported by the next look.
        let unseen: BTreeSet<String> = Decapsulator::unseen(interfaces).into_iter().flatten().collect();
        for warning in unseen.difference(&self.unseen) {
            tell!("warning: {warning}");
        }
        self.unseen = unseen;
    }
}
