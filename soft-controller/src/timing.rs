//! How long commands take: a model of a drive's front end and dies, and presets.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;

/// How LBAs are spread over the dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiePlacement {
    /// By the order of writing, as flash translation does: neighbours in time lie on different dies. What was never
    /// written lies anywhere.
    WriteOrder,
    /// By address: the namespace is cut into this many regions, and the dies are shared out among them, each region
    /// interleaving over its own. A small table in one place then has few dies to serve it.
    Address {
        /// Number of regions; it divides the number of dies.
        regions: u32,
    },
}

/// The properties of a drive that decide how long commands take.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Commands a second that the front end takes, reads of up to 512 bytes.
    pub small_reads: f64,
    /// Reads of 4 KiB a second.
    pub reads: f64,
    /// Writes of 4 KiB a second.
    pub writes: f64,
    /// Bytes read a second.
    pub read_bytes: f64,
    /// Bytes written a second.
    pub write_bytes: f64,
    /// Units that work on one 4 KiB page at a time: dies, or planes where these read independently.
    pub dies: u32,
    /// How long a die reads a page.
    pub page_read: Duration,
    /// How long a die is busy for a page written.
    pub page_write: Duration,
    /// What a read takes besides: link, front end.
    pub read_overhead: Duration,
    /// From a write's arrival to its completion, if nothing is in its way.
    pub write_latency: Duration,
    /// A flush.
    pub flush: Duration,
    /// One page read in so many takes so many times as long: retries, refresh.
    pub slow_read: Option<(u32, u32)>,
    /// How LBAs are spread over the dies.
    pub placement: DiePlacement,
}

/// Drives whose timing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TimingProfile {
    /// No timing of a drive: as fast as this machine is.
    #[default]
    None,
    /// Intel Optane SSD DC P5800X, 1.6 TB: 3D XPoint, placed by address.
    P5800x,
    /// A data centre drive of 2026, PCIe 5.0 and TLC flash: the figures of Micron's 9550 MAX, 6.4 TB.
    Gen5Tlc,
    /// A drive of PCIe 6.0 as vendors have announced it; nobody has measured one for this.
    Gen6,
}

impl TimingProfile {
    pub(crate) const ACCEPTED: &str = "none, p5800x, gen5-tlc or gen6";

    /// The timing of this drive. Sources and reasons are in `docs/soft-controller.md`.
    pub fn timing(self) -> Option<Timing> {
        let us = Duration::from_micros;
        match self {
            Self::None => None,
            Self::P5800x => Some(Timing {
                small_reads: 5.0e6,
                reads: 1.5e6,
                writes: 1.5e6,
                read_bytes: 7.2e9,
                write_bytes: 6.2e9,
                dies: 28,
                page_read: Duration::from_nanos(2500),
                page_write: Duration::from_nanos(2500),
                read_overhead: Duration::from_nanos(2500),
                write_latency: us(6),
                flush: us(6),
                slow_read: None,
                placement: DiePlacement::Address { regions: 7 },
            }),
            Self::Gen5Tlc => Some(Timing {
                small_reads: 3.3e6,
                reads: 3.3e6,
                writes: 640.0e3,
                read_bytes: 14.0e9,
                write_bytes: 10.0e9,
                dies: 256,
                page_read: us(40),
                page_write: us(60),
                read_overhead: us(20),
                write_latency: us(15),
                flush: us(15),
                slow_read: Some((2000, 8)),
                placement: DiePlacement::WriteOrder,
            }),
            Self::Gen6 => Some(Timing {
                small_reads: 10.0e6,
                reads: 5.5e6,
                writes: 900.0e3,
                read_bytes: 28.0e9,
                write_bytes: 14.0e9,
                dies: 1024,
                page_read: us(30),
                page_write: us(60),
                read_overhead: us(20),
                write_latency: us(15),
                flush: us(15),
                slow_read: Some((2000, 8)),
                placement: DiePlacement::WriteOrder,
            }),
        }
    }
}

impl FromStr for TimingProfile {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "none" => Ok(Self::None),
            "p5800x" => Ok(Self::P5800x),
            "gen5-tlc" => Ok(Self::Gen5Tlc),
            "gen6" => Ok(Self::Gen6),
            _ => Err(()),
        }
    }
}

/// What a command does to the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Flush,
}

/// The bytes that a command is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) access: Access,
    pub(crate) nsid: u32,
    /// Size of the namespace, bytes.
    pub(crate) size: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

const PAGE: u64 = 4096;
/// Pages whose places are kept together.
const CHUNK: u64 = 512;

