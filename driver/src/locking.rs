//! Whether a self-encrypting drive is locked (TCG Storage Architecture Core Specification 2.01, 3.3.6, Level 0 Discovery).

use warprow_spec::Sqe;

use crate::controller::Controller;
use crate::error::DriverError;

/// Security protocol and ComID of Level 0 Discovery.
const DISCOVERY: (u8, u16) = (0x01, 0x0001);
const LOCKING_FEATURE: u16 = 0x0002;
/// The length field, revision and vendor bytes before the first feature.
const HEADER: usize = 48;

/// What a drive says of its locking feature, which drives with Opal and related standards have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locking {
    /// Somebody activated it: the drive may lock itself when it loses power.
    pub enabled: bool,
    /// A range is locked now: reads or writes of it fail.
    pub locked: bool,
    /// The drive encrypts what it stores.
    pub encrypts: bool,
}

impl Controller {
    /// The drive's locking feature; `None` where it has none, or no Security Receive (OACS).
    pub fn locking(&self) -> Result<Option<Locking>, DriverError> {
        if !self.info().oacs.security() {
            return Ok(None);
        }
        let (protocol, com_id) = DISCOVERY;
        let sqe = Sqe::security_receive(protocol, com_id, 4096);
        match self.send(sqe, &[], self.options().admin_timeout) {
            Ok(answer) => Ok(parse(&answer.data)),
            // The drive has security protocols, but not TCG's.
            Err(DriverError::Command { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The locking feature among the descriptors: code and length of each, then as many bytes.
fn parse(data: &[u8]) -> Option<Locking> {
    let long = u32::from_be_bytes(*data.first_chunk()?) as usize;
    let end = long.saturating_add(4).min(data.len());
    let mut rest = data.get(HEADER..end)?;
    loop {
        let code = u16::from_be_bytes(*rest.first_chunk()?);
        let len = usize::from(*rest.get(3)?);
        let body = rest.get(4..4 + len)?;
        if code == LOCKING_FEATURE {
            let bits = *body.first()?;
            let bit = |n: u8| bits >> n & 1 != 0;
            return bit(0).then(|| Locking { enabled: bit(1), locked: bit(2), encrypts: bit(3) });
        }
        rest = rest.get(4 + len..)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    pub(super) fn discovery(features: &[(u16, &[u8])]) -> Vec<u8> {
        let mut data = vec![0; HEADER];
        for (code, body) in features {
            data.extend(code.to_be_bytes());
            data.extend([0x10, body.len() as u8]);
            data.extend(*body);
        }
        let long = (data.len() - 4) as u32;
        data[..4].copy_from_slice(&long.to_be_bytes());
        data.resize(4096, 0);
        data
    }

    #[test]
    fn the_locking_feature_is_found_behind_others() {
        let tper = (1, &[0x11; 12][..]);
        let locked = discovery(&[tper, (2, &[0b1111; 12])]);
        assert_eq!(parse(&locked), Some(Locking { enabled: true, locked: true, encrypts: true }));
        let idle = discovery(&[tper, (2, &[0b1001; 12])]);
        assert_eq!(parse(&idle), Some(Locking { enabled: false, locked: false, encrypts: true }));
        assert_eq!(parse(&discovery(&[tper])), None);
        assert_eq!(parse(&discovery(&[(2, &[0])])), None, "not supported");
        assert_eq!(parse(&[0; 4096]), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_survived(mut data in proptest::collection::vec(any::<u8>(), 0..512), short in any::<bool>()) {
            if short && data.len() > 4 { data[..3].fill(0); }
            let _ = parse(&data);
        }
    }
}
