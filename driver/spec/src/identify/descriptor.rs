//! Lists of namespaces and of their identifiers.

use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::CommandSet;

/// Active Namespace ID list, 4096 bytes (NVMe Base 2.0, 5.17.2.2; NVMe 1.4, 5.15.2.3): up to 1,024 namespace identifiers
/// greater than the one asked with, in ascending order. A full list may go on: ask again with its last entry.
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ActiveNamespaceList(pub [u32; 1024]);

const _: () = assert!(size_of::<ActiveNamespaceList>() == 4096);

impl ActiveNamespaceList {
    /// The namespace identifiers up to the first unused entry.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied().take_while(|&nsid| nsid != 0)
    }
}

impl fmt::Debug for ActiveNamespaceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A Namespace Identification Descriptor (NVMe Base 2.0, 5.17.2.3; NVMe 1.4, 5.15.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NamespaceDescriptor<'a> {
    /// NIDT 1h: IEEE Extended Unique Identifier, big endian.
    Eui64([u8; 8]),
    /// NIDT 2h: Namespace Globally Unique Identifier, big endian.
    Nguid([u8; 16]),
    /// NIDT 3h: Namespace UUID, in the order of RFC 4122.
    Uuid([u8; 16]),
    /// NIDT 4h: Command Set Identifier (2.0).
    CommandSet(CommandSet),
    /// A type that is reserved, or a length that is wrong for its type.
    Other {
        /// Namespace Identifier Type.
        nidt: u8,
        /// Namespace Identifier, 1 to 255 bytes.
        nid: &'a [u8],
    },
}

/// Bytes before the identifier: type, length, two reserved.
const HEADER_BYTES: usize = 4;

impl<'a> NamespaceDescriptor<'a> {
    /// The descriptors of a list as Identify with [`Cns::NAMESPACE_DESCRIPTORS`](super::Cns::NAMESPACE_DESCRIPTORS)
    /// returns it. Ends at the first descriptor of length zero, or that does not fit in what is left.
    pub fn list(data: &'a [u8]) -> NamespaceDescriptors<'a> {
        NamespaceDescriptors { rest: data }
    }

    fn new(nidt: u8, nid: &'a [u8]) -> Self {
        let known = match nidt {
            1 => nid.try_into().ok().map(Self::Eui64),
            2 => nid.try_into().ok().map(Self::Nguid),
            3 => nid.try_into().ok().map(Self::Uuid),
            4 => <[u8; 1]>::try_from(nid).ok().map(|[csi]| Self::CommandSet(CommandSet(csi))),
            _ => None,
        };
        known.unwrap_or(Self::Other { nidt, nid })
    }

    /// Namespace Identifier Type.
    pub fn nidt(&self) -> u8 {
        match self {
            Self::Eui64(_) => 1,
            Self::Nguid(_) => 2,
            Self::Uuid(_) => 3,
            Self::CommandSet(_) => 4,
            Self::Other { nidt, .. } => *nidt,
        }
    }

    /// Namespace Identifier: the bytes that follow the descriptor's header.
    pub fn nid(&self) -> &[u8] {
        match self {
            Self::Eui64(id) => id,
            Self::Nguid(id) | Self::Uuid(id) => id,
            Self::CommandSet(csi) => csi.as_bytes(),
            Self::Other { nid, .. } => nid,
        }
    }

    /// Writes the descriptor to the start of `to` and returns the bytes it took; `None`, with nothing written, where it
    /// does not fit or its identifier is longer than 255 bytes.
    pub fn write_to(&self, to: &mut [u8]) -> Option<usize> {
        let nid = self.nid();
        let to = to.get_mut(..HEADER_BYTES + nid.len())?;
        let header = [self.nidt(), u8::try_from(nid.len()).ok()?, 0, 0];
        let (head, body) = to.split_at_mut_checked(HEADER_BYTES)?;
        head.copy_from_slice(&header);
        body.copy_from_slice(nid);
        Some(to.len())
    }
}

/// Iterator over a list of descriptors; see [`NamespaceDescriptor::list`].
#[derive(Clone, Debug)]
pub struct NamespaceDescriptors<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for NamespaceDescriptors<'a> {
    type Item = NamespaceDescriptor<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&[nidt, nidl, _, _], rest) = self.rest.split_first_chunk::<HEADER_BYTES>()?;
        let (nid, rest) = rest.split_at_checked(usize::from(nidl)).filter(|_| nidl != 0)?;
        self.rest = rest;
        Some(NamespaceDescriptor::new(nidt, nid))
    }
}

impl core::iter::FusedIterator for NamespaceDescriptors<'_> {}
