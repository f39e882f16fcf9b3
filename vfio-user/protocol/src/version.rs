//! Version data: what each side can take, as JSON.

use serde_json::{Map, Value, json};
use zerocopy::{FromBytes, IntoBytes};

use crate::limits::MAX_JSON;
use crate::wire::VersionHeader;

/// What a side says of itself. What it leaves out has the specification's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCapabilities {
    /// File descriptors that it takes with one message.
    pub max_msg_fds: u64,
    /// Bytes that it takes in one Region or DMA access.
    pub max_data_xfer_size: u64,
    /// DMA regions that it takes; `None` if it does not say, and then 16 is what there are servers for.
    pub max_dma_maps: Option<u64>,
}

impl Default for PeerCapabilities {
    fn default() -> Self {
        Self { max_msg_fds: 1, max_data_xfer_size: 1 << 20, max_dma_maps: None }
    }
}

/// The content of a Version message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// 0 so far.
    pub major: u16,
    /// 0 or 1 so far.
    pub minor: u16,
    /// What the sender says of itself.
    pub capabilities: PeerCapabilities,
}

impl Version {
    /// The message as it goes over the wire.
    pub fn encode(&self) -> Vec<u8> {
        let caps = &self.capabilities;
        let mut map = Map::new();
        map.insert("max_msg_fds".into(), caps.max_msg_fds.into());
        map.insert("max_data_xfer_size".into(), caps.max_data_xfer_size.into());
        map.insert("pgsizes".into(), 4096.into());
        if let Some(most) = caps.max_dma_maps {
            map.insert("max_dma_maps".into(), most.into());
        }
        let mut bytes = VersionHeader { major: self.major, minor: self.minor }.as_bytes().to_vec();
        bytes.extend(json!({ "capabilities": map }).to_string().into_bytes());
        bytes.push(0);
        bytes
    }

    /// From the payload of a Version message or its reply; the error says what is wrong.
    pub fn decode(payload: &[u8]) -> Result<Self, &'static str> {
        let (head, json) =
            VersionHeader::read_from_prefix(payload).map_err(|_| "a version message without a version")?;
        let mut capabilities = PeerCapabilities::default();
        if let [json @ .., last] = json {
            if *last != 0 || json.len() > MAX_JSON {
                return Err("version data that does not end in NUL, or is too long");
            }
            // Depth is bounded by serde_json, length just now.
            let value: Value = serde_json::from_slice(json).map_err(|_| "version data that is not JSON")?;
            if !value.is_object() {
                return Err("version data that is not a JSON object");
            }
            let number = |name: &str| match value.get("capabilities").and_then(|caps| caps.get(name)) {
                None => Ok(None),
                Some(value) => value.as_u64().map(Some).ok_or("a capability that is not a number"),
            };
            capabilities = PeerCapabilities {
                max_msg_fds: number("max_msg_fds")?.unwrap_or(capabilities.max_msg_fds),
                max_data_xfer_size: number("max_data_xfer_size")?.unwrap_or(capabilities.max_data_xfer_size),
                max_dma_maps: number("max_dma_maps")?,
            };
        }
        Ok(Self { major: head.major, minor: head.minor, capabilities })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_a_round_trip() {
        for max_dma_maps in [None, Some(16)] {
            let capabilities = PeerCapabilities { max_msg_fds: 8, max_data_xfer_size: 65536, max_dma_maps };
            let version = Version { major: 0, minor: 1, capabilities };
            assert_eq!(Version::decode(&version.encode()), Ok(version));
        }
    }

    #[test]
    fn data_may_be_absent_or_of_others() {
        assert_eq!(Version::decode(&[0, 0, 1, 0]).unwrap().capabilities, PeerCapabilities::default());
        let others =
            br#"....{"capabilities":{"max_msg_fds":8,"migration":{"pgsize":4096},"write_multiple":true},"x":[1]}"#;
        let mut bytes = others.to_vec();
        bytes.push(0);
        bytes[..4].fill(0);
        assert_eq!(Version::decode(&bytes).unwrap().capabilities.max_msg_fds, 8);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "x",
            "[]",
            "{",
            "{\"capabilities\":{\"max_msg_fds\":-1}}",
            "{\"capabilities\":{\"max_msg_fds\":\"9\"}}",
        ] {
            let mut bytes = vec![0; 4];
            bytes.extend(text.as_bytes());
            bytes.push(0);
            assert!(Version::decode(&bytes).is_err(), "{text}");
        }
        assert!(Version::decode(&[0, 0, 1]).is_err());
        assert!(Version::decode(b"....{}").is_err());
        let deep = [vec![0; 4], vec![b'['; 4000], vec![0]].concat();
        assert!(Version::decode(&deep).is_err());
        assert!(Version::decode(&[vec![0; 4], vec![b' '; 5000], vec![b'{', b'}', 0]].concat()).is_err());
    }
}
