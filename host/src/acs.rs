use std::path::Path;

use crate::files::bytes;

/// Extended capability of Access Control Services (PCI Express Base 5.0, 7.7.8), and where extended capabilities begin.
const ACS_ID: u16 = 0x000d;
const EXTENDED: usize = 0x100;
const CONFIG_BYTES: u64 = 4096;

/// Whether a bridge sends what its devices say to each other up to the root complex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acs {
    /// The capability lies in a part of configuration space that only root can read.
    Unreadable,
    /// The function has no such capability.
    None,
    /// The bridge's ACS control register.
    Control(u16),
}

impl Acs {
    pub(crate) fn read(config: &Path) -> Self {
        bytes(config, CONFIG_BYTES).map_or(Self::Unreadable, |bytes| Self::parse(&bytes))
    }

    /// P2P Request Redirect or P2P Completion Redirect: peer traffic takes the way through the root complex.
    pub fn redirects(self) -> bool {
        matches!(self, Self::Control(control) if control & 0b1100 != 0)
    }

    fn parse(config: &[u8]) -> Self {
        let word = |at: usize| Some(u32::from_le_bytes(*config.get(at..)?.first_chunk()?));
        // An ordinary user reads 64 bytes; conventional PCI has 256.
        if config.len() <= 64 {
            return Self::Unreadable;
        }
        let mut at = EXTENDED;
        // No more capabilities fit than dwords: a circle ends.
        for _ in 0..CONFIG_BYTES as usize / 4 {
            let Some(header) = word(at).filter(|&header| header != 0 && header != u32::MAX) else { break };
            if header as u16 == ACS_ID {
                return word(at + 4).map_or(Self::None, |registers| Self::Control((registers >> 16) as u16));
            }
            let next = (header >> 20) as usize & !3;
            if next < EXTENDED {
                break;
            }
            at = next;
        }
        Self::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(chain: &[(usize, u16, usize)], control: u16) -> Vec<u8> {
        let mut config = vec![0; 4096];
        for &(at, id, next) in chain {
            config[at..at + 4].copy_from_slice(&(u32::from(id) | 1 << 16 | (next as u32) << 20).to_le_bytes());
            if let Some(register) = config.get_mut(at + 6..at + 8).filter(|_| id == ACS_ID) {
                register.copy_from_slice(&control.to_le_bytes());
            }
        }
        config
    }

    #[test]
    fn the_control_register_is_found_behind_other_capabilities() {
        let with = config(&[(0x100, 1, 0x148), (0x148, ACS_ID, 0)], 0x1d);
        assert_eq!(Acs::parse(&with), Acs::Control(0x1d));
        assert!(Acs::Control(0x1d).redirects() && Acs::Control(4).redirects() && Acs::Control(8).redirects());
        assert!(!Acs::Control(0x11).redirects() && !Acs::None.redirects() && !Acs::Unreadable.redirects());
        assert_eq!(Acs::parse(&config(&[(0x100, 1, 0)], 0)), Acs::None);
        assert_eq!((Acs::parse(&with[..64]), Acs::parse(&with[..256])), (Acs::Unreadable, Acs::None));
    }

    #[test]
    fn circles_and_ends_are_survived() {
        assert_eq!(Acs::parse(&config(&[(0x100, 1, 0x100)], 0)), Acs::None);
        assert_eq!(Acs::parse(&config(&[(0x100, 1, 0xffc), (0xffc, 2, 0x100)], 0)), Acs::None);
        assert_eq!(Acs::parse(&config(&[(0x100, 1, 0xffc), (0xffc, ACS_ID, 0)], 0)), Acs::None);
        let mut random = fastrand::Rng::with_seed(0x5eed);
        for _ in 0..1000 {
            let bytes: Vec<u8> = (0..random.usize(..4200)).map(|_| random.u8(..)).collect();
            let _ = Acs::parse(&bytes);
        }
    }
}
