//! What the name of a drive says.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::error::UriError;
use super::pace::{ReadRate, parse_time};
use super::size::parse_size;
use crate::backing::DEPTH;
use crate::namespace::LBA_BYTES;
use crate::offload_maker::OffloadRate;
use crate::timing::TimingProfile;

/// What an emulated drive keeps its data in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BackingKind {
    /// The file or block device at the path.
    #[default]
    File,
    /// Memory of this process, gone with it.
    Ram,
    /// Content computed from the seed; what is written is kept in memory.
    Procedural,
    /// Nothing at all.
    Null,
}

impl BackingKind {
    const NAMES: [(&str, Self); 4] =
        [("file", Self::File), ("ram", Self::Ram), ("procedural", Self::Procedural), ("null", Self::Null)];
}

/// An emulated drive as its URI describes it. The properties follow the path as `?a=b&c=d` or as `,a=b,c=d`:
///
/// | property | values | default |
/// |---|---|---|
/// | `size` | bytes, or with K, M, G, T, KiB … (powers of 1024) or kB, MB, GB, TB (powers of 1000) | the file's |
/// | `lba` | 512, 4096: the LBA size of a new drive, or of a file that has no sidecar | 512 |
/// | `backing` | file, ram, procedural, null | file |
/// | `direct` | 0, 1: past the page cache, by io_uring and O_DIRECT | 0 |
/// | `depth` | 1 to 1024: reads that each worker has under way in the file at most | 256 |
/// | `profile` | none, p5800x, gen5-tlc, gen6: whose timing to have | none |
/// | `workers` | 1 to 64 threads | 1 |
/// | `seed` | 0 to 2^64 - 1: of the timing, and of procedural content | 0 |
/// | `serial` | 1 to 20 printable ASCII characters: likewise | a random one, kept with the file |
/// | `gpu` | the number of a GPU, which then executes plain reads from a copy of the data in its memory | none does |
/// | `iops` | reads of up to 512 bytes a second, such as `10e6`; goes with `gpu` | as fast as the GPU goes |
/// | `latency` | of a read, such as `20us`, at most 1000 ms; goes with `gpu` | none |
/// | `linger` | how long the GPU looks for commands behind the latest, such as `2ms`, at most 1000 ms; goes with `gpu` | 20 us |
/// | `sharers` | 1 to 64: the drive has one part in so many of its rate; goes with `gpu` or `profile` | 1 |
///
/// With `gpu`, the profile is that of the GPU's reads alone: their rate and their latency, without dies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveUri {
    /// The file or block device; of other backings no more than a name.
    pub path: PathBuf,
    /// Size in bytes, a multiple of 4096.
    pub size: Option<u64>,
    /// LBA size of a new drive, or of a file that has no sidecar, bytes.
    pub lba: Option<u32>,
    /// What the data is kept in.
    pub backing: BackingKind,
    /// Whether to go past the page cache.
    pub direct: bool,
    /// Reads that each worker has under way in the file at most.
    pub depth: u32,
    /// The drive model whose timing to have.
    pub profile: TimingProfile,
    /// Worker threads.
    pub workers: usize,
    /// Seed of what is random.
    pub seed: u64,
    /// Serial number.
    pub serial: Option<String>,
    /// The number of the GPU that executes plain reads.
    pub gpu: Option<u32>,
    /// Reads a second that the GPU executes.
    pub iops: Option<ReadRate>,
    /// Latency of those reads.
    pub latency: Option<Duration>,
    /// How long the GPU goes on to look for commands behind the latest.
    pub linger: Option<Duration>,
    /// The drive has one part in so many of the rate.
    pub sharers: u32,
    /// Whether it is opened for reading alone, beside others that do: see [`for_reading`](Self::for_reading). No property of a URI says
    /// so: it is for who opens it to say.
    pub read_only: bool,
    /// The URI as it was given, or as `Display` makes it.
    text: String,
}

