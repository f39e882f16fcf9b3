//! The arithmetic of the function: wrapping 64-bit multiplications, and the upper half of 128-bit ones.

const FIRST: u64 = 0xff51_afd7_ed55_8ccd;
const SECOND: u64 = 0xc4ce_b9fe_1a85_ec53;

/// MurmurHash3's finaliser: a bijection, so that different keys have different hashes.
#[inline(always)]
pub(crate) const fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(FIRST);
    x ^= x >> 33;
    x = x.wrapping_mul(SECOND);
    x ^ x >> 33
}

/// The inverse of [`mix`].
pub(crate) const fn unmix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(inverse(SECOND));
    x ^= x >> 33;
    x = x.wrapping_mul(inverse(FIRST));
    x ^ x >> 33
}

/// Of an odd number, modulo 2⁶⁴: Newton's iteration doubles the bits that are right, of which three are to begin with.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut bits = 3;
    while bits < 64 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        bits *= 2;
    }
    x
}

/// ⌊x · range / 2⁶⁴⌋: below `range`.
#[inline(always)]
pub(crate) const fn reduce(x: u64, range: u64) -> u64 {
    ((x as u128 * range as u128) >> 64) as u64
}

/// By which a hash is multiplied under each pilot: odd.
pub(crate) static MULTIPLIERS: [u64; 256] = {
    let mut multipliers = [0; 256];
    let mut pilot = 0;
    while pilot < 256 {
        multipliers[pilot] = mix(pilot as u64 + 1) | 1;
        pilot += 1;
    }
    multipliers
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixing_can_be_undone() {
        let mut rng = fastrand::Rng::with_seed(1);
        let edges = [0, 1, u64::MAX, 1 << 63, i64::MAX as u64];
        edges.into_iter().chain((0..1000).map(|_| rng.u64(..))).for_each(|x| {
            assert_eq!(unmix(mix(x)), x);
            assert_eq!(mix(unmix(x)), x);
        });
    }

    #[test]
    fn reduction_stays_below_its_range() {
        for range in [1, 2, 3, 1 << 32, u64::MAX] {
            assert_eq!((reduce(0, range), reduce(u64::MAX, range)), (0, range - 1));
        }
        assert_eq!(reduce(1 << 63, 10), 5);
    }
}