/// The state of a drive's front end and dies. Times are nanoseconds.
#[derive(Debug)]
pub(crate) struct Model {
    timing: Timing,
    read_free: u64,
    write_free: u64,
    die_free: Vec<u64>,
    /// The die that takes the next page written.
    next: u32,
    /// Dies of written pages, by namespace and chunk.
    places: HashMap<(u32, u64), Box<[u16]>>,
    /// For a read: the number that its first page had in the order of writing.
    written: Option<u64>,
    /// A command takes front end and dies so many times as long as it needs itself: others use them as much.
    sharers: u32,
    rng: fastrand::Rng,
}

/// The timing of a drive without the drive: computes when reads would be done that nobody makes. Nothing counts as written, so on
/// flash pages lie anywhere, but for those of which it is said when they were written.
#[derive(Debug)]
pub struct TimingModel {
    model: Model,
    size: u64,
}

impl TimingModel {
    /// The timing model of a namespace of `size` bytes on a drive of that timing.
    pub fn new(timing: Timing, size: u64, seed: u64) -> Self {
        Self { model: Model::new(timing, seed), size }
    }

    /// When a read of `len` bytes at byte `offset` is done that arrives at `now`. Reads arrive in the order of calls. Of all pages ever
    /// written, its first was number `written` and the others followed, if that is known: it decides where they lie on flash.
    pub fn read(&mut self, now: Duration, offset: u64, len: u64, written: Option<u64>) -> Duration {
        self.model.written = written;
        self.model.due(now, &Extent { access: Access::Read, nsid: 1, size: self.size, offset, len })
    }
}

/// A page that was never written.
const UNWRITTEN: u16 = u16::MAX;

