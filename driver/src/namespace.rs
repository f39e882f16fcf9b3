use std::sync::Arc;

use warprow_spec::FromBytes;
use warprow_spec::identify::{ActiveNamespaceList, Cns, IdentifyNamespace, LbaFormat, NamespaceDescriptor};
use warprow_spec::{Sqe, StatusCode};

use crate::admin::has_status;
use crate::controller::Controller;
use crate::error::DriverError;
use crate::identity::{Identity, NO_EPOCH};
use crate::queue::PushError;

/// Smallest and largest LBA that the driver works with, as powers of two: 512 B and 64 KiB.
const LBADS: std::ops::RangeInclusive<u8> = 9..=16;

/// A description of a namespace: what Identify says of it, checked, so that every number here can be computed with. A
/// command needs one, since the LBA size says how many bytes the command moves; so its queue takes only a description
/// that the queue's own [controller](Controller::namespace) has made since it last sent a format. Two descriptions are
/// equal if they say the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    described: Described,
    nsid: u32,
    lba_shift: u8,
    lba_count: u64,
    metadata: u16,
    format_index: u8,
    formats: Vec<(u8, LbaFormat)>,
    deallocated_reads_zero: bool,
    deallocates_zeroed: bool,
    write_protected: bool,
    eui64: [u8; 8],
    nguid: [u8; 16],
}

/// Which controller described a namespace, and at which format epoch. Commands compare both. `==`, by which namespaces
/// are compared, looks at the controllers' names only.
#[derive(Clone, Debug)]
struct Described {
    by: Arc<Identity>,
    epoch: u64,
}

impl PartialEq for Described {
    fn eq(&self, other: &Self) -> bool {
        self.by.name() == other.by.name()
    }
}

impl Eq for Described {}

impl Namespace {
    /// Makes a description from Identify data (NVM Command Set 1.0, 4.1.5.1; NVMe 1.4, 5.15.2.1) of namespace `nsid`.
    /// Fails with [`DriverError::NoSuchNamespace`] if the namespace is inactive, and with [`DriverError::BadNamespace`]
    /// if the data cannot be right. The result serves only to be read: commands refuse it, as no controller has
    /// described it.
    pub fn from_identify(function: &str, nsid: u32, data: &IdentifyNamespace) -> Result<Self, DriverError> {
        let by = Arc::new(Identity::new(function.into()));
        Self::of(Described { by, epoch: NO_EPOCH }, nsid, data)
    }

    fn of(described: Described, nsid: u32, data: &IdentifyNamespace) -> Result<Self, DriverError> {
        let function = described.by.name();
        let bad = |why: String| DriverError::BadNamespace { function: function.clone(), nsid, why };
        if !data.is_active() {
            return Err(DriverError::NoSuchNamespace { function: function.clone(), nsid });
        }
        if data.nlbaf_z > 63 {
            return Err(bad(format!("it counts {} LBA formats, of 64 possible", u32::from(data.nlbaf_z) + 1)));
        }
        let format_index = data.format_index();
        let format = data.format().ok_or_else(|| {
            bad(format!("it is in LBA format {format_index}, and offers formats up to {}", data.nlbaf_z))
        })?;
        if !LBADS.contains(&format.lbads()) {
            return Err(bad(format!("its LBAs are of 2^{} bytes; 2^9 to 2^16 are supported", format.lbads())));
        }
        if data.size_bytes().is_none_or(|bytes| i64::try_from(bytes).is_err()) {
            return Err(bad(format!("{} LBAs of 2^{} bytes are more than 2^63 bytes", data.nsze, format.lbads())));
        }
        Ok(Self {
            described,
            nsid,
            lba_shift: format.lbads(),
            lba_count: data.nsze,
            metadata: format.ms(),
            format_index,
            formats: data.formats().collect(),
            deallocated_reads_zero: data.dlfeat.read_value() == 1,
            deallocates_zeroed: data.dlfeat.write_zeroes_deallocate(),
            write_protected: data.nsattr.write_protected(),
            eui64: data.eui64,
            nguid: data.nguid,
        })
    }

    /// Checks that commands of `controller` may take this description. Fails with [`PushError::Foreign`] if another
    /// controller made it, and with [`PushError::Outdated`] if it was made before or during a format.
    pub fn check_of(&self, controller: &Controller) -> Result<(), PushError> {
        self.check_described(controller.identity())
    }

