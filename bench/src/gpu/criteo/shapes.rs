//! Tables, ids and tiers as others publish them.

use serde::{Deserialize, Serialize};

use warprow_workload::PublishedData;

use crate::fixtures::Media;

/// Elements of a row.
pub(super) const DIM: u32 = 128;

/// Tables, by who published them. All have rows of 128 f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// The 26 tables of the Criteo 1 TB click logs, at most 40 million rows each, with 5 % of their rows in memory and the others on drives.
    #[default]
    Criteo,
    /// DynamicEmb's: 10 tables of 26.8 million rows, 1.05 million ids, 10 % of the rows in GPU memory, the others in DRAM.
    #[value(name = "dynamicemb")]
    DynamicEmb,
    /// The shape of NVIDIA's embedding cache (NVE) for a single GPU: a table of 537 million rows (256 GiB), 256 × 1,024
    /// ids, 10 % of the rows in GPU memory, the others in DRAM.
    Nve,
}

/// How a shape is measured if nothing else is said.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// Tables have their published rows divided by this.
    pub scale: u64,
    /// The share of rows in memory.
    pub memory: f64,
    /// Shares of rows in GPU memory.
    pub hbm: Vec<f64>,
    /// Samples of a batch.
    pub batches: Vec<u64>,
    /// Ids of each table and sample.
    pub hot: Vec<u64>,
    /// What drives are made of.
    pub media: Media,
}

impl Shape {
    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Criteo => "Criteo",
            Self::DynamicEmb => "DynamicEmb",
            Self::Nve => "NVE",
        }
    }

    /// The published rows of each table.
    pub fn rows(self) -> Vec<u64> {
        match self {
            Self::Criteo => PublishedData::CriteoTerabyte.features().into_iter().map(|(_, rows)| rows).collect(),
            Self::DynamicEmb => vec![26_800_000; 10],
            Self::Nve => vec![1 << 29],
        }
    }

    /// The shape as it is published, but for tables, which are scaled to what a machine with 128 GiB of memory loads in
    /// seconds.
    pub fn defaults(self) -> Defaults {
        let peer = |scale, batch| Defaults {
            scale,
            memory: 1.0,
            hbm: vec![0.1],
            batches: vec![batch],
            hot: vec![1],
            media: Media::Computed,
        };
        match self {
            Self::Criteo => Defaults {
                scale: 8,
                memory: 0.05,
                hbm: vec![0.0, 0.01],
                batches: vec![256, 1 << 10, 4 << 10, 16 << 10, 64 << 10],
                hot: vec![1, 8],
                media: Media::Ram,
            },
            // 10 × 104,858 are 1.05 million.
            Self::DynamicEmb => peer(16, 104_858),
            // Rows as they are: bags do not matter.
            Self::Nve => peer(32, 256 << 10),
        }
    }

    /// What the peer publishes of it, what was found here with tables divided by `scale`, in so many microseconds, and where the peer's way is the
    /// better one. `fixed`: the share of ids that rows in GPU memory served.
    pub fn words(self, scale: u64, (us, ids_per_second): (f64, f64), fixed: f64) -> Option<String> {
        let published = match self {
            Self::Criteo => return None,
            Self::DynamicEmb => {
                "DynamicEmb publishes 3.5 ms on an H100 (TorchRec 4.0; without caching, hybrid, 20 to 28); by which law its ids are drawn is \
                 not known here"
            }
            Self::Nve => {
                "NVE publishes 432 M ids/s (TorchRec 186) on a GB200, whose link to DRAM is several times as fast as PCIe Gen5, after 10,000 \
                 batches that fill its cache"
            }
        };
        let tables = match scale {
            1 => "tables as large".to_owned(),
            scale => format!("tables of 1/{scale} of the rows"),
        };
        Some(format!(
            "{published}. Here, with {tables}: {:.2} ms, {:.0} M ids/s. Rows in GPU memory are the hottest by rank, and stay: {:.1} % of the ids \
             found theirs there. A cache that changes comes to the same where popularity is known and stays as it is; it wins where it is not \
             known beforehand, or drifts until fewer ids than that find their rows.",
            us / 1e3,
            ids_per_second / 1e6,
            fixed * 100.0
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_as_published() {
        let of = |shape: Shape| (shape.rows(), shape.defaults());
        let (rows, it) = of(Shape::DynamicEmb);
        let ids = it.batches[0] * rows.len() as u64;
        assert!((1_048_000..1_052_000).contains(&ids), "{ids}");
        assert_eq!(rows.iter().sum::<u64>(), 268_000_000);
        let (rows, it) = of(Shape::Nve);
        assert_eq!((rows.iter().sum::<u64>() * 512, it.batches[0]), (256 << 30, 256 * 1024));
        assert_eq!(of(Shape::Criteo).0.len(), 26);
        for shape in [Shape::Criteo, Shape::DynamicEmb, Shape::Nve] {
            let it = shape.defaults();
            assert!(it.hbm.iter().all(|hbm| *hbm <= it.memory), "{shape:?}");
            let bytes = shape.rows().iter().sum::<u64>() / it.scale * 512;
            assert!(bytes < 16 << 30, "{shape:?}: {bytes} bytes take long to load");
        }
        let words = |shape: Shape, scale| shape.words(scale, (1500.0, 700e6), 0.876);
        assert!(words(Shape::Criteo, 8).is_none());
        for (shape, peers) in [(Shape::Nve, "432 M ids/s"), (Shape::DynamicEmb, "3.5 ms")] {
            let text = words(shape, 32).unwrap();
            let ours = "tables of 1/32 of the rows: 1.50 ms, 700 M ids/s";
            assert!([peers, ours, "87.6 %", "it wins where"].iter().all(|part| text.contains(part)), "{text}");
            assert!(words(shape, 1).unwrap().contains("tables as large"));
        }
    }
}
