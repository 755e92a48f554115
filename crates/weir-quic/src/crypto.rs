//! TLS for `quinn-proto`, with the padding removed from packets after they are decrypted: see
//! [`padding`](crate::padding).

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use quinn_proto::crypto::{
    CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError};

use crate::padding;

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
        self.0.initial_keys(version, id).map(unpadded_keys)
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.0.retry_tag(version, id, packet)
    }

    fn start_session(self: Arc<Self>, version: u32, parameters: &TransportParameters) -> Box<dyn Session> {
        Box::new(UnpaddedSession(self.0.clone().start_session(version, parameters)))
    }
}

struct UnpaddedSession(Box<dyn Session>);

impl Session for UnpaddedSession {
    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        unpadded_keys(self.0.initial_keys(id, side))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.0.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.0.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.0.early_crypto().map(|(header, packet)| (header, unpadded(packet)))
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
        self.0.transport_parameters()
    }

    fn write_handshake(&mut self, bytes: &mut Vec<u8>) -> Option<Keys> {
        self.0.write_handshake(bytes).map(unpadded_keys)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.0.next_1rtt_keys().map(unpadded_pair)
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

fn unpadded_keys(keys: Keys) -> Keys {
    Keys { header: keys.header, packet: unpadded_pair(keys.packet) }
}

fn unpadded_pair(pair: KeyPair<Box<dyn PacketKey>>) -> KeyPair<Box<dyn PacketKey>> {
    KeyPair { local: pair.local, remote: unpadded(pair.remote) }
}

fn unpadded(key: Box<dyn PacketKey>) -> Box<dyn PacketKey> {
    Box::new(UnpaddedKey(key))
}

struct UnpaddedKey(Box<dyn PacketKey>);

impl PacketKey for UnpaddedKey {
    fn encrypt(&self, packet: u64, bytes: &mut [u8], header_bytes: usize) {
        self.0.encrypt(packet, bytes, header_bytes);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        self.0.decrypt(packet, header, payload)?;
        padding::remove(payload);
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
