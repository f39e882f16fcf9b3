//! The page about a set of benchmarks: from what the programs print to HTML.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use warprow_bench::gpu::criteo::{
    CallResult, CriteoResult, HostTimes, LatencyResult, Percentiles, Shape, SplitResult, Spread, Tier,
};
use warprow_bench::gpu::dedupe::{DedupeResult, WayTimes};
use warprow_bench::gpu::dram::{DramResult, Sweep, SweepPoint, Times};
use warprow_bench::gpu::elements::{ChecksumResult, ElementResult};
use warprow_bench::gpu::hbm::{HbmResult, HbmTimes};
use warprow_bench::gpu::resident::ResidentResult;
use warprow_bench::gpu::ring::GpuRingResult;
use warprow_bench::report::{Described, GpuDescribed, Outcome, Part, Report, page, read};
use warprow_bench::results::{
    BenchmarkResult, Dedupes, DramLookups, ElementsAndChecksums, GpuLookups, GpuRing, HbmLookups, Record, ResidentRing,
    Submitter,
};
use warprow_workload::MachineInfo;

const PERCENTILES: Percentiles = Percentiles { p50: 7.0, p99: 7.25, p99_9: 8.0, max: 11.0 };

/// As a program of this version prints a result.
fn record(result: BenchmarkResult) -> Value {
    let machine = MachineInfo { cpu: "A processor".to_owned(), cores: 16, kernel: "6.18".to_owned(), load: 0.5 };
    serde_json::to_value(Record::new(result, machine)).unwrap()
}

fn gpu_name() -> String {
    "A GPU".to_owned()
}

fn ring_gpu() -> Value {
    let point = |threads: u32, rate: f64| GpuRingResult {
        threads,
        pinned: true,
        commands_per_second: rate,
        commands_per_second_and_thread: rate / f64::from(threads),
        share_of_linear: 0.9,
        sum_of_threads: rate * 1.1,
        sum_of_linear: 0.95,
        commands_per_second_of_lookups: rate * 0.8,
        slowest_thread: rate / f64::from(threads),
        fastest_thread: rate / f64::from(threads),
        by_thread: vec![rate / f64::from(threads); threads as usize],
        copies_by_thread: vec![8e6; threads as usize],
        slowest_copies: 8e6,
        sum_of_copies: 8e6 * f64::from(threads),
        copies_of_linear: 0.9,
        share_of_possible: 1.0,
        commands: 1000,
        lookups: 9,
        seconds: 1.5,
        anomalies: 0,
        checked: 500,
        checked_by_cpu: 5,
    };
    record(BenchmarkResult::RingGpu(GpuRing {
        submitter: Submitter::Gpu,
        gpu: gpu_name(),
        block: 512,
        size: 1 << 30,
        ids: 262_144,
        seed: 1,
        placement: "C: a software controller in this process, pinned memory".to_owned(),
        results: vec![point(1, 2.5e6), point(8, 18.0e6)],
        soak: Some(point(8, 17.0e6)),
    }))
}

