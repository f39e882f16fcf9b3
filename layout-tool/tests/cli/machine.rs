//! `doctor`, `devices`, `bind` and `unbind` on made-up machines, and on emulated drives.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::fixture::CliFixture;
use crate::machines::{FREE, Fixture, RAID, SYSTEM, laptop, server, vmd};

/// The command on a made-up machine.
fn on<'a>(machine: &'a Fixture, args: &[&'a str]) -> Vec<&'a str> {
    let mut args = args.to_vec();
    args.extend(["--root", machine.root().to_str().unwrap()]);
    args
}

fn check<'a>(object: &'a Value, name: &str) -> &'a Value {
    let mut checks = object["checks"].as_array().unwrap().iter();
    checks.find(|value| value["check"] == name).unwrap_or_else(|| panic!("no {name} in {object}"))
}

fn override_of(machine: &Fixture, address: &str) -> String {
    fs::read_to_string(machine.path(&format!("sys/bus/pci/devices/{address}/driver_override"))).unwrap()
}

#[test]
fn doctor_says_what_fails_and_the_command() {
    let fixture = CliFixture::new();
    let machine = server();
    let (object, exit) = fixture.json(&on(&machine, &["doctor"]));
    assert_eq!((exit, &object["ready"]), (1, &false.into()));
    assert_eq!(object["error"]["class"], "unready");
    assert_eq!(check(&object, "iommu")["verdict"], "pass");
    let drives = check(&object, "drives");
    assert_eq!((&drives["verdict"], &drives["command"]), (&"fail".into(), &"sudo warprow bind 0000:04:00.0".into()));
    let counted: u64 = ["pass", "warn", "fail", "unproven"].iter().map(|text| object[text].as_u64().unwrap()).sum();
    assert_eq!(counted, object["checks"].as_array().unwrap().len() as u64);

    let run = fixture.run(&on(&machine, &["doctor"]));
    assert_eq!(run.exit, 1);
    assert!(run.stdout.contains("fail      drives       no drive is bound to vfio-pci"), "{}", run.stdout);
    assert!(run.stdout.contains("$ sudo warprow bind 0000:04:00.0"), "{}", run.stdout);
    assert!(run.stderr.starts_with("error: ") && run.stderr.contains("help: "), "{}", run.stderr);

    machine.bind(FREE, "vfio-pci");
    machine.write("dev/vfio/6", "");
    machine.write("proc/self/limits", "Max locked memory         unlimited            unlimited            bytes\n");
    let object = fixture.ok(&on(&machine, &["doctor"]));
    assert_eq!((&object["ready"], &object["fail"]), (&true.into(), &0.into()));

    let (object, exit) = fixture.json(&on(&laptop(), &["doctor"]));
    assert_eq!((exit, &check(&object, "iommu")["verdict"]), (1, &"fail".into()));
    assert!(check(&fixture.json(&on(&vmd(), &["doctor"])).0, "vmd")["advice"].as_str().unwrap().contains("VMD"));
}

/// Whatever this machine is: it answers, and says so in both its forms.
#[test]
fn doctor_and_devices_on_this_machine() {
    let fixture = CliFixture::new();
    let (object, exit) = fixture.json(&["doctor"]);
    assert_eq!(exit, i32::from(object["fail"].as_u64().unwrap() > 0), "{object}");
    for name in ["cpu", "kernel", "iommu", "vfio", "memlock", "gpu"] {
        check(&object, name);
    }
    assert!(fixture.ok(&["devices", "--no-probe"])["devices"].is_array());
}

