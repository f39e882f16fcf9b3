//! `warprow gpu-rings`.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use warprow_dma::SystemClock;
use warprow_driver::{Controller, ControllerOptions, Namespace, ResetKind};
use warprow_gpu_queues::{
    DoorbellAccess, DriveWritable, Gdrdrv, GdrdrvError, Gpu, GpuQueueError, Keeper, KeeperError, KeptGpuMemory,
    KeptMemoryError, MemoryPlacement, QueuePlacement, RingTest, RingTestError, RingTestReport,
};
use warprow_host::doctor::{Finding, Verdict};
use warprow_host::{Machine, PciAddress};
use warprow_kernels::{KernelError, Kernels};
use warprow_store::{CreateDrive, Device, DriveAddress, StoreError};

use super::{CommandOutput, Context, MachineArgs, keeper};
use crate::failure::{Class, Failure, chain};
use crate::report::printable;

/// Queue pairs to ask the drive for: one for the host and one for the GPU are used.
const QUEUE_PAIRS: u16 = 4;

/// Say where the queues of a drive can lie for a GPU, and prove it by reads
///
/// The ring test: a kernel on the GPU writes read commands for 768 LBAs, rings the drive's
/// doorbells, and waits for the completions for a bounded time; every byte is compared with what
/// the host reads. The best placement is tried first, then the next. What is not to be had is said
/// with the reason, and so are the facts that decide. The drive is reset; nothing on it changes.
/// The placements:
///   A    rings and landing areas in GPU memory, doorbells rung by the GPU
///   A⁻   completion queues and landing areas in GPU memory, doorbells rung by the GPU; of a
///        physical drive by gdrdrv (NVIDIA's GDRCopy), with a second process that keeps the memory
///   B    rings in pinned memory, doorbells of the device rung by the GPU
///   B′   rings in pinned memory, doorbells rung by a host thread for the GPU
///   C    rings and doorbells in pinned memory, for drives in software
/// docs/gpu-rings.md says what was shown where, and what is unproven.
#[derive(Debug, Args)]
#[command(
    verbatim_doc_comment,
    after_long_help = "\
Examples:
  sudo warprow gpu-rings 0000:41:00.0
  warprow gpu-rings 0000:41:00.0 --placement b-prime
  warprow gpu-rings emulated:a.drive --json | jq -r .placement

Exit codes: 0 a placement passed; 1 the machine lacks a GPU, its driver or NVRTC; 4 the placement that was asked for is not to be \
had; 5 what arrived differs from what lies on the drive; 7 the drive failed. More in `warprow --help`."
)]
pub struct GpuRingsArgs {
    /// The drive: a PCI address, emulated:PATH or vfio-user:SOCKET
    #[arg(value_name = "DRIVE")]
    drive: String,
    /// The GPU, by CUDA's number
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: u32,
    /// Test this placement alone, and fail where it is not to be had
    #[arg(long, value_enum, value_name = "PLACEMENT")]
    placement: Option<AskedPlacement>,
    #[command(flatten)]
    machine: MachineArgs,
}

/// A placement that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AskedPlacement {
    A,
    AMinus,
    B,
    BPrime,
    C,
}

/// A placement that was tested, and what came of it.
struct Tested {
    placement: QueuePlacement,
    result: Result<RingTestReport, RingTestError>,
}

/// A placement to test: who rings, and which memory its queue lies in.
type Rung = (QueuePlacement, DoorbellAccess, MemoryPlacement);

/// A placement's name, and why it was not taken.
type Untaken = (&'static str, String);

/// The drive as the test uses it.
struct OpenDrive {
    controller: Arc<Controller>,
    namespace: Namespace,
    /// Whether its doorbells are memory of this process.
    has_memory_doorbells: bool,
    /// Whether it reaches GPU memory at least as fast as memory of the host: a drive that a GPU plays.
    favours_gpu_memory: bool,
}

pub(crate) fn run(args: &GpuRingsArgs, context: &Context) -> Result<CommandOutput, Failure> {
    let machine = args.machine.machine()?;
    let address = args.drive.parse::<DriveAddress>()?;
    if let DriveAddress::Attached(_) = address {
        let what = format!("{} is a file of tables, and no device", args.drive);
        return Err(Failure::usage(&args.drive, what).remedy("give a drive: a PCI address or emulated:PATH"));
    }
    if !machine.is_this() {
        return copy_of_a_machine(&machine, &address);
    }
    // Before CUDA, so that no descriptor of NVIDIA's driver can be inherited, on old kernels either.
    let keeper = (pci(&address).is_some() && wants_kept_memory(args)).then(keeper::start);
    let gpu = Gpu::open(args.gpu).map_err(|error| without_gpu(&error))?;
    let kernels = Kernels::load(&gpu).map_err(|error| without_kernels(&error))?;
    let drive = OpenDrive::new(&address)?;
    context.interrupt.check()?;
    let spinner = context.screen.spinner("testing rings");
    let tested = tests_of(args, &drive, &kernels, &mut KeptMemory { gpu: &gpu, keeper });
    spinner.finish_and_clear();
    // It was only read from: what a failed shutdown could lose was lost before.
    let _ = drive.controller.shutdown();

    let gpu_address = gpu.pci_address().ok();
    let facts = machine.gpu_ring_facts(gpu_address.as_deref().and_then(|it| it.parse().ok()), pci(&address));
    let report = Report { args, drive: &drive, gpu: &gpu, gpu_address, tested: &tested, facts: &facts };
    let mut done = CommandOutput::new(report.text(), report.json())?;
    done.failure = report.failure();
    Ok(done)
}

/// Whether a physical drive is tested with completions and rows in the GPU's memory.
fn wants_kept_memory(args: &GpuRingsArgs) -> bool {
    args.placement.map_or_else(Gdrdrv::is_there, |asked| asked == AskedPlacement::AMinus)
}

/// Memory of the GPU that a physical drive may write to, for one test.
struct KeptMemory<'a> {
    gpu: &'a Arc<Gpu>,
    keeper: Option<Result<Arc<Keeper>, KeeperError>>,
}

