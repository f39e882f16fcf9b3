use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

use super::drive_uri::{BackingKind, DriveUri};
use super::error::UriError;
use super::files::lock_file;
use super::holder::{DriveInUse, LockHolder};
use super::new_drive::NewDrive;
use super::sidecar::{self, Sidecar};
use crate::backing::{self, DirectBacking, NullBacking, ProceduralBacking, RamBacking};
use crate::builder::ControllerBuilder;
use crate::controller::SoftController;
use crate::namespace::{FormatStep, Namespace};
use crate::offload::LINGER;
use crate::offload_maker::{OffloadRequest, Offloaded, offload_maker};

/// How often a lock is tried that somebody has.
const ATTEMPTS: u32 = 4;
/// The time between two attempts.
const MOMENT: Duration = Duration::from_millis(2);
/// How long a lock is tried that no process is seen to have. When a process was killed, the kernel may give its files up after the process
/// is gone: those that io_uring had, for example.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(1);
/// How often a drive is looked for whose file goes away, or comes, while it is opened.
const LOOKS: u32 = 64;

impl DriveUri {
    /// Opens the drive and starts its controller. A drive in a file is locked for as long as the controller lives: for this
    /// controller alone, or, [for reading](Self::for_reading), together with others that read. For writing, it is created, sparse, if
    /// it is not there and a size was given.
    pub fn open(&self) -> Result<Arc<SoftController>, UriError> {
        Ok(self.open_or_make()?.0)
    }

    /// Opens the drive as [`open`](Self::open) does. If this call made the drive, the second value says what it made; whether it did is
    /// decided while the drive's file is locked, so that of several callers one alone is told so.
    pub fn open_or_make(&self) -> Result<(Arc<SoftController>, Option<NewDrive>), UriError> {
        let (builder, new) = self.prepare()?;
        let controller = builder.build().inspect_err(|_| new.iter().for_each(NewDrive::unmake))?;
        Ok((controller, new))
    }

    /// The controller, about to be built: for properties that a URI has not.
    pub fn builder(&self) -> Result<ControllerBuilder, UriError> {
        Ok(self.prepare()?.0)
    }

    fn prepare(&self) -> Result<(ControllerBuilder, Option<NewDrive>), UriError> {
        self.check()?;
        let lacks = |lack| UriError::Offload { uri: self.to_string(), lack };
        // Before anything is created.
        let maker = match self.gpu {
            Some(gpu) => Some((gpu, offload_maker().map_err(lacks)?)),
            None => None,
        };
        let (mut namespace, serial, new) = match self.backing {
            BackingKind::File => self.file_namespace()?,
            other => (self.memory_namespace(other)?, self.serial.clone(), None),
        };
        let mut builder = SoftController::builder().name(self.to_string()).workers(self.workers).seed(self.seed);
        builder = match maker {
            None => builder.profile(self.profile).sharers(self.sharers),
            Some((gpu, maker)) => {
                let request = OffloadRequest {
                    gpu,
                    uri: self.to_string(),
                    backing: namespace.backing.clone(),
                    lba_bytes: 1 << namespace.lba_shift(),
                    rate: self.offload_rate(),
                };
                let made = maker.make(request).map_err(lacks);
                let Offloaded { backing, offload } = made.inspect_err(|_| new.iter().for_each(NewDrive::unmake))?;
                namespace.backing = backing;
                builder.offload(offload).offload_linger(self.linger.unwrap_or(LINGER))
            }
        };
        builder = builder.namespace(namespace.write_protected(self.read_only));
        if let Some(serial) = serial {
            builder = builder.serial(serial);
        }
        Ok((builder, new))
    }

    fn wrong(&self, reason: &str) -> UriError {
        UriError::Properties { uri: self.to_string(), reason: reason.to_owned() }
    }

    fn contradicts(
        &self,
        property: &'static str,
        given: impl ToString,
        kept: impl ToString,
        remedy: String,
    ) -> UriError {
        let given = given.to_string();
        let kept = kept.to_string();
        UriError::Contradicts { path: self.path.clone(), property, given, kept, remedy }
    }

    fn io(&self, what: &'static str) -> impl Fn(std::io::Error) -> UriError {
        let path = self.path.clone();
        move |source| UriError::Io { what, path: path.clone(), source }
    }

