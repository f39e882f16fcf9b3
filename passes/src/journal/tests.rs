//! Journals that were cut, damaged, killed while they were written, or are of another table, store or version.

use std::fs;

use super::file::Step;
use super::record::RECORD;
use super::seal::MAGIC;
use super::*;

const STORE: Uuid = Uuid::from_u128(0x1234_5678_9abc_def0_0fed_cba9_8765_4321);

fn open(path: &Path) -> Result<(Journal, Vec<Record>), PassError> {
    Journal::open(path, "items", STORE)
}

fn keys(records: Vec<Record>) -> Vec<u64> {
    records.into_iter().flat_map(|record| record.keys).collect()
}

/// What a journal says: its records, the mark, and the last number.
type Said = (Vec<(u64, Vec<u64>)>, u64, u64);

fn said(path: &Path) -> Result<Said, PassError> {
    let (journal, records) = open(path)?;
    Ok((records.into_iter().map(|it| (it.pass, it.keys)).collect(), journal.mark(), journal.last()))
}

/// A journal of three passes of ten keys each, after a mark that forgot pass 1, and what it says.
fn three(path: &Path) -> (Vec<u8>, Said) {
    let (mut journal, _) = open(path).unwrap();
    journal.append(1, 0..10).unwrap();
    journal.clear().unwrap();
    (2..=4).for_each(|pass| journal.append(pass, 10 * pass..10 * pass + 10).unwrap());
    let whole = (2..=4).map(|pass| (pass, (10 * pass..10 * pass + 10).collect())).collect();
    (fs::read(path).unwrap(), (whole, 1, 4))
}

/// A journal as version 2 wrote it: head, and records of three passes.
fn of_version_2(mark: u64) -> Vec<u8> {
    let table = crc32c::crc32c(b"items").to_le_bytes();
    let mut bytes = [&MAGIC[..], &2u32.to_le_bytes(), &table, &mark.to_le_bytes()].concat();
    bytes.extend(crc32c::crc32c(&mark.to_le_bytes()).to_le_bytes());
    bytes.resize(unsealed::HEAD, 0);
    (1..=3).for_each(|pass| bytes.extend(encode(mark + pass, 10 * pass..10 * pass + 10)));
    bytes
}

#[test]
fn a_cut_of_any_number_of_bytes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("touched");
    let (whole, says) = three(&path);
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let error = said(&path).unwrap_err().to_string();
        assert!(error.contains("it is cut off") && error.contains("export the whole table"), "{cut} bytes: {error}");
        assert_eq!(fs::read(&path).unwrap(), whole[..cut], "what is refused stays as it is");
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(said(&path).unwrap(), says);
}

#[test]
fn a_flipped_bit_is_refused_or_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("touched");
    let (whole, says) = three(&path);
    let (mut refused, mut harmless) = (0, 0);
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        match said(&path) {
            Ok(found) => {
                assert!(bit / 8 < HEAD, "bit {bit}");
                assert_eq!(found, says, "bit {bit}");
                harmless += 1;
            }
            Err(_) => refused += 1,
        }
        assert_eq!(fs::read(&path).unwrap(), bytes, "bit {bit}: reading changes nothing");
        // A damaged seal is written anew by the next append.
        if bit < HEAD * 8
            && bit % 37 == 0
            && let Ok((mut journal, _)) = open(&path)
        {
            journal.append(5, [7].into_iter()).unwrap();
            drop(journal);
            let (mut records, mark, _) = says.clone();
            records.push((5, vec![7]));
            assert_eq!(said(&path).unwrap(), (records, mark, 5), "bit {bit}");
        }
    }
    // Records, and 36 bytes of the head's identity; the seals stand in for each other, and the rest of the head has nothing.
    assert_eq!((refused, harmless), ((3 * (RECORD + 80) + 36) * 8, (HEAD - 36) * 8));
    // Nothing stands in for two seals, or for a seal and what it acknowledged.
    let both: &[usize] = &[seal::place(0) as usize, seal::place(1) as usize];
    for flipped in [both, &[both[0], whole.len() - 1], &[both[1], whole.len() - 1]] {
        let mut bytes = whole.clone();
        flipped.iter().for_each(|&at| bytes[at] ^= 4);
        fs::write(&path, &bytes).unwrap();
        let error = said(&path).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{flipped:?}: {error}");
    }
}

