//! Every fault × every command the driver sends × the error that is due. A cell holds when the error is the one in the table,
//! when what the table says to do then makes the next read right, by content, and when the command itself works again.

mod ladder;
mod lifetime;
mod lookups;
mod misaddressed;
mod render;
mod rig;
mod send;
mod table;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use warprow_dma::Clock;
use warprow_driver::{DriverError, ResetKind};

use rig::Rig;
use send::{Went, events_arrive, send, works};
use table::{Command, Mishap, TABLE, Then, Told};

fn cell(command: Command, mishap: Mishap, told: Told, then: Then) -> Result<()> {
    let mut rig = if command.opens() { Rig::closed()? } else { Rig::opened()? };
    let rule = rig.drive.faults().inject(command.rule(mishap.fault(command)));
    let began = rig.clock.now();
    let went = send(&mut rig, command, 2)?;
    let took = rig.clock.now() - began;
    if matches!(told, Told::Fatal | Told::Gone) {
        // Looked for every 100 ms by every command that waits, up to three here.
        ensure!(took < Duration::from_millis(400), "noticed after {took:?}");
    }
    ensure!(rig.drive.faults().fired(rule) == 1, "the fault did not happen");
    check(&mut rig, command, mishap, told, went)?;

    if mishap == Mishap::LateBefore {
        rig.outlast();
    }
    if told == Told::TimedOut && then == Then::Recreate {
        let refused = rig.io()?.read(0, &mut [0; rig::BLOCK]);
        ensure!(matches!(refused, Err(DriverError::Stuck { .. })), "memory in quarantine was used: {refused:?}");
    }
    recover(&mut rig, then).context("recovery")?;
    if told == Told::WrongData && command != Command::Read {
        // The damage stays until it is overwritten.
        ensure!(rig.verify().is_err(), "the data is not damaged");
    } else {
        rig.verify().context("the next read")?;
    }
    works(&mut rig, 3)?;
    if mishap == Mishap::LateAfter {
        rig.outlast();
    }
    rig.verify().context("after new writes")?;
    match send(&mut rig, command, 4)? {
        Went::Well => {}
        Went::Wrong => bail!("sent again, it moved wrong data"),
        Went::Failed(error) => bail!("sent again: {error}"),
    }
    rig.verify().context("after it was sent again")?;
    if command == Command::AsyncEventRequest {
        events_arrive(&rig)?;
    }
    works(&mut rig, 5)?;
    rig.verify().context("at the end")
}

fn check(rig: &mut Rig, command: Command, mishap: Mishap, told: Told, went: Went) -> Result<()> {
    let right = match (told, &went) {
        (Told::Done, Went::Well) => true,
        (Told::WrongData, Went::Wrong) => true,
        // What was written is only seen to be wrong when it is read.
        (Told::WrongData, Went::Well) => command != Command::Read,
        (Told::Status, Went::Failed(DriverError::Command { command: name, status, .. })) => {
            name.issued.opcode == command.opcode() && Some(status.code()) == mishap.status(command)
        }
        (Told::TimedOut, Went::Failed(DriverError::TimedOut { command: name, waited, csts, .. })) => {
            name.issued.opcode == command.opcode() && *waited >= rig::PATIENCE && csts.rdy()
        }
        (Told::Fatal, Went::Failed(DriverError::Fatal { csts, .. })) => csts.cfs(),
        (Told::Gone, Went::Failed(DriverError::Gone { .. })) => true,
        _ => false,
    };
    ensure!(
        right,
        "{told:?} is due, and it {}",
        match went {
            Went::Well => "went well".to_owned(),
            Went::Wrong => "moved wrong data".to_owned(),
            Went::Failed(error) => format!("failed: {error} ({error:?})"),
        }
    );
    if command == Command::AsyncEventRequest && told == Told::Done {
        // It opened all the same.
        rig.verify()?;
    }
    Ok(())
}

fn recover(rig: &mut Rig, then: Then) -> Result<()> {
    match then {
        Then::Nothing => {}
        Then::Again if rig.controller.is_none() => rig.open()?,
        Then::Again | Then::Recreate => rig.io()?.recover()?,
        Then::Reset => {
            rig.io()?.leave();
            rig.controller()?.reset(ResetKind::Controller)?;
            rig.io()?.recover()?;
        }
        Then::Replug => {
            rig.replug()?;
            rig.open()?;
        }
    }
    Ok(rig.describe_again()?)
}

#[test]
fn every_cell_holds() {
    let mut wrong = Vec::new();
    let mut held = 0;
    for (command, cells) in TABLE {
        for (mishap, (told, then)) in Mishap::ALL.into_iter().zip(cells) {
            if told == Told::Never {
                continue;
            }
            match cell(command, mishap, told, then) {
                Ok(()) => held += 1,
                Err(error) => wrong.push(format!("{command}, {}: {error:#}", mishap.title())),
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} cells:\n{}", wrong.len(), held + wrong.len(), wrong.join("\n"));
    assert!(held > 200, "{held} cells");
}

#[test]
fn the_documentation_has_this_table() {
    render::compare(&render::page());
}