fn dram() -> Value {
    let result = |ids: u64, torch: Option<f64>| DramResult {
        size: 1 << 30,
        row_bytes: 128,
        alpha: 0.0,
        ids,
        unique: ids,
        kernels: 7,
        us: Times {
            lookup_graph: ids as f64 / 250.0,
            uva_graph: ids as f64 / 30.0,
            lookup_called: 1.0,
            uva_launched: 1.0,
            lookup_graph_seen: ids as f64 / 240.0,
            uva_graph_seen: ids as f64 / 29.0,
            lookup_called_seen: 1.0,
            uva_launched_seen: 1.0,
            lookup_call: 3.0,
            prepare: 1.0,
            fetch: 1.0,
            expand: 1.0,
            cpu: ids as f64 / 70.0,
            batch_copy: torch,
        },
        bytes_per_second: 33e9,
        rows_per_second: 250e6,
        over_limit_graph_us: -1.0,
        over_limit_called_us: 0.5,
        met: false,
        ratio_uva_graph: 8.33,
        ratio_uva_called: 8.0,
        ratio_cpu: 3.57,
        ratio_batch_copy: torch,
        torch_embedding_us: torch,
        torch_index_us: torch,
        ratio_torch: torch,
        checked: 100,
        checked_by_cpu: 3,
    };
    let point = |gatherers, rate| SweepPoint {
        gatherers,
        lookup_us: 1.0,
        fetch_us: 1.0,
        bytes_per_second: rate,
        fetched_bytes_per_second: rate * 1.1,
    };
    let points = vec![point(1, 3e9), point(16, 40e9)];
    let sweep = Sweep { size: 1 << 30, row_bytes: 128, alpha: 0.0, ids: 1 << 21, points, enough: Some(16), checked: 7 };
    record(BenchmarkResult::Dram(DramLookups {
        gpu: gpu_name(),
        seed: 1,
        runs: 9,
        results: vec![result(1024, Some(900.0)), result(1 << 20, None)],
        sweeps: vec![sweep],
        cached: Vec::new(),
        notes: vec!["PyTorch is not there".to_owned()],
    }))
}

fn lookup_gpu() -> Value {
    let small = |tier, uva| LatencyResult {
        tier,
        size: 1 << 30,
        ids: 1000,
        batches: 10_000,
        kernels: 1,
        graph: PERCENTILES,
        graph_seen: PERCENTILES,
        uva_graph: uva,
        aim_us: 10.0,
        met: [true, true],
        histogram: Vec::new(),
        checked: 10,
    };
    let split = SplitResult {
        tier: Tier::Hbm,
        spread: Spread::Over,
        ids: 1040,
        kernels: [1, 1],
        one: PERCENTILES,
        parts: PERCENTILES,
        penalty_us: 0.5,
        met: true,
        checked: 10,
    };
    let call = CallResult {
        what: "rows in DRAM".to_owned(),
        ids: 1000,
        kernels: 1,
        calls: 100,
        call_cpu_us: 2.5,
        call: PERCENTILES,
        graph_cpu_us: 2.0,
        graph: PERCENTILES,
        clock_us: 0.2,
        met: true,
        checked: 10,
    };
    let table = CriteoResult {
        shape: Shape::Criteo,
        scale: 8,
        hbm: 0.01,
        memory: 0.05,
        batch: 4096,
        hot: 8,
        ids: 851_968,
        ids_hbm: 1.0,
        ids_dram: 1.0,
        ids_ssd: 1.0,
        commands: 9000.0,
        kernels: 7,
        graph_us: 900.0,
        seen_us: 950.0,
        prepare_us: 20.0,
        fetch_us: 800.0,
        expand_us: 80.0,
        ids_per_second: 900e6,
        commands_per_second: 13e6,
        host: HostTimes { all: 30_000.0, stages: [1.0; 6] },
        cpu_us: None,
        ratio_host: 31.6,
        ratio_cpu: None,
        checked: 10,
    };
    record(BenchmarkResult::LookupGpu(GpuLookups {
        gpu: gpu_name(),
        seed: 1,
        small: vec![small(Tier::Hbm, None), small(Tier::Dram, Some(PERCENTILES))],
        split: vec![split],
        calls: vec![call],
        ahead: Vec::new(),
        tables: vec![table],
        notes: Vec::new(),
    }))
}

fn ring_resident() -> Value {
    let point = |queues: u32, data: bool| ResidentResult {
        peer: false,
        queues,
        batch: 256,
        depth: 2048,
        in_flight: 1792,
        data,
        profile: "none".to_owned(),
        commands: 1 << 20,
        commands_per_second: 76e6 * f64::from(queues),
        bytes_per_second: if data { 39e9 } else { 0.0 },
        commands_per_doorbell: 128.0,
        fetched_together: 200.0,
        checked: if data { 1 << 20 } else { 0 },
        late: 100,
    };
    record(BenchmarkResult::RingResident(ResidentRing {
        submitter: Submitter::Gpu,
        controller: "a kernel on the same GPU".to_owned(),
        gpu: gpu_name(),
        block: 512,
        size: 1 << 30,
        seed: 1,
        emulated: "the drive: a kernel that answers from GPU memory".to_owned(),
        results: vec![point(1, false), point(16, false), point(1, true), point(16, true)],
    }))
}

