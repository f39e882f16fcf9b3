//! Measuring: contenders in turn, medians, percentiles.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Measurements of two contenders, taken in pairs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairedTimes(Vec<(f64, f64)>);

impl PairedTimes {
    /// Measures both contenders `pairs` times in turn. Who goes first alternates, so that a machine that slowly changes
    /// favours neither. Each is told the number of the pair, to take a fresh batch for each but the same for both.
    pub fn alternate<E>(
        pairs: u32,
        a: impl FnMut(u32) -> Result<f64, E>,
        b: impl FnMut(u32) -> Result<f64, E>,
    ) -> Result<Self, E> {
        Self::alternate_while(|pair| pair < pairs, a, b)
    }

    /// Alternates for about `time`, at least `pairs` times.
    pub fn alternate_for<E>(
        time: Duration,
        pairs: u32,
        a: impl FnMut(u32) -> Result<f64, E>,
        b: impl FnMut(u32) -> Result<f64, E>,
    ) -> Result<Self, E> {
        let start = Instant::now();
        Self::alternate_while(|pair| pair < pairs || start.elapsed() < time, a, b)
    }

    fn alternate_while<E>(
        more: impl Fn(u32) -> bool,
        mut a: impl FnMut(u32) -> Result<f64, E>,
        mut b: impl FnMut(u32) -> Result<f64, E>,
    ) -> Result<Self, E> {
        let measure = |pair: u32| {
            if pair.is_multiple_of(2) {
                let a = a(pair)?;
                Ok((a, b(pair)?))
            } else {
                let b = b(pair)?;
                Ok((a(pair)?, b))
            }
        };
        (0..).take_while(|&pair| more(pair)).map(measure).collect::<Result<_, E>>().map(Self)
    }

    /// The median of the first contender's measurements; NaN if there are none.
    pub fn median_a(&self) -> f64 {
        median(self.0.iter().map(|pair| pair.0))
    }

    /// The median of the second contender's measurements; NaN if there are none.
    pub fn median_b(&self) -> f64 {
        median(self.0.iter().map(|pair| pair.1))
    }

    /// The median of the pairs' ratios, first to second; NaN if there are none. What slows the machine for a while touches both
    /// of a pair, so this is steadier than the ratio of the medians.
    pub fn ratio(&self) -> f64 {
        median(self.0.iter().map(|pair| pair.0 / pair.1))
    }

    /// The lowest and the highest of the pairs' ratios; NaN if there are none.
    pub fn ratio_range(&self) -> (f64, f64) {
        let ratios = || self.0.iter().map(|pair| pair.0 / pair.1);
        (ratios().fold(f64::NAN, f64::min), ratios().fold(f64::NAN, f64::max))
    }

    /// The measurements, pair by pair.
    pub fn pairs(&self) -> &[(f64, f64)] {
        &self.0
    }
}

/// What was measured otherwise, pair by pair.
impl FromIterator<(f64, f64)> for PairedTimes {
    fn from_iter<I: IntoIterator<Item = (f64, f64)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

/// The median: of an even number, the mean of the middle two; NaN of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// Durations with three significant digits, from a nanosecond to an hour; longer ones count as an hour.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// None yet.
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds and digits are in range"))
    }

    /// Adds one.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all of another's.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The duration that `percent` % of them do not pass, in microseconds; 0 if there are none.
    pub fn percentile_us(&self, percent: f64) -> f64 {
        self.0.value_at_quantile(percent / 100.0) as f64 / 1000.0
    }

    /// At most `most` bars of one width from the shortest to the 99.9th percentile, the last of which has what is longer, too.
    pub fn bars(&self, most: usize) -> Vec<HistogramBar> {
        let first = self.0.min();
        let last = self.0.value_at_quantile(0.999);
        if self.0.is_empty() || most == 0 {
            return Vec::new();
        }
        let width = ((last - first) / most as u64 + 1).max(1);
        let mut bars: Vec<HistogramBar> = (0..(last - first) / width + 1)
            .map(|i| HistogramBar {
                from_us: (first + i * width) as f64 / 1000.0,
                to_us: (first + (i + 1) * width) as f64 / 1000.0,
                count: 0,
            })
            .collect();
        let end = bars.len() - 1;
        for value in self.0.iter_recorded() {
            let at = (value.value_iterated_to().saturating_sub(first) / width) as usize;
            bars[at.min(end)].count += value.count_at_value();
        }
        bars
    }
}

/// Durations of a range, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct HistogramBar {
    /// The shortest, microseconds.
    pub from_us: f64,
    /// The end of the bar, where the next bar begins, in microseconds.
    pub to_us: f64,
    /// How many.
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[test]
    fn contenders_alternate() {
        use std::cell::RefCell;
        let order = RefCell::new(String::new());
        let run = |name, value: f64| {
            let order = &order;
            move |pair: u32| {
                order.borrow_mut().push(name);
                Ok::<_, ()>(value * f64::from(pair + 1))
            }
        };
        let pairs = PairedTimes::alternate(3, run('a', 6.0), run('b', 2.0)).unwrap();
        assert_eq!(*order.borrow(), "abbaab");
        assert_eq!((pairs.median_a(), pairs.median_b(), pairs.ratio()), (12.0, 4.0, 3.0));
        assert_eq!(pairs.ratio_range(), (3.0, 3.0));
        let timed = PairedTimes::alternate_for(Duration::ZERO, 2, |_| Ok::<_, ()>(1.0), |_| Ok(2.0)).unwrap();
        assert_eq!(timed.pairs(), [(1.0, 2.0); 2]);
        assert_eq!(PairedTimes::alternate(2, |_| Err("no"), |_| Ok(1.0)), Err("no"));
    }

    #[test]
    fn percentiles() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.percentile_us(50.0), 0.0);
        (1..=1000).for_each(|us| latencies.record(Duration::from_micros(us)));
        assert_eq!(latencies.count(), 1000);
        for (percent, want) in [(50.0, 500.0), (99.0, 990.0), (99.9, 999.0)] {
            let got = latencies.percentile_us(percent);
            assert!((got / want - 1.0).abs() < 0.002, "p{percent} is {got}");
        }
    }

    #[test]
    fn bars_have_everything() {
        let mut latencies = Latencies::new();
        assert!(latencies.bars(10).is_empty());
        (0..1000).for_each(|i| latencies.record(Duration::from_nanos(8000 + i % 500)));
        latencies.record(Duration::from_secs(1));
        for most in [1, 7, 24, 5000] {
            let bars = latencies.bars(most);
            assert!(bars.len() <= most && bars.iter().map(|bar| bar.count).sum::<u64>() == 1001, "{most}: {bars:?}");
            assert!(bars.windows(2).all(|two| two[0].to_us == two[1].from_us));
        }
    }
}
