//! A file that remembers which keys were touched since a mark.

mod content;
mod file;
mod read;
mod record;
mod seal;
#[cfg(test)]
mod tests;
mod unsealed;

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use uuid::Uuid;
use warprow_formats::{LockedFile, NewFile, directory, refuse_special};

use self::content::{Content, Current};
use self::file::JournalFile;
use self::record::{KEYS, Record, encode, records};
use self::seal::{HEAD, Seal};
use crate::PassError;
use crate::bits::Bits;
use crate::finder::Finder;

/// Keys that were touched, and by which pass. Records are appended, each with its checksum; a seal in the head then says how far the
/// journal goes. Both are durable before the commit that the records speak of.
#[derive(Debug)]
pub(crate) struct Journal {
    file: JournalFile,
    /// The lock by which others see that nobody is to write over the file meanwhile.
    _locked: LockedFile,
    path: PathBuf,
    table: String,
    store: Uuid,
    /// Where the first record begins.
    begin: u64,
    /// Where the last record ends that counts.
    end: u64,
    /// The seal that counts; `None`: the file is of the version that had no seals, and is written anew before it is changed.
    seal: Option<Current>,
    /// Whether the seal that counts may say something else than these fields.
    reseal: bool,
    /// Whether the file may go on behind `end`, with what does not count.
    longer: bool,
    /// Keys of passes up to this one were forgotten.
    mark: u64,
    /// The last number that was given to a pass.
    last: u64,
}

impl Journal {
    /// Opens the journal of a table of `store` whose rows `finder` finds, or makes it: which rows it has, and how many of its keys the table
    /// does not have.
    pub(crate) fn of_table(
        path: &Path,
        table: &str,
        store: Uuid,
        finder: &Finder,
    ) -> Result<(Self, Bits, usize), PassError> {
        let (mut journal, records) = Self::open(path, table, store)?;
        let find = |records: &[Record]| {
            let keys = records.iter().flat_map(|record| record.keys.iter().copied()).collect();
            finder.find(&finder.keyset(keys), 1)
        };
        let found = find(&records);
        let dropped = found.new.len();
        let touched = match found.new.is_empty() {
            true => found.ranks,
            false => find(&journal.without(records, &found.new.into_iter().collect())?).ranks,
        };
        Ok((journal, touched, dropped))
    }