#[test]
fn other_stores_tables_and_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("touched");
    let (whole, _) = three(&path);
    let other = Uuid::from_u128(7);
    let error = Journal::open(&path, "items", other).unwrap_err().to_string();
    assert!(error.contains(&STORE.to_string()) && error.contains(&other.to_string()), "{error}");
    let error = Journal::open(&path, "users", STORE).unwrap_err().to_string();
    assert!(error.contains("another table than \"users\""), "{error}");
    for (content, says) in
        [(&b"something of somebody else's"[..], "no journal"), (&[&whole[..8], &[9; 8]].concat(), "version")]
    {
        fs::write(&path, content).unwrap();
        let error = said(&path).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// Content after some steps, and all that a power cut may leave of those since the last sync: any of them, the last one also in part.
fn left_by(before: &[u8], steps: &[Step], check: &mut dyn FnMut(&[u8], &str)) {
    let apply = |bytes: &mut Vec<u8>, step: &Step, torn: Option<usize>| match step {
        Step::Write(at, written) => {
            let written = &written[..torn.unwrap_or(written.len())];
            let at = *at as usize;
            bytes.resize(bytes.len().max(at + written.len()), 0);
            bytes[at..at + written.len()].copy_from_slice(written);
        }
        Step::Length(length) => bytes.resize(*length as usize, 0),
        Step::Sync => {}
    };
    for done in 0..=steps.len() {
        let synced = steps[..done].iter().rposition(|step| matches!(step, Step::Sync)).map_or(0, |at| at + 1);
        let mut durable = before.to_vec();
        steps[..synced].iter().for_each(|step| apply(&mut durable, step, None));
        let open = &steps[synced..done];
        for some in 0..1u32 << open.len() {
            let some: Vec<&Step> =
                open.iter().enumerate().filter(|(at, _)| some >> at & 1 == 1).map(|it| it.1).collect();
            let mut bytes = durable.clone();
            some.iter().for_each(|step| apply(&mut bytes, step, None));
            check(&bytes, &format!("{done} steps, {} of {} since the last sync", some.len(), open.len()));
        }
        // The next step, in part.
        if let Some(Step::Write(at, written)) = steps.get(done) {
            for torn in (0..written.len()).step_by(if written.len() > 1 << 10 { 20_011 } else { 1 }) {
                let mut bytes = durable.clone();
                open.iter().for_each(|step| apply(&mut bytes, step, None));
                apply(&mut bytes, &steps[done], Some(torn));
                check(&bytes, &format!("{done} steps and {torn} bytes at {at}"));
            }
        }
    }
}

/// Has `change` change a journal of this content, and looks at all that a kill or a power cut may leave: it says what it said before, or what
/// it says afterwards.
fn kill_everywhere(content: &[u8], change: &dyn Fn(&mut Journal, Vec<Record>)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("touched");
    fs::write(&path, content).unwrap();
    let before = said(&path).unwrap();
    let (mut journal, records) = open(&path).unwrap();
    change(&mut journal, records);
    let steps = journal.file.steps.lock().unwrap().clone();
    assert!(steps.len() > 3);
    drop(journal);
    let after = said(&path).unwrap();
    assert_ne!(before, after);
    let (mut old, mut new) = (0, 0);
    left_by(content, &steps, &mut |bytes, what| {
        fs::write(&path, bytes).unwrap();
        let found = said(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(found == before || found == after, "{what}: {found:?}");
        *if found == after { &mut new } else { &mut old } += 1;
        // And it goes on from there.
        let (mut journal, _) = open(&path).unwrap();
        journal.append(found.2 + 1, [99].into_iter()).unwrap();
        drop(journal);
        let (mut records, mark, last) = found;
        records.push((last + 1, vec![99]));
        assert_eq!(said(&path).unwrap(), (records, mark, last + 1), "{what}");
    });
    assert!(old > 0 && new > 0);
}

#[test]
fn a_kill_at_any_moment_leaves_the_old_or_the_new() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("touched");
    let (whole, _) = three(&path);
    kill_everywhere(&whole, &|journal, _| journal.append(5, 70..75).unwrap());
    kill_everywhere(&whole, &|journal, _| journal.append(5, 100..65_646).unwrap());
    kill_everywhere(&whole, &|journal, _| journal.clear().unwrap());
    // Behind what was left of an append that nobody acknowledged.
    let torn = [&whole[..], &encode(5, 200..220)[..90]].concat();
    kill_everywhere(&torn, &|journal, _| journal.append(5, 70..75).unwrap());
    kill_everywhere(&torn, &|journal, _| journal.clear().unwrap());
    // With a seal that a power cut tore.
    for slot in [0, 1] {
        let mut bytes = whole.clone();
        bytes[seal::place(slot) as usize + 3] ^= 1;
        kill_everywhere(&bytes, &|journal, _| journal.append(5, 70..75).unwrap());
        kill_everywhere(&bytes, &|journal, _| journal.clear().unwrap());
    }
}

#[test]
fn a_kill_after_a_failed_write_leaves_what_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("touched");
    let (whole, before) = three(&path);
    for fails in 0..4 {
        fs::write(&path, &whole).unwrap();
        let (mut journal, _) = open(&path).unwrap();
        *journal.file.until_failure.lock().unwrap() = Some(fails);
        let error = journal.append(5, 70..75).unwrap_err().to_string();
        assert!(error.contains("that the test asked for"), "step {fails}: {error}");
        journal.append(5, 80..83).unwrap();
        let steps = journal.file.steps.lock().unwrap().clone();
        drop(journal);
        let with = |keys: std::ops::Range<u64>| {
            let mut records = before.0.clone();
            records.push((5, keys.collect()));
            (records, 1, 5)
        };
        assert_eq!(said(&path).unwrap(), with(80..83), "step {fails}");
        left_by(&whole, &steps, &mut |bytes, what| {
            fs::write(&path, bytes).unwrap();
            let found = said(&path).unwrap_or_else(|error| panic!("step {fails} failed; {what}: {error}"));
            let may_be = [before.clone(), with(70..75), with(80..83)];
            assert!(may_be.contains(&found), "step {fails} failed; {what}: {found:?}");
        });
    }
}

