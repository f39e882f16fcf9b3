//! Makes read commands of rows.

use super::merge_rule::MergeRule;
use super::route::RowRead;

/// A read command, and the rows that it brings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadCommand {
    /// First LBA.
    pub lba: u64,
    /// The number of LBAs.
    pub lbas: u32,
    /// The drive's index.
    pub drive: u16,
    /// The index of the command's first row, in the order of address.
    pub first: u32,
    /// How many rows the command brings.
    pub rows: u32,
}

/// Makes commands of `reads`, which are in order of address. Rows of one LBA share a command. Whether other rows of a
/// drive share one is for the drive's rule in `merge_rules` to say; for a drive without a rule there, they do not.
/// `lbas` tells how many LBAs a row takes. Returns how many commands were written to `commands`, which must be at least
/// as long as `reads`.
pub fn merge(
    reads: &[RowRead],
    lbas: impl Fn(&RowRead) -> u32,
    merge_rules: &[MergeRule],
    commands: &mut [ReadCommand],
) -> usize {
    let mut count = 0;
    let mut current = ReadCommand::default();
    let mut joining = None;
    for (index, read) in reads.iter().enumerate() {
        let drive = read.drive();
        let lba = read.lba();
        let lbas = lbas(read);
        let end = current.lba + u64::from(current.lbas);
        let joined = (lba + u64::from(lbas)).max(end) - current.lba;
        let joins = index != 0 && drive == current.drive && {
            let joining: Option<&MergeRule> = joining;
            joining.map_or(lba < end, |rule| rule.takes_in(current.lbas, lbas, joined))
        };
        if joins {
            current.lbas = joined as u32;
            current.rows += 1;
        } else {
            if index == 0 || drive != current.drive {
                joining = merge_rules.get(usize::from(drive));
            }
            current = ReadCommand { lba, lbas, drive, first: index as u32, rows: 1 };
            count += 1;
        }
        if let Some(command) = commands.get_mut(count - 1) {
            *command = current;
        }
    }
    count
}