impl KeptMemory<'_> {
    /// The memory. Its keeper ends with it.
    fn take(&mut self) -> Result<Arc<dyn DriveWritable>, KeptMemoryError> {
        // Where none was started, there was no gdrdrv when the command began.
        let keeper = self.keeper.take().ok_or(GdrdrvError::Absent)??;
        Ok(Arc::new(KeptGpuMemory::new(self.gpu, keeper)?))
    }
}

/// The facts alone: drives and GPUs of another machine cannot be asked.
fn copy_of_a_machine(machine: &Machine, address: &DriveAddress) -> Result<CommandOutput, Failure> {
    let facts = machine.gpu_ring_facts(None, pci(address));
    let text = format!("{address} was not tested, because this is a copy of its machine\n{}", facts_text(&facts));
    CommandOutput::new(
        text,
        json!({
            "drive": address.to_string(), "gpu": null, "placement": null, "unproven": null, "tests": [], "refused": [],
            "facts": facts_json(&facts),
        }),
    )
}

fn pci(address: &DriveAddress) -> Option<PciAddress> {
    match address {
        DriveAddress::Pci { address, .. } => Some(*address),
        _ => None,
    }
}

fn without_gpu(error: &GpuQueueError) -> Failure {
    let remedy = match error {
        GpuQueueError::NoDevice { count: 1.., .. } => "choose one of them with --gpu",
        _ => "the test needs an NVIDIA GPU with driver 580 or later; `warprow doctor` says what this machine lacks",
    };
    Failure::new(Class::Unready, "GPU", error.to_string()).remedy(remedy)
}

fn without_kernels(error: &KernelError) -> Failure {
    Failure::new(Class::Unready, "NVRTC", error.to_string()).remedy("`warprow doctor` says what is missing")
}

impl OpenDrive {
    fn new(address: &DriveAddress) -> Result<Self, Failure> {
        let device = Device::open(address, CreateDrive::Never)?;
        let options =
            ControllerOptions { queue_pairs: QUEUE_PAIRS, host_memory_limit: 0, ..ControllerOptions::default() };
        let opened = Controller::open(device.function().clone(), Arc::new(SystemClock::new()), options);
        let controller = opened.map_err(StoreError::from)?;
        let namespace = controller.namespace(device.namespace()).map_err(StoreError::from)?;
        let has_memory_doorbells = controller.function().doorbell_memory().is_some();
        let favours_gpu_memory = controller.function().favours_peer_memory();
        Ok(Self { controller, namespace, has_memory_doorbells, favours_gpu_memory })
    }

    /// Whether a GPU that stores to the doorbells stores to registers of a BAR.
    fn has_registers(&self) -> bool {
        !self.has_memory_doorbells && !matches!(self.controller.function().doorbell_registers(), Ok(None))
    }

    /// Placements that the drive may have, best first.
    fn rungs(&self) -> Vec<Rung> {
        use DoorbellAccess::{HostThread, Memory, Registers};
        let thread = (QueuePlacement::BPrime, HostThread, MemoryPlacement::Pinned);
        match self.has_memory_doorbells {
            true => vec![
                (QueuePlacement::A, Memory, MemoryPlacement::A),
                (QueuePlacement::AMinus, Memory, MemoryPlacement::AMinus),
                (QueuePlacement::C, Memory, MemoryPlacement::Pinned),
                thread,
            ],
            false => vec![
                // The completion queue and the landing area lie in memory that a keeper keeps, all else is pinned.
                (QueuePlacement::AMinus, Registers, MemoryPlacement::Pinned),
                (QueuePlacement::B, Registers, MemoryPlacement::Pinned),
                thread,
            ],
        }
    }

