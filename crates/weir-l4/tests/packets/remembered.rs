//! The flows that a plane remembers, as tests read and change them.

use std::net::{IpAddr, SocketAddr};

use weir_l4::flows::FlowTables;
use weir_l4::layout::{Flow, FlowKey4, FlowKey6};

use super::{Loaded, Plane};

impl Plane {
    /// Directions of flows that are remembered: two for each flow.
    pub fn remembered(&mut self) -> usize {
        self.settled() + self.opening()
    }

    /// Directions of flows that their client has confirmed.
    pub fn settled(&mut self) -> usize {
        self.loaded().table::<FlowKey4, Flow>("flows4").keys().count()
            + self.loaded().table::<FlowKey6, Flow>("flows6").keys().count()
    }

    /// Remembers a direction of a flow.
    pub fn remember(&mut self, key: &FlowKey6, flow: &Flow) {
        let is_ip4 = IpAddr::from(key.source).is_ipv4();
        let (four, six) = if flow.opened == 0 { ("flows4", "flows6") } else { ("opening4", "opening6") };
        let written = match is_ip4 {
            true => self.loaded().table::<FlowKey4, Flow>(four).insert(FlowKey4::from(*key), flow, 0),
            false => self.loaded().table::<FlowKey6, Flow>(six).insert(key, flow, 0),
        };
        written.unwrap();
    }

    pub fn flow_tables(&mut self) -> FlowTables {
        self.loaded().program.flow_tables().expect("they are there")
    }

    /// Directions of flows that it has not.
    pub fn opening(&mut self) -> usize {
        self.loaded().table::<FlowKey4, Flow>("opening4").keys().count()
            + self.loaded().table::<FlowKey6, Flow>("opening6").keys().count()
    }

    /// Changes directions of flows that are opening.
    pub fn change_opening(&mut self, change: impl Fn(&mut Flow)) {
        let mut four = self.loaded().table::<FlowKey4, Flow>("opening4");
        for (key, mut flow) in four.iter().collect::<Result<Vec<_>, _>>().unwrap() {
            change(&mut flow);
            four.insert(key, flow, 0).unwrap();
        }
        let mut six = self.loaded().table::<FlowKey6, Flow>("opening6");
        for (key, mut flow) in six.iter().collect::<Result<Vec<_>, _>>().unwrap() {
            change(&mut flow);
            six.insert(key, flow, 0).unwrap();
        }
    }

    /// Forgets the way back of a flow, as a full table does.
    pub fn forget_way_back(&mut self, backend: SocketAddr, seen: SocketAddr, protocol: u8) {
        let key = FlowKey6 {
            source: backend.ip().into(),
            destination: seen.ip().into(),
            source_port: backend.port().to_be_bytes(),
            destination_port: seen.port().to_be_bytes(),
            protocol,
            zero: [0; 3],
        };
        let loaded = self.loaded();
        match backend.is_ipv4() {
            true => loaded.table::<FlowKey4, Flow>("opening4").remove(&key.into()).expect("it was there"),
            false => loaded.table::<FlowKey6, Flow>("opening6").remove(&key).expect("it was there"),
        }
    }

    /// The port that packets of a flow to a backend leave from.
    pub fn port_of(&mut self, client: SocketAddr, listener: SocketAddr, protocol: u8) -> Option<u16> {
        let key = FlowKey6 {
            source: client.ip().into(),
            destination: listener.ip().into(),
            source_port: client.port().to_be_bytes(),
            destination_port: listener.port().to_be_bytes(),
            protocol,
            zero: [0; 3],
        };
        let loaded = self.loaded();
        let of4 = |loaded: &mut Loaded, map| loaded.table::<FlowKey4, Flow>(map).get(&key.into(), 0).ok();
        let of6 = |loaded: &mut Loaded, map| loaded.table::<FlowKey6, Flow>(map).get(&key, 0).ok();
        let flow = match client.is_ipv4() {
            true => of4(loaded, "flows4").or_else(|| of4(loaded, "opening4")),
            false => of6(loaded, "flows6").or_else(|| of6(loaded, "opening6")),
        };
        flow.map(|flow| u16::from_be_bytes(flow.source_port))
    }
}
