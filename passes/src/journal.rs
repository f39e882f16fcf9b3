//! A file that remembers which keys were touched since a mark.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use warprow_formats::{LockedFile, NewFile, directory, refuse_special};

use crate::PassError;
use crate::bits::Bits;
use crate::finder::Finder;

const MAGIC: [u8; 8] = *b"\x89WRPASS\n";
const VERSION: u32 = 2;
/// Magic, version, CRC32C of the table's name; the number of the last pass before the mark, CRC32C of that, nothing.
const HEAD: usize = 32;
/// Where that number stands.
const MARK: usize = 16;
/// Count, CRC32C of all of the record but itself, number of the pass; then keys.
const RECORD: usize = 16;
/// Keys of a record, at most.
const KEYS: usize = 1 << 16;

/// Keys that were touched, and by which pass: records are appended, each with its checksum, and durable before the commit that they speak of.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    /// The lock by which others see that nobody is to write over the file meanwhile.
    _locked: LockedFile,
    path: String,
    /// Where the last whole record ends.
    end: u64,
    /// Whether the file goes on behind that, with what is to go.
    longer: bool,
    /// Passes up to this one are not here any more.
    mark: u64,
    /// The last pass that is.
    last: u64,
}

/// Keys that were touched by passes up to one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub pass: u64,
    pub keys: Vec<u64>,
}

impl Record {
    fn bytes(&self) -> usize {
        RECORD + self.keys.len() * 8
    }
}

impl Journal {
    /// Opens the journal of a table whose rows `finder` finds, or makes it: which rows it has, and how many of its keys the table does not
    /// have.
    pub(crate) fn of_table(path: &Path, table: &str, finder: &Finder) -> Result<(Self, Bits, usize), PassError> {
        let (mut journal, records) = Self::open(path, table)?;
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

    /// Opens it, or makes it, with what it has. What a power cut tore at its end is cut off: the commit that it was for did
    /// not come about. Damage before that is an error: the keys there are wanted.
    pub(crate) fn open(path: &Path, table: &str) -> Result<(Self, Vec<Record>), PassError> {
        let name = path.display().to_string();
        let failed = |what| {
            let path = name.clone();
            move |source| PassError::Journal { path, what, source }
        };
        let begin = [&MAGIC[..], &VERSION.to_le_bytes(), &crc32c::crc32c(table.as_bytes()).to_le_bytes()].concat();
        let unused = |what: String| failed("cannot be used")(io::Error::new(ErrorKind::InvalidData, what));
        match path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                make(path, &begin).map_err(failed("cannot be made"))?
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
        let (mut records, mut valid, mark);
        match bytes.get(..HEAD) {
            Some(found) if found.starts_with(&begin) => {
                (records, valid) = (Vec::new(), HEAD);
                mark = marked(found).ok_or_else(|| unused("its head is damaged".into()))?;
                while let Some(more) = record(bytes.get(valid..).unwrap_or_default()) {
                    valid += more.bytes();
                    records.push(more);
                }
                if !is_torn(bytes.get(valid..).unwrap_or_default()) {
                    return Err(unused(
                        "a record in its middle is damaged: export the whole table, and begin another".into(),
                    ));
                }
            }
            // It gets its name with its head.
            None if begin.starts_with(bytes.get(..MARK).unwrap_or(&bytes)) => {
                return Err(unused(format!(
                    "it is cut off: it has {} bytes, the head of a journal alone {HEAD}. What passes touched is lost: export the whole table, \
                     remove it, and begin another",
                    bytes.len()
                )));
            }
            _ => return Err(unused("it is no journal of this version, or another table's".into())),
        }
        let settle = || {
            file.write_all_at(&head(&begin, mark), 0)?;
            file.set_len(valid as u64)?;
            file.sync_all()?;
            File::open(directory(path))?.sync_all()
        };
        settle().map_err(failed("cannot be written"))?;
        let last = records.iter().map(|record| record.pass).fold(mark, u64::max);
        Ok((Self { file, _locked: locked, path: name, end: valid as u64, longer: false, mark, last }, records))
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
            return Err(PassError::Journal { path: self.path.clone(), what: "cannot be used", source });
        }
        let count = records.iter().take_while(|record| record.pass < first).count();
        self.end -= records.drain(count..).map(|record| record.bytes() as u64).sum::<u64>();
        self.longer = true;
        Ok(records)
    }