fn hbm(torch: bool) -> Value {
    let result = |pooled, alpha| HbmResult {
        pooled,
        alpha,
        ids: 1 << 18,
        kernels: 1,
        us: HbmTimes { graph: 50.0, called: 51.0, graph_seen: 55.0, called_seen: 58.0 },
        ids_per_second: 5e9,
        bytes_per_second: 3e12,
        share_of_copy: 0.8,
        torch: None,
        ratio: torch.then_some(1.5),
        ratio_seen: torch.then_some(1.4),
        met: torch.then_some(true),
        checked: 10,
        checked_by_cpu: 2,
    };
    let mut value = record(BenchmarkResult::Hbm(HbmLookups {
        gpu: gpu_name(),
        rows: 1 << 23,
        row_bytes: 512,
        bags: 256,
        hot: 1024,
        runs: 9,
        seed: 1,
        copy_bytes_per_second: 3.9e12,
        results: vec![result(true, 0.0), result(false, 1.05)],
        cache: None,
        notes: vec!["PyTorch 2.9 took part".to_owned()],
    }));
    if torch {
        // As its script prints it.
        let line = json!({
            "alpha": 0.0, "pooled": true, "checked": 7, "graph_failed": null, "graph_us": 75.0, "graph_seen_us": 80.0,
            "called_us": 76.5, "called_seen_us": 90.0,
        });
        value["results"][0]["torch"] = line;
    }
    value
}

fn dedupe() -> Value {
    let result = |ids: u64, alpha| DedupeResult {
        tier: "memory".to_owned(),
        rows: 1 << 20,
        ids,
        alpha,
        uniques: ids / 2,
        ways: ["bitmap", "hash", "radix"]
            .map(|way| WayTimes { way: way.to_owned(), us: 40.0, unique_us: 20.0 })
            .to_vec(),
        best: "radix".to_owned(),
        chosen: "bitmap".to_owned(),
        over_best: 1.25,
        compared: 10,
        rows_compared: 5,
    };
    record(BenchmarkResult::Dedupe(Dedupes {
        gpu: gpu_name(),
        runs: 9,
        seed: 1,
        results: vec![result(1 << 15, 0.0), result(1 << 20, 0.0), result(1 << 20, 1.05)],
        crossovers: vec![(1 << 20, 0.0, "radix from 32768 ids".to_owned())],
        notes: vec!["one is left out".to_owned()],
    }))
}

fn elements() -> Value {
    let result = |elements: &str, tier: &str, pooled| ElementResult {
        elements: elements.to_owned(),
        row_bytes: 136,
        tier: tier.to_owned(),
        pooled,
        ids: 1 << 18,
        kernels: 1,
        us: 75.5,
        of_f32: Some(1.25),
        ids_per_second: 3e9,
        bytes_per_second: 2e12,
        checked: 10,
        checked_by_cpu: 2,
    };
    let checked = |row_bytes, ids: u64| ChecksumResult {
        row_bytes,
        ids,
        drives: 8,
        commands: ids,
        seen_us: [ids as f64, ids as f64 * 1.125],
        fetch_us: [ids as f64 / 2.0, ids as f64 / 1.5],
        ratio: 1.125,
        checked: 7,
    };
    record(BenchmarkResult::Elements(ElementsAndChecksums {
        gpu: gpu_name(),
        rows: 1 << 22,
        dim: 128,
        bags: 8192,
        hot: 32,
        alpha: 0.0,
        size: 1 << 30,
        runs: 9,
        seed: 1,
        elements: vec![
            result("f32", "hbm", false),
            result("q8", "hbm", false),
            result("q8", "hbm", true),
            result("q4", "dram", true),
        ],
        checksums: vec![checked(128, 1 << 10), checked(128, 1 << 15), checked(512, 1 << 15)],
        notes: vec!["too few cores".to_owned()],
    }))
}

