//! The table as a page of the book. `UPDATE=1 cargo test -p warprow-tests --test fault_matrix` writes it.

use std::path::Path;

use crate::ladder::{By, LADDER};
use crate::table::{Cell, Command, LOOKUPS, Mishap, Next, Says, TABLE, Then, Told};

const HEAD: &str = "\
# Faults

What a drive can do to a command, what the caller is told, and what the caller then does. Written by the test
`tests/tests/fault_matrix`, which runs every cell: a command is sent through the driver to the software controller, the
fault happens to it, the error must be the one in the table, and after the step in the table **the next read must be right
by content**, the command must work again, and nothing that comes late may do harm.

";

const LEGEND: &str = "
Told:

| | |
|---|---|
| ok | success, and it is one |
| status | `DriverError::Command` with the drive's status |
| time-out | `DriverError::TimedOut`, at the time limit |
| fatal | `DriverError::Fatal`, at the next look, of which there is one every 100 ms |
| gone | `DriverError::Gone`, at the next look, of which there is one every 100 ms |
| **wrong data** | success, though a bit of the data was flipped: NVMe without protection information cannot tell. Metadata blocks carry a CRC32C, rows optionally one (`row_crc`) |
| – | cannot happen to this command |

Then:

| | |
|---|---|
| (nothing) | the next command works. After a time-out of an admin command one of 31 slots stays in quarantine until a reset |
| again | the same call once more |
| queue | `QueuePair::recreate` (`BlockIo::recover`): deletes and makes the queue anew, which ends the quarantine of its memory. Until then `BlockIo` refuses every access (`DriverError::Stuck`), so that nothing is written that a late command could overwrite |
| reset | `Controller::reset`: the late command could undo what comes after it |
| replug | the drive is put back and opened anew |

Faults:

- *late, before recovery*: the command is carried out and answered after its time limit, before the caller does anything
  about it. Its data lands in memory that is in quarantine.
- *late, after recovery*: it would have been carried out later still. The recovery has made the drive forget it.
- *unknown CID*: the completion names a command that was never sent, and the command's own never comes.
- A completion that names **another command that is outstanding** cannot be told from that command's own: the wrong one
  is taken to be done, with whatever its buffer held. Only a checksum in the row tells (`row_crc`); the test
  `a_completion_for_another_outstanding_command` shows both.
";

fn cell((told, then): Cell) -> String {
    let told = match told {
        Told::Done => "ok",
        Told::WrongData => "**wrong data**",
        Told::Status => "status",
        Told::TimedOut => "time-out",
        Told::Fatal => "fatal",
        Told::Gone => "gone",
        Told::Never => return "–".to_owned(),
    };
    let then = match then {
        Then::Nothing => return told.to_owned(),
        Then::Again => "again",
        Then::Recreate => "queue",
        Then::Reset => "reset",
        Then::Replug => "replug",
    };
    format!("{told}; {then}")
}

fn table(commands: &[(Command, [Cell; 12])]) -> String {
    let mut out = String::from("| |");
    Mishap::ALL.iter().for_each(|mishap| out += &format!(" {} |", mishap.title()));
    out += "\n|---|";
    Mishap::ALL.iter().for_each(|_| out += "---|");
    out += "\n";
    for (command, cells) in commands {
        out += &format!("| {command} |");
        cells.iter().for_each(|&one| out += &format!(" {} |", cell(one)));
        out += "\n";
    }
    out
}

fn look_ups() -> String {
    let mut out = String::from(
        "\
## Look-ups

One read of a look-up is hit, on one drive and on one of three. Rows that failed are zeros with mask 0, **every other row of the
look-up is right**, and so is the next look-up: the store brings queue and controller back by itself, unless the drive is gone.

| fault | rows checked | the look-up says | the next one |
|---|---|---|---|
",
    );
    for (mishap, checked, says, next) in LOOKUPS {
        let says = match says {
            Says::Nothing => "ok",
            Says::WrongRow => "ok, with a **wrong row**",
            Says::Status => "`RowsFailed`, the drive's status",
            Says::TimedOut => "`RowsFailed`, time-out",
            Says::Fatal => "`RowsFailed`, fatal",
            Says::Gone => "`RowsFailed`, gone",
            Says::Checksum => "`RowsFailed`, checksum",
        };
        let next = match next {
            Next::Right => "right",
            Next::AfterRetry => "that drive's rows fail at once, all others are right; after `retry_drives` all are",
        };
        out += &format!("| {} | {} | {says} | {next} |\n", mishap.title(), if checked { "yes" } else { "no" });
    }
    out + "\n"
}

fn ladder() -> String {
    let mut out = String::from(
        "\
## The ladder

time-out → Abort → queue deleted and made anew → controller reset → function reset → given up

`Controller::recover` climbs it, for the store's look-ups and for whoever drives a controller. Here 32 reads and 32 writes are in
flight and not answered in time, something else goes wrong on top, and a canary stands on either side of every buffer. Whatever
comes of it, nothing lands late, every canary lives, every block holds what it may hold, and commands work afterwards.

| on top | brought back by |
|---|---|
",
    );
    for (obstacle, by) in LADDER {
        let by = match by {
            By::Queue => "the queue".to_owned(),
            By::ControllerReset => "a reset of the controller".to_owned(),
            By::FunctionReset => "a reset of the function".to_owned(),
            By::GivenUp(steps) => {
                let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
                format!("nothing: **given up**. The error names {}", steps.join(", "))
            }
        };
        out += &format!("| {} | {by} |\n", obstacle.words());
    }
    out + "
A queue that times out again before any command has succeeded is not brought back the same way twice: the next rung is tried, and
above the highest there is none. A drive that is given up does no DMA any more. Everything fails at once with
`DriverError::GivenUp`, which has every step with its error, until `Controller::retry` (`Store::retry_drives`) or a reset brings
it back, or it is opened anew.

"
}

pub(crate) fn page() -> String {
    let io = TABLE.iter().position(|(command, _)| command.is_io()).unwrap_or(TABLE.len());
    let opening = TABLE.iter().position(|(command, _)| !command.opens()).unwrap_or(0);
    let mut out = HEAD.to_owned();
    let parts =
        [("While a controller is opened", 0..opening), ("Admin commands", opening..io), ("I/O", io..TABLE.len())];
    for (title, part) in parts {
        out += &format!("## {title}\n\n{}\n", table(&TABLE[part]));
    }
    out += &ladder();
    out += &look_ups();
    out += "## What the words mean\n";
    out += LEGEND;
    out
}

pub(crate) fn compare(page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/faults.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/faults.md is out of date: run UPDATE=1 cargo test -p warprow-tests --test fault_matrix"
    );
}
