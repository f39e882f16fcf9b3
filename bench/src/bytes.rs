use std::str::FromStr;

use warprow_soft_controller::parse_size;

/// A number of bytes on a command line: `4096`, `512K`, `256M`, `64G`, `1T`; the letters are powers of 1024.
/// Units are those of the command, `KiB` and `MB` among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// Not a number of bytes.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no size: write 4096, 512K, 256M, 64G or 1T")]
pub struct BytesError(String);

impl FromStr for Bytes {
    type Err = BytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_size(text).map(Self).map_err(|_| BytesError(text.to_owned()))
    }
}

/// A number of things on a command line: `100`, `64K` (powers of 1024), `1e6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

/// Not a number of things.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no number: write 100, 64K, 2M, 1G or 1e6")]
pub struct CountError(String);

impl FromStr for Count {
    type Err = CountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(bytes) = text.parse::<Bytes>() {
            return Ok(Self(bytes.0));
        }
        let number =
            text.parse::<f64>().ok().filter(|number| *number >= 0.0 && *number < 9e15 && number.fract() == 0.0);
        number.map(|number| Self(number as u64)).ok_or_else(|| CountError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let parse = |text: &str| text.parse::<Bytes>().ok().map(|bytes| bytes.0);
        assert_eq!(parse("4096"), Some(4096));
        assert_eq!(parse("2k"), Some(2048));
        assert_eq!(parse("64G"), Some(64 << 30));
        assert_eq!(parse("1T"), Some(1 << 40));
        assert_eq!(parse("2MB"), Some(2_000_000));
        for bad in ["", "G", "-1", "1.5G", "1Gi", "99999999T", "4 K", "é", "1é"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn counts() {
        let parse = |text: &str| text.parse::<Count>().ok().map(|count| count.0);
        assert_eq!(["100", "64K", "1e6", "1G"].map(parse), [Some(100), Some(65536), Some(1_000_000), Some(1 << 30)]);
        for bad in ["", "x", "1.5", "-3", "1e99", "NaN"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