const SSD: &str = "--size 1M --drives 1,2 --profile none --ids 1,50 --threads 1,2 --seconds 0 --json";

/// What `bench-ssd` prints where there is a GPU, from what it printed without.
fn ssd_on_gpu(printed: &str) -> Value {
    let mut value: Value = serde_json::from_str(printed).unwrap();
    value["gpu"] = json!("A GPU");
    for result in value["results"].as_array_mut().unwrap() {
        result["gpu"] = json!([result["cpu"][0]]);
        result["overhead_ratio"] = json!(0.5);
        result["throughput_ratio"] = json!(1.5);
        result["overhead_met"] = json!(true);
        result["caller_met"] = json!(false);
    }
    value
}

/// Runs a program of this package in small.
fn printed(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split(' ')).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {arguments}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// The texts of all elements of this class.
fn raw(html: &str) -> Vec<(String, Value)> {
    let raw = html.split("<pre class=\"raw\" data-part=\"").skip(1);
    raw.map(|rest| {
        let (name, rest) = rest.split_once("\">").unwrap();
        let text = rest.split_once("</pre>").unwrap().0;
        let text = text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&#39;", "'");
        (name.to_owned(), serde_json::from_str(&text.replace("&amp;", "&")).unwrap())
    })
    .collect()
}

/// Nothing is fetched, and every element that is opened is closed.
fn stands_alone(html: &str) {
    for word in ["<script", "<link", "<img", "src=", "url(", "@import"] {
        assert!(!html.contains(word), "{word}");
    }
    let addresses = html.match_indices("http").map(|(at, _)| &html[at..html.len().min(at + 26)]);
    assert!(
        addresses.clone().all(|address| address == "http://www.w3.org/2000/svg"),
        "{:?}",
        addresses.collect::<Vec<_>>()
    );
    for element in ["html", "body", "div", "table", "tr", "td", "pre", "details", "svg", "text", "p", "ul", "li", "h2"]
    {
        let count = |text: String| html.matches(text.as_str()).count();
        let opened = count(format!("<{element}>")) + count(format!("<{element} ")) + count(format!("<{element}\n"));
        assert_eq!(opened, count(format!("</{element}>")), "{element}");
    }
    assert!(!html.contains("NaN") && !html.contains("inf\""), "a figure that is none");
}