const SCHEME: &str = "emulated:";
const PROPERTIES: [&str; 14] = [
    "size", "lba", "backing", "direct", "depth", "profile", "workers", "seed", "serial", "gpu", "iops", "latency",
    "linger", "sharers",
];

impl DriveUri {
    /// A drive in the file at `path`, everything else by default.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            text: format!("{SCHEME}{}", path.display()),
            path,
            size: None,
            lba: None,
            backing: BackingKind::File,
            direct: false,
            depth: DEPTH,
            profile: TimingProfile::None,
            workers: 1,
            seed: 0,
            serial: None,
            gpu: None,
            iops: None,
            latency: None,
            linger: None,
            sharers: 1,
            read_only: false,
        }
    }

    /// The drive, to be opened for reading alone: any number of processes may have it open so at once, as long as none has it for
    /// writing. Nothing is written to its file, nor to any beside it; a file that is not there, or is empty, is not made a drive of; and
    /// commands that would change data end with Namespace is Write Protected.
    #[must_use]
    pub fn for_reading(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Whether reads take the time that a profile or a rate says.
    pub(super) fn has_rate(&self) -> bool {
        self.profile != TimingProfile::None || self.iops.is_some()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), UriError> {
        let wrong = |accepted: &dyn fmt::Display| UriError::Value {
            uri: self.text.clone(),
            property: name.to_owned(),
            value: value.to_owned(),
            accepted: accepted.to_string(),
        };
        match name {
            "size" => {
                let accepted = "a size such as 64G or 68719476736, a positive multiple of 4096 bytes";
                let size = parse_size(value).ok().filter(|&size| i64::try_from(size).is_ok());
                let size = size.filter(|&size| size > 0 && size.is_multiple_of(4096));
                self.size = Some(size.ok_or_else(|| wrong(&accepted))?);
            }
            "lba" => {
                let lba = value.parse().ok().filter(|lba| LBA_BYTES.contains(lba));
                self.lba = Some(lba.ok_or_else(|| wrong(&"512 or 4096"))?);
            }
            "backing" => {
                let found = BackingKind::NAMES.iter().find(|(name, _)| *name == value);
                let accepted = match value {
                    "gpu" => "file, ram, procedural or null; that a GPU plays the drive is written gpu=0",
                    _ => "file, ram, procedural or null",
                };
                self.backing = found.ok_or_else(|| wrong(&accepted))?.1;
            }
            "direct" => {
                self.direct = match value {
                    "0" => false,
                    "1" => true,
                    _ => return Err(wrong(&"0 or 1")),
                };
            }
            "depth" => {
                let depth = value.parse().ok().filter(|depth| (1..=1024).contains(depth));
                self.depth = depth.ok_or_else(|| wrong(&"1 to 1024"))?;
            }
            "profile" => self.profile = value.parse().map_err(|()| wrong(&TimingProfile::ACCEPTED))?,
            "workers" => {
                let workers = value.parse().ok().filter(|workers| (1..=64).contains(workers));
                self.workers = workers.ok_or_else(|| wrong(&"1 to 64"))?;
            }
            "seed" => self.seed = value.parse().map_err(|_| wrong(&"0 to 18446744073709551615"))?,
            "serial" => {
                let fits = (1..=20).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_graphic());
                self.serial = Some(value.to_owned()).filter(|_| fits);
                if !fits {
                    return Err(wrong(&"1 to 20 printable ASCII characters without spaces"));
                }
            }
            "gpu" => {
                let gpu = Some(value).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
                let gpu = gpu.and_then(|value| value.parse().ok());
                self.gpu = Some(gpu.ok_or_else(|| wrong(&"the number of a GPU, such as 0"))?);
            }
            "iops" => {
                let accepted =
                    "reads a second, more than 0, such as 10000000 or 10e6; M is 1024² in sizes, and no number here";
                self.iops = Some(ReadRate::parse(value).ok_or_else(|| wrong(&accepted))?);
            }
            "latency" => {
                let accepted = "a whole number of ns, us or ms, such as 20us, at most 1000ms";
                self.latency = Some(parse_time(value).ok_or_else(|| wrong(&accepted))?);
            }
            "linger" => {
                let accepted = "a whole number of ns, us or ms, such as 2ms, at most 1000ms";
                self.linger = Some(parse_time(value).ok_or_else(|| wrong(&accepted))?);
            }
            "sharers" => {
                let sharers = value.parse().ok().filter(|sharers| (1..=64).contains(sharers));
                self.sharers = sharers.ok_or_else(|| wrong(&"1 to 64"))?;
            }
            _ => {
                return Err(UriError::Unknown {
                    uri: self.text.clone(),
                    property: name.to_owned(),
                    accepted: PROPERTIES.join(", "),
                });
            }
        }
        Ok(())
    }

    /// Refuses properties that do not go together.
    pub(super) fn check(&self) -> Result<(), UriError> {
        let refuse = |reason: String| Err(UriError::Properties { uri: self.text.clone(), reason });
        let paces = [("iops", self.iops.is_some()), ("latency", self.latency.is_some())];
        let pace = paces.into_iter().find(|(_, given)| *given).map(|(name, _)| name);
        if self.gpu.is_none() {
            return match pace.or_else(|| self.linger.map(|_| "linger")) {
                Some(name) => refuse(format!("{name}= goes with gpu= alone; add gpu=, or leave {name}= out")),
                None if self.sharers != 1 && self.profile == TimingProfile::None => refuse(
                    "sharers= divides a drive's rate, and it has none; add profile= or gpu=, or leave sharers= out"
                        .to_owned(),
                ),
                None => Ok(()),
            };
        }
        if self.workers != 1 {
            return refuse("a drive that a GPU plays has one worker; leave workers= out, or gpu=".to_owned());
        }
        if self.backing == BackingKind::Null {
            return refuse(
                "backing=null has nothing for a GPU to read; leave gpu= out, or take backing=ram".to_owned(),
            );
        }
        match pace {
            Some(name) if self.profile != TimingProfile::None => {
                refuse(format!("profile= and {name}= both say how fast the drive is; leave one of them out"))
            }
            _ => Ok(()),
        }
    }

    /// How fast the GPU is to execute reads.
    pub(super) fn offload_rate(&self) -> OffloadRate {
        let alone = match self.profile.timing() {
            Some(timing) => OffloadRate::of(&timing),
            None => OffloadRate {
                reads_per_second: self.iops.map(|iops| iops.per_second()),
                latency: self.latency.unwrap_or_default(),
                ..OffloadRate::default()
            },
        };
        alone.shared_by(self.sharers)
    }
}

