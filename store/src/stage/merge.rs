//! Rows to commands.

use super::route::RowRead;

/// A read command, and the rows that it brings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Command {
    /// First LBA.
    pub lba: u64,
    /// LBAs.
    pub lbas: u32,
    /// The drive's index.
    pub drive: u16,
    /// The first of its rows, in the order of address.
    pub first: u32,
    /// How many rows.
    pub rows: u32,
}

/// Makes commands of `reads`, which are in order of address: rows of one LBA share a command, and so do neighbouring LBAs
/// (nothing between them is read for nothing) up to `max_lbas`. `lbas` tells how many LBAs a row takes.
/// Returns how many commands there are in `commands`, which is as long as `reads` at least.
pub fn merge(reads: &[RowRead], lbas: impl Fn(&RowRead) -> u32, max_lbas: u32, commands: &mut [Command]) -> usize {
    let mut count = 0;
    let mut current = Command::default();
    for (index, read) in reads.iter().enumerate() {
        let (drive, lba, lbas) = (read.drive(), read.lba(), lbas(read));
        let end = current.lba + u64::from(current.lbas);
        let joined = (lba + u64::from(lbas)).max(end) - current.lba;
        if index != 0 && drive == current.drive && lba <= end && joined <= u64::from(max_lbas) {
            current.lbas = joined as u32;
            current.rows += 1;
        } else {
            current = Command { lba, lbas, drive, first: index as u32, rows: 1 };
            count += 1;
        }
        if let Some(command) = commands.get_mut(count - 1) {
            *command = current;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn covers_every_row_and_reads_nothing_else(
            rows in proptest::collection::vec((0u16..3, 0u64..300, 1u32..3), 0..200),
            max_lbas in 2u32..20,
        ) {
            // Rows of two LBAs begin at even ones, as in a table of their own.
            let mut rows: Vec<_> = rows
                .into_iter()
                .map(|(drive, lba, lbas)| (drive, if lbas == 2 { 1000 + lba * 2 } else { lba }, lbas))
                .collect();
            rows.sort();
            let reads: Vec<RowRead> = (0..)
                .zip(&rows)
                .map(|(unique, row)| RowRead { at: u64::from(row.0) << RowRead::LBA_BITS | row.1, unique, byte: 0 })
                .collect();
            let mut commands = vec![Command::default(); reads.len()];
            let count = merge(&reads, |read| rows[read.unique as usize].2, max_lbas, &mut commands);
            commands.truncate(count);

            let mut next = 0;
            for command in &commands {
                prop_assert!(command.rows > 0 && command.lbas <= max_lbas);
                prop_assert_eq!(command.first, next);
                next += command.rows;
                let mine = &rows[command.first as usize..next as usize];
                let mut wanted: Vec<u64> = mine.iter().flat_map(|row| row.1..row.1 + u64::from(row.2)).collect();
                wanted.sort();
                wanted.dedup();
                let read: Vec<u64> = (command.lba..command.lba + u64::from(command.lbas)).collect();
                prop_assert!(mine.iter().all(|row| row.0 == command.drive));
                prop_assert_eq!(read, wanted);
            }
            prop_assert_eq!(next as usize, rows.len());
            // Whatever could be one command is one.
            for pair in commands.windows(2) {
                let ([a, b], row) = ([pair[0], pair[1]], rows[pair[1].first as usize]);
                let end = a.lba + u64::from(a.lbas);
                let joined = (row.1 + u64::from(row.2)).max(end) - a.lba;
                prop_assert!(a.drive != b.drive || b.lba > end || joined > u64::from(max_lbas));
            }
        }
    }
}