#[test]
fn what_the_programs_print_becomes_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let ssd = printed(env!("CARGO_BIN_EXE_bench-ssd"), SSD);
    let results = [
        ("ring", printed(env!("CARGO_BIN_EXE_bench-ring"), "--host --size 4M --seconds 0.1 --json")),
        (
            "lookup",
            printed(
                env!("CARGO_BIN_EXE_bench-lookup"),
                "--only cached --only growth --size 4M --batch 256 --seconds 0.05 --growth 4M,8M --runs 1 --json",
            ),
        ),
        ("load", printed(env!("CARGO_BIN_EXE_bench-load"), "--size 1M --pairs 1 --drive cached --json")),
        (
            "plan-rate",
            printed(
                env!("CARGO_BIN_EXE_bench-plan"),
                "rate --rows 8192 --ids 100000 --alpha 1.05 --profile p5800x --seconds 0 --json",
            ),
        ),
        ("plan-speed", printed(env!("CARGO_BIN_EXE_bench-plan"), "speed --rows 8192 --ids 100000 --json")),
        ("switch", printed(env!("CARGO_BIN_EXE_bench-switch"), "--size 1M --switches 10 --batch 16 --json")),
        ("passes", printed(env!("CARGO_BIN_EXE_bench-passes"), "--rows 4096 --drive p5800x --threads 1 --json")),
        ("ssd-gpu", ssd_on_gpu(&ssd).to_string()),
        ("ssd", ssd),
        ("ring-resident", ring_resident().to_string()),
        ("ring-gpu", ring_gpu().to_string()),
        ("hbm", hbm(true).to_string()),
        ("hbm-alone", hbm(false).to_string()),
        ("dedupe", dedupe().to_string()),
        ("elements", elements().to_string()),
        ("dram", dram().to_string()),
        ("lookup-gpu", lookup_gpu().to_string()),
        ("a-later-one", json!({ "schema": 9, "rows": "<b>&amp;" }).to_string()),
        ("broken", json!({ "schema": 1, "error": { "message": "the <disk> is \"full\" & gone" } }).to_string()),
    ];
    for (name, text) in &results {
        fs::write(folder.path().join(format!("{name}.json")), text).unwrap();
    }
    let output = folder.path().join("page.html");
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_bench-report"));
    let done = command.arg("--from").arg(folder.path()).arg("--output").arg(&output).output().unwrap();
    let complaint = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success() && complaint.contains("failed: broken"), "{complaint}");
    let html = fs::read_to_string(&output).unwrap();
    stands_alone(&html);
    let shown = raw(&html);
    for (name, text) in &results {
        let value: Value = serde_json::from_str(text).unwrap();
        assert!(html.contains(&format!("<h2 id=\"{name}\">")), "{name}");
        match *name {
            "broken" => assert!(html.contains("Failed: the &lt;disk&gt; is &quot;full&quot; &amp; gone")),
            "a-later-one" => assert!(read(&value).is_err() && shown.contains(&(name.to_string(), value))),
            _ => {
                let section = read(&value).unwrap_or_else(|wrong| panic!("{name}: {wrong}\n{value}"));
                // What is read is all that was printed.
                assert_eq!(serde_json::to_value(Record::read(&value).unwrap()).unwrap(), value, "{name}");
                assert!(!section.charts.is_empty() && !section.headlines.is_empty(), "{name}");
                assert!(section.checked > 0 || *name == "plan-speed", "{name}");
                assert!(shown.contains(&(name.to_string(), value)), "{name}");
            }
        }
    }
    // Said first; and what is not in the folder is said as well.
    assert!(html.find("What was emulated").unwrap() < html.find("The machine").unwrap());
    assert!(html.find("The machine").unwrap() < html.find("Overview").unwrap());
    assert!(html.contains("<h2 id=\"dram-sms\">") && html.contains("Not run: the folder has no result of it"));
    assert!(html.contains("it is not understood"));
    assert!(html.contains("O_DIRECT: not measured"));
}

/// Earlier versions named few of their results: the others are told by their fields.
#[test]
fn results_without_a_name_are_read_as_they_were() {
    let run = |program, arguments| serde_json::from_str(&printed(program, arguments)).unwrap();
    let results = [
        run(env!("CARGO_BIN_EXE_bench-ring"), "--host --size 4M --seconds 0.1 --json"),
        run(
            env!("CARGO_BIN_EXE_bench-lookup"),
            "--only growth --size 4M --batch 256 --seconds 0.05 --growth 4M,8M --runs 1 --json",
        ),
        run(env!("CARGO_BIN_EXE_bench-load"), "--size 1M --pairs 1 --drive cached --json"),
        run(
            env!("CARGO_BIN_EXE_bench-plan"),
            "rate --rows 8192 --ids 100000 --alpha 1.05 --profile p5800x --seconds 0 --json",
        ),
        run(env!("CARGO_BIN_EXE_bench-plan"), "speed --rows 8192 --ids 100000 --json"),
        run(env!("CARGO_BIN_EXE_bench-switch"), "--size 1M --switches 10 --batch 16 --json"),
        run(env!("CARGO_BIN_EXE_bench-passes"), "--rows 4096 --drive p5800x --threads 1 --json"),
        ring_gpu(),
        ring_resident(),
        dram(),
        lookup_gpu(),
    ];
    for named in results {
        let mut nameless: Value = named.clone();
        assert!(nameless.as_object_mut().unwrap().remove("benchmark").is_some(), "{named}");
        assert_eq!(serde_json::to_value(Record::read(&nameless).unwrap()).unwrap(), named);
        assert_eq!(read(&nameless).unwrap().title, read(&named).unwrap().title);
    }
    let mut unknown = ring_gpu();
    unknown["benchmark"] = json!("a-later-one");
    assert!(read(&unknown).unwrap_err().contains("a-later-one"));
}