impl fmt::Display for DriveUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for DriveUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return Err(UriError::Scheme { uri: text.to_owned() });
        };
        let (path, properties, separator) = match rest.split_once('?') {
            Some((path, properties)) => (path, properties, '&'),
            None => match first_property(rest) {
                Some(at) => (&rest[..at - 1], &rest[at..], ','),
                None => (rest, "", ','),
            },
        };
        if path.is_empty() {
            return Err(UriError::NoPath { uri: text.to_owned() });
        }
        let mut uri = Self { text: text.to_owned(), ..Self::new(path) };
        let mut seen = Vec::new();
        for property in properties.split(separator).filter(|property| !property.is_empty()) {
            let (name, value) = property.split_once('=').unwrap_or((property, ""));
            if seen.contains(&name) {
                return Err(UriError::Twice { uri: text.to_owned(), property: name.to_owned() });
            }
            uri.set(name, value)?;
            seen.push(name);
        }
        uri.check()?;
        Ok(uri)
    }
}

/// Where the first property of `PATH,a=b,c=d` begins: after the first comma that an equals sign follows before the next
/// comma or slash. Other commas belong to the path.
fn first_property(text: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(comma) = text[from..].find(',') {
        let at = from + comma + 1;
        let part = text[at..].split(',').next().unwrap_or_default();
        if at > 1 && part.contains('=') && !part.contains('/') {
            return Some(at);
        }
        from = at;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> DriveUri {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn both_forms_say_the_same() {
        let text =
            "emulated:/a/b?size=64G&lba=4096&backing=ram&direct=0&depth=64&profile=p5800x&workers=3&seed=9&serial=AB-1";
        let uri = parse(text);
        assert_eq!(uri.path, PathBuf::from("/a/b"));
        assert_eq!((uri.size, uri.lba, uri.backing), (Some(64 << 30), Some(4096), BackingKind::Ram));
        assert_eq!((uri.profile, uri.workers, uri.seed, uri.depth), (TimingProfile::P5800x, 3, 9, 64));
        assert_eq!(uri.serial.as_deref(), Some("AB-1"));
        assert_eq!(uri.to_string(), text);
        assert_eq!((uri.gpu, uri.iops, uri.latency, uri.linger, uri.sharers), (None, None, None, None, 1));
        let commas = parse(&text.replace(['?', '&'], ","));
        assert_eq!(DriveUri { text: String::new(), ..commas }, DriveUri { text: String::new(), ..uri });
    }

    #[test]
    fn both_forms_give_a_drive_to_a_gpu() {
        let text = "emulated:/a/b?backing=ram&size=1G&gpu=3&iops=2.5e6&latency=20us&linger=3ms&sharers=4";
        let uri = parse(text);
        assert_eq!((uri.gpu, uri.sharers, uri.latency), (Some(3), 4, Some(Duration::from_micros(20))));
        assert_eq!(uri.linger, Some(Duration::from_millis(3)));
        assert_eq!(uri.iops.map(ReadRate::per_second), Some(2.5e6));
        assert_eq!(uri.to_string(), text);
        let rate = OffloadRate {
            reads_per_second: Some(2.5e6 / 4.0),
            latency: Duration::from_micros(20),
            ..OffloadRate::default()
        };
        assert_eq!(uri.offload_rate(), rate);
        let commas = parse(&text.replace(['?', '&'], ","));
        assert_eq!(DriveUri { text: String::new(), ..commas }, DriveUri { text: String::new(), ..uri });
        for (iops, want) in
            [("10e6", 10e6), ("10000000", 1e7), ("1E+3", 1e3), ("0.5", 0.5), (".5e1", 5.0), ("5e-1", 0.5)]
        {
            let uri = parse(&format!("emulated:a,gpu=0,iops={iops}"));
            assert_eq!(uri.offload_rate().reads_per_second, Some(want), "{iops}");
        }
        for (latency, nanos) in [("20us", 20_000), ("7ns", 7), ("1000ms", 1_000_000_000), ("0us", 0)] {
            let uri = parse(&format!("emulated:a,gpu=0,latency={latency}"));
            assert_eq!(uri.offload_rate().latency, Duration::from_nanos(nanos), "{latency}");
        }
        // As fast as it goes, and as fast as drives that are known.
        assert_eq!(parse("emulated:a,gpu=0,workers=1").offload_rate(), OffloadRate::default());
        let rate = parse("emulated:a,gpu=0,profile=gen6,sharers=2").offload_rate();
        assert_eq!((rate.reads_per_second, rate.bytes_per_second), (Some(5e6), Some(14e9)));
        assert_eq!(rate.latency, Duration::from_micros(50));
    }

    #[test]
    fn paths_are_taken_as_they_are() {
        for path in ["x", "/odd,name", "/odd, name.img", "/a,b=1/c", "rel/ative", "/späße", "/q%20"] {
            assert_eq!(parse(&format!("emulated:{path}")), DriveUri::new(path));
            assert_eq!(parse(&format!("emulated:{path},seed=1")).path, PathBuf::from(path));
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, hints) in [
            ("/a", &["emulated:"][..]),
            ("emulated:", &["path"]),
            ("emulated:?size=1G", &["path"]),
            ("emulated:/a?sise=1G", &["sise", "size, lba"]),
            ("emulated:/a?size=1G&size=2G", &["size", "twice"]),
            ("emulated:/a?size=", &["size", "64G"]),
            ("emulated:/a?size", &["size", "64G"]),
            ("emulated:/a?size=1000", &["size", "multiple of 4096"]),
            ("emulated:/a?size=0", &["size"]),
            ("emulated:/a?size=20000000T", &["size"]),
            ("emulated:/a?lba=520", &["lba", "520", "512 or 4096"]),
            ("emulated:/a?backing=tape", &["backing", "tape", "file, ram, procedural or null"]),
            ("emulated:/a?profile=floppy", &["profile", "p5800x", "gen5-tlc", "gen6"]),
            ("emulated:/a?workers=0", &["workers", "1 to 64"]),
            ("emulated:/a?depth=0", &["depth", "1 to 1024"]),
            ("emulated:/a?direct=yes", &["direct", "0 or 1"]),
            ("emulated:/a?serial=with space", &["serial", "ASCII"]),
            ("emulated:/a?seed=-1", &["seed"]),
            ("emulated:/a,size=1G,lba=7", &["lba"]),
            ("emulated:/a,backing=gpu", &["backing=gpu", "gpu=0", "file, ram, procedural or null"]),
            ("emulated:/a,gpu=", &["gpu", "such as 0"]),
            ("emulated:/a,gpu=+1", &["gpu", "such as 0"]),
            ("emulated:/a,gpu=cuda", &["gpu", "such as 0"]),
            ("emulated:/a,gpu=0,gpu=1", &["gpu", "twice"]),
            ("emulated:/a,gpu=0,iops=50M", &["iops=50M", "10e6", "M is 1024²"]),
            ("emulated:/a,gpu=0,iops=0", &["iops", "more than 0"]),
            ("emulated:/a,gpu=0,iops=-1e6", &["iops", "more than 0"]),
            ("emulated:/a,gpu=0,iops=inf", &["iops", "10e6"]),
            ("emulated:/a,gpu=0,iops=1e999", &["iops", "10e6"]),
            ("emulated:/a,gpu=0,iops=e6", &["iops", "10e6"]),
            ("emulated:/a,gpu=0,iops=1e", &["iops", "10e6"]),
            ("emulated:/a,gpu=0,latency=20", &["latency", "20us"]),
            ("emulated:/a,gpu=0,latency=us", &["latency", "20us"]),
            ("emulated:/a,gpu=0,latency=2.5us", &["latency", "whole number"]),
            ("emulated:/a,gpu=0,latency=1001ms", &["latency", "at most 1000ms"]),
            ("emulated:/a,gpu=0,linger=2", &["linger", "2ms"]),
            ("emulated:/a,gpu=0,linger=1001ms", &["linger", "at most 1000ms"]),
            ("emulated:/a,linger=2ms", &["linger=", "gpu="]),
            ("emulated:/a,gpu=0,sharers=0", &["sharers", "1 to 64"]),
            ("emulated:/a,gpu=0,sharers=65", &["sharers", "1 to 64"]),
            ("emulated:/a,gpu=0,workers=2", &["workers=", "one worker"]),
            ("emulated:/a,gpu=0,backing=null,size=1G", &["backing=null", "backing=ram"]),
            ("emulated:/a,gpu=0,iops=1e6,profile=gen6", &["profile=", "iops="]),
            ("emulated:/a,profile=p5800x,gpu=0,latency=1us", &["profile=", "latency="]),
            ("emulated:/a,iops=1e6", &["iops=", "gpu="]),
            ("emulated:/a,latency=1us", &["latency=", "gpu="]),
            ("emulated:/a,sharers=2", &["sharers=", "gpu="]),
        ] {
            let error = text.parse::<DriveUri>().unwrap_err().to_string();
            for hint in hints.iter().chain([&text]) {
                assert!(error.contains(hint), "{text}: {error:?} does not say {hint:?}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in ".{0,60}", tail in "[a-z=&?,0-9KMGT]{0,40}") {
            let _ = text.parse::<DriveUri>();
            let _ = format!("emulated:{text}?{tail}").parse::<DriveUri>();
            let _ = format!("emulated:{text},{tail}").parse::<DriveUri>();
        }
    }
}
