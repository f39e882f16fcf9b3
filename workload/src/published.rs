//! Data sets that others have published, by their shapes: how many rows the table of each sparse feature has, and how many samples there are.

/// A published data set, by its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PublishedData {
    /// The Criteo display advertising challenge on Kaggle: 7 days of clicks.
    CriteoKaggle,
    /// The Criteo 1 TB click logs: 24 days of clicks; at most 40 million rows a table, as MLPerf's DLRM-DCNv2 has them.
    CriteoTerabyte,
    /// Avazu's click-through rate prediction on Kaggle: 10 days of clicks; no dense features, and no hour.
    Avazu,
}

/// Rows of the 26 categorical features of the Criteo challenge, as the preprocessing of the public DLRM counts them.
const CRITEO_KAGGLE: [u64; 26] = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27, 14_992, 5_461_306,
    10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];

/// Rows of the 26 categorical features of the Criteo 1 TB click logs, capped at 40 million.
const CRITEO_TERABYTE: [u64; 26] = [
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938,
    155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
];

/// Avazu's columns, and how many different values each has.
const AVAZU: [(&str, u64); 21] = [
    ("C1", 7),
    ("banner_pos", 7),
    ("site_id", 4737),
    ("site_domain", 7745),
    ("site_category", 26),
    ("app_id", 8552),
    ("app_domain", 559),
    ("app_category", 36),
    ("device_id", 2_686_408),
    ("device_ip", 6_729_486),
    ("device_model", 8251),
    ("device_type", 5),
    ("device_conn_type", 4),
    ("C14", 2626),
    ("C15", 8),
    ("C16", 9),
    ("C17", 435),
    ("C18", 4),
    ("C19", 68),
    ("C20", 172),
    ("C21", 60),
];

impl PublishedData {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::CriteoKaggle, Self::CriteoTerabyte, Self::Avazu];

    /// A word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CriteoKaggle => "criteo-kaggle",
            Self::CriteoTerabyte => "criteo-terabyte",
            Self::Avazu => "avazu",
        }
    }

    /// The data set of a word.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|data| data.name() == name)
    }

    /// The names of its sparse features, and the rows of their tables.
    pub fn features(self) -> Vec<(String, u64)> {
        let numbered = |rows: &[u64]| (1..).zip(rows).map(|(nth, &rows)| (format!("C{nth}"), rows)).collect();
        match self {
            Self::CriteoKaggle => numbered(&CRITEO_KAGGLE),
            Self::CriteoTerabyte => numbered(&CRITEO_TERABYTE),
            Self::Avazu => AVAZU.iter().map(|&(name, rows)| (name.to_owned(), rows)).collect(),
        }
    }

    /// Dense features of a sample.
    pub fn dense(self) -> Vec<String> {
        match self {
            Self::CriteoKaggle | Self::CriteoTerabyte => (1..=13).map(|nth| format!("I{nth}")).collect(),
            Self::Avazu => Vec::new(),
        }
    }

    /// The label of a sample.
    pub const fn label(self) -> &'static str {
        match self {
            Self::CriteoKaggle | Self::CriteoTerabyte => "label",
            Self::Avazu => "click",
        }
    }

    /// Samples that have labels.
    pub const fn samples(self) -> u64 {
        match self {
            Self::CriteoKaggle => 45_840_617,
            Self::CriteoTerabyte => 4_373_472_329,
            Self::Avazu => 40_428_967,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_as_published() {
        let rows = |data: PublishedData| data.features().iter().map(|(_, rows)| rows).sum::<u64>();
        assert_eq!(rows(PublishedData::CriteoKaggle), 33_762_577);
        assert_eq!(rows(PublishedData::CriteoTerabyte), 204_184_588);
        // 9,449,445 with the 240 hours, which are no id here.
        assert_eq!(rows(PublishedData::Avazu), 9_449_205);
        for data in PublishedData::ALL {
            assert_eq!(PublishedData::named(data.name()), Some(data));
        }
        assert_eq!(PublishedData::named("movielens"), None);
    }
}