    /// Passes up to this one are not here any more.
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }

    /// The number of the last pass that is or was here.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Adds keys that passes up to number `pass` touched; they are durable when this returns.
    pub(crate) fn append(&mut self, pass: u64, keys: impl Iterator<Item = u64>) -> Result<(), PassError> {
        let mut keys = keys.peekable();
        // What failed half-way is written over.
        let mut end = self.end;
        let longer = self.longer;
        let mut write = || {
            if longer {
                self.file.set_len(end)?;
                self.file.sync_all()?;
            }
            while keys.peek().is_some() {
                let keys = keys.by_ref().take(KEYS).flat_map(u64::to_le_bytes);
                let rest: Vec<u8> = pass.to_le_bytes().into_iter().chain(keys).collect();
                let count = ((rest.len() as u32 - 8) / 8).to_le_bytes();
                let crc = crc32c::crc32c_append(crc32c::crc32c(&count), &rest);
                let record = [&count[..], &crc.to_le_bytes(), &rest].concat();
                self.file.write_all_at(&record, end)?;
                end += record.len() as u64;
            }
            self.file.sync_data()
        };
        write().map_err(|source| PassError::Journal { path: self.path.clone(), what: "cannot be written", source })?;
        (self.end, self.longer) = (end, false);
        self.last = self.last.max(pass);
        Ok(())
    }

    /// Forgets all keys, not the number of the last pass.
    pub(crate) fn clear(&mut self) -> Result<(), PassError> {
        let mark = self.last;
        let clear = || {
            // First: numbers must not be given twice.
            self.file.write_all_at(&numbered(mark), MARK as u64)?;
            self.file.sync_all()?;
            self.file.set_len(HEAD as u64)?;
            self.file.sync_all()
        };
        clear().map_err(|source| PassError::Journal { path: self.path.clone(), what: "cannot be written", source })?;
        (self.mark, self.end, self.longer) = (mark, HEAD as u64, false);
        Ok(())
    }

    /// The keys of passes behind number `pass`, read anew.
    pub(crate) fn since(&self, pass: u64) -> Result<Vec<u64>, PassError> {
        let mut bytes = vec![0; (self.end as usize).saturating_sub(HEAD)];
        let read = self.file.read_exact_at(&mut bytes, HEAD as u64);
        read.map_err(|source| PassError::Journal { path: self.path.clone(), what: "cannot be read", source })?;
        let mut keys = Vec::new();
        let mut at = 0;
        while let Some(more) = record(bytes.get(at..).unwrap_or_default()) {
            at += more.bytes();
            if more.pass > pass {
                keys.extend(more.keys);
            }
        }
        match at == bytes.len() {
            true => Ok(keys),
            false => {
                let source = io::Error::new(ErrorKind::InvalidData, "a record is damaged");
                Err(PassError::Journal { path: self.path.clone(), what: "cannot be read", source })
            }
        }
    }
}

/// Makes a journal: it has its head as soon as it has its name.
fn make(path: &Path, begin: &[u8]) -> io::Result<()> {
    let new = NewFile::create(path)?;
    new.file().write_all_at(&head(begin, 0), 0)?;
    new.file().sync_all()?;
    new.persist(false)
}

/// A number with its checksum.
fn numbered(number: u64) -> Vec<u8> {
    [&number.to_le_bytes()[..], &crc32c::crc32c(&number.to_le_bytes()).to_le_bytes()].concat()
}

fn head(begin: &[u8], mark: u64) -> Vec<u8> {
    let mut head = [begin, &numbered(mark)].concat();
    head.resize(HEAD, 0);
    head
}

/// The number of the last pass before the mark.
fn marked(head: &[u8]) -> Option<u64> {
    let (number, rest) = head.get(MARK..)?.split_first_chunk::<8>()?;
    let crc = rest.first_chunk::<4>()?;
    (crc32c::crc32c(number) == u32::from_le_bytes(*crc)).then(|| u64::from_le_bytes(*number))
}

