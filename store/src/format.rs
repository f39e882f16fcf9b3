//! Formatting drives in three steps: finding what would be lost, consent to that, and the formatting itself.

use std::fmt::Write;
use std::sync::Arc;

use uuid::Uuid;
use warprow_driver::{DriverError, FormatLoss, FormatProgress, FormatRequest, Namespace};
use warprow_layout::{Drive, FormatOptions, Table, generations_on, probe};
use warprow_soft_controller::UriError;
use warprow_spec::admin::SecureErase;

use crate::device::Device;
use crate::measure::{DEPTH, measure_empty};
use crate::member::MemberDrive;
use crate::shared_controller::{self, SharedController};
use crate::table_version::latest_tables;
use crate::{OpenOptions, ReadCurve, Store, StoreError};

/// Which LBA size a drive is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LbaChoice {
    /// The one that it has. The drive is not formatted, unless its LBAs have metadata.
    #[default]
    Keep,
    /// So many bytes: 512 or 4096.
    Bytes(u32),
    /// The one in which the fewest bytes are read for a row of so many bytes; 4096 if both are as good.
    ForRows(u32),
}

impl LbaChoice {
    fn bytes(self, current: u32) -> u32 {
        match self {
            Self::Keep => current,
            Self::Bytes(bytes) => bytes,
            Self::ForRows(row) if row.div_ceil(4096) * 8 > row.div_ceil(512) => 512,
            Self::ForRows(_) => 4096,
        }
    }
}

/// How drives are formatted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FormatSettings {
    /// The LBA size.
    pub lba: LbaChoice,
    /// Whether to erase user data, and how; `NONE` unless asked for.
    pub erase: SecureErase,
    /// Bytes of a chunk: a power of two from 1 to 64 MiB; `None`: by the drives' size.
    pub chunk_size: Option<u64>,
    /// How the drives are opened.
    pub open: OpenOptions,
}

impl Default for FormatSettings {
    /// LBAs as they are, no erase, chunks by size.
    fn default() -> Self {
        Self { lba: LbaChoice::Keep, erase: SecureErase::NONE, chunk_size: None, open: OpenOptions::default() }
    }
}

impl FormatSettings {
    /// Formats drives to that LBA size.
    #[must_use]
    pub fn with_lba(self, lba: LbaChoice) -> Self {
        Self { lba, ..self }
    }

    /// Erases the drives while they are formatted.
    #[must_use]
    pub fn with_erase(self, erase: SecureErase) -> Self {
        Self { erase, ..self }
    }

    /// Makes chunks of that many bytes.
    #[must_use]
    pub fn with_chunk_size(self, bytes: u64) -> Self {
        Self { chunk_size: Some(bytes), ..self }
    }

    /// Opens drives, and the new store, with these options.
    #[must_use]
    pub fn with_open(self, open: OpenOptions) -> Self {
        Self { open, ..self }
    }
}

/// What lies on a drive, as far as a look at some places tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriveContent {
    /// Zeros at its beginning, at its end, and at places between.
    Blank,
    /// A store; `None` if its superblocks are damaged, or of a newer version.
    Store(Option<Uuid>),
    /// Something else.
    Unknown,
}

/// A table that goes with its store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostTable {
    /// The table's name.
    pub name: String,
    /// How many rows the table has.
    pub rows: u64,
    /// Bytes of these rows.
    pub bytes: u64,
}

