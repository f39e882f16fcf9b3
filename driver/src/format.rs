use std::time::Duration;

use warprow_spec::admin::{FormatCdw10, SecureErase};
use warprow_spec::identify::{Cns, IdentifyNamespace};
use warprow_spec::{NSID_ALL, Sqe};

use crate::controller::Controller;
use crate::error::DriverError;
use crate::loss::FormatLoss;
use crate::namespace::Namespace;

/// The usual limit of a format: 10 minutes, since formats that take minutes are normal.
pub const FORMAT_TIMEOUT: Duration = Duration::from_secs(600);

/// What [`Controller::format`] is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatRequest {
    /// The namespace.
    pub nsid: u32,
    /// Data bytes of an LBA; formats with metadata are not considered.
    pub lba_bytes: u32,
    /// Whether user data is to be erased securely; `NONE` unless asked for.
    pub erase: SecureErase,
    /// Consent to lose every namespace of the drive, if the drive can only format all of them at once (FNA).
    pub lose_all_namespaces: bool,
    /// The longest wait for the format.
    pub timeout: Duration,
}

impl FormatRequest {
    /// Formats one namespace to LBAs of `lba_bytes`, without secure erase, within [`FORMAT_TIMEOUT`].
    pub fn new(nsid: u32, lba_bytes: u32) -> Self {
        Self { nsid, lba_bytes, erase: SecureErase::NONE, lose_all_namespaces: false, timeout: FORMAT_TIMEOUT }
    }
}

/// How far a format is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatProgress {
    /// Time since the command was sent.
    pub waited: Duration,
    /// Percentage done, 0 to 100, where the drive reports it (FPI).
    pub percent: Option<u8>,
}

impl Controller {
    /// The namespaces whose data [`format`](Self::format) would destroy (NVMe Base 2.0, 5.14 and FNA in 5.17.2.1; NVMe
    /// 1.4, 5.23 and 5.15.2.2): the one named, or all of the drive. If the drive may have other controllers and does
    /// not list their namespaces, one more [`FormatLoss`] stands for those. Fails as
    /// [`identify_namespace`](Self::identify_namespace) does.
    pub fn format_losses(&self, nsid: u32, erase: SecureErase) -> Result<Vec<FormatLoss>, DriverError> {
        let info = self.info();
        let erases = erase != SecureErase::NONE;
        let all = info.fna.reaches_all(false) || erases && info.fna.reaches_all(true);
        if !all {
            return Ok(vec![self.loss(nsid)?]);
        }
        // Namespaces that are not attached here are lost as well.
        let lists_all = info.oacs.namespace_management();
        let cns = if lists_all { Cns::ALLOCATED_NAMESPACES } else { Cns::ACTIVE_NAMESPACES };
        let mut lost = self.namespace_list(cns)?;
        if !lost.contains(&nsid) {
            lost.push(nsid);
        }
        let mut losses = lost.into_iter().map(|nsid| self.loss(nsid)).collect::<Result<Vec<_>, _>>()?;
        if info.cmic.multiple_controllers() && !lists_all {
            losses.push(FormatLoss { nsid: NSID_ALL, bytes: None });
        }
        Ok(losses)
    }

    fn loss(&self, nsid: u32) -> Result<FormatLoss, DriverError> {
        let data = match self.identify_namespace(nsid) {
            Ok(data) => Some(data),
            Err(DriverError::Command { .. } | DriverError::NoSuchNamespace { .. }) => None,
            Err(error) => return Err(error),
        };
        let bytes = data.filter(IdentifyNamespace::is_active).and_then(|data| data.size_bytes());
        Ok(FormatLoss { nsid, bytes })
    }

