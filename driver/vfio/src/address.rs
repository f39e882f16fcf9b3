use std::fmt;
use std::str::FromStr;

/// Where a PCI function sits: domain, bus, device and function, written `0000:01:00.0`; `01:00.0` means domain 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Segment group.
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number, 0 to 31.
    pub device: u8,
    /// Function number, 0 to 7.
    pub function: u8,
}

/// A text that is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a PCI address: write domain:bus:device.function in hexadecimal, as in 0000:01:00.0")]
pub struct AddressError(pub String);

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse(text).ok_or_else(|| AddressError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    let address = PciAddress {
        domain: hex(domain, 8)?,
        bus: hex(bus, 2)?.try_into().ok()?,
        device: hex(device, 2)?.try_into().ok()?,
        function: hex(function, 1)?.try_into().ok()?,
    };
    (address.device < 32 && address.function < 8).then_some(address)
}

fn hex(digits: &str, most: usize) -> Option<u32> {
    let plain = !digits.is_empty() && digits.len() <= most && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    #[test]
    fn domain_may_be_left_out() {
        let address: PciAddress = "3f:1f.7".parse().unwrap();
        assert_eq!(address, PciAddress { domain: 0, bus: 0x3f, device: 0x1f, function: 7 });
        assert_eq!(address.to_string(), "0000:3f:1f.7");
        assert_eq!("10000:e1:00.0".parse::<PciAddress>().unwrap().to_string(), "10000:e1:00.0");
    }

    #[test]
    fn others_are_refused() {
        for text in
            ["", "nvme0", "01:00", "01:00.8", "01:20.0", "0000:001:00.0", "+1:00.0", "0000:01:00.0 ", "a:b:c:d.0"]
        {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn survives_a_round_trip(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let address = PciAddress { domain, bus, device, function };
            prop_assert_eq!(address.to_string().parse::<PciAddress>().unwrap(), address);
        }

        #[test]
        fn any_text_is_an_address_or_an_error(text: String) {
            let _ = text.parse::<PciAddress>();
        }
    }
}