    fn memory_namespace(&self, store: BackingKind) -> Result<Namespace, UriError> {
        let size =
            self.size.ok_or_else(|| self.wrong("a drive that is not in a file needs size=, such as size=64G"))?;
        if self.direct {
            return Err(self.wrong("direct=1 goes with backing=file alone"));
        }
        let namespace = match store {
            BackingKind::Ram => {
                Namespace::new(RamBacking::new(size).map_err(crate::builder::ControllerBuildError::from)?)
            }
            BackingKind::Procedural => Namespace::new(ProceduralBacking::new(size, self.seed)),
            BackingKind::Null | BackingKind::File => Namespace::new(NullBacking::new(size)),
        };
        Ok(namespace.lba(self.lba.unwrap_or(512)))
    }

    /// The drive in the file, its serial number, and what was made for it if it is new.
    fn file_namespace(&self) -> Result<(Namespace, Option<String>, Option<NewDrive>), UriError> {
        let (file, created) = self.open_and_lock()?;
        self.check_sharers(&file)?;
        let place = sidecar::place_of(&self.path);
        if !file.is_device && !self.read_only {
            sidecar::tidy(&place);
        }
        let (size, is_new) = self.settle_size(&file)?;
        // A sidecar that lies beside an empty file is not this call's to remove.
        let is_ours = created || place.symlink_metadata().is_err();
        let mut wrote = None;
        let settled = self.settle(&file, (size, is_new), &place, &mut wrote);
        let new = is_new.then(|| NewDrive {
            path: self.path.clone(),
            created,
            sidecar: wrote.filter(|_| is_ours),
            file: file.lock.clone(),
        });
        let Settled { sidecar, unrecorded, medium } = settled.inspect_err(|_| new.iter().for_each(NewDrive::unmake))?;
        let metadata = file.lock.metadata().map_err(self.io("look at"))?;
        let lba = sidecar.lba;
        let serial = sidecar.serial.clone();
        let uuid = *sidecar.uuid.as_bytes();
        // Who may write replaces the sidecar, and its lock with it.
        let beside = if self.read_only && !file.is_device { lock_file(&place) } else { None };
        let kept = (file.lock, beside);
        let namespace = match medium {
            Medium::Direct(direct) => Namespace::new(direct.keeping(kept)),
            Medium::Mapped(mapped) => Namespace::new(mapped.keeping(kept)),
        };
        let namespace = namespace.lba(lba).uuid(uuid);
        if file.is_device || self.read_only {
            return match sidecar.formatting {
                true => Err(UriError::Unfinished { path: self.path.clone() }),
                false => Ok((namespace, Some(serial), new)),
            };
        }
        let formatting = sidecar.formatting;
        let held = Mutex::new(lock_file(&place));
        let on_format = move |step, lba| {
            sidecar.at(step, lba).write(&place, &metadata)?;
            *held.lock().unwrap_or_else(PoisonError::into_inner) = lock_file(&place);
            Ok(())
        };
        if formatting {
            // A format was cut short. What it has left is neither the old data nor none.
            let erased = namespace.backing.zero(0, size, true).and_then(|()| namespace.backing.flush());
            let ended = erased.map_err(std::io::Error::other).and_then(|()| on_format(FormatStep::Ended, lba));
            ended.map_err(self.io("finish the format of"))?;
        }
        Ok((namespace.on_format(Arc::new(on_format)).unrecorded(unrecorded), Some(serial), new))
    }