    /// Formats a namespace (Format NVM; NVMe Base 2.0, 5.14; NVMe 1.4, 5.23), **destroying its data**, and describes it
    /// again. No command to the namespace may be outstanding; that is not checked. Commands refuse every [`Namespace`]
    /// that the controller described before ([`PushError::Outdated`](crate::PushError)), of this namespace and of
    /// others, also if the format fails after it was sent. They take the result of this call. `progress` is called
    /// about once a second.
    ///
    /// Fails with [`DriverError::Unsupported`], [`DriverError::NoSuchNamespace`], [`DriverError::LbaFormatNotOffered`],
    /// [`DriverError::FormatNeedsConsent`], [`DriverError::FormatNotApplied`], or as [`admin`](Self::admin) does.
    ///
    /// If the drive would destroy other namespaces too, the format is refused with a list of them, unless the request
    /// consents. If another host may have the namespace attached, through another controller, that is only logged.
    ///
    /// After a time-out the drive may still be formatting. No write is then accepted until a [`reset`](Self::reset)
    /// ([`check_late_writes`](Self::check_late_writes)), which does not end the format: the namespace may go on to
    /// answer *Format In Progress*, and has to be identified again when it no longer does. Until the reset, and until Identify reports no
    /// format in progress, commands refuse any description.
    pub fn format(
        &self,
        request: &FormatRequest,
        mut progress: impl FnMut(FormatProgress),
    ) -> Result<Namespace, DriverError> {
        let FormatRequest { nsid, lba_bytes: wanted, erase, .. } = *request;
        let function = || self.name().clone();
        let info = self.info();
        if !info.oacs.format_nvm() {
            return Err(DriverError::Unsupported { function: function(), what: "Format NVM" });
        }
        if erase == SecureErase::CRYPTOGRAPHIC && !info.fna.crypto_erase() {
            return Err(DriverError::Unsupported { function: function(), what: "cryptographic erase" });
        }
        // One namespace is formatted, never "all": some drives take that to mean more than they list.
        let before = if nsid == NSID_ALL { None } else { Some(self.identify_namespace(nsid)?) };
        let Some(before) = before.filter(IdentifyNamespace::is_active) else {
            return Err(DriverError::NoSuchNamespace { function: function(), nsid });
        };
        let fitting = before.formats().filter(|(_, f)| f.lba_bytes() == Some(wanted) && f.ms() == 0);
        let Some((index, _)) = fitting.min_by_key(|(_, f)| f.rp()) else {
            let offered = before.formats().map(|(_, format)| format).collect();
            return Err(DriverError::LbaFormatNotOffered { function: function(), nsid, wanted, offered });
        };
        let losses = self.format_losses(nsid, erase)?;
        if losses.len() > 1 && !request.lose_all_namespaces {
            return Err(DriverError::FormatNeedsConsent { function: function(), nsid, losses });
        }
        if before.nmic.shared() && info.cmic.multiple_controllers() {
            tracing::warn!(function = %self.name(), nsid, "other controllers of the drive may have this namespace in use");
        }

        let settings = FormatCdw10::new().with_ses(erase).with_format_index(index);
        let reports = before.fpi.supported();
        // From before the drive may change a namespace, commands refuse all descriptions made so far.
        let format = self.identity().begin_format();
        let sent = self.send_meanwhile(Sqe::format_nvm(nsid, settings), &[], request.timeout, |waited| {
            // A drive may refuse Identify while it formats; that is no reason to give up.
            let percent = if reports { self.identify_namespace(nsid).ok() } else { None }
                .filter(|data| data.fpi.supported())
                .map(|data| 100 - data.fpi.remaining().min(100));
            progress(FormatProgress { waited, percent });
        });
        if sent.as_ref().err().is_none_or(has_ended) {
            self.identity().end_format(&format);
        }
        sent?;

        let after = self.namespace(nsid)?;
        if after.lba_bytes() != wanted || after.metadata_bytes() != 0 {
            let found = after.lba_bytes();
            return Err(DriverError::FormatNotApplied { function: function(), nsid, wanted, found });
        }
        Ok(after)
    }
}

/// Whether a command that failed with `error` will not begin any more. (One that a reset ended may have begun before.)
fn has_ended(error: &DriverError) -> bool {
    use DriverError::{AdminQueueFull, Command, Down, GivenUp, Lost};
    // The last three say that the command was never sent.
    matches!(error, Command { .. } | Lost { .. } | AdminQueueFull { .. } | Down { .. } | GivenUp { .. })
}