/// What the page keeps is what was measured, to the last bit.
#[test]
fn figures_are_read_as_they_were_printed() {
    for turn in 0..10_000u64 {
        let figure = f64::from_bits(0x4000_0000_0000_0000 | (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 9));
        let text = json!({ "figure": figure }).to_string();
        let again: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(again["figure"].as_f64().map(f64::to_bits), Some(figure.to_bits()), "{text}");
    }
}

#[test]
fn a_result_that_lacks_something_is_no_panic() {
    let ssd = ssd_on_gpu(&printed(env!("CARGO_BIN_EXE_bench-ssd"), SSD));
    let gpu = [ring_gpu(), ring_resident(), hbm(true), dedupe(), elements(), dram(), lookup_gpu()];
    for value in gpu.into_iter().chain([ssd]) {
        let whole = value.as_object().unwrap();
        for key in whole.keys() {
            let mut without = whole.clone();
            without.remove(key);
            // Either it is read without it, or an error says what is lacking.
            if let Err(wrong) = read(&Value::Object(without.clone())) {
                assert!(wrong.contains(key.as_str()) || wrong.contains("no program"), "{key}: {wrong}");
            }
            without.insert(key.clone(), Value::Null);
            let _ = read(&Value::Object(without));
        }
        let empty: Value =
            whole.iter().map(|(key, it)| (key.clone(), if it.is_array() { json!([]) } else { it.clone() })).collect();
        let section = read(&empty).unwrap();
        section.charts.iter().for_each(|chart| assert!(!chart.svg().contains("NaN")));
    }
}

/// A small page, as it is to be: `WARPROW_GOLDEN=write` writes it anew.
#[test]
fn a_small_page_is_the_golden_one() {
    let gpu = GpuDescribed {
        name: "A GPU".to_owned(),
        memory: Some(1 << 37),
        cuda: "13.0".to_owned(),
        driver: Some("580.1".to_owned()),
    };
    let machine = Described {
        cpu: "A processor".to_owned(),
        cores: 16,
        memory: Some(1 << 38),
        kernel: "6.18".to_owned(),
        gpu: Ok(gpu),
        drives: Some(vec!["A drive, 400 GB at 0000:01:00.0".to_owned()]),
    };
    let part = |name: &str, outcome, said: &str| Part {
        name: name.to_owned(),
        command: Some(format!("{name} --json")),
        outcome,
        said: said.to_owned(),
    };
    let ring = json!({
        "schema": 1, "submitter": "host", "depth": 128, "block": 512, "size": 268_435_456, "seed": 1, "vfio_user": false,
        "commands_per_second": 13.9e6, "minimal_commands_per_second": 5.0e6, "ratio": 2.89,
        "minimal_fetching_commands_per_second": 19.1e6, "fetching_ratio": 0.83, "pinned": true, "blocks_checked": 17_522_688,
        "machine": { "cpu": "A processor", "cores": 16, "kernel": "6.18", "load": 9.0 },
    });
    let report = Report {
        date: "2026-01-02 03:04 UTC".to_owned(),
        machine,
        parts: vec![
            part("ring", Outcome::Done(ring), "some <words>"),
            part("load", Outcome::Failed("no room & no way".to_owned()), ""),
            part("dram", Outcome::NotRun("left out by --only".to_owned()), ""),
        ],
    };
    let html = page(&report);
    stands_alone(&html);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/report/golden.html");
    if std::env::var("WARPROW_GOLDEN").as_deref() == Ok("write") {
        fs::write(&golden, &html).unwrap();
    }
    let wanted = fs::read_to_string(&golden).unwrap();
    let differs = html.lines().zip(wanted.lines()).find(|(got, want)| got != want);
    assert!(html == wanted, "{differs:?}; if it is meant, run with WARPROW_GOLDEN=write and look at the page");
}
