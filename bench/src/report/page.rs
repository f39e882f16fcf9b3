//! The page: HTML that needs nothing from elsewhere.

use std::fmt::Write;

use serde_json::Value;
use warprow_workload::units::count;

use super::chart::Chart;
use super::machine::Described;
use super::parts::{Outcome, Part, Report};
use super::sections::{Section, read};
use crate::results::machine_of;

const STYLE: &str = "\
:root{color-scheme:light}
body{margin:2rem auto;max-width:940px;padding:0 1rem;background:#fff;color:#1b1f23;font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.7rem;margin:0}h2{font-size:1.25rem;margin:2.6rem 0 .3rem;padding-top:1rem;border-top:1px solid #cfd6dc}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
p{margin:.4rem 0}.date{color:#4a545c}
.emulated{border-left:6px solid #d55e00;background:#fff6ef;padding:.5rem 1rem;margin:1.2rem 0}.emulated h2{border:0;padding:0;margin:.2rem 0}
.warning{border-left:4px solid #b58900;background:#fffbe6;padding:.3rem .8rem;margin:.4rem 0}
.failed{border-left:6px solid #b00020;background:#fdeef0;padding:.5rem 1rem;margin:.6rem 0}
.missing{border-left:6px solid #8a949c;background:#f4f6f7;padding:.5rem 1rem;margin:.6rem 0}
table{border-collapse:collapse;width:100%;margin:.6rem 0}
th,td{text-align:left;vertical-align:top;padding:.3rem .7rem .3rem 0;border-bottom:1px solid #dde3e8}
th{font-weight:600;white-space:nowrap}
.bad{color:#b00020;font-weight:600}
.plots{display:flex;flex-wrap:wrap;gap:1.2rem 20px;margin:1rem 0}
svg{max-width:100%;height:auto}
code,pre{font:12.5px/1.45 ui-monospace,monospace}
pre{background:#f4f6f7;padding:.7rem;overflow:auto;max-height:30rem;white-space:pre-wrap;word-break:break-word}
details{margin:.6rem 0}summary{cursor:pointer;color:#35506b}
ul{margin:.3rem 0;padding-left:1.3rem}
@media print{details{display:none}h2{break-after:avoid}svg{break-inside:avoid}}";

/// Text as HTML: of elements and of attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A part, and what its result means.
struct Shown<'a> {
    part: &'a Part,
    section: Result<Section, String>,
}

/// The whole page.
pub fn page(report: &Report) -> String {
    let shown: Vec<Shown<'_>> = report
        .parts
        .iter()
        .map(|part| Shown {
            part,
            section: match &part.outcome {
                Outcome::Done(value) => read(value),
                Outcome::Failed(reason) | Outcome::NotRun(reason) => Err(reason.clone()),
            },
        })
        .collect();
    let mut html = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html += "<meta name=\"viewport\" content=\"width=device-width\">\n";
    html +=
        &format!("<title>Warprow, benchmarks, {}</title>\n<style>\n{STYLE}\n</style>\n</head>\n", escape(&report.date));
    html += &format!("<body>\n<h1>Warprow, benchmarks</h1>\n<p class=\"date\">{}</p>\n", escape(&report.date));
    html += &emulated(report, &shown);
    html += &machine(&report.machine);
    html += &overview(&shown);
    for it in &shown {
        html += &section(it, &report.machine);
    }
    html + "</body>\n</html>\n"
}

/// Said first.
fn emulated(report: &Report, shown: &[Shown<'_>]) -> String {
    let mut html = String::from("<div class=\"emulated\">\n<h2>What was emulated</h2>\n<ul>\n");
    let mut said = 0;
    for it in shown {
        let Ok(section) = &it.section else { continue };
        for words in &section.emulated {
            html += &format!("<li><b>{}</b>: {}</li>\n", escape(&it.part.name), escape(words));
            said += 1;
        }
    }
    if said == 0 {
        html += "<li>Nothing was measured that emulates anything.</li>\n";
    }
    if let Err(reason) = &report.machine.gpu {
        html += &format!("<li>No GPU took part: {}</li>\n", escape(reason));
    }
    html + "</ul>\n<p>An emulated drive shows no PCIe, no interrupts, no firmware and no flash. Ratios within one run count; absolute \
            figures are only as good as the machine.</p>\n</div>\n"
}

fn machine(machine: &Described) -> String {
    let mut html = String::from("<h2>The machine</h2>\n<table>\n");
    for (name, value) in machine.lines() {
        html += &format!("<tr><th>{name}</th><td>{}</td></tr>\n", escape(&value));
    }
    html + "</table>\n"
}

fn overview(shown: &[Shown<'_>]) -> String {
    let mut html = String::from(
        "<h2>Overview</h2>\n<p>× says how many times as fast Warprow is: the median of the ratios of runs in turn, \
                              where a program takes turns.</p>\n<table>\n",
    );
    for it in shown {
        let name = escape(&it.part.name);
        let (what, figures) = match (&it.section, &it.part.outcome) {
            (Ok(section), _) => {
                let mut figures = section.headlines.iter().map(|words| escape(words)).collect::<Vec<_>>();
                figures.push(match section.checked {
                    0 => "no data to compare".to_owned(),
                    checked => format!("{} rows compared", count(checked)),
                });
                if !section.warnings.is_empty() {
                    figures.push(format!("<span class=\"bad\">{}</span>", escape(&section.warnings.join("; "))));
                }
                (escape(&section.title), figures.join("<br>"))
            }
            (Err(reason), Outcome::NotRun(_)) => ("not run".to_owned(), escape(reason)),
            (Err(reason), Outcome::Done(_)) => ("<span class=\"bad\">not understood</span>".to_owned(), escape(reason)),
            (Err(reason), Outcome::Failed(_)) => ("<span class=\"bad\">FAILED</span>".to_owned(), escape(reason)),
        };
        html += &format!("<tr><th><a href=\"#{name}\">{name}</a></th><td>{what}</td><td>{figures}</td></tr>\n");
    }
    html + "</table>\n"
}

fn section(it: &Shown<'_>, machine: &Described) -> String {
    let name = escape(&it.part.name);
    let title = it.section.as_ref().map_or_else(|_| name.clone(), |section| escape(&section.title));
    let mut html = format!("<h2 id=\"{name}\">{title}</h2>\n");
    if let Some(command) = &it.part.command {
        html += &format!("<p><code>{}</code></p>\n", escape(command));
    }
    match (&it.section, &it.part.outcome) {
        (Ok(section), _) => html += &body(section),
        (Err(reason), Outcome::NotRun(_)) => html += &format!("<p class=\"missing\">Not run: {}</p>\n", escape(reason)),
        (Err(reason), Outcome::Done(_)) => {
            html +=
                &format!("<p class=\"failed\">There is a result, and it is not understood: {}</p>\n", escape(reason));
        }
        (Err(reason), Outcome::Failed(_)) => html += &format!("<p class=\"failed\">Failed: {}</p>\n", escape(reason)),
    }
    if let Outcome::Done(value) = &it.part.outcome {
        html += &elsewhere(value, machine);
    }
    if !it.part.said.is_empty() {
        html += &format!("<details><summary>What it said</summary><pre>{}</pre></details>\n", escape(&it.part.said));
    }
    if let Outcome::Done(value) = &it.part.outcome {
        let raw = serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string());
        html += &format!(
            "<details><summary>Raw result</summary><pre class=\"raw\" data-part=\"{name}\">{}</pre></details>\n",
            escape(&raw)
        );
    }
    html
}

fn body(section: &Section) -> String {
    let mut html = format!("<p>{}</p>\n", escape(&section.about));
    for words in &section.warnings {
        html += &format!("<p class=\"warning\">{}</p>\n", escape(words));
    }
    html += "<div class=\"plots\">\n";
    for chart in &section.charts {
        let _ = writeln!(html, "{}", chart.svg());
    }
    html += "</div>\n";
    if section.charts.iter().any(|chart| matches!(chart, Chart::Bars(bars) if bars.groups.len() > 1)) {
        html += "<p>Bars are to scale within their group.</p>\n";
    }
    if !section.notes.is_empty() {
        let notes: String = section.notes.iter().map(|words| format!("<li>{}</li>\n", escape(words))).collect();
        html += &format!("<ul>\n{notes}</ul>\n");
    }
    if section.checked > 0 {
        html += &format!("<p>{} rows or blocks were compared with what they had to be.</p>\n", count(section.checked));
    }
    html
}

/// A result of another machine than the page's.
fn elsewhere(value: &Value, machine: &Described) -> String {
    match machine_of(value) {
        Some(its) if (&its.cpu, its.cores as u64, &its.kernel) != (&machine.cpu, machine.cores, &machine.kernel) => {
            let words = format!("Measured on another machine: {}, {} cores, Linux {}.", its.cpu, its.cores, its.kernel);
            format!("<p class=\"warning\">{}</p>\n", escape(&words))
        }
        _ => String::new(),
    }
}
