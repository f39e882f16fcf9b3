use std::env;
use std::str::FromStr;

use crate::OpenError;

/// The environment variable that chooses, where the program does not.
const VARIABLE: &str = "WARPROW_VFIO";

/// Which of the kernel's two interfaces a function is opened through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum VfioInterface {
    /// [`Type1`](Self::Type1), or, where the kernel has no groups or this user may not open the function's,
    /// [`Iommufd`](Self::Iommufd).
    #[default]
    Auto,
    /// The IOMMU group (`/dev/vfio/N`) in a type 1 container. It alone takes memory of other devices.
    Type1,
    /// The function's own file (`/dev/vfio/devices/vfioN`) and `/dev/iommu`: Linux 6.6 and later.
    Iommufd,
}

impl VfioInterface {
    /// What the environment variable `WARPROW_VFIO` says: `auto`, `type1` or `iommufd`; [`Auto`](Self::Auto) without it.
    pub fn from_env() -> Result<Self, OpenError> {
        env::var_os(VARIABLE).map_or(Ok(Self::Auto), |value| value.to_string_lossy().parse())
    }
}

impl FromStr for VfioInterface {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        match text {
            "auto" => Ok(Self::Auto),
            "type1" => Ok(Self::Type1),
            "iommufd" => Ok(Self::Iommufd),
            _ => Err(OpenError::Interface { text: text.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (text, interface) in
            [("auto", VfioInterface::Auto), ("type1", VfioInterface::Type1), ("iommufd", VfioInterface::Iommufd)]
        {
            assert_eq!(text.parse::<VfioInterface>().unwrap(), interface);
        }
        let error = "vfio".parse::<VfioInterface>().unwrap_err().to_string();
        assert!(error.contains("WARPROW_VFIO") && error.contains("\"vfio\"") && error.contains("type1"), "{error}");
    }
}
