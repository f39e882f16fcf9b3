//! Every fault × every command the driver sends × the error that is due. A cell holds when the error is the one in the table,
//! when what the table says to do then makes the next read right, by content, and when the command itself works again.

mod fixture;
mod ladder;
mod lifetime;
mod lookups;
mod misaddressed;
mod render;
mod send;
mod table;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use warprow_dma::Clock;
use warprow_driver::{DriverError, ResetKind};

use fixture::Fixture;
use send::{Went, events_arrive, send, works};
use table::{Command, Mishap, TABLE, Then, Told};

fn cell(command: Command, mishap: Mishap, told: Told, then: Then) -> Result<()> {
    let mut fixture = if command.opens() { Fixture::closed()? } else { Fixture::opened()? };
    let rule = fixture.drive.faults().inject(command.rule(mishap.fault(command)));
    let began = fixture.clock.now();
    let went = send(&mut fixture, command, 2)?;
    let took = fixture.clock.now() - began;
    if matches!(told, Told::Fatal | Told::Gone) {
        // Looked for every 100 ms by every command that waits, up to three here.
        ensure!(took < Duration::from_millis(400), "noticed after {took:?}");
    }
    ensure!(fixture.drive.faults().fired(rule) == 1, "the fault did not happen");
    check(&mut fixture, command, mishap, told, went)?;

    if mishap == Mishap::LateBefore {
        fixture.outlast();
    }
    if told == Told::TimedOut && then == Then::Recreate {
        let refused = fixture.io()?.read(0, &mut [0; fixture::BLOCK]);
        ensure!(matches!(refused, Err(DriverError::Stuck { .. })), "memory in quarantine was used: {refused:?}");
    }
    recover(&mut fixture, then).context("recovery")?;
    if told == Told::WrongData && command != Command::Read {
        // The damage stays until it is overwritten.
        ensure!(fixture.verify().is_err(), "the data is not damaged");
    } else {
        fixture.verify().context("the next read")?;
    }
    works(&mut fixture, 3)?;
    if mishap == Mishap::LateAfter {
        fixture.outlast();
    }
    fixture.verify().context("after new writes")?;
    match send(&mut fixture, command, 4)? {
        Went::Well => {}
        Went::Wrong => bail!("sent again, it moved wrong data"),
        Went::Failed(error) => bail!("sent again: {error}"),
    }
    fixture.verify().context("after it was sent again")?;
    if command == Command::AsyncEventRequest {
        events_arrive(&fixture)?;
    }
    works(&mut fixture, 5)?;
    fixture.verify().context("at the end")
}

fn check(fixture: &mut Fixture, command: Command, mishap: Mishap, told: Told, went: Went) -> Result<()> {
    let right = match (told, &went) {
        (Told::Done, Went::Well) => true,
        (Told::WrongData, Went::Wrong) => true,
        // What was written is only seen to be wrong when it is read.
        (Told::WrongData, Went::Well) => command != Command::Read,
        (Told::Status, Went::Failed(DriverError::Command { command: name, status, .. })) => {
            name.issued.opcode == command.opcode() && Some(status.code()) == mishap.status(command)
        }
        (Told::TimedOut, Went::Failed(DriverError::TimedOut { command: name, waited, csts, .. })) => {
            name.issued.opcode == command.opcode() && *waited >= fixture::PATIENCE && csts.rdy()
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
        fixture.verify()?;
    }
    Ok(())
}

fn recover(fixture: &mut Fixture, then: Then) -> Result<()> {
    match then {
        Then::Nothing => {}
        Then::Again if fixture.controller.is_none() => fixture.open()?,
        Then::Again | Then::Recreate => fixture.io()?.recover()?,
        Then::Reset => {
            fixture.io()?.leave();
            fixture.controller()?.reset(ResetKind::Controller)?;
            fixture.io()?.recover()?;
        }
        Then::Replug => {
            fixture.replug()?;
            fixture.open()?;
        }
    }
    Ok(fixture.describe_again()?)
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