#[test]
fn keys_come_back_and_what_was_not_acknowledged_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("touched");
    let (mut journal, found) = open(&path).unwrap();
    assert!(found.is_empty());
    journal.append(1, 0..100_000).unwrap();
    journal.append(2, std::iter::once(u64::MAX)).unwrap();
    drop(journal);
    let all: Vec<u64> = (0..100_000).chain([u64::MAX]).collect();
    assert_eq!(keys(open(&path).unwrap().1), all);
    let whole = fs::read(&path).unwrap();
    for left in [&b"anything"[..], &encode(3, 0..10), &encode(3, 0..10)[..60]] {
        fs::write(&path, [&whole[..], left].concat()).unwrap();
        let (mut journal, found) = open(&path).unwrap();
        assert_eq!((keys(found), journal.last()), (all.clone(), 2));
        journal.append(3, [7, 8].into_iter()).unwrap();
        drop(journal);
        assert_eq!(keys(open(&path).unwrap().1), [&all[..], &[7, 8]].concat());
    }
}

#[test]
fn a_journal_without_seals_is_read_and_gets_seals_when_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("touched");
    let whole = of_version_2(0);
    let says: Said = ((1..=3).map(|pass| (pass, (10 * pass..10 * pass + 10).collect())).collect(), 0, 3);
    fs::write(&path, &whole).unwrap();
    assert_eq!(said(&path).unwrap(), says);
    assert_eq!(fs::read(&path).unwrap(), whole, "who only reads it changes nothing");
    assert!(Journal::open(&path, "users", STORE).unwrap_err().to_string().contains("another table"));
    // An unsealed journal does not say where it ends: its last record may have been torn. The records before it are wanted.
    let last = whole.len() - (RECORD + 80);
    for at in (unsealed::HEAD..whole.len()).step_by(3) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        fs::write(&path, &bytes).unwrap();
        match said(&path) {
            Ok((records, ..)) => assert!(at >= last && records == says.0[..2], "byte {at}"),
            Err(error) => assert!(at < last && error.to_string().contains("in its middle"), "byte {at}: {error}"),
        }
    }
    for cut in [9, unsealed::HEAD - 1] {
        fs::write(&path, &whole[..cut]).unwrap();
        assert!(said(&path).unwrap_err().to_string().contains("it is cut off"), "{cut} bytes");
    }
    fs::write(&path, whole.iter().enumerate().map(|(at, &it)| it ^ u8::from(at == unsealed::MARK)).collect::<Vec<_>>())
        .unwrap();
    assert!(said(&path).unwrap_err().to_string().contains("head is damaged"));
    // Written by way of a link: the link stays, and so do the permissions.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for clears in [false, true] {
        fs::write(&path, of_version_2(5)).unwrap();
        let (mut journal, _) = open(&link).unwrap();
        let permissions = path.metadata().unwrap().permissions();
        match clears {
            true => journal.clear().unwrap(),
            false => journal.append(9, [7].into_iter()).unwrap(),
        }
        assert_eq!(journal.since(8).unwrap(), if clears { vec![] } else { vec![7] });
        drop(journal);
        let mut records: Vec<(u64, Vec<u64>)> = says.0.iter().map(|(pass, keys)| (pass + 5, keys.clone())).collect();
        records.push((9, vec![7]));
        assert_eq!(said(&path).unwrap(), if clears { (vec![], 8, 8) } else { (records, 5, 9) });
        assert!(link.is_symlink() && path.metadata().unwrap().permissions() == permissions);
        assert!(Journal::open(&path, "items", Uuid::nil()).is_err(), "it has its store now");
    }
}