    /// Why the drive cannot have a placement, whatever the GPU does.
    fn refusal(&self, asked: AskedPlacement) -> Option<&'static str> {
        match asked {
            AskedPlacement::A if !self.has_memory_doorbells => Some(
                "physical drives read submission queues in memory of the host alone: docs/gpu-rings.md, placement A⁻",
            ),
            AskedPlacement::B if self.has_memory_doorbells => {
                Some("the drive is software, with doorbells in memory that the GPU reaches itself: placement C")
            }
            AskedPlacement::C if !self.has_memory_doorbells => Some("the drive's doorbells are no memory"),
            _ => None,
        }
    }

    /// Why a placement is not tried unless it is asked for.
    fn reserve(&self, placement: QueuePlacement) -> Option<&'static str> {
        let in_gpu_memory = [QueuePlacement::A, QueuePlacement::AMinus].contains(&placement);
        if placement == QueuePlacement::AMinus && !self.has_memory_doorbells {
            return (!Gdrdrv::is_there())
                .then_some("there is no /dev/gdrdrv (NVIDIA's GDRCopy), by which drives reach the GPU's memory; --placement says more");
        }
        (in_gpu_memory && !self.favours_gpu_memory)
            .then_some("the drive reaches GPU memory by way of the host; --placement tests it all the same")
    }
}

/// Tests placements until one passes.
fn tests_of(args: &GpuRingsArgs, drive: &OpenDrive, kernels: &Kernels, kept: &mut KeptMemory<'_>) -> Vec<Tested> {
    let mut tested = Vec::new();
    for (placement, doorbells, memory) in drive.rungs() {
        let is_tried = match args.placement {
            Some(asked) => asked.placement() == placement,
            None => drive.reserve(placement).is_none(),
        };
        if !is_tried {
            continue;
        }
        let test = RingTest { memory, ..RingTest::new((drive.controller.clone(), drive.namespace.clone()), doorbells) };
        let is_kept = placement == QueuePlacement::AMinus && !drive.has_memory_doorbells;
        let writable = is_kept.then(|| kept.take()).transpose();
        let result = writable
            .map_err(|error| RingTestError::from(GpuQueueError::from(error)))
            .and_then(|writable| kernels.test_ring(&RingTest { writable, ..test }));
        let passed = result.is_ok();
        tested.push(Tested { placement, result });
        if passed {
            break;
        }
        // What the failed test left in the drive is gone then; if the reset fails, the next test says so.
        let _ = drive.controller.reset(ResetKind::Controller);
    }
    tested
}

impl AskedPlacement {
    const ALL: [Self; 5] = [Self::A, Self::AMinus, Self::B, Self::BPrime, Self::C];

    fn placement(self) -> QueuePlacement {
        match self {
            Self::A => QueuePlacement::A,
            Self::AMinus => QueuePlacement::AMinus,
            Self::B => QueuePlacement::B,
            Self::BPrime => QueuePlacement::BPrime,
            Self::C => QueuePlacement::C,
        }
    }
}

/// What is printed.
struct Report<'a> {
    args: &'a GpuRingsArgs,
    drive: &'a OpenDrive,
    gpu: &'a Gpu,
    gpu_address: Option<String>,
    tested: &'a [Tested],
    facts: &'a [Finding],
}