    /// Opens it, or makes it, with what it has. What an append left that a power cut interrupted does not count: the commit that it was for
    /// did not come about. Damage or loss of what was acknowledged is an error: the keys there are wanted. A file that is there stays as it is.
    pub(crate) fn open(path: &Path, table: &str, store: Uuid) -> Result<(Self, Vec<Record>), PassError> {
        let failed = |what| move |source| failure(path, what, source);
        let unused = |what: String| failed("cannot be used")(io::Error::new(ErrorKind::InvalidData, what));
        match path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let nothing = Seal { sequence: 0, end: HEAD as u64, mark: 0, last: 0 };
                let made = make(path, &seal::head(table, store, nothing), None);
                made.map_err(failed("cannot be made"))?;
            }
            _ => refuse_special(path)?,
        }
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let mut file = opened.map_err(failed("cannot be opened"))?;
        // What has come in its place since may have no end.
        if !file.metadata().map_err(failed("cannot be looked at"))?.is_file() {
            return Err(unused("it is no regular file".into()));
        }
        let locked = LockedFile::new(&file);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed("cannot be read"))?;
        let Content { records, begin, end, mark, last, seal, reseal } =
            read::read(&bytes, table, store).map_err(unused)?;
        let longer = bytes.len() as u64 > end;
        let (path, table) = (path.to_owned(), table.to_owned());
        let file = JournalFile::new(file);
        let journal = Self { file, _locked: locked, path, table, store, begin, end, seal, reseal, longer, mark, last };
        Ok((journal, records))
    }

    /// Leaves out what was noted for commits that did not come about, by the keys that the table does not have: `absent`. A pass created them,
    /// and is not there. Each pass after it would have brought them, so all that follows names them too; what does not is of another table,
    /// or of this one as it was: that is an error, and nothing is changed. The records that count; what does not goes with the next
    /// append.
    pub(crate) fn without(
        &mut self,
        mut records: Vec<Record>,
        absent: &HashSet<u64>,
    ) -> Result<Vec<Record>, PassError> {
        let lacks = |record: &Record| record.keys.iter().any(|key| absent.contains(key));
        let Some(first) = records.iter().find(|record| lacks(record)).map(|record| record.pass) else {
            return Ok(records);
        };
        let last = records.last().map_or(0, |record| record.pass);
        let named: HashSet<u64> = records
            .iter()
            .filter(|record| record.pass == last)
            .flat_map(|record| record.keys.iter().copied())
            .collect();
        if let Some(key) = absent.iter().copied().filter(|key| !named.contains(key)).min() {
            let what = format!(
                "{} of its keys are not in the table, such as {key}: it is of another, of this one before it was loaded anew, or of a pass that died \
                 as it created keys while a journal was written otherwise. Export the whole table, and begin another",
                absent.len()
            );
            let source = io::Error::new(ErrorKind::InvalidData, what);
            return Err(failure(&self.path, "cannot be used", source));
        }
        let count = records.iter().take_while(|record| record.pass < first).count();
        self.end -= records.drain(count..).map(|record| record.bytes() as u64).sum::<u64>();
        (self.reseal, self.longer) = (true, true);
        Ok(records)
    }

    /// Keys of passes up to this one were forgotten.
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }

    /// The last number that was given to a pass.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Adds keys that passes up to number `pass` touched; they are durable, and acknowledged, when this returns.
    pub(crate) fn append(&mut self, pass: u64, keys: impl Iterator<Item = u64>) -> Result<(), PassError> {
        self.try_append(pass, keys).map_err(|source| failure(&self.path, "cannot be written", source))
    }

    fn try_append(&mut self, pass: u64, keys: impl Iterator<Item = u64>) -> io::Result<()> {
        let mut keys = keys.peekable();
        if keys.peek().is_none() {
            return Ok(());
        }
        self.settle()?;
        let mut end = self.end;
        self.longer = true;
        while keys.peek().is_some() {
            let record = encode(pass, keys.by_ref().take(KEYS));
            self.file.write(&record, end)?;
            end += record.len() as u64;
        }
        // A seal must not be durable before the records that it acknowledges.
        self.file.sync()?;
        let last = self.last.max(pass);
        self.write_seal(end, self.mark, last)?;
        (self.end, self.last, self.longer) = (end, last, false);
        Ok(())
    }

    /// Forgets all keys, not the number of the last pass.
    pub(crate) fn clear(&mut self) -> Result<(), PassError> {
        self.try_clear().map_err(|source| failure(&self.path, "cannot be written", source))
    }

    fn try_clear(&mut self) -> io::Result<()> {
        self.settle()?;
        // The file must not become shorter than what a seal acknowledges, so the seal is first.
        self.write_seal(HEAD as u64, self.last, self.last)?;
        (self.mark, self.end, self.longer) = (self.last, HEAD as u64, true);
        self.settle()
    }

    /// Makes the file what these fields say, where it may be something else: after a failure, and after an opening that found what does not
    /// count.
    fn settle(&mut self) -> io::Result<()> {
        if self.seal.is_none() {
            self.renew()?;
        }
        if self.reseal {
            // Records that one damaged seal acknowledged, or none, need not be durable.
            self.file.sync()?;
            self.write_seal(self.end, self.mark, self.last)?;
        }
        if self.longer {
            self.file.set_len(self.end)?;
            self.file.sync()?;
            self.longer = false;
        }
        Ok(())
    }

    /// Writes the seal that does not count, which then counts.
    fn write_seal(&mut self, end: u64, mark: u64, last: u64) -> io::Result<()> {
        let full = || io::Error::other("its seals have no more numbers");
        let Current { slot, sequence } = self.seal.ok_or_else(full)?;
        let sequence = sequence.checked_add(1).ok_or_else(full)?;
        let other = 1 - slot;
        // If this fails, the file may have either seal, and the next seal goes to the same place with a higher number.
        self.seal = Some(Current { slot, sequence });
        self.reseal = true;
        self.file.write(&Seal { sequence, end, mark, last }.bytes(), seal::place(other))?;
        self.file.sync()?;
        self.seal = Some(Current { slot: other, sequence });
        self.reseal = false;
        Ok(())
    }

    /// Writes a journal that has no seals anew, with seals, in the old one's place.
    fn renew(&mut self) -> io::Result<()> {
        let records = self.file.read(self.begin, self.end)?;
        let end = (HEAD + records.len()) as u64;
        let seal = Seal { sequence: 0, end, mark: self.mark, last: self.last };
        let bytes = [seal::head(&self.table, self.store, seal), records].concat();
        // A link stays, and what it points at is replaced.
        let path = self.path.canonicalize()?;
        make(&path, &bytes, Some(&path))?;
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        self._locked = LockedFile::new(&file);
        self.file = JournalFile::new(file);
        self.seal = Some(Current { slot: 0, sequence: 0 });
        (self.begin, self.end, self.reseal, self.longer) = (HEAD as u64, end, false, false);
        Ok(())
    }

    /// The keys of passes behind number `pass`, read anew.
    pub(crate) fn since(&self, pass: u64) -> Result<Vec<u64>, PassError> {
        let failed = |source| failure(&self.path, "cannot be read", source);
        let bytes = self.file.read(self.begin, self.end).map_err(failed)?;
        let (records, valid) = records(&bytes);
        match valid == bytes.len() {
            true => {
                Ok(records.into_iter().filter(|record| record.pass > pass).flat_map(|record| record.keys).collect())
            }
            false => Err(failed(io::Error::new(ErrorKind::InvalidData, "a record is damaged"))),
        }
    }
}

fn failure(path: &Path, what: &'static str, source: io::Error) -> PassError {
    PassError::Journal { path: path.display().to_string(), what, source }
}

/// Makes a file with this content, which it has as soon as it has its name; in the place of `old`, with the same permissions, if that is given.
fn make(path: &Path, content: &[u8], old: Option<&Path>) -> io::Result<()> {
    let new = NewFile::create(path)?;
    if let Some(old) = old {
        new.file().set_permissions(old.metadata()?.permissions())?;
    }
    new.file().write_all_at(content, 0)?;
    new.file().sync_all()?;
    new.persist(old.is_some())?;
    File::open(directory(path))?.sync_all()
}
