//! Small primes, one after the other.

/// The first `count` primes that are not below `first`.
pub(crate) fn primes_from(first: u64, count: usize) -> impl Iterator<Item = u64> {
    (first..).filter(|&number| is_prime(number)).take(count)
}

fn is_prime(number: u64) -> bool {
    if number.is_multiple_of(2) || number < 2 {
        return number == 2;
    }
    (3..).step_by(2).take_while(|divisor| divisor * divisor <= number).all(|divisor| !number.is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use super::primes_from;

    #[test]
    fn they_follow_each_other() {
        assert_eq!(primes_from(0, 10).collect::<Vec<_>>(), [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]);
        assert_eq!(primes_from(89, 2).collect::<Vec<_>>(), [89, 97]);
        assert_eq!(primes_from((1 << 32) - 5, 1).collect::<Vec<_>>(), [4_294_967_291]);
        // A square of a prime, and a product of two.
        assert_eq!(primes_from(16_008_001, 1).collect::<Vec<_>>(), [16_008_011]);
    }
}
