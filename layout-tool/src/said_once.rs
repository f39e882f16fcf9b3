//! Errors of the library end in a remedy for programs. Where the command has one for its users, that one alone is given.

/// Remedies that errors of the library have in their texts, each with what separates it.
const REMEDIES: [&str; 23] = [
    "; give a PCI address (0000:41:00.0), emulated:PATH, vfio-user:SOCKET or attached:FILE",
    ": give it once",
    "; ask for less",
    ": load it with them, or do without the check",
    ": switch to another first",
    ": compact it first",
    ": compact it and have hosts prepare and adopt it, or open the store with more",
    ": choose another name, or replace it",
    ": ask for fewer slots",
    "; drop one, or use fewer",
    "; load the table again",
    ": load again",
    ": look after the drive, then read again",
    "; open the store with it",
    ": give a power of two from 1 MiB to 64 MiB",
    ": give larger chunks or a smaller catalogue",
    ": format it, or look whether it is the right drive",
    ": give these drives too, or open it degraded (read-only)",
    ": switch to another one first",
    ": compact it",
    ": leave it out, or format it",
    ". Release it first, or choose another drive",
    "; leave gpu= out: the file is the same drive without it",
];
/// How remedies begin that go on to the end of a text.
const TO_THE_END: [&str; 1] = ["; start the server first, as with: "];

/// `message` without the library's remedy, where the command's own is not empty. What follows it, such as the cause, stays.
pub fn without_remedy(mut message: String, remedy: &str) -> String {
    if remedy.is_empty() {
        return message;
    }
    TO_THE_END.iter().filter_map(|text| message.find(text)).min().into_iter().for_each(|at| message.truncate(at));
    let found = REMEDIES.iter().filter_map(|text| Some((message.find(text)?, text.len())));
    // It ends there, or a cause or another part follows: it is not the beginning of a longer one.
    let whole = |&(at, len): &(usize, usize)| {
        message.get(at + len..).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', ';', ',']))
    };
    if let Some((at, len)) = found.filter(whole).max_by_key(|(_, len)| *len) {
        message.replace_range(at..at + len, "");
    }
    message
}

#[cfg(test)]
mod tests {
    use warprow_layout::{OpenError, VolumeError};
    use warprow_lookup::{LookupError, LookupReport, RowError};
    use warprow_store::StoreError;

    use crate::failure::Failure;
    use crate::store_failure::of_lookup;

    fn table() -> String {
        "t".to_owned()
    }

    #[test]
    fn each_message_ends_before_the_remedy_of_the_library() {
        let drive = || "d".to_owned();
        for (error, message) in [
            (StoreError::Address { address: drive(), reason: "no".into() }, "\"d\" is no drive: no"),
            (StoreError::OpenedTwice { drive: drive() }, "drive d is given twice"),
            (
                StoreError::Allocate { what: "rows", bytes: 7, source: std::io::Error::other("full") },
                "cannot allocate 7 bytes for rows: full",
            ),
            (
                StoreError::KeysNotStored { table: table() },
                "table \"t\" does not store its keys, so none can be compared",
            ),
            (StoreError::Shown { id: 3, tables: vec![table()] }, "generation 3 has tables that look-ups find (t)"),
            (
                StoreError::CreatedKeys { generation: 3 },
                "keys of a table of generation 3 were created or removed since it was written",
            ),
            (
                StoreError::OverlayFull { generation: 3, bytes: 9, bound: 8 },
                "the updated rows of generation 3 would take 9 bytes of memory, 8 are allowed",
            ),
            (StoreError::TableExists { table: table() }, "table \"t\" exists"),
            (
                StoreError::Queues { drive: drive(), slots: 2, queue_pairs: 3, free: 1 },
                "drive d has 1 queue pairs free, 2 slots of 3 each need 6",
            ),
            (
                StoreError::RowDamaged { table: table(), rank: 4, drive: drive() },
                "table \"t\", rank 4: the row that drive d returned does not match its checksum",
            ),
            (
                StoreError::LoadReset { drive: drive() },
                "the load was interrupted by a reset of drive d; nothing of it was committed",
            ),
            (StoreError::ReadReset { drive: drive() }, "reading was interrupted by several resets of drive d"),
            (OpenError::NotWarprow { drive: drive() }.into(), "drive d carries no Warprow store"),
            (
                VolumeError::LogFull { generation: 3, chunks: 2 }.into(),
                "the log of generation 3 has 2 chunks, as many as it can",
            ),
        ] {
            let failure = Failure::from(error);
            assert_eq!(failure.message, message);
            assert!(!failure.remedy.is_empty(), "{failure}");
        }
        let source = RowError::MemberMissing { drives: vec![drive()] };
        let lost = LookupError::RowsFailed { report: Box::new(LookupReport::default()), positions: vec![1], source };
        let failure = of_lookup(&lost, "t");
        assert!(failure.message.ends_with("the row lies on a drive that is missing: d"), "{failure}");
    }

    #[test]
    fn what_only_begins_like_a_remedy_stays() {
        let text = "the log: compact it and see".to_owned();
        assert_eq!(super::without_remedy(text.clone(), "do"), text);
        let text = "table \"t\" exists: choose another name, or replace it".to_owned();
        assert_eq!(super::without_remedy(text.clone(), ""), text);
        let text = "a name: compact it".to_owned();
        assert_eq!(super::without_remedy(text, "do"), "a name");
    }
}