#[test]
fn devices_of_a_server() {
    let fixture = CliFixture::new();
    let machine = server();
    let object = fixture.ok(&on(&machine, &["devices"]));
    let devices = object["devices"].as_array().unwrap();
    let of = |name: &str| devices.iter().map(|device| device[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("address"), [FREE, SYSTEM, RAID]);
    assert_eq!(of("free"), [true, false, false]);
    assert_eq!(of("numa_node"), [0, 0, 1]);
    assert_eq!(of("temperature_c"), [41, 41, 41]);
    assert_eq!(of("percentage_used"), [Value::Null, Value::Null, Value::Null], "sysfs does not tell");
    let free = &devices[0];
    assert_eq!(free["gpus"][0], serde_json::json!({"address": "0000:03:00.0", "distance": "switch"}));
    assert_eq!(free["namespaces"][0]["lba_bytes"], 512);
    assert_eq!(devices[1]["uses"][0]["kind"], "boot");
    assert!(devices[2]["uses"].as_array().unwrap().iter().any(|value| value["kind"] == "raid" && value["by"] == "md0"));

    let text = fixture.run(&on(&machine, &["devices"])).stdout;
    for part in ["MADE-UP DRIVE 3.84TB", "3.49 TiB", "/dev/nvme1n1p2 is mounted at /", "0000:03:00.0: same switch"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let one = fixture.ok(&on(&machine, &["devices", RAID]));
    assert_eq!(one["devices"].as_array().unwrap().len(), 1);
    let error = fixture.fails(&on(&machine, &["devices", "0000:55:00.0"]), 7);
    assert!(error["message"].as_str().unwrap().contains(FREE), "{error}");
    let none = Fixture::new();
    assert!(fixture.run(&on(&none, &["devices"])).stdout.contains("No NVMe controller"));
}

#[test]
fn devices_asks_an_emulated_drive_itself() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let before = fs::read(fixture.path("a.drive")).unwrap();
    let object = fixture.ok(&["devices", &drive]);
    let device = &object["devices"][0];
    assert_eq!((&device["emulated"], &device["bytes"]), (&true.into(), &(64 << 20).into()));
    assert!(device["serial"].as_str().is_some_and(|serial| !serial.is_empty()));
    let formats = device["namespaces"][0]["formats"].as_array().unwrap();
    assert!(
        formats.iter().any(|format| format["lba_bytes"] == 512)
            && formats.iter().any(|format| format["lba_bytes"] == 4096)
    );
    for number in ["temperature_c", "percentage_used", "media_errors"] {
        assert!(device[number].is_u64(), "{number}: {device}");
    }
    let text = fixture.run(&["devices", &drive]).stdout;
    assert!(text.contains("emulated") && text.contains("64.0 MiB") && text.contains("formats"), "{text}");
    assert_eq!(fs::read(fixture.path("a.drive")).unwrap(), before, "nothing on it changed");
    fixture.fails(&["devices", "emulated:absent"], 6);
    for nonsense in ["nonsense", ",", "", " , "] {
        let error = fixture.fails(&["devices", nonsense], 2);
        assert!(error["remedy"].as_str().unwrap().contains("emulated:PATH"), "{error}");
        // Beside one that is right.
        fixture.fails(&["devices", &drive, nonsense], 2);
    }
}

/// A copy of a machine is not tested; the facts that decide are said, each with its remedy.
#[test]
fn facts_of_a_drive_and_its_gpus() {
    let (fixture, machine) = (CliFixture::new(), server().with_vfio());
    machine.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri\n");
    machine.write("proc/sys/kernel/osrelease", "6.18.0\n");
    machine.write("sys/bus/pci/devices/0000:03:00.0/iommu_group/type", "DMA-FQ\n");
    let object = fixture.ok(&on(&machine, &["gpu-rings", FREE]));
    assert!(object["placement"].is_null() && object["gpu"].is_null(), "{object}");
    let facts = object["facts"].as_array().unwrap();
    let told = |check: &str, words: &str| {
        let found = facts.iter().any(|it| it["check"] == check && it.to_string().contains(words));
        assert!(found, "no {check} with {words:?} in {object}");
    };
    told("gpu-module", "closed module 550.90.07");
    told("gpu-module", "570.133.07 or later");
    told("gpu-privilege", "setcap cap_sys_admin");
    told("gpu-domain", "iommu=pt");
    told("drive-group", "/dev/vfio/6");
    told("gpu-distance", FREE);
    let run = fixture.run(&on(&machine, &["gpu-rings", FREE]));
    assert!(run.exit == 0 && run.stdout.contains("was not tested") && run.stdout.contains("warn"), "{run:?}");
}

/// With a GPU, an emulated drive passes, and what it cannot have is refused by name; without one, a line says what is missing.
#[test]
fn rings_of_an_emulated_drive() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "16M");
    let before = fs::read(fixture.path("a.drive")).unwrap();
    let (object, exit) = fixture.json(&["gpu-rings", &drive]);
    if exit != 0 {
        assert_eq!((exit, &object["error"]["class"]), (1, &"unready".into()), "{object}");
        let run = fixture.run(&["gpu-rings", &drive]);
        let first = run.stderr.lines().next().unwrap_or_default();
        assert!(first.starts_with("error: ") && run.stderr.contains("help: "), "{run:?}");
        eprintln!("skipped: rings need a GPU: {first}");
    } else {
        assert_eq!((&object["placement"], &object["unproven"]), (&"C".into(), &false.into()), "{object}");
        assert_eq!(
            (&object["doorbells_in_memory"], &object["tests"][0]["lbas"]),
            (&true.into(), &768.into()),
            "{object}"
        );
        let by_thread = fixture.ok(&["gpu-rings", &drive, "--placement", "b-prime"]);
        assert_eq!((&by_thread["placement"], &by_thread["tests"][0]["in_registers"]), (&"B′".into(), &false.into()));
        for asked in ["a", "a-minus"] {
            let object = fixture.ok(&["gpu-rings", &drive, "--placement", asked]);
            assert_eq!(object["tests"][0]["lbas"], 768, "{object}");
        }
        let error = fixture.fails(&["gpu-rings", &drive, "--placement", "b"], 4);
        assert!(error["message"].as_str().unwrap().contains("doorbells in memory"), "{error}");
        let text = fixture.run(&["gpu-rings", &drive]).stdout;
        assert!(
            text.contains("placement C") && text.contains("doorbells are memory") && text.contains("facts"),
            "{text}"
        );
    }
    assert_eq!(fs::read(fixture.path("a.drive")).unwrap(), before, "nothing on it changed");
    fixture.fails(&["gpu-rings", "nonsense"], 2);
    fixture.fails(&["gpu-rings", "attached:a.safetensors"], 2);
    fixture.fails(&["gpu-rings"], 2);
}