/// What formatting would do to a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriveFormat {
    /// The drive's name.
    pub drive: String,
    /// The drive's serial number.
    pub serial: String,
    /// The drive's model.
    pub model: String,
    /// Whether the software controller emulates it.
    pub emulated: bool,
    /// Bytes of the drive.
    pub bytes: u64,
    /// The LBA sizes without metadata that it offers, each with the best relative performance (RP) that it states: 0 to 3.
    pub lba_sizes: Vec<(u32, u8)>,
    /// Bytes of an LBA now.
    pub lba_bytes: u32,
    /// Bytes of an LBA afterwards.
    pub new_lba_bytes: u32,
    /// Whether the drive itself will be formatted (Format NVM), which may take minutes.
    pub formats: bool,
    /// The namespaces that lose their data: the one that is meant, or all of the drive where it knows no less.
    pub losses: Vec<FormatLoss>,
    /// What lies on it now; of other namespaces that would be lost nothing is known.
    pub content: DriveContent,
    /// The tables of the store of which this drive is a member, oldest first; they go with any of its drives. `None`: there is no
    /// store, or its catalogue cannot be read here.
    pub tables: Option<Vec<LostTable>>,
    /// Stands for all that was seen on it.
    mark: u32,
}

/// Most tables that a refusal names, of each store.
const NAMED: usize = 20;

impl DriveFormat {
    /// Whether somebody has to agree. A drive that is emulated, blank and lost alone is nobody's loss.
    pub fn needs_consent(&self) -> bool {
        !self.emulated || self.content != DriveContent::Blank || self.losses.len() > 1
    }

    fn describe(&self, text: &mut String) {
        let content = match self.content {
            DriveContent::Blank => "blank where looked at".to_owned(),
            DriveContent::Store(Some(store)) => format!("store {store}"),
            DriveContent::Store(None) => "a damaged store".to_owned(),
            DriveContent::Unknown => "data that is not Warprow's".to_owned(),
        };
        let losses: Vec<String> = self.losses.iter().map(FormatLoss::to_string).collect();
        let drive = &self.drive;
        let model = &self.model;
        let serial = &self.serial;
        let _ = write!(text, "; drive {drive} ({model}, serial {serial}) would lose {}: {content}", losses.join(", "));
    }

    /// The tables that go with `store`.
    fn describe_tables(&self, store: Uuid, text: &mut String) {
        let _ = match self.tables.as_deref() {
            None => write!(text, "; the tables of store {store} cannot be told"),
            Some([]) => write!(text, "; store {store} has no tables"),
            Some(tables) => {
                let one = |table: &LostTable| format!("{:?} ({} rows, {} bytes)", table.name, table.rows, table.bytes);
                let named: Vec<String> = tables.iter().take(NAMED).map(one).collect();
                let more = tables.len() - named.len();
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                write!(text, "; with store {store} its tables go: {}{more}", named.join(", "))
            }
        };
    }
}

/// What consent is bound to: checksums of what it is about. As text, three numbers of eight hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    drives: u32,
    content: u32,
    settings: u32,
}

impl Bound {
    fn new(devices: &[Device], drives: &[DriveFormat], settings: &FormatSettings) -> Self {
        // Of a drive that is nobody's loss nothing needs to be agreed to; one that was just made has a new serial each time.
        let lossy = drives.iter().zip(devices).filter(|(drive, _)| drive.needs_consent());
        let mut all: Vec<_> = lossy.map(|(drive, device)| (&drive.serial, device.namespace(), drive)).collect();
        all.sort_by_key(|&(serial, namespace, _)| (serial, namespace));
        let crc = |text: String| crc32c::crc32c(text.as_bytes());
        let of =
            |what: &dyn Fn(&DriveFormat) -> String| all.iter().map(|(_, _, drive)| what(drive)).collect::<String>();
        Self {
            drives: crc(all.iter().map(|(serial, namespace, _)| format!("{serial} {namespace};")).collect()),
            content: crc(of(&|drive| format!("{:?} {};", drive.content, drive.mark))),
            settings: crc(format!("{:?} {:?};", settings.erase, settings.chunk_size)
                + &of(&|drive| format!("{} {} {:?};", drive.new_lba_bytes, drive.formats, drive.losses))),
        }
    }

    fn parse(token: &str) -> Option<Self> {
        let mut parts = token.split('-').map(|part| match part.len() {
            8 if part.bytes().all(|digit| digit.is_ascii_hexdigit()) => u32::from_str_radix(part, 16).ok(),
            _ => None,
        });
        let mut part = || parts.next().flatten();
        let bound = Self { drives: part()?, content: part()?, settings: part()? };
        parts.next().is_none().then_some(bound)
    }