/// The parts in which a command can be read again after a bad block, so that as few rows as possible fail: the smallest
/// pieces such that no row lies in two of them, without the LBAs between pieces. `reads` are the rows that commands
/// were made of.
pub fn split(command: &ReadCommand, reads: &[RowRead], lbas: impl Fn(&RowRead) -> u32) -> Vec<ReadCommand> {
    let rows = reads.get(command.first as usize..).and_then(|reads| reads.get(..command.rows as usize));
    let rows = rows.unwrap_or_default();
    let mut parts = vec![ReadCommand::default(); rows.len()];
    let count = merge(rows, lbas, &[], &mut parts);
    parts.truncate(count);
    parts.iter_mut().for_each(|part| part.first += command.first);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use warprow_store::ReadCurve;

    /// Drive, first LBA, LBAs; in order.
    type Row = (u16, u64, u32);

    fn rows() -> impl Strategy<Value = Vec<Row>> {
        let row = (0u16..3, 0u64..300, 1u32..3);
        proptest::collection::vec(row, 0..200).prop_map(|rows| {
            // Rows of two LBAs begin at even ones, as in a table of their own.
            let place = |(drive, lba, lbas)| (drive, if lbas == 2 { 1000 + lba * 2 } else { lba }, lbas);
            let mut rows: Vec<Row> = rows.into_iter().map(place).collect();
            rows.sort();
            rows
        })
    }

    fn curve() -> impl Strategy<Value = ReadCurve> {
        prop_oneof![
            (1e5f64..1e7, 1e8f64..2e10).prop_map(|(reads, bytes)| ReadCurve::of_limits(reads, bytes).unwrap()),
            // Any that is one, drives' or not.
            proptest::collection::vec((1u32..4000, 0u64..2_000_000), 1..6).prop_map(|steps| {
                let mut bytes = 0;
                let mut cost = 100_000;
                let points: Vec<(u32, f64)> = steps
                    .into_iter()
                    .map(|(more, dearer)| {
                        (bytes, cost) = (bytes + more, cost + dearer);
                        (bytes, 1e12 / cost as f64)
                    })
                    .collect();
                ReadCurve::new(&points).unwrap()
            }),
        ]
    }

    fn reads(rows: &[Row]) -> Vec<RowRead> {
        let read =
            |(unique, row): (u32, &Row)| RowRead { at: u64::from(row.0) << RowRead::LBA_BITS | row.1, unique, byte: 0 };
        (0..).zip(rows).map(read).collect()
    }

    fn merged(rows: &[Row], merge_rules: &[MergeRule]) -> Vec<ReadCommand> {
        let reads = reads(rows);
        let mut commands = vec![ReadCommand::default(); reads.len()];
        let count = merge(&reads, |read| rows[read.unique as usize].2, merge_rules, &mut commands);
        commands.truncate(count);
        commands
    }

    /// Checks that commands have every row once, in order, whole, and from where they say; and nothing before or
    /// behind.
    fn check_cover(rows: &[Row], commands: &[ReadCommand]) {
        let mut next = 0;
        for command in commands {
            assert!(command.rows > 0);
            assert_eq!(command.first, next);
            next += command.rows;
            let mine = &rows[command.first as usize..next as usize];
            assert!(mine.iter().all(|row| row.0 == command.drive));
            assert_eq!(command.lba, mine[0].1);
            let end = mine.iter().map(|row| row.1 + u64::from(row.2)).max().unwrap();
            assert_eq!(command.lba + u64::from(command.lbas), end);
        }
        assert_eq!(next as usize, rows.len());
    }

    fn wanted(rows: &[Row]) -> Vec<u64> {
        let mut lbas: Vec<u64> = rows.iter().flat_map(|row| row.1..row.1 + u64::from(row.2)).collect();
        lbas.sort();
        lbas.dedup();
        lbas
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn neighbours_become_one_and_nothing_else_is_read(rows in rows(), max_lbas in 2u32..20) {
            let commands = merged(&rows, &vec![MergeRule::neighbours(max_lbas); 3]);
            check_cover(&rows, &commands);
            for command in &commands {
                prop_assert!(command.lbas <= max_lbas);
                let mine = &rows[command.first as usize..][..command.rows as usize];
                let read: Vec<u64> = (command.lba..command.lba + u64::from(command.lbas)).collect();
                prop_assert_eq!(read, wanted(mine));
            }
            // Whatever could be one command is one.
            for pair in commands.windows(2) {
                let ([a, b], row) = ([pair[0], pair[1]], rows[pair[1].first as usize]);
                let end = a.lba + u64::from(a.lbas);
                let joined = (row.1 + u64::from(row.2)).max(end) - a.lba;
                prop_assert!(a.drive != b.drive || b.lba > end || joined > u64::from(max_lbas));
            }
        }

        #[test]
        fn a_curve_never_costs_more(
            rows in rows(), curves in proptest::collection::vec(curve(), 3), max_lbas in 2u32..40,
        ) {
            let cost = |commands: &[ReadCommand]| -> u64 {
                commands.iter().map(|command| curves[usize::from(command.drive)].cost(u64::from(command.lbas) * 512)).sum()
            };
            let merge_rules: Vec<MergeRule> = curves.iter().map(|curve| MergeRule::by_curve(curve, 512, max_lbas)).collect();
            let apart = merged(&rows, &[]);
            let by_curve = merged(&rows, &merge_rules);
            check_cover(&rows, &apart);
            check_cover(&rows, &by_curve);
            prop_assert!(by_curve.iter().all(|command| command.lbas <= max_lbas));
            prop_assert!(cost(&by_curve) <= cost(&apart), "{} {}", cost(&by_curve), cost(&apart));
            prop_assert!(by_curve.len() <= apart.len());
            // Nothing is left that would be cheaper as one.
            for pair in by_curve.windows(2) {
                let a = pair[0];
                let row = rows[pair[1].first as usize];
                let joined = row.1 + u64::from(row.2) - a.lba.min(row.1);
                if a.drive == row.0 && joined <= u64::from(max_lbas) {
                    let cost = |lbas| curves[usize::from(a.drive)].cost(lbas * 512);
                    prop_assert!(cost(joined) >= cost(a.lbas.into()) + cost(row.2.into()));
                }
            }
        }

        #[test]
        fn parts_of_commands_are_those_that_were_never_joined(
            rows in rows(), curve in curve(), max_lbas in 2u32..40,
        ) {
            let merge_rules = vec![MergeRule::by_curve(&curve, 512, max_lbas); 3];
            let reads = reads(&rows);
            let lbas = |read: &RowRead| rows[read.unique as usize].2;
            let parts: Vec<ReadCommand> =
                merged(&rows, &merge_rules).iter().flat_map(|command| split(command, &reads, lbas)).collect();
            check_cover(&rows, &parts);
            prop_assert_eq!(&parts, &merged(&rows, &[]));
            for part in &parts {
                prop_assert_eq!(split(part, &reads, lbas), vec![*part], "a part has no parts");
                let mine = &rows[part.first as usize..][..part.rows as usize];
                prop_assert_eq!(wanted(mine).len(), part.lbas as usize, "nothing is read for nothing");
            }
        }
    }
}