impl Model {
    pub(crate) fn new(timing: Timing, seed: u64) -> Self {
        let dies = timing.dies.clamp(1, u32::from(UNWRITTEN));
        Self {
            timing: Timing { dies, ..timing },
            read_free: 0,
            write_free: 0,
            die_free: vec![0; dies as usize],
            next: 0,
            places: HashMap::new(),
            written: None,
            sharers: 1,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// One of `sharers` hosts that use the drive as much as each other: it gets one part in so many of what front end and dies do,
    /// and a command that meets no other takes as long as ever.
    pub(crate) fn shared_by(self, sharers: u32) -> Self {
        Self { sharers: sharers.max(1), ..self }
    }

    /// When a command that arrives at `now` is done.
    pub(crate) fn due(&mut self, now: Duration, extent: &Extent) -> Duration {
        let now = nanos(now);
        let done = match extent.access {
            Access::Flush => now + nanos(self.timing.flush),
            Access::Read => {
                let cost = self.cost(extent.len, self.timing.small_reads, self.timing.reads, self.timing.read_bytes);
                let start = now.max(self.read_free);
                self.read_free = start + cost;
                self.pages(extent, start, |model, die, at| model.read(die, at)) + nanos(self.timing.read_overhead)
            }
            Access::Write => {
                let cost = self.cost(extent.len, self.timing.writes, self.timing.writes, self.timing.write_bytes);
                let start = now.max(self.write_free);
                self.write_free = start + cost;
                let written =
                    self.pages(extent, start, |model, die, at| model.occupy(die, at, model.timing.page_write));
                let acknowledged = start + nanos(self.timing.write_latency);
                match self.timing.placement {
                    // Flash drives complete a write when it is in their protected buffer.
                    DiePlacement::WriteOrder => acknowledged,
                    DiePlacement::Address { .. } => acknowledged.max(written),
                }
            }
        };
        Duration::from_nanos(done)
    }

    /// How long the front end is taken by a command.
    fn cost(&self, len: u64, small: f64, page: f64, bytes: f64) -> u64 {
        let pages = len.min(PAGE) as f64 / PAGE as f64 / page;
        (1e9 * f64::from(self.sharers) * pages.max(1.0 / small).max(len as f64 / bytes)) as u64
    }

    /// Lets `each` work on every page of a command from `start` on; the result is when the last is done.
    fn pages(&mut self, extent: &Extent, start: u64, each: impl Fn(&mut Self, usize, u64) -> u64) -> u64 {
        let mut done = start;
        for page in extent.offset / PAGE..(extent.offset + extent.len).div_ceil(PAGE) {
            let die = self.die(extent, page);
            done = done.max(each(self, die, start));
        }
        done
    }

    fn read(&mut self, die: usize, at: u64) -> u64 {
        let mut time = self.timing.page_read;
        if let Some((one_in, times)) = self.timing.slow_read
            && self.rng.u32(0..one_in.max(1)) == 0
        {
            time *= times;
        }
        self.occupy(die, at, time)
    }

    fn occupy(&mut self, die: usize, at: u64, time: Duration) -> u64 {
        let free = &mut self.die_free[die];
        let begins = at.max(*free);
        *free = begins + nanos(time) * u64::from(self.sharers);
        begins + nanos(time)
    }

    /// The die of a page, which a write chooses.
    fn die(&mut self, extent: &Extent, page: u64) -> usize {
        let dies = self.timing.dies;
        match self.timing.placement {
            DiePlacement::Address { regions } => {
                let regions = u64::from(regions.clamp(1, dies));
                let per_region = u64::from(dies) / regions;
                let pages = (extent.size / PAGE).max(1);
                let region = (u128::from(page) * u128::from(regions) / u128::from(pages)) as u64;
                (region.min(regions - 1) * per_region + page % per_region) as usize
            }
            DiePlacement::WriteOrder if extent.access == Access::Write => {
                let die = self.next;
                self.next = (die + 1) % dies;
                let chunk = self.places.entry((extent.nsid, page / CHUNK));
                let chunk = chunk.or_insert_with(|| vec![UNWRITTEN; CHUNK as usize].into());
                chunk[(page % CHUNK) as usize] = die as u16;
                die as usize
            }
            DiePlacement::WriteOrder if self.written.is_some() => {
                let nth = self.written.unwrap_or(0) + page - extent.offset / PAGE;
                (nth % u64::from(dies)) as usize
            }
            DiePlacement::WriteOrder => {
                let place = self.places.get(&(extent.nsid, page / CHUNK)).map(|chunk| chunk[(page % CHUNK) as usize]);
                match place {
                    Some(die) if die != UNWRITTEN => usize::from(die),
                    _ => {
                        (crate::backing::ProceduralBacking::word(u64::from(extent.nsid), page) % u64::from(dies))
                            as usize
                    }
                }
            }
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 64 << 30;

    /// Runs random commands at a queue depth: commands a second, and latencies in order.
    fn run(profile: TimingProfile, access: Access, len: u64, span: u64, depth: usize) -> (f64, Vec<Duration>) {
        run_on(Model::new(profile.timing().unwrap(), 1), access, len, span, depth)
    }

    fn run_on(mut model: Model, access: Access, len: u64, span: u64, depth: usize) -> (f64, Vec<Duration>) {
        let mut rng = fastrand::Rng::with_seed(2);
        let mut flight = std::collections::BinaryHeap::new();
        let mut now = Duration::ZERO;
        let mut latencies = Vec::new();
        for _ in 0..60_000 {
            if flight.len() == depth {
                let std::cmp::Reverse(done) = flight.pop().unwrap();
                now = now.max(done);
            }
            let offset = rng.u64(0..span / len) * len;
            let due = model.due(now, &Extent { access, nsid: 1, size: SIZE, offset, len });
            assert!(due > now);
            latencies.push(due - now);
            flight.push(std::cmp::Reverse(due));
        }
        latencies.sort_unstable();
        (latencies.len() as f64 / now.as_secs_f64(), latencies)
    }

    fn assert_near(got: f64, want: f64, what: &str) {
        assert!((0.9..1.02).contains(&(got / want)), "{what}: {got:.3e}, not {want:.3e}");
    }

    #[test]
    fn caps_hold_and_are_reached() {
        for (profile, access, len, want) in [
            (TimingProfile::P5800x, Access::Read, 512, 5.0e6),
            (TimingProfile::P5800x, Access::Read, 4096, 1.5e6),
            (TimingProfile::P5800x, Access::Write, 4096, 1.5e6),
            (TimingProfile::P5800x, Access::Read, 131_072, 7.2e9 / 131_072.0),
            (TimingProfile::P5800x, Access::Write, 131_072, 6.2e9 / 131_072.0),
            (TimingProfile::Gen5Tlc, Access::Read, 4096, 3.3e6),
            (TimingProfile::Gen5Tlc, Access::Read, 512, 3.3e6),
            (TimingProfile::Gen5Tlc, Access::Write, 4096, 640.0e3),
            (TimingProfile::Gen5Tlc, Access::Read, 131_072, 14.0e9 / 131_072.0),
            (TimingProfile::Gen5Tlc, Access::Write, 131_072, 10.0e9 / 131_072.0),
            (TimingProfile::Gen6, Access::Read, 512, 10.0e6),
            (TimingProfile::Gen6, Access::Read, 4096, 5.5e6),
            (TimingProfile::Gen6, Access::Write, 4096, 900.0e3),
            (TimingProfile::Gen6, Access::Read, 131_072, 28.0e9 / 131_072.0),
            (TimingProfile::Gen6, Access::Write, 131_072, 14.0e9 / 131_072.0),
        ] {
            let (rate, _) = run(profile, access, len, SIZE, 1024);
            assert_near(rate, want, &format!("{profile:?} {access:?} of {len}"));
        }
    }

    #[test]
    fn sharers_divide_the_rate_and_leave_the_latency() {
        let alone = |profile: TimingProfile, span, depth, sharers| {
            let model = Model::new(profile.timing().unwrap(), 1).shared_by(sharers);
            run_on(model, Access::Read, 4096, span, depth)
        };
        // All of the drive, which its front end limits, and a narrow span of it, which few dies serve.
        for (profile, span) in
            [(TimingProfile::P5800x, SIZE), (TimingProfile::P5800x, 1 << 20), (TimingProfile::Gen6, SIZE)]
        {
            let (whole, _) = alone(profile, span, 1024, 1);
            for sharers in [2, 4] {
                let (part, _) = alone(profile, span, 1024, sharers);
                assert_near(part * f64::from(sharers), whole, &format!("{profile:?}, one of {sharers}"));
            }
        }
        let (_, latencies) = alone(TimingProfile::P5800x, SIZE, 1, 4);
        assert_eq!(latencies[latencies.len() / 2], Duration::from_micros(5));
    }

    #[test]
    fn unloaded_latencies_are_the_drives() {
        for (profile, access, want) in [
            (TimingProfile::P5800x, Access::Read, 5),
            (TimingProfile::P5800x, Access::Write, 6),
            (TimingProfile::Gen5Tlc, Access::Read, 60),
            (TimingProfile::Gen5Tlc, Access::Write, 15),
            (TimingProfile::Gen6, Access::Read, 50),
            (TimingProfile::Gen6, Access::Write, 15),
        ] {
            let (_, latencies) = run(profile, access, 4096, SIZE, 1);
            assert_eq!(latencies[latencies.len() / 2], Duration::from_micros(want), "{profile:?} {access:?}");
        }
        let (_, latencies) = run(TimingProfile::Gen5Tlc, Access::Read, 4096, SIZE, 1);
        assert!(latencies[latencies.len() - 1] > Duration::from_micros(300), "one read in 2000 is slow");
    }

    #[test]
    fn a_narrow_span_is_slow_only_where_address_is_place() {
        let narrow = SIZE / 16;
        let (wide_rate, _) = run(TimingProfile::P5800x, Access::Read, 512, SIZE, 1024);
        let (narrow_rate, _) = run(TimingProfile::P5800x, Access::Read, 512, narrow, 1024);
        assert!(narrow_rate < wide_rate / 2.0, "{narrow_rate:.3e} {wide_rate:.3e}");
        let (flash_rate, _) = run(TimingProfile::Gen5Tlc, Access::Read, 512, narrow, 1024);
        assert_near(flash_rate, 3.3e6, "flash, narrow");
    }

    #[test]
    fn rehearsed_reads_take_what_those_of_written_pages_do() {
        let timing = Timing { slow_read: None, ..TimingProfile::Gen5Tlc.timing().unwrap() };
        let mut model = Model::new(timing.clone(), 1);
        let mut rehearsal = TimingModel::new(timing, SIZE, 2);
        let extent = |access, page| Extent { access, nsid: 1, size: SIZE, offset: page * PAGE, len: PAGE };
        let pages: Vec<u64> = (0..500).map(|i| i * 7919 % 100_000).collect();
        for &page in &pages {
            model.due(Duration::ZERO, &extent(Access::Write, page));
        }
        let now = Duration::from_secs(1);
        for (nth, &page) in pages.iter().enumerate().rev() {
            let want = model.due(now, &extent(Access::Read, page));
            assert_eq!(rehearsal.read(now, page * PAGE, PAGE, Some(nth as u64)), want, "page {nth}");
        }
    }

    #[test]
    fn written_together_lies_apart() {
        let mut model = Model::new(TimingProfile::Gen5Tlc.timing().unwrap(), 1);
        let extent = |access, page| Extent { access, nsid: 1, size: SIZE, offset: page * PAGE, len: PAGE };
        let pages: Vec<u64> = (0..100).map(|i| i * 7919 % 100_000).collect();
        for &page in &pages {
            model.due(Duration::ZERO, &extent(Access::Write, page));
        }
        let dies: std::collections::HashSet<_> =
            pages.iter().map(|&page| model.die(&extent(Access::Read, page), page)).collect();
        assert_eq!(dies.len(), 100);
    }
}