impl Report<'_> {
    fn taken(&self) -> Option<(QueuePlacement, &RingTestReport)> {
        self.tested.iter().find_map(|it| Some((it.placement, it.result.as_ref().ok()?)))
    }

    /// Whether only substitutes have shown that the placement that was taken works.
    fn is_unproven(&self) -> bool {
        let by_gpu = [QueuePlacement::AMinus, QueuePlacement::B];
        self.taken().is_some_and(|(placement, _)| by_gpu.contains(&placement) && self.drive.has_registers())
    }

    /// Each placement that is better than the one that was taken, with the reason.
    fn untaken(&self) -> Vec<Untaken> {
        let taken = self.taken().map(|(placement, _)| placement);
        let mut untaken = Vec::new();
        for asked in AskedPlacement::ALL {
            let placement = asked.placement();
            if taken.is_some_and(|taken| placement >= taken) {
                continue;
            }
            let failed = self.tested.iter().filter(|it| it.placement == placement);
            let reason = match failed.filter_map(|it| it.result.as_ref().err()).next() {
                Some(error) => chain(error),
                None => match self.drive.refusal(asked).or_else(|| self.drive.reserve(placement)) {
                    Some(why) => why.to_owned(),
                    None => continue,
                },
            };
            untaken.push((placement.name(), reason));
        }
        untaken
    }

    fn text(&self) -> String {
        let gpu = format!("GPU {} ({})", self.args.gpu, self.gpu.name());
        let drive = printable(&self.args.drive);
        let mut lines = Vec::new();
        match self.taken() {
            Some((placement, report)) => {
                let unproven = match self.is_unproven() {
                    true => "; unproven but for this test: docs/gpu-rings.md says what ran where",
                    false => "",
                };
                lines.push(format!("{drive} on {gpu}: placement {placement}: {}{unproven}", placement.description()));
                lines.push(format!("  {:<9} {}", "test", passed(report)));
            }
            None => lines.push(format!("{drive} on {gpu}: no placement passed")),
        }
        lines.extend(
            self.untaken().iter().map(|(name, why)| format!("  {:<9} {}", format!("not {name}"), printable(why))),
        );
        if self.drive.has_memory_doorbells {
            lines.push(format!("  {:<9} doorbells are memory, as of every drive in software", "drive"));
        }
        lines.push(facts_text(self.facts));
        lines.join("\n")
    }

    fn json(&self) -> Value {
        let test = |it: &Tested| {
            let report = it.result.as_ref().ok();
            json!({
                "placement": it.placement.name(),
                "passed": report.is_some(),
                "lbas": report.map(|report| report.lbas),
                "contents": report.map(|report| report.contents),
                "doorbells": report.map(|report| report.doorbells),
                "in_registers": report.map(|report| report.in_registers),
                "why": it.result.as_ref().err().map(|error| chain(error)),
            })
        };
        let refused = self.untaken().into_iter().map(|(name, why)| json!({"placement": name, "reason": why}));
        json!({
            "drive": self.args.drive,
            "gpu": {"number": self.args.gpu, "name": self.gpu.name(), "address": self.gpu_address},
            "placement": self.taken().map(|(placement, _)| placement.name()),
            "unproven": self.is_unproven(),
            "doorbells_in_memory": self.drive.has_memory_doorbells,
            "tests": self.tested.iter().map(test).collect::<Vec<_>>(),
            "refused": refused.collect::<Vec<_>>(),
            "facts": facts_json(self.facts),
        })
    }

    /// Why nothing passed, if nothing did.
    fn failure(&self) -> Option<Failure> {
        if self.taken().is_some() {
            return None;
        }
        let subject = self.args.drive.clone();
        let named = |asked: AskedPlacement| format!("placement {} is not to be had", asked.placement());
        if let Some((asked, why)) = self.args.placement.and_then(|asked| Some((asked, self.drive.refusal(asked)?))) {
            let failure = Failure::new(Class::Refused, subject, format!("{}: {why}", named(asked)));
            return Some(failure.remedy("leave --placement out for the best that is to be had"));
        }
        let error = self.tested.iter().rev().find_map(|it| it.result.as_ref().err())?;
        let class = match error {
            RingTestError::Content { .. } => Class::Mismatch,
            RingTestError::Queues(
                GpuQueueError::DoorbellRegisters { .. } | GpuQueueError::KeptMemory(_) | GpuQueueError::Unsupported(_),
            ) => Class::Refused,
            RingTestError::Queues(_) | RingTestError::Running(_) => Class::Resources,
            _ => Class::Drive,
        };
        let why = chain(error);
        let message = self.args.placement.map_or_else(|| why.clone(), |asked| format!("{}: {why}", named(asked)));
        Some(Failure::new(class, subject, message))
    }
}

fn passed(report: &RingTestReport) -> String {
    let RingTestReport { lbas, contents, doorbells, in_registers } = report;
    let stored = if *in_registers { "registers" } else { "memory" };
    let blank = match contents {
        0 | 1 => "; all of them hold the same, so that the test cannot tell one place from another",
        _ => "",
    };
    format!(
        "{lbas} LBAs read by the GPU are as the host reads them, {contents} different contents; {doorbells} doorbells stored to {stored}{blank}"
    )
}

fn facts_text(facts: &[Finding]) -> String {
    let line = |fact: &Finding| {
        let mut text = format!("  {:<9} {:<16} {}", fact.verdict, fact.check, printable(&fact.found));
        let remedies = [fact.advice.clone(), fact.command.as_ref().map(|command| format!("$ {command}"))];
        // What is as it should be needs no remedy.
        for remedy in remedies.into_iter().flatten().filter(|_| fact.verdict != Verdict::Pass) {
            text += &format!("\n{:29}{}", "", printable(&remedy));
        }
        text
    };
    std::iter::once("facts".to_owned()).chain(facts.iter().map(line)).collect::<Vec<_>>().join("\n")
}

fn facts_json(facts: &[Finding]) -> Vec<Value> {
    let object = |fact: &Finding| {
        json!({
            "check": fact.check, "verdict": fact.verdict.name(), "found": fact.found,
            "advice": fact.advice, "command": fact.command,
        })
    };
    facts.iter().map(object).collect()
}