    /// What is wrong with a token that was given; `None`: it agrees to this.
    fn objection(&self, token: &str) -> Option<String> {
        let changed = match Self::parse(token) {
            None if token.is_empty() => return Some("the consent token is empty".to_owned()),
            None => return Some(format!("{token:?} is no consent token: copy the whole of one that a refusal gave")),
            Some(given) if given.drives != self.drives => "it was given for other drives",
            Some(given) => match (given.content == self.content, given.settings == self.settings) {
                (true, true) => return None,
                (false, true) => "what lies on the drives has changed since it was given",
                (true, false) => "it was given for other settings (LBA size, chunk size, erase)",
                (false, false) => "what lies on the drives, and the settings, have changed since it was given",
            },
        };
        Some(format!("the consent token {token} is not for this: {changed}"))
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}-{:08x}-{:08x}", self.drives, self.content, self.settings)
    }
}

/// A look at drives that are to be formatted. Nothing has changed yet.
///
/// ```
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, CreateDrive::IfMissing)?;
/// let settings = FormatSettings::default().with_lba(LbaChoice::ForRows(4096));
/// let plan = FormatProposal::new(&[device.clone()], settings.clone())?;
/// assert_eq!((plan.drives()[0].content, plan.drives()[0].new_lba_bytes), (DriveContent::Blank, 4096));
/// drop(plan.run(&FormatConsent::None, &mut |_, _| {})?);         // a blank emulated drive is nobody's loss
/// // Now there is a store, which goes only if somebody agrees to just that.
/// let plan = FormatProposal::new(&[device.clone()], settings.clone())?;
/// let token = plan.token().to_owned();
/// assert!(matches!(plan.run(&FormatConsent::None, &mut |_, _| {}), Err(StoreError::Refused { .. })));
/// FormatProposal::new(&[device], settings)?.run(&FormatConsent::Token(token), &mut |_, _| {})?;
/// # Ok::<(), StoreError>(())
/// ```
pub struct FormatProposal {
    devices: Vec<Device>,
    /// In the order of `devices`.
    driven: Vec<Arc<SharedController>>,
    drives: Vec<DriveFormat>,
    settings: FormatSettings,
    bound: Bound,
    token: String,
}

/// Agreement to what a [`FormatProposal`] shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FormatConsent {
    /// None: only blank emulated drives are formatted.
    #[default]
    None,
    /// To whatever lies on emulated drives.
    Emulated,
    /// To exactly what the plan with this token shows.
    Token(String),
}

/// Bytes looked at in each place, and places beside beginning and end.
const LOOK: usize = 64 << 10;
const PLACES: u64 = 30;

impl FormatProposal {
    /// Looks at `devices`.
    pub fn new(devices: &[Device], settings: FormatSettings) -> Result<Self, StoreError> {
        let driven =
            shared_controller::open(devices, &settings.open.driving())?.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut drives = Vec::new();
        for (device, driven) in devices.iter().zip(&driven) {
            let namespace = driven.controller().namespace(device.namespace())?;
            drives.push(look(device, driven, &namespace, &settings)?);
        }
        let bound = Bound::new(devices, &drives, &settings);
        Ok(Self { devices: devices.to_vec(), driven, drives, settings, bound, token: bound.to_string() })
    }

    /// What would happen to each drive, in the order given.
    pub fn drives(&self) -> &[DriveFormat] {
        &self.drives
    }