    /// As [`check_of`](Self::check_of), for the controller that has this very identity.
    #[inline]
    pub(crate) fn check_described(&self, by: &Arc<Identity>) -> Result<(), PushError> {
        // Both `Arc`s are alive, so no two controllers have this address.
        if !Arc::ptr_eq(&self.described.by, by) {
            return Err(PushError::Foreign { nsid: self.nsid });
        }
        if self.described.epoch != by.epoch() {
            return Err(PushError::Outdated { nsid: self.nsid });
        }
        Ok(())
    }

    /// Namespace identifier.
    #[inline]
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// Data bytes of a logical block: a power of two, 512 to 65,536.
    #[inline]
    pub fn lba_bytes(&self) -> u32 {
        1 << self.lba_shift
    }

    /// Base-two logarithm of [`lba_bytes`](Self::lba_bytes).
    #[inline]
    pub fn lba_shift(&self) -> u8 {
        self.lba_shift
    }

    /// Number of logical blocks.
    #[inline]
    pub fn lba_count(&self) -> u64 {
        self.lba_count
    }

    /// Size in bytes, less than 2^63.
    pub fn bytes(&self) -> u64 {
        self.lba_count << self.lba_shift
    }

    /// Metadata bytes of a logical block. The data commands refuse a namespace where this is not 0.
    #[inline]
    pub fn metadata_bytes(&self) -> u16 {
        self.metadata
    }

    /// Index of the LBA format it is in.
    pub fn format_index(&self) -> u8 {
        self.format_index
    }

    /// The LBA formats it can be put in, each with its index.
    pub fn formats(&self) -> &[(u8, LbaFormat)] {
        &self.formats
    }

    /// Whether blocks read as zeros after they were deallocated.
    pub fn deallocated_reads_zero(&self) -> bool {
        self.deallocated_reads_zero
    }

    /// Whether Write Zeroes takes the Deallocate bit (DLFEAT bit 3); it must not be set otherwise.
    pub fn deallocates_zeroed(&self) -> bool {
        self.deallocates_zeroed
    }

    /// Whether the namespace refuses writes.
    pub fn is_write_protected(&self) -> bool {
        self.write_protected
    }

    /// IEEE Extended Unique Identifier, big endian; zeros where there is none.
    pub fn eui64(&self) -> [u8; 8] {
        self.eui64
    }

    /// Namespace Globally Unique Identifier, big endian; zeros where there is none.
    pub fn nguid(&self) -> [u8; 16] {
        self.nguid
    }
}

/// The identifiers of a namespace (NVMe Base 2.0, 5.17.2.3; NVMe 1.4, 5.15.2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIds {
    /// IEEE Extended Unique Identifier, big endian.
    pub eui64: Option<[u8; 8]>,
    /// Namespace Globally Unique Identifier, big endian.
    pub nguid: Option<[u8; 16]>,
    /// UUID.
    pub uuid: Option<[u8; 16]>,
}

impl Controller {
    pub(crate) fn identify<T: FromBytes>(&self, cns: Cns, nsid: u32) -> Result<T, DriverError> {
        let answer = self.send(Sqe::identify(cns, nsid), &[], self.options().admin_timeout)?;
        T::read_from_bytes(&answer.data).map_err(|_| DriverError::Unusable {
            function: self.name().clone(),
            why: format!("Identify returned {} bytes, where {} are due", answer.data.len(), size_of::<T>()),
        })
    }

    /// Identify Namespace, unchecked (NVM Command Set 1.0, 4.1.5.1; NVMe 1.4, 5.15.2.1). An inactive namespace is
    /// zeros.
    pub fn identify_namespace(&self, nsid: u32) -> Result<IdentifyNamespace, DriverError> {
        self.identify(Cns::NAMESPACE, nsid).map_err(|error| {
            if has_status(&error, StatusCode::InvalidNamespaceOrFormat) {
                return DriverError::NoSuchNamespace { function: self.name().clone(), nsid };
            }
            error
        })
    }

