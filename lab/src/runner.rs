//! Runners: each knows one kind of topology, and gives uniform samples from it.
//!
//! A runner is created for one variant of one scenario (it starts the backends, namespaces or cluster), then
//! runs one cell after the other, and dropping it takes everything down. Each runner decides what a cell
//! measures, but all return the same form.

mod cluster;
mod guest;
mod loopback;
pub mod namespaces;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::contender::{Contender, Tools};
use crate::process::Placement;
use crate::sample::Sample;
use crate::scenario::{Length, Point, Setup};
use crate::topology::Topology;
use crate::workplace::Workplace;

/// How the lab runs on this machine.
#[derive(Debug, Clone)]
pub struct Options {
    /// Programs to use.
    pub tools: Tools,
    /// The lab's folder.
    pub lab: PathBuf,
    /// Where the load balancer runs.
    pub proxy: Placement,
    /// Where load and backends run.
    pub load: Placement,
    /// Seed for the times of events that have no fixed time.
    pub seed: u64,
}

/// One contender's turn at one point in one round.
pub struct Cell<'a> {
    /// The contender.
    pub contender: &'a Contender,
    /// Load and topology.
    pub point: &'a Point,
    /// How long.
    pub length: Length,
    /// An empty directory that lasts as long as the cell.
    pub directory: &'a Path,
}

/// The result of a turn.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Turn {
    /// The figures. Round and point are filled in by the caller.
    pub sample: Sample,
    /// The commands of contender and load, for a reader; machine paths are taken out by the caller.
    pub commands: Vec<Vec<String>>,
}

/// One kind of topology at work. Dropping it takes everything down.
pub trait Runner {
    /// Gives one contender its turn: starts it, warms it up, puts the load on, reads the counters, ends it.
    ///
    /// Err if the contender does not start or the load can't be run; the contender is then left out and the
    /// error, which ends with the last lines of its log, goes into the report. Errors of single requests are
    /// not Err: they are counted by kind in the sample.
    fn cell(&mut self, cell: &Cell<'_>) -> io::Result<Turn>;
}

/// Starts what the points of `setup` need. Err, with what is missing, if this machine can't do that; the
/// variant is then reported as failed and the others go on.
pub fn prepare(setup: &Setup, options: &Options, workplace: &Workplace) -> io::Result<Box<dyn Runner>> {
    let point = setup.points.first().ok_or_else(|| io::Error::other("its sweep has no values"))?;
    match &point.topology {
        Topology::Loopback { .. } => Ok(Box::new(loopback::Loopback::new(options))),
        Topology::Cluster => Ok(Box::new(cluster::Cluster::new(setup, options, workplace)?)),
        Topology::Namespaces(_) => Ok(Box::new(namespaces::Spread::new(options)?)),
        Topology::Guest { instructions, .. } => {
            Ok(Box::new(guest::Visit::new(options, *instructions, workplace)?))
        }
    }
}

/// Ends what the scenarios of a series shared.
pub fn end_series() {
    crate::cluster::let_go();
    guest::let_go();
}