    /// The token that stands for consent to this: bound to the drives, by their serial numbers and namespaces; to what lies on
    /// them now, a store by its last commit; and to the settings.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// What reads cost each drive as it is now, in the order given: measured within 100 ms a drive, by reads all over it. `None`: it
    /// was too slow to tell, failed, or has blocks that cannot be read as they are. Nothing is written.
    pub fn measure_reads(&self) -> Vec<Option<ReadCurve>> {
        let open = &self.settings.open;
        let of_drive = |(device, driven): (&Device, &Arc<SharedController>)| {
            let member = MemberDrive::on(device, driven.clone(), &open.driving()).ok()?;
            measure_empty(&member, (DEPTH, open.timeout), &*open.clock)
                .inspect_err(|error| tracing::warn!("{}: its reads could not be measured: {error}", device.name()))
                .ok()?
        };
        self.devices.iter().zip(&self.driven).map(of_drive).collect()
    }

    /// Formats the drives, makes a store on them, and opens it. `progress` is told of drives that take long.
    pub fn run(
        self,
        consent: &FormatConsent,
        progress: &mut dyn FnMut(&DriveFormat, FormatProgress),
    ) -> Result<Store, StoreError> {
        Device::check_writable(&self.devices)?;
        let objection = match consent {
            FormatConsent::Token(token) => self.bound.objection(token),
            FormatConsent::None | FormatConsent::Emulated => None,
        };
        let agreed = |drive: &DriveFormat| match consent {
            FormatConsent::None => false,
            FormatConsent::Emulated => drive.emulated,
            FormatConsent::Token(_) => objection.is_none(),
        };
        if self.drives.iter().any(|drive| drive.needs_consent() && !agreed(drive)) {
            let mut what = objection.map(|objection| objection + "; ").unwrap_or_default() + "formatting destroys data";
            let mut stores = Vec::new();
            self.drives.iter().filter(|drive| drive.needs_consent()).for_each(|drive| drive.describe(&mut what));
            for drive in &self.drives {
                if let DriveContent::Store(Some(store)) = drive.content
                    && !stores.contains(&store)
                {
                    stores.push(store);
                    drive.describe_tables(store, &mut what);
                }
            }
            return Err(StoreError::Refused { what, token: self.token });
        }
        for (device, drive) in self.devices.iter().zip(&self.drives) {
            record(device, drive.formats)?;
        }
        let driving = self.settings.open.driving();
        for ((device, driven), drive) in self.devices.iter().zip(&self.driven).zip(&self.drives) {
            if drive.formats {
                let request = FormatRequest {
                    erase: self.settings.erase,
                    lose_all_namespaces: drive.losses.len() > 1,
                    ..FormatRequest::new(device.namespace(), drive.new_lba_bytes)
                };
                driven.controller().format(&request, |done| progress(drive, done))?;
            }
        }
        // A format may have reached other namespaces of its drive: all are as they are only now.
        let opened = self.devices.iter().zip(self.driven);
        let members: Vec<_> =
            opened.map(|(device, driven)| MemberDrive::on(device, driven, &driving)).collect::<Result<_, _>>()?;
        let chunk_size = self.settings.chunk_size;
        warprow_layout::format(&members, &FormatOptions { chunk_size, overwrite: true, ..FormatOptions::default() })?;
        Store::on(members, &self.settings.open)
    }
}

/// Writes beside the file of an emulated drive what the drive is, unless that is known; and before a format in any case: it
/// would fail where that cannot be written, and say less.
pub(crate) fn record(device: &Device, formats: bool) -> Result<(), UriError> {
    let Some(emulated) = device.as_emulated() else { return Ok(()) };
    let failed = |source| UriError::Io { what: "write", path: emulated.uri.sidecar(), source };
    emulated.controller.record(formats).map_err(failed)
}