#[test]
fn bind_and_unbind_by_the_book() {
    let fixture = CliFixture::new();
    let machine = server();
    let device = format!("/sys/bus/pci/devices/{FREE}");
    let dry = fixture.run(&on(&machine, &["bind", FREE, "--dry-run"]));
    assert_eq!(dry.exit, 0, "{dry:?}");
    let writes: Vec<_> = dry.stdout.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    assert_eq!(
        writes,
        [
            format!("echo vfio-pci > {device}/driver_override"),
            format!("echo {FREE} > {device}/driver/unbind"),
            format!("echo {FREE} > /sys/bus/pci/drivers_probe"),
        ]
    );
    assert_eq!(override_of(&machine, FREE), "(null)\n", "nothing was written");
    let object = fixture.ok(&on(&machine, &["bind", FREE, "--dry-run"]));
    assert_eq!((&object["dry_run"], &object["drives"][0]["changed"]), (&true.into(), &false.into()));
    assert_eq!(object["drives"][0]["writes"].as_array().unwrap().len(), 3);

    // Nobody agreed.
    let error = fixture.fails(&on(&machine, &["bind", FREE]), 4);
    assert!(error["remedy"].as_str().unwrap().contains("--yes"), "{error}");
    assert_eq!(override_of(&machine, FREE), "(null)\n");

    let _kernel = machine.kernel();
    let object = fixture.ok(&on(&machine, &["bind", FREE, "--yes"]));
    assert_eq!(
        (&object["drives"][0]["changed"], &object["drives"][0]["driver_before"]),
        (&true.into(), &"nvme".into())
    );
    assert_eq!(override_of(&machine, FREE), "vfio-pci\n");
    assert_eq!(fixture.ok(&on(&machine, &["devices", FREE]))["devices"][0]["driver"], "vfio-pci");
    // Done already: without a question.
    let object = fixture.ok(&on(&machine, &["bind", FREE]));
    assert_eq!(object["drives"][0]["changed"], false);

    assert!(
        fixture
            .run(&on(&machine, &["unbind", FREE, "--dry-run"]))
            .stdout
            .contains(&format!("echo > {device}/driver_override"))
    );
    fixture.fails(&on(&machine, &["unbind", FREE]), 4);
    let run = fixture.run(&on(&machine, &["unbind", FREE, "--yes"]));
    assert!(run.exit == 0 && run.stdout.contains("belongs to nvme now"), "{run:?}");
    assert_eq!(fixture.ok(&on(&machine, &["devices", FREE]))["devices"][0]["driver"], "nvme");
}

