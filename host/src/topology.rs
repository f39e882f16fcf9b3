use std::fmt;

use crate::PciFunction;

/// How far a drive is from a GPU: what their traffic has to cross. A nearer pair compares as less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// A PCIe switch that both hang on.
    Switch,
    /// The root complex: they hang on different ports of one host bridge.
    RootComplex,
    /// The inside of the processor: different host bridges of one NUMA node.
    Socket,
    /// The link between NUMA nodes.
    OtherSocket,
    /// Sysfs does not tell.
    Unknown,
}

impl Distance {
    /// The distance between two functions, by their ways from the host bridge and their NUMA nodes.
    pub fn between(one: &PciFunction, other: &PciFunction) -> Self {
        let shared = one.way.iter().zip(&other.way).take_while(|(a, b)| a == b).count();
        match (shared, one.numa_node, other.numa_node) {
            _ if one.way.is_empty() || other.way.is_empty() => Self::Unknown,
            (2.., _, _) => Self::Switch,
            (1, _, _) => Self::RootComplex,
            (_, Some(a), Some(b)) if a == b => Self::Socket,
            (_, Some(_), Some(_)) => Self::OtherSocket,
            _ => Self::Unknown,
        }
    }

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::RootComplex => "root-complex",
            Self::Socket => "socket",
            Self::OtherSocket => "other-socket",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switch => "same switch",
            Self::RootComplex => "same root complex",
            Self::Socket => "same socket",
            Self::OtherSocket => "other socket",
            Self::Unknown => "unknown",
        })
    }
}