fn look(
    device: &Device,
    driven: &Arc<SharedController>,
    namespace: &Namespace,
    settings: &FormatSettings,
) -> Result<DriveFormat, StoreError> {
    let nsid = device.namespace();
    let controller = driven.controller();
    let lba_bytes = namespace.lba_bytes();
    let new_lba_bytes = settings.lba.bytes(lba_bytes);
    let formats = new_lba_bytes != lba_bytes || namespace.metadata_bytes() != 0 || settings.erase != SecureErase::NONE;
    let offered = |bytes| namespace.formats().iter().any(|(_, it)| it.lba_bytes() == Some(bytes) && it.ms() == 0);
    if formats && !offered(new_lba_bytes) {
        return Err(DriverError::LbaFormatNotOffered {
            function: controller.name().clone(),
            nsid,
            wanted: new_lba_bytes,
            offered: namespace.formats().iter().map(|(_, format)| *format).collect(),
        }
        .into());
    }
    let mut lba_sizes: Vec<(u32, u8)> = namespace
        .formats()
        .iter()
        .filter(|(_, format)| format.ms() == 0)
        .filter_map(|(_, format)| Some((format.lba_bytes()?, format.rp())))
        .collect();
    // The best of each size comes first.
    lba_sizes.sort_unstable();
    lba_sizes.dedup_by_key(|(bytes, _)| *bytes);
    let own = FormatLoss { nsid, bytes: Some(namespace.bytes()) };
    let info = controller.info();
    let seen = match namespace.metadata_bytes() {
        // Its blocks cannot be read as they are.
        1.. => Seen { content: DriveContent::Unknown, tables: None, mark: 0 },
        0 => see(&*MemberDrive::on(device, driven.clone(), &settings.open.driving())?)?,
    };
    Ok(DriveFormat {
        drive: device.name(),
        serial: info.serial().to_string(),
        model: info.model().to_string(),
        emulated: device.is_emulated(),
        bytes: namespace.bytes(),
        lba_sizes,
        lba_bytes,
        new_lba_bytes,
        formats,
        losses: if formats { controller.format_losses(nsid, settings.erase)? } else { vec![own] },
        content: seen.content,
        tables: seen.tables,
        mark: seen.mark,
    })
}

/// What a look at a drive shows.
struct Seen {
    content: DriveContent,
    tables: Option<Vec<LostTable>>,
    mark: u32,
}

fn see(drive: &dyn Drive) -> Result<Seen, StoreError> {
    let found = probe(drive)?;
    if let Some(superblock) = found.newest() {
        let commit = (superblock.epoch, superblock.commit, superblock.catalogue_crc, superblock.member);
        return Ok(Seen {
            content: DriveContent::Store(Some(superblock.store)),
            tables: generations_on(drive, superblock).map(|generations| {
                let latest = latest_tables(generations);
                latest.iter().map(|version| LostTable::new(version.table())).collect()
            }),
            mark: crc32c::crc32c(format!("{commit:?}").as_bytes()),
        });
    }
    let mut blank = true;
    let mut mark = 0;
    let lba = drive.lba_size() as usize;
    let lbas = ((LOOK.min(drive.max_transfer()) / lba).max(1) as u64).min(drive.lba_count());
    let mut buf = vec![0; lbas as usize * lba];
    let last = drive.lba_count() - lbas;
    for place in 0..=PLACES + 1 {
        let at = (u128::from(last) * u128::from(place) / u128::from(PLACES + 1)) as u64;
        drive.read(at, &mut buf)?;
        blank &= buf.iter().all(|&byte| byte == 0);
        mark = crc32c::crc32c_append(mark, &buf);
    }
    let content = match (found.has_magic(), blank) {
        (true, _) => DriveContent::Store(None),
        (false, true) => DriveContent::Blank,
        (false, false) => DriveContent::Unknown,
    };
    Ok(Seen { content, tables: None, mark })
}

impl LostTable {
    fn new(table: &Table) -> Self {
        let bytes = table.rows.saturating_mul(u64::from(table.row_bytes()));
        Self { name: table.name.clone(), rows: table.rows, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_choose_the_lba_that_reads_least() {
        for (row, lba) in [(64, 512), (512, 512), (520, 512), (3584, 512), (3585, 4096), (4096, 4096), (4097, 512)] {
            assert_eq!(LbaChoice::ForRows(row).bytes(512), lba, "{row}");
        }
        assert_eq!(LbaChoice::Keep.bytes(4096), 4096);
    }
}