#[test]
fn bind_refuses_what_is_used_and_what_is_none() {
    let fixture = CliFixture::new();
    let machine = server();
    for (args, exit, words) in [
        (&["bind", SYSTEM, "--yes"][..], 4, &["mounted at /", "swap"][..]),
        (&["bind", RAID, "--yes"], 4, &["RAID md0", "/srv/my data"]),
        (&["bind", FREE, SYSTEM, "--yes"], 4, &[SYSTEM]),
        (&["bind", "0000:03:00.0", "--yes"], 3, &["not an NVMe controller"]),
        (&["bind", "0000:55:00.0", "--dry-run"], 7, &["no such PCI function"]),
        (&["bind", "nvme0", "--dry-run"], 2, &["is not a PCI address"]),
        (&["bind", "0000:04:00.0/2", "--dry-run"], 2, &["one namespace"]),
        (&["bind", "emulated:x", "--dry-run"], 2, &["no drive of this machine's"]),
        (&["bind", "", "--dry-run"], 2, &["is not a PCI address"]),
        (&["unbind", "0000:03:00.0", "--yes"], 3, &["not an NVMe controller"]),
    ] {
        let error = fixture.fails(&on(&machine, args), exit);
        let message = error["message"].as_str().unwrap();
        assert!(words.iter().all(|word| message.contains(word)), "{args:?}: {message}");
        assert_eq!(override_of(&machine, FREE), "(null)\n", "{args:?}: of several drives, none is touched");
    }
    let uses = fixture.fails(&on(&machine, &["bind", SYSTEM, "--yes"]), 4)["uses"].clone();
    assert!(
        uses.as_array().unwrap().iter().any(|value| value["kind"] == "boot" && value["device"] == "/dev/nvme1n1p2")
    );
    fixture.fails(&on(&laptop(), &["bind", "0000:02:00.0", "--dry-run"]), 4);
    fixture.fails(&["bind", FREE, "--dry-run", "--root", "/nonexistent"], 3);
    fixture.fails(&["bind"], 2);
}

/// Nothing obeys: files are written, and no driver comes.
#[test]
fn bind_says_that_the_drive_was_not_taken() {
    let fixture = CliFixture::new();
    let machine = server();
    let error = fixture.fails(&on(&machine, &["bind", FREE, "--yes"]), 4);
    assert!(error["message"].as_str().unwrap().contains("did not take the drive"), "{error}");
    assert_eq!(override_of(&machine, FREE), "\n", "put back");
}

/// Runs `bind` on a terminal and types something; its exit code and all it printed there.
fn typed(machine: &Fixture, text: &str) -> (i32, String) {
    let terminal = nix::pty::openpty(None, None).unwrap();
    let mut ours = File::from(terminal.master);
    let theirs = File::from(terminal.slave);
    let stdio = || Stdio::from(theirs.try_clone().unwrap());
    let mut child = Command::new(env!("CARGO_BIN_EXE_warprow"))
        .args(on(machine, &["bind", FREE]))
        .stdin(stdio())
        .stderr(stdio())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    drop(theirs);
    ours.write_all(text.as_bytes()).unwrap();
    let exit = child.wait().unwrap().code().unwrap();
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    // The terminal's end is an error once nobody has the other side.
    while let Ok(count @ 1..) = ours.read(&mut buffer) {
        said.extend(&buffer[..count]);
    }
    (exit, String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_typed_serial_number_agrees_and_nothing_else_does() {
    let machine = server();
    let kernel = machine.kernel();
    let (exit, said) = typed(&machine, "yes\n");
    assert!(exit == 4 && said.contains("S0000") && said.contains("nothing was changed"), "{said}");
    assert_eq!(typed(&machine, "\n").0, 4);
    assert_eq!(override_of(&machine, FREE), "(null)\n");
    let (exit, said) = typed(&machine, "S0000\n");
    assert_eq!((exit, override_of(&machine, FREE).as_str()), (0, "vfio-pci\n"), "{said}");
    drop(kernel);
}

#[test]
fn help_teaches() {
    let fixture = CliFixture::new();
    for command in ["doctor", "devices", "gpu-rings", "bind", "unbind"] {
        let help = fixture.run(&[command, "--help"]).stdout;
        assert!(help.contains("Examples:") && help.contains(&format!("warprow {command}")), "{help}");
    }
}