    /// What the drive in `file` is, and how it is read and written; a new one is made so. Its sidecar is there before the file has
    /// its size: until then the file is empty, and whoever opens it as this does makes it anew. `wrote`: the sidecar that was
    /// written.
    fn settle(
        &self,
        file: &Locked,
        (size, is_new): (u64, bool),
        place: &Path,
        wrote: &mut Option<PathBuf>,
    ) -> Result<Settled, UriError> {
        let path = &self.path;
        let told = self.lba.is_some() || self.serial.is_some();
        let mut unrecorded = false;
        let sidecar = match Sidecar::read(place)?.filter(|_| !is_new) {
            Some(sidecar) => {
                if let Some(lba) = self.lba.filter(|&lba| lba != sidecar.lba) {
                    let remedy = format!(
                        "format it with LBAs of {lba} bytes; if its data was written with such LBAs, set lba in {} while the \
                         drive is closed",
                        place.display()
                    );
                    return Err(self.contradicts("lba", lba, sidecar.lba, remedy));
                }
                if let Some(serial) = self.serial.as_ref().filter(|&serial| *serial != sidecar.serial) {
                    let remedy = format!("set serial in {} while the drive is closed", place.display());
                    return Err(self.contradicts("serial", serial, &sidecar.serial, remedy));
                }
                sidecar
            }
            // A block device has no place beside it: its LBA size is what the URI says, each time.
            None if file.is_device => Sidecar::new(self.serial.as_deref(), self.lba.unwrap_or(512)),
            None if is_new => {
                let sidecar = Sidecar::new(self.serial.as_deref(), self.lba.unwrap_or(512));
                let written = file.lock.metadata().and_then(|drive| sidecar.write(place, &drive));
                written.map_err(|source| UriError::Io { what: "write", path: place.to_owned(), source })?;
                *wrote = Some(place.to_owned());
                file.lock.set_len(size).map_err(|source| UriError::of_sizing(path, size, source))?;
                file.lock.sync_all().map_err(self.io("set the size of"))?;
                sidecar
            }
            // A file that is merely opened gets nothing beside it: it may be no drive at all, or another than the URI says.
            None => {
                unrecorded = told;
                let mut sidecar = Sidecar::of(&file.lock.metadata().map_err(self.io("look at"))?);
                sidecar.lba = self.lba.unwrap_or(sidecar.lba);
                sidecar.serial = self.serial.clone().unwrap_or(sidecar.serial);
                sidecar
            }
        };
        let medium = if self.direct {
            let past = if self.read_only {
                warprow_uring::reopen_direct(&file.lock)
            } else {
                warprow_uring::open_direct(path)
            };
            let past = past.map_err(self.io("open past the page cache"))?;
            let identity = |file: &File| {
                file.metadata().map(|metadata| (metadata.dev(), metadata.ino())).map_err(self.io("look at"))
            };
            if identity(&past)? != identity(&file.lock)? {
                return Err(self.io("open past the page cache")(std::io::Error::other("another file took its place")));
            }
            let direct = DirectBacking::new(past, size).map_err(self.io("open past the page cache"))?.depth(self.depth);
            if direct.alignment() > sidecar.lba as usize {
                return Err(self.wrong(&format!(
                    "its disk takes direct transfers of {} bytes and up, the drive's LBAs have {}; format it with \
                     lba=4096, or leave direct=1 out",
                    direct.alignment(),
                    sidecar.lba
                )));
            }
            Medium::Direct(direct)
        } else if file.is_device {
            return Err(self.wrong("a block device needs direct=1"));
        } else {
            let mapped = file.lock.try_clone().and_then(backing::FileBacking::new).map_err(self.io("map"))?;
            Medium::Mapped(mapped.depth(self.depth))
        };
        Ok(Settled { sidecar, unrecorded, medium })
    }

    /// Where the sidecar of this drive lies, or is to lie: `PATH.nvme.toml`; of a symbolic link, beside the file that it leads
    /// to.
    pub fn sidecar(&self) -> PathBuf {
        sidecar::place_of(&self.path)
    }

    /// The drive's file, locked; true if it was created. A file that another process removed before this one had its lock is no
    /// drive any more: whoever wrote to it would lose that.
    fn open_and_lock(&self) -> Result<(Locked, bool), UriError> {
        for _ in 0..LOOKS {
            let Some((file, created)) = self.open_file()? else { continue };
            let file = self.lock(file)?;
            let locked = file.lock.metadata().map_err(self.io("look at"))?;
            let named = std::fs::metadata(&self.path);
            if named.is_ok_and(|named| (named.dev(), named.ino()) == (locked.dev(), locked.ino())) {
                return Ok((file, created));
            }
        }
        Err(self.io("open")(std::io::Error::other("other processes keep making and removing it")))
    }

    /// Opens the file, or creates it if it is to be; true if it was created. `None`: another process created it just now.
    fn open_file(&self) -> Result<Option<(File, bool)>, UriError> {
        let path = &self.path;
        let mut options = OpenOptions::new();
        // A drive is for its user alone. What is neither a file nor a block device may have opening it wait.
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        options.read(true).write(!self.read_only).mode(0o600).custom_flags(flags.bits());
        // The kernel refuses a block device that is mounted or otherwise in use; it has no such refusal that readers could share.
        let is_device = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
        if is_device && !self.read_only {
            options.custom_flags((flags | OFlag::O_EXCL).bits());
        }
        match options.open(path) {
            Ok(file) => Ok(Some((file, false))),
            Err(error) if is_device && error.raw_os_error() == Some(Errno::EBUSY as i32) => {
                Err(UriError::Mounted { path: path.clone() })
            }
            Err(error) if error.kind() == ErrorKind::NotFound && (self.size.is_none() || self.read_only) => {
                Err(UriError::NotThere { path: path.clone() })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                match options.create_new(true).open(path) {
                    Ok(file) => Ok(Some((file, true))),
                    // A link that leads nowhere is not followed.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists && !path.is_symlink() => Ok(None),
                    Err(error) => Err(self.io("create")(error)),
                }
            }
            Err(error) => Err(self.io("open")(error)),
        }
    }