#[test]
fn what_did_not_come_about_is_left_out_and_strange_keys_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("touched");
    let (mut journal, _) = open(&path).unwrap();
    journal.append(1, 0..10).unwrap();
    // Pass 2 created 100 and more, and failed; pass 3 with it.
    journal.append(2, (5..8).chain(100..70_100)).unwrap();
    journal.append(3, (8..9).chain(100..70_200)).unwrap();
    drop(journal);
    let whole = fs::read(&path).unwrap();
    let absent: HashSet<u64> = (100..70_200).collect();
    let (mut journal, found) = open(&path).unwrap();
    let kept = journal.without(found, &absent).unwrap();
    assert_eq!(keys(kept), (0..10).collect::<Vec<_>>());
    assert_eq!(fs::read(&path).unwrap(), whole, "who only reads it changes nothing");
    journal.append(4, [7].into_iter()).unwrap();
    assert_eq!((journal.since(1).unwrap(), journal.last()), (vec![7], 4));
    let steps = journal.file.steps.lock().unwrap().clone();
    drop(journal);
    assert_eq!(keys(open(&path).unwrap().1), (0..10).chain([7]).collect::<Vec<_>>());
    // Killed meanwhile: what was there, without what did not come about, or with the new pass.
    left_by(&whole, &steps, &mut |bytes, what| {
        fs::write(&path, bytes).unwrap();
        let (mut journal, found) = open(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
        let last = journal.last();
        let kept = keys(journal.without(found, &absent).unwrap());
        let expected: Vec<u64> = (0..10).chain((last == 4).then_some(7)).collect();
        assert_eq!(kept, expected, "{what}");
    });

    // A key that a later pass does not name was there once.
    fs::write(&path, &whole).unwrap();
    let (mut journal, found) = open(&path).unwrap();
    let strange = HashSet::from([3, 100]);
    let refused = journal.without(found, &strange).unwrap_err().to_string();
    assert!(refused.contains("2 of its keys are not in the table, such as 3"), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), whole);
}

#[test]
fn passes_keep_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("touched");
    let (mut journal, _) = open(&path).unwrap();
    for pass in 1..=3 {
        journal.append(pass, [pass, 10 * pass].into_iter()).unwrap();
    }
    assert_eq!([0, 1, 2, 3].map(|pass| journal.since(pass).unwrap().len()), [6, 4, 2, 0]);
    assert_eq!(journal.since(2).unwrap(), [3, 30]);
    journal.append(4, [4].into_iter()).unwrap();
    drop(journal);
    let (mut journal, found) = open(&path).unwrap();
    assert_eq!((journal.mark(), journal.last(), found.len()), (0, 4, 4));
    assert_eq!(journal.since(2).unwrap(), [3, 30, 4]);
    journal.clear().unwrap();
    journal.append(5, [9].into_iter()).unwrap();
    drop(journal);
    let (journal, found) = open(&path).unwrap();
    assert_eq!((journal.mark(), journal.last(), keys(found)), (4, 5, vec![9]));
    // There is no number behind the last.
    drop(journal);
    let (mut journal, _) = open(&path).unwrap();
    journal.append(u64::MAX, [9].into_iter()).unwrap();
    drop(journal);
    assert!(open(&path).unwrap_err().to_string().contains("the last number that there is"));
}