    /// Describes a namespace as it is now. Ask again after any namespace of the controller was formatted, or after an
    /// event that says that the namespace changed. While a format goes on, by what this driver knows or by what the
    /// drive says (FPI), the description serves only to be read: commands refuse it ([`PushError::Outdated`]). Fails as
    /// [`Namespace::from_identify`] does, or as [`admin`](Self::admin).
    pub fn namespace(&self, nsid: u32) -> Result<Namespace, DriverError> {
        // Taken before Identify, so that a format that begins meanwhile makes the description outdated.
        let epoch = self.identity().describing();
        let data = self.identify_namespace(nsid)?;
        let formatting = data.fpi.supported() && data.fpi.remaining() != 0;
        let epoch = if formatting { NO_EPOCH } else { epoch };
        Namespace::of(Described { by: self.identity().clone(), epoch }, nsid, &data)
    }

    /// The identifiers of the active namespaces, ascending (NVMe Base 2.0, 5.17.2.2; NVMe 1.4, 5.15.2.3).
    /// [`DriverError::BadNamespace`] where the list contradicts itself.
    pub fn active_namespaces(&self) -> Result<Vec<u32>, DriverError> {
        self.namespace_list(Cns::ACTIVE_NAMESPACES)
    }

    pub(crate) fn namespace_list(&self, cns: Cns) -> Result<Vec<u32>, DriverError> {
        let mut all: Vec<u32> = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or(0);
            let page: ActiveNamespaceList = self.identify(cns, after)?;
            let before = all.len();
            for nsid in page.iter() {
                // A list that does not ascend could go on for ever.
                if nsid <= all.last().copied().unwrap_or(0) || nsid > self.info().nn.max(self.info().mnan) {
                    return Err(DriverError::BadNamespace {
                        function: self.name().clone(),
                        nsid,
                        why: format!("the list of namespaces does not ascend, or passes NN = {}", self.info().nn),
                    });
                }
                all.push(nsid);
            }
            // NSIDs FFFFFFFEh and FFFFFFFFh are not valid to go on from.
            if all.len() - before < 1024 || all.last().is_some_and(|&last| last >= 0xffff_fffe) {
                return Ok(all);
            }
        }
    }

    /// The identifiers of a namespace. A controller before 1.3 may not know the command: then there are none.
    pub fn namespace_ids(&self, nsid: u32) -> Result<NamespaceIds, DriverError> {
        let answer = self.send(Sqe::identify(Cns::NAMESPACE_DESCRIPTORS, nsid), &[], self.options().admin_timeout)?;
        let mut ids = NamespaceIds::default();
        for descriptor in NamespaceDescriptor::list(&answer.data) {
            match descriptor {
                NamespaceDescriptor::Eui64(id) => ids.eui64 = Some(id),
                NamespaceDescriptor::Nguid(id) => ids.nguid = Some(id),
                NamespaceDescriptor::Uuid(id) => ids.uuid = Some(id),
                NamespaceDescriptor::CommandSet(_) | NamespaceDescriptor::Other { .. } => {}
            }
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use warprow_spec::FromZeros;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        /// Whatever Identify says, it is refused or it can be computed with.
        #[test]
        fn any_identify_data(
            bytes in proptest::collection::vec(any::<u8>(), 192), small in any::<[u8; 4]>(), fix in any::<u8>(),
        ) {
            let mut data = IdentifyNamespace::new_zeroed();
            let page = warprow_spec::IntoBytes::as_mut_bytes(&mut data);
            page.iter_mut().zip(bytes.iter().cycle()).for_each(|(to, from)| *to = *from);
            // Mostly near what is right, so that every check is reached.
            if fix & 1 != 0 { data.nsze >>= small[0] % 64; }
            if fix & 2 != 0 { data.nlbaf_z = small[1] % 64; }
            if fix & 4 != 0 { data.lbaf.iter_mut().for_each(|f| *f = f.with_lbads(8 + small[2] % 10)); }
            if fix & 8 != 0 { data.flbas = data.flbas.with_index_lower(small[3] % 16).with_index_upper(0); }
            let Ok(ns) = Namespace::from_identify("test", 1, &data) else { return Ok(()) };
            prop_assert!(ns.lba_bytes().is_power_of_two() && (512..=65536).contains(&ns.lba_bytes()));
            prop_assert!(ns.lba_count() > 0 && i64::try_from(ns.bytes()).is_ok());
            prop_assert_eq!(ns.bytes() / u64::from(ns.lba_bytes()), ns.lba_count());
            let own = ns.formats().iter().find(|&&(index, _)| index == ns.format_index());
            prop_assert_eq!(own.and_then(|(_, format)| format.lba_bytes()), Some(ns.lba_bytes()));
        }
    }
}