    fn lock(&self, file: File) -> Result<Locked, UriError> {
        let metadata = file.metadata().map_err(self.io("look at"))?;
        let is_device = metadata.file_type().is_block_device();
        if !is_device && !metadata.is_file() {
            return Err(self.wrong("it is neither a file nor a block device"));
        }
        let how = if self.read_only { FlockArg::LockSharedNonblock } else { FlockArg::LockExclusiveNonblock };
        let mut file = file;
        let mut attempts = 1_u32;
        let began = Instant::now();
        loop {
            match Flock::lock(file, how) {
                Ok(lock) => return Ok(Locked { lock: Arc::new(lock), is_device }),
                // Somebody may only have looked whether it is locked, for which it was for a moment.
                Err((again, Errno::EWOULDBLOCK))
                    if attempts < ATTEMPTS
                        || began.elapsed() < GIVEN_UP_WITHIN && LockHolder::count(&metadata) == 0 =>
                {
                    (file, attempts) = (again, attempts + 1);
                    std::thread::sleep(MOMENT);
                }
                Err((_, Errno::EWOULDBLOCK)) => {
                    return Err(UriError::InUse(DriveInUse::new(&self.path, &metadata, self.read_only)));
                }
                Err((_, errno)) => return Err(self.io("lock")(errno.into())),
            }
        }
    }

    /// Refuses to be one more of those that share a drive's rate than it is divided among. Those that cannot be seen are not counted.
    fn check_sharers(&self, file: &Locked) -> Result<(), UriError> {
        if !self.read_only || !self.has_rate() {
            return Ok(());
        }
        let metadata = file.lock.metadata().map_err(self.io("look at"))?;
        let mut open = LockHolder::count(&metadata);
        for _ in 1..ATTEMPTS {
            if open <= self.sharers as usize {
                return Ok(());
            }
            // One of them may only have looked whether the drive is in use.
            std::thread::sleep(MOMENT);
            open = LockHolder::count(&metadata);
        }
        let (uri, path, sharers) = (self.to_string(), self.path.clone(), self.sharers);
        if open <= sharers as usize { Ok(()) } else { Err(UriError::Sharers { uri, path, open, sharers }) }
    }

    /// The size that the drive has, or is to get; and whether it is new: its file is empty. One that this call created may have
    /// become another process's drive before it was locked here.
    fn settle_size(&self, file: &Locked) -> Result<(u64, bool), UriError> {
        let actual = (&**file.lock).seek(SeekFrom::End(0)).map_err(self.io("look at"))?;
        if let Some(size) = self.size {
            if actual == 0 && !file.is_device && !self.read_only {
                return Ok((size, true));
            }
            if actual != size {
                let reason = format!("not {size}; leave size= out, or remove the file to make a new drive");
                return Err(UriError::Size { path: self.path.clone(), actual, reason });
            }
        }
        if actual == 0 || !actual.is_multiple_of(4096) {
            let reason = match actual {
                0 => "it is empty: format it with size= to make a drive of it",
                _ => "which is no drive, or what is left of one that was cut off: a drive has a multiple of 4096",
            };
            return Err(UriError::Size { path: self.path.clone(), actual, reason: reason.to_owned() });
        }
        Ok((actual, false))
    }
}

/// What a drive in a file is, and how it is read and written.
struct Settled {
    sidecar: Sidecar,
    /// What it was told to be stands in no sidecar.
    unrecorded: bool,
    medium: Medium,
}

enum Medium {
    Direct(DirectBacking),
    Mapped(backing::FileBacking),
}

/// A file that nobody else has open as a drive, or others for reading alone as this does.
struct Locked {
    lock: Arc<Flock<File>>,
    is_device: bool,
}

impl SoftController {
    /// Opens an emulated drive by its URI; see [`DriveUri`].
    pub fn open(uri: &str) -> Result<Arc<Self>, UriError> {
        uri.parse::<DriveUri>()?.open()
    }
}
