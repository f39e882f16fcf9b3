//! `bench-ring` with a host that submits.

use warprow_workload::units::bytes;

use super::figures::{COMMANDS, bars};
use super::section::Section;
use crate::report::{Bar, Group, Unit};
use crate::results::{DriveRing, HostRing};

pub(super) fn ring(it: HostRing) -> Section {
    let mut groups = Vec::new();
    let mut headlines = Vec::new();
    if let Some(ours) = it.commands_per_second {
        let mut of = vec![Bar::ours("Warprow", ours)];
        of.extend(it.minimal_commands_per_second.map(|rate| Bar::rival("minimal ring", rate, it.ratio)));
        let fetching = it.minimal_fetching_commands_per_second;
        of.extend(fetching.map(|rate| Bar::rival("minimal ring, fetching ahead", rate, it.fetching_ratio)));
        let disordered = it.disordered_commands_per_second;
        of.extend(disordered.map(|rate| Bar::ours("Warprow, completions in disorder", rate)));
        groups.push(Group { label: format!("Drive of RAM, {} copied a command", bytes(it.block.into())), bars: of });
        headlines.extend(it.ratio.map(|ratio| format!("RAM: {}, {ratio:.2}× the minimal ring", COMMANDS.show(ours))));
    }
    if let Some(ours) = it.null_commands_per_second {
        let mut of = vec![Bar::ours("Warprow", ours)];
        of.extend(it.minimal_null_commands_per_second.map(|rate| Bar::rival("minimal ring", rate, it.null_ratio)));
        let disordered = it.null_disordered_commands_per_second;
        of.extend(disordered.map(|rate| Bar::ours("Warprow, completions in disorder", rate)));
        groups.push(Group { label: "Drive without data".to_owned(), bars: of });
        headlines.extend(it.null_ratio.map(|ratio| format!("no data: {}, {ratio:.2}×", COMMANDS.show(ours))));
    }
    let over = if it.vfio_user { ", reached through a vfio-user socket" } else { "" };
    let title = format!("Random reads of {} B, depth {}", it.block, it.depth);
    Section {
        title: "One queue pair".to_owned(),
        about: format!(
            "Random reads of a drive of {} over one NVMe queue pair{over}: one thread submits, one answers. The minimal ring is bundled \
             and does nothing else than move entries and data: no errors, no time-outs, no checks, in order.",
            bytes(it.size)
        ),
        emulated: vec![
            "The drive: Warprow's software controller, answered by another processor of the same machine. No PCIe, no flash.".to_owned(),
        ],
        headlines,
        charts: vec![bars(title, COMMANDS, groups)],
        warnings: match it.pinned {
            Some(false) => vec!["The threads could not be given a processor each.".to_owned()],
            _ => Vec::new(),
        },
        checked: it.blocks_checked.unwrap_or(0),
        ..Section::default()
    }
}

pub(super) fn ring_on(it: DriveRing) -> Section {
    let emulated = match it.on.starts_with("vfio-user:") {
        true => vec![format!("{}: a controller of another process, behind a socket.", it.on)],
        false => Vec::new(),
    };
    let group = Group { label: String::new(), bars: vec![Bar::ours(&it.on, it.commands_per_second)] };
    Section {
        title: format!("One queue pair on {}", it.on),
        about: "Random reads of a drive that is there, without a rival.".to_owned(),
        emulated,
        headlines: vec![format!(
            "{}, {} each",
            COMMANDS.show(it.commands_per_second),
            Unit::Micros.show(it.microseconds)
        )],
        charts: vec![bars(format!("Random reads of {} B, depth {}", it.block, it.depth), COMMANDS, vec![group])],
        notes: vec![format!("Median of {} rounds.", it.rounds)],
        checked: it.blocks_checked,
        ..Section::default()
    }
}
