//! TLS for `quinn-proto`, with a look at each packet after it was decrypted: padding is removed from those of
//! clients ([`padding`](crate::padding)), and those of servers are searched for what they allow
//! ([`allowance`](crate::allowance)).

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use quinn_proto::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig,
    Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError};

use crate::allowance::Allowance;
use crate::padding;

/// What happens to a packet after it was decrypted.
#[derive(Clone)]
enum Look {
    /// Its padding is removed.
    Unpad,
    /// What it allows is noted.
    Follow(Arc<Allowance>),
}

/// Settings whose sessions remove padding; everything else is delegated to the inner ones.
pub struct Unpadded(Arc<dyn ServerConfig>);

impl Unpadded {
    /// Wraps `config`.
    pub fn new(config: Arc<dyn ServerConfig>) -> Unpadded {
        Unpadded(config)
    }
}

impl ServerConfig for Unpadded {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.0.initial_keys(version, id).map(|keys| Look::Unpad.at(keys))
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.0.retry_tag(version, id, packet)
    }

    fn start_session(self: Arc<Self>, version: u32, parameters: &TransportParameters) -> Box<dyn Session> {
        Box::new(SeenSession(self.0.clone().start_session(version, parameters), Look::Unpad))
    }
}

/// Settings whose sessions note what the server allows; everything else is delegated to the inner ones.
pub(crate) struct Followed(Arc<dyn ClientConfig>, Arc<Allowance>);

impl Followed {
    /// Wraps `config`, for one connection.
    pub fn new(config: Arc<dyn ClientConfig>, allowance: &Arc<Allowance>) -> Followed {
        Followed(config, allowance.clone())
    }
}

impl ClientConfig for Followed {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let session = self.0.clone().start_session(version, server_name, parameters)?;
        Ok(Box::new(SeenSession(session, Look::Follow(self.1.clone()))))
    }
}

struct SeenSession(Box<dyn Session>, Look);

impl Session for SeenSession {
    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        self.1.at(self.0.initial_keys(id, side))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.0.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.0.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.0.early_crypto().map(|(header, packet)| (header, self.1.at_key(packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.0.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.0.read_handshake(bytes)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let parameters = self.0.transport_parameters();
        if let (Look::Follow(allowance), Ok(Some(parameters))) = (&self.1, &parameters) {
            allowance.note_parameters(parameters);
        }
        parameters
    }

    fn write_handshake(&mut self, bytes: &mut Vec<u8>) -> Option<Keys> {
        self.0.write_handshake(bytes).map(|keys| self.1.at(keys))
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.0.next_1rtt_keys().map(|pair| self.1.at_pair(pair))
    }

    fn is_valid_retry(&self, id: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.0.is_valid_retry(id, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.0.export_keying_material(output, label, context)
    }
}

impl Look {
    fn at(&self, keys: Keys) -> Keys {
        Keys { header: keys.header, packet: self.at_pair(keys.packet) }
    }

    fn at_pair(&self, pair: KeyPair<Box<dyn PacketKey>>) -> KeyPair<Box<dyn PacketKey>> {
        KeyPair { local: pair.local, remote: self.at_key(pair.remote) }
    }

    fn at_key(&self, key: Box<dyn PacketKey>) -> Box<dyn PacketKey> {
        Box::new(SeenKey(key, self.clone()))
    }
}

struct SeenKey(Box<dyn PacketKey>, Look);

impl PacketKey for SeenKey {
    fn encrypt(&self, packet: u64, bytes: &mut [u8], header_bytes: usize) {
        self.0.encrypt(packet, bytes, header_bytes);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        self.0.decrypt(packet, header, payload)?;
        match &self.1 {
            Look::Unpad => padding::remove(payload),
            Look::Follow(allowance) => allowance.note_received(payload),
        }
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.0.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.0.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.0.integrity_limit()
    }
}
