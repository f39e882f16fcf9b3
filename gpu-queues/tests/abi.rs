//! The C header and the Rust structures are the same, field by field.

use std::collections::BTreeMap;

use warprow_gpu_queues::abi::*;

/// Offset and bytes of each field, in order, and the size of the whole.
type Layout = (Vec<(String, usize, usize)>, usize);

macro_rules! layout {
    ($t:ident { $($field:ident),* $(,)? }) => {{
        let value = $t::default();
        // Names every field, or does not compile.
        let $t { $($field: _),* } = &value;
        let fields = vec![$((
            stringify!($field).to_owned(), std::mem::offset_of!($t, $field), std::mem::size_of_val(&value.$field),
        )),*];
        (fields, size_of::<$t>())
    }};
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once("*/").expect("a comment ends").1)
}

fn constants(header: &str) -> BTreeMap<String, usize> {
    let lines = header.lines().filter_map(|line| line.strip_prefix("#define "));
    lines.filter_map(|line| line.split_once(' ')).map(|(name, value)| (name.into(), value.parse().unwrap())).collect()
}

/// Lays a structure out as C does.
fn in_c(header: &str, name: &str) -> Layout {
    let body = header.split_once(&format!("typedef struct {name} {{")).expect("declared").1;
    let body = body.split_once(&format!("}} {name};")).expect("closed").0;
    let (mut at, mut fields) = (0usize, Vec::new());
    for declaration in body.split(';').map(str::trim).filter(|it| !it.is_empty()) {
        let (kind, name) = declaration.split_once(' ').expect("a type and a name");
        let width = match kind {
            "u32" => 4,
            "u64" => 8,
            other => panic!("{other} is not a type of this header"),
        };
        let (name, count) = match name.trim().trim_end_matches(']').split_once('[') {
            None => (name.trim(), 1),
            Some((name, count)) => (name, count.parse().unwrap_or_else(|_| constants(header)[count])),
        };
        at = at.next_multiple_of(width);
        fields.push((name.to_owned(), at, width * count));
        at += width * count;
    }
    (fields, at.next_multiple_of(8))
}

#[test]
fn structures_match_the_header() {
    let header = without_comments(HEADER);
    let descriptor: Layout = layout!(QueueDescriptor {
        sq,
        cq,
        landing,
        landing_iova,
        sq_tail,
        cq_head,
        state,
        fault,
        timeout_ns,
        landing_stride,
        sq_size,
        cq_size,
        doorbell_kind,
        queue_id,
        drive,
        nsid,
        lba_shift,
        batches,
        cid_shift,
        generations,
        window,
        prp_list,
    });
    assert_eq!(in_c(&header, "QueueDescriptor"), descriptor);
    let state: Layout = layout!(QueueState {
        tail,
        head,
        turn,
        poison,
        generation,
        anomalies,
        unused,
        commands,
        doorbells,
        poisoned_by,
        reserved,
    });
    assert_eq!(in_c(&header, "QueueState"), state);
    let fault: Layout = layout!(Fault {
        kind,
        drive,
        queue,
        cid,
        lba,
        waited_ns,
        launch,
        outstanding,
        status,
        failed_lba,
        failed_launch,
        failed_cid,
        unused,
        answered,
        damaged_rank,
        damaged_lba,
        damaged_launch,
        damaged_table,
        damaged_cid,
        reserved,
    });
    assert_eq!(in_c(&header, "Fault"), fault);
    let reads: Layout = layout!(RingReads { queue, gate, launch, lbas, landed, is_read, count });
    assert_eq!(in_c(&header, "RingReads"), reads);
}

#[test]
fn constants_match_the_header() {
    let ours = [
        ("WR_LANES", LANES as usize),
        ("WR_MAX_BATCHES", MAX_BATCHES),
        ("WR_SQE_BYTES", size_of::<warprow_spec::Sqe>()),
        ("WR_CQE_BYTES", size_of::<warprow_spec::Cqe>()),
        ("WR_DOORBELL_MEMORY", DOORBELL_MEMORY as usize),
        ("WR_DOORBELL_MMIO", DOORBELL_MMIO as usize),
        ("WR_FAULT_NONE", FAULT_NONE as usize),
        ("WR_FAULT_TIMED_OUT", FAULT_TIMED_OUT as usize),
        ("WR_FAULT_CLOSED", FAULT_CLOSED as usize),
        ("WR_FAULT_GIVEN_UP", FAULT_GIVEN_UP as usize),
        ("WR_GATE_CLOSED", GATE_CLOSED),
        ("WR_GATE_INSIDE", GATE_INSIDE),
        ("WR_GATE_BYTES", GATE_BYTES),
    ];
    let ours = ours.map(|(name, value)| (name.to_owned(), value)).into_iter().collect::<BTreeMap<_, _>>();
    assert_eq!(constants(&without_comments(HEADER)), ours);
}
