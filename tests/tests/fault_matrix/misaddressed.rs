//! Faults that take two commands.

use anyhow::{Result, ensure};
use warprow_driver::prp::Data;
use warprow_driver::{CommandEnd, Completion};
use warprow_layout::row_crc;
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::NvmOpcode;

use crate::fixture::{BLOCK, Fixture, pattern};

/// The completion of one read names another that is outstanding: the driver takes that one to be done. The row's checksum
/// tells.
#[test]
fn a_completion_for_another_outstanding_command() -> Result<()> {
    let mut fixture = Fixture::opened()?;
    let controller = fixture.controller()?.clone();
    let namespace = fixture.io()?.namespace().clone();
    let mut pair = controller.queue_pair(&Fixture::queue_options())?;
    let memory = controller.allocate(2 * BLOCK)?;
    pair.keep(memory.clone());
    memory.memory().fill(0, 2 * BLOCK, 0xee);
    let data = |i: u64| Data::Contiguous { iova: memory.iova() + i * BLOCK as u64, len: BLOCK as u64 };
    let other = pair.read(&namespace, 20, 1, data(0), 20)?;
    pair.read(&namespace, 21, 1, data(1), 21)?;
    // The first is held back for ever, the second completes in its name.
    fixture.drive.faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).lbas(20..21));
    fixture.drive.faults().inject(Rule::new(Fault::WrongCid(other)).io(NvmOpcode::READ).lbas(21..22));
    let mut ended: Vec<Completion> = Vec::new();
    while pair.outstanding() != 0 {
        pair.wait(|completion| ended.push(completion))?;
    }
    ensure!(ended.len() == 2 && ended[0].tag == 20 && ended[0].is_success(), "{ended:?}");
    ensure!(ended[1].tag == 21 && ended[1].ended == CommandEnd::TimedOut, "{ended:?}");

    let mut row = [0; BLOCK];
    memory.memory().read(0, &mut row);
    ensure!(row[..] != pattern(1, 20)[..], "the drive never carried this read out");
    ensure!(row_crc(20, &row) != row_crc(20, &pattern(1, 20)), "a checksum tells");

    // The queue is brought back, and reads are right again.
    let mut released = 0;
    pair.recreate(|completion| released += u32::from(completion.ended == CommandEnd::Released))?;
    ensure!(released == 1 && pair.quarantined() == 0);
    pair.read(&namespace, 20, 1, data(0), 20)?;
    pair.wait(|_| {})?;
    memory.memory().read(0, &mut row);
    ensure!(row[..] == pattern(1, 20)[..]);
    fixture.verify()
}

/// While a timed-out read's memory is in quarantine, other commands of the queue go on with other memory; the late data lands
/// in quarantine alone, and the quarantine outlasts the late answer.
#[test]
fn a_queue_works_on_beside_its_quarantine() -> Result<()> {
    let mut fixture = Fixture::opened()?;
    let controller = fixture.controller()?.clone();
    let namespace = fixture.io()?.namespace().clone();
    let mut pair = controller.queue_pair(&Fixture::queue_options())?;
    let memory = controller.allocate(64 * BLOCK)?;
    pair.keep(memory.clone());
    memory.memory().fill(0, 64 * BLOCK, 0xee);
    let data = |i: u64| Data::Contiguous { iova: memory.iova() + i * BLOCK as u64, len: BLOCK as u64 };
    fixture.drive.faults().inject(Rule::new(Fault::Delay(crate::fixture::LATE)).io(NvmOpcode::READ));
    let late = pair.read(&namespace, 0, 1, data(0), 0)?;
    let mut ended = Vec::new();
    pair.wait(|completion| ended.push(completion))?;
    ensure!(matches!(ended[..], [Completion { tag: 0, ended: CommandEnd::TimedOut, .. }]), "{ended:?}");

    let mut row = [0; BLOCK];
    let depth = pair.depth();
    for round in 0..3 {
        // As many as there is credit for, which is one less than without the quarantine.
        let lbas: Vec<u64> = (1..64).skip(round * 14).take(depth - 1).collect();
        for &lba in &lbas {
            ensure!(pair.read(&namespace, lba, 1, data(lba), lba)? != late, "a CID in quarantine was given out");
        }
        ensure!(!pair.has_room());
        while pair.outstanding() != 0 {
            pair.wait(|completion| ended.push(completion))?;
        }
        for &lba in &lbas {
            memory.memory().read(lba as usize * BLOCK, &mut row);
            ensure!(row[..] == pattern(1, lba as usize)[..], "round {round}: block {lba}");
        }
        if round == 0 {
            memory.memory().read(0, &mut row);
            ensure!(row == [0xee; BLOCK], "the late read has landed already");
            fixture.outlast();
        }
    }
    ensure!(pair.anomalies().late == 1 && pair.anomalies().total() == 1, "{:?}", pair.anomalies());
    memory.memory().read(0, &mut row);
    ensure!(row[..] == pattern(1, 0)[..], "the late read has landed by now");
    ensure!(pair.quarantined() == 1, "an answer alone does not end a quarantine");
    pair.recreate(|completion| ended.push(completion))?;
    ensure!(
        ended.last().is_some_and(|last| last.ended == CommandEnd::Released && last.tag == 0) && pair.quarantined() == 0
    );
    fixture.verify()
}
