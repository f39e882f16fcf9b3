//! What the demo says of the cold race.

use serde_json::{Map, Value, json};
use warprow_workload::units;

use crate::commands::demo::cold::{Cold, Line, Who};
use crate::report::table;

/// The cold race. Who could not take part for a reason that was given before is not named again.
pub(super) fn cold_text(cold: &Cold, absent: &[(String, String)]) -> String {
    let rounds = units::count(cold.rounds as u64);
    let ids = units::plural(cold.batch as u64, "id");
    let verdict = match (&cold.mismatch, cold.interrupted) {
        (Some(_), _) => "NOT VERIFIED",
        (None, true) => "every row right, bit for bit; INTERRUPTED",
        (None, false) => "every row right, bit for bit",
    };
    let mut text = format!(
        "\n\nfrom disk  {rounds} batches of {ids}, each in a page that nobody has read since the page cache forgot the files;\n           \
         no rows in memory; {} compared: {verdict}\n\n",
        units::plural(cold.checked, "row")
    );
    let lines = cold.lines.iter().filter_map(|line| {
        let ms = line.median_ms()?;
        let ratio = cold.ratio(line)?;
        Some([line.who.name().to_owned(), format!("{ms:.2}"), line.who.threads().to_owned(), format!("{ratio:.2}")])
    });
    text += &table(["contender", ">ms a batch", "threads", ">warprow is × as fast"], lines);
    for line in &cold.lines {
        if let Err(reason) = &line.ms
            && !absent.iter().any(|(it, _)| it == reason)
        {
            text += &format!("\nwithout    {}: {reason}", line.who.name());
        }
    }
    let numpy = cold.lines.iter().any(|line| line.who == Who::Numpy && line.ms.is_ok());
    if let Some(bytes) = cold.read_around.filter(|_| numpy) {
        text += &format!(
            "\nnote       numpy.memmap has the kernel read {} around each row, this disk's read-ahead",
            units::bytes(bytes)
        );
    }
    text
}

/// The cold race, or why there was none.
pub(super) fn cold_json(cold: &Result<Cold, String>) -> Value {
    let cold = match cold {
        Ok(cold) => cold,
        Err(reason) => return json!({ "absent": reason }),
    };
    let contender = |line: &Line| {
        let object = match &line.ms {
            Ok(ms) => json!({
                "median_ms": line.median_ms(),
                "ms": ms,
                "times": cold.ratio(line),
                "threads": line.who.threads(),
            }),
            Err(reason) => json!({ "absent": reason }),
        };
        (line.who.key().to_owned(), object)
    };
    json!({
        "batch": cold.batch,
        "rounds": cold.rounds,
        "rows_checked": cold.checked,
        "interrupted": cold.interrupted,
        "read_around_bytes": cold.read_around,
        "contenders": cold.lines.iter().map(contender).collect::<Map<_, _>>(),
    })
}
