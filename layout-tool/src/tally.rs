//! Reports of look-ups, added up.

use warprow_lookup::LookupReport;

/// Adds `report` to `total`, whose generation becomes the latest.
pub fn add(total: &mut LookupReport, report: &LookupReport) {
    let counts = [
        (&mut total.ids, report.ids),
        (&mut total.padding, report.padding),
        (&mut total.missing, report.missing),
        (&mut total.failed, report.failed),
        (&mut total.unique, report.unique),
        (&mut total.rows_dram, report.rows_dram),
        (&mut total.rows_cached, report.rows_cached),
        (&mut total.rows_ssd, report.rows_ssd),
        (&mut total.ids_dram, report.ids_dram),
        (&mut total.ids_cached, report.ids_cached),
        (&mut total.ids_ssd, report.ids_ssd),
        (&mut total.commands, report.commands),
        (&mut total.merges, report.merges),
        (&mut total.sq_doorbells, report.sq_doorbells),
        (&mut total.cq_doorbells, report.cq_doorbells),
        (&mut total.bytes_read, report.bytes_read),
        (&mut total.bytes_needed, report.bytes_needed),
    ];
    for (sum, count) in counts {
        *sum += count;
    }
    total.generation = total.generation.max(report.generation);
    for (sum, time) in total.stages.iter_mut().zip(report.stages) {
        *sum += time;
    }
}