/// The record that `bytes` begin with; `None`: there is no whole one.
fn record(bytes: &[u8]) -> Option<Record> {
    let (count, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let length =
        (u32::from_le_bytes(*count) as usize).checked_mul(8).filter(|length| (8..=KEYS * 8).contains(length))?;
    let rest = rest.get(..length.checked_add(8)?)?;
    let found = crc32c::crc32c_append(crc32c::crc32c(count), rest);
    let (pass, keys) = rest.split_first_chunk::<8>()?;
    let keys = keys.as_chunks().0.iter().map(|&key| u64::from_le_bytes(key));
    (found == u32::from_le_bytes(*crc)).then(|| Record { pass: u64::from_le_bytes(*pass), keys: keys.collect() })
}

/// Whether `bytes`, which do not begin with a whole record, may be what was left of the last append: parts of it can be on the drive and
/// others not. All records of one but the last are of [`KEYS`] keys, and all are of one pass.
fn is_torn(bytes: &[u8]) -> bool {
    let full = RECORD + KEYS * 8;
    let mut passes = None;
    // Records have multiples of 8 bytes.
    for at in (0..bytes.len()).step_by(8) {
        let Some(found) = record(bytes.get(at..).unwrap_or_default()) else { continue };
        if !at.is_multiple_of(full) || *passes.get_or_insert(found.pass) != found.pass {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(records: Vec<Record>) -> Vec<u64> {
        records.into_iter().flat_map(|record| record.keys).collect()
    }

    #[test]
    fn keys_come_back_as_far_as_they_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("touched");
        let open = || Journal::open(&path, "items").map(|(journal, found)| (journal, keys(found)));
        let (mut journal, found) = open().unwrap();
        assert!(found.is_empty());
        journal.append(1, 0..100_000).unwrap();
        journal.append(2, std::iter::once(u64::MAX)).unwrap();
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let all: Vec<u64> = (0..100_000).chain([u64::MAX]).collect();
        assert_eq!(open().unwrap().1, all);
        assert!(Journal::open(&path, "others").is_err());
        // Torn anywhere, and appended to.
        let mut random = fastrand::Rng::with_seed(5);
        let mut cuts: Vec<usize> = (0..60).map(|_| random.usize(..whole.len())).collect();
        cuts.extend([0, 3, HEAD - 1, HEAD, whole.len() - 1]);
        for cut in cuts {
            if cut < HEAD {
                // What it had cannot be told: it is not taken for a new one, and left as it is.
                std::fs::write(&path, &whole[..cut]).unwrap();
                assert!(open().unwrap_err().to_string().contains("it is cut off"), "cut at {cut}");
                assert_eq!(std::fs::read(&path).unwrap(), whole[..cut]);
                continue;
            }
            let mut bytes = whole[..cut].to_vec();
            if random.bool() && cut > HEAD + RECORD {
                let at = random.usize(HEAD..cut);
                bytes[at] ^= 1;
            }
            std::fs::write(&path, &bytes).unwrap();
            // All but the last of an append are of 65,536 keys, so this may be what was left of one.
            let (mut journal, found) = open().unwrap();
            assert!([0, 1 << 16, 100_000].contains(&found.len()) && all.starts_with(&found), "cut at {cut}");
            journal.append(3, [7, 8].into_iter()).unwrap();
            drop(journal);
            assert_eq!(open().unwrap().1, [&found[..], &[7, 8]].concat());
        }
        std::fs::write(&path, b"something of somebody else's").unwrap();
        assert!(Journal::open(&path, "items").unwrap_err().to_string().contains("no journal"));
    }

    #[test]
    fn damage_before_the_end_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("touched");
        let (mut journal, _) = Journal::open(&path, "items").unwrap();
        for pass in 1..=3u64 {
            journal.append(pass, 10 * pass..10 * pass + 10).unwrap();
        }
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let last = whole.len() - (RECORD + 80);
        for at in (HEAD..whole.len()).step_by(3) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            std::fs::write(&path, &bytes).unwrap();
            let opened = Journal::open(&path, "items");
            if at >= last {
                // It may have been torn.
                assert_eq!(keys(opened.unwrap().1).len(), 20, "byte {at}");
                continue;
            }
            assert!(opened.unwrap_err().to_string().contains("in its middle"), "byte {at}");
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "byte {at}: it is as it was");
        }
    }

    #[test]
    fn what_did_not_come_about_is_left_out_and_strange_keys_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("touched");
        let open = || Journal::open(&path, "items").unwrap();
        let (mut journal, _) = open();
        journal.append(1, 0..10).unwrap();
        // Pass 2 created 100 and more, and failed; pass 3 with it.
        journal.append(2, (5..8).chain(100..70_100)).unwrap();
        journal.append(3, (8..9).chain(100..70_200)).unwrap();
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let absent: HashSet<u64> = (100..70_200).collect();
        let (mut journal, found) = open();
        let kept = journal.without(found, &absent).unwrap();
        assert_eq!(keys(kept), (0..10).collect::<Vec<_>>());
        assert_eq!(std::fs::read(&path).unwrap(), whole, "who only reads it changes nothing");
        journal.append(4, [7].into_iter()).unwrap();
        assert_eq!((journal.since(1).unwrap(), journal.last()), (vec![7], 4));
        drop(journal);
        assert_eq!(keys(open().1), (0..10).chain([7]).collect::<Vec<_>>());

        // A key that a later pass does not name was there once.
        std::fs::write(&path, &whole).unwrap();
        let (mut journal, found) = open();
        let strange = HashSet::from([3, 100]);
        let refused = journal.without(found, &strange).unwrap_err().to_string();
        assert!(refused.contains("2 of its keys are not in the table, such as 3"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn passes_keep_their_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("touched");
        let (mut journal, _) = Journal::open(&path, "items").unwrap();
        for pass in 1..=3 {
            journal.append(pass, [pass, 10 * pass].into_iter()).unwrap();
        }
        assert_eq!([0, 1, 2, 3].map(|pass| journal.since(pass).unwrap().len()), [6, 4, 2, 0]);
        assert_eq!(journal.since(2).unwrap(), [3, 30]);
        journal.append(4, [4].into_iter()).unwrap();
        drop(journal);
        let (mut journal, found) = Journal::open(&path, "items").unwrap();
        assert_eq!((journal.mark(), journal.last(), found.len()), (0, 4, 4));
        assert_eq!(journal.since(2).unwrap(), [3, 30, 4]);
        journal.clear().unwrap();
        journal.append(5, [9].into_iter()).unwrap();
        drop(journal);
        let (journal, found) = Journal::open(&path, "items").unwrap();
        assert_eq!((journal.mark(), journal.last(), keys(found)), (4, 5, vec![9]));
        // A head that is not what was written.
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[MARK] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(Journal::open(&path, "items").unwrap_err().to_string().contains("damaged"));
    }
}
