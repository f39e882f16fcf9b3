//! Faults on demand: which command is hit, and what happens to it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warprow_spec::{AdminOpcode, NvmOpcode, Sqe, Status};

/// What happens to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not executed and completes with this status.
    Status(Status),
    /// It is executed; its completion is never posted.
    Drop,
    /// It is neither executed nor completed.
    Swallow,
    /// It is executed, and completes, this much later: its data lands then too, after the host's time-out perhaps.
    Delay(Duration),
    /// It completes twice.
    Duplicate,
    /// It completes with this command identifier instead of its own.
    WrongCid(u16),
    /// One bit of the data that it moves is flipped, and it succeeds.
    Corrupt,
    /// The controller sets CSTS.CFS, executes nothing more and posts nothing more until it is reset.
    Fatal,
    /// The controller is gone: registers read as all ones, and there is no DMA any more, until
    /// [`power_cut`](crate::SoftController::power_cut).
    Disappear,
}

/// A switch by which a host stops a controller: see [`FaultPlan::disobey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// CC.EN.
    Enable,
    /// The reset of the function.
    Reset,
    /// Bus master enable.
    BusMaster,
}

impl Switch {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Queues whose commands a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Queues {
    /// All of them.
    #[default]
    Any,
    /// The admin submission queue.
    Admin,
    /// Every I/O submission queue.
    Io,
    /// The I/O submission queue with this identifier.
    Id(u16),
}

/// When a fault happens: on the commands that match every condition given, after some were let pass, some times.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    queues: Queues,
    opcode: Option<u8>,
    nsid: Option<u32>,
    lbas: Option<Range<u64>>,
    pass: u64,
    times: u64,
}

impl Rule {
    /// `fault` on the next command of any kind, once.
    pub fn new(fault: Fault) -> Self {
        Self { fault, queues: Queues::Any, opcode: None, nsid: None, lbas: None, pass: 0, times: 1 }
    }

    /// Only commands of these queues.
    pub fn on(mut self, queues: Queues) -> Self {
        self.queues = queues;
        self
    }

    /// Only I/O commands with this opcode.
    pub fn io(mut self, opcode: NvmOpcode) -> Self {
        self.opcode = Some(opcode.0);
        self.queues = if let Queues::Id(id) = self.queues { Queues::Id(id) } else { Queues::Io };
        self
    }

    /// Only admin commands with this opcode.
    pub fn admin(mut self, opcode: AdminOpcode) -> Self {
        self.opcode = Some(opcode.0);
        self.queues = Queues::Admin;
        self
    }

    /// Only commands to this namespace.
    pub fn nsid(mut self, nsid: u32) -> Self {
        self.nsid = Some(nsid);
        self
    }

    /// Only reads, writes, compares and write zeroes that touch these LBAs.
    pub fn lbas(mut self, lbas: Range<u64>) -> Self {
        self.lbas = Some(lbas);
        self
    }

    /// Only from the `n`th match on; 1 is the next.
    pub fn nth(mut self, n: u64) -> Self {
        self.pass = n.saturating_sub(1);
        self
    }

    /// On this many matches rather than one.
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// On every match until the rule is removed.
    pub fn always(self) -> Self {
        self.times(u64::MAX)
    }

    fn matches(&self, sqid: u16, sqe: &Sqe) -> bool {
        let queue = match self.queues {
            Queues::Any => true,
            Queues::Admin => sqid == 0,
            Queues::Io => sqid != 0,
            Queues::Id(id) => sqid == id,
        };
        queue
            && self.opcode.is_none_or(|opcode| opcode == sqe.opcode())
            && self.nsid.is_none_or(|nsid| nsid == sqe.nsid)
            && self.lbas.as_ref().is_none_or(|lbas| touches(sqid, sqe, lbas))
    }
}

fn touches(sqid: u16, sqe: &Sqe, lbas: &Range<u64>) -> bool {
    let has_lbas = matches!(
        NvmOpcode(sqe.opcode()),
        NvmOpcode::READ | NvmOpcode::WRITE | NvmOpcode::COMPARE | NvmOpcode::WRITE_ZEROES
    );
    let first = sqe.slba();
    let end = first.saturating_add(u64::from(sqe.cdw12 & 0xffff) + 1);
    sqid != 0 && has_lbas && first < lbas.end && lbas.start < end
}

/// Names a rule that was injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleId(u64);

#[derive(Debug)]
struct Armed {
    id: RuleId,
    rule: Rule,
    fired: u64,
}

#[derive(Debug, Default)]
struct Rules {
    next: u64,
    armed: Vec<Armed>,
    spent: Vec<(RuleId, u64)>,
}

/// The faults of a controller; clones share one plan. Rules are tried in the order of their injection, and the first
/// that matches a command decides.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan(Arc<Plan>);

#[derive(Debug, Default)]
struct Plan {
    active: AtomicBool,
    rules: Mutex<Rules>,
    /// The bits of switches.
    disobeyed: AtomicU8,
}

impl FaultPlan {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.0.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule; it holds from the next command that the controller fetches.
    pub fn inject(&self, rule: Rule) -> RuleId {
        let mut rules = self.rules();
        let id = RuleId(rules.next);
        rules.next += 1;
        rules.armed.push(Armed { id, rule, fired: 0 });
        self.0.active.store(true, Ordering::Release);
        id
    }

    /// Takes a rule back; what it has delayed stays delayed.
    pub fn remove(&self, id: RuleId) {
        let mut rules = self.rules();
        let Rules { armed, spent, .. } = &mut *rules;
        armed.retain(|armed| {
            armed.id != id || {
                spent.push((id, armed.fired));
                false
            }
        });
        self.0.active.store(!rules.armed.is_empty(), Ordering::Release);
    }

    /// Has the controller not obey a switch: CC.EN stays set until the function is reset, its reset is not supported, bus mastering
    /// stays as it is. Until [`clear`](Self::clear).
    pub fn disobey(&self, switch: Switch) {
        self.0.disobeyed.fetch_or(switch.bit(), Ordering::SeqCst);
    }

    pub(crate) fn obey(&self, switch: Switch) {
        self.0.disobeyed.fetch_and(!switch.bit(), Ordering::SeqCst);
    }

    pub(crate) fn disobeys(&self, switch: Switch) -> bool {
        self.0.disobeyed.load(Ordering::SeqCst) & switch.bit() != 0
    }

    /// Takes all rules back, and has every switch obeyed.
    pub fn clear(&self) {
        self.0.disobeyed.store(0, Ordering::SeqCst);
        let mut rules = self.rules();
        let Rules { armed, spent, .. } = &mut *rules;
        spent.extend(armed.drain(..).map(|armed| (armed.id, armed.fired)));
        self.0.active.store(false, Ordering::Release);
    }

    /// How many commands a rule has hit.
    pub fn fired(&self, id: RuleId) -> u64 {
        let rules = self.rules();
        let armed = rules.armed.iter().find(|armed| armed.id == id).map(|armed| armed.fired);
        armed.or_else(|| rules.spent.iter().find(|(spent, _)| *spent == id).map(|&(_, fired)| fired)).unwrap_or(0)
    }

    /// Whether any rule is left that may still hit a command.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.0.active.load(Ordering::Acquire)
    }

    /// The fault that hits this command, if any.
    pub(crate) fn strike(&self, sqid: u16, sqe: &Sqe) -> Option<Fault> {
        if !self.is_active() {
            return None;
        }
        let mut rules = self.rules();
        let mut hit = None;
        for (i, armed) in rules.armed.iter_mut().enumerate() {
            if !armed.rule.matches(sqid, sqe) {
                continue;
            }
            if armed.rule.pass > 0 {
                armed.rule.pass -= 1;
                continue;
            }
            armed.fired += 1;
            hit = Some((i, armed.rule.fault, armed.fired >= armed.rule.times));
            break;
        }
        let (i, fault, spent) = hit?;
        if spent {
            let armed = rules.armed.remove(i);
            rules.spent.push((armed.id, armed.fired));
            self.0.active.store(!rules.armed.is_empty(), Ordering::Release);
        }
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warprow_spec::StatusCode;

    #[test]
    fn rules_match_pass_fire_and_expire() {
        let plan = FaultPlan::default();
        let read = |slba| Sqe { cdw12: 7, ..Sqe::new(NvmOpcode::READ.0, 1).with_slba(slba) };
        let fault = Fault::Status(StatusCode::UnrecoveredReadError.into());
        let id = plan.inject(Rule::new(fault).io(NvmOpcode::READ).nsid(1).lbas(100..101).nth(2).times(2));
        assert!(plan.is_active());
        assert_eq!(plan.strike(1, &read(101)), None);
        assert_eq!(plan.strike(0, &read(93)), None, "an admin command has no LBAs");
        assert_eq!(plan.strike(1, &read(93)), None, "the first match passes");
        assert_eq!(plan.strike(1, &read(92)), None);
        assert_eq!(plan.strike(3, &read(100)), Some(fault));
        assert_eq!(plan.fired(id), 1);
        assert_eq!(plan.strike(1, &read(100)), Some(fault));
        assert_eq!(plan.strike(1, &read(100)), None);
        assert_eq!(plan.fired(id), 2);
        assert!(!plan.is_active());
    }

    #[test]
    fn queues_and_removal() {
        let plan = FaultPlan::default();
        let identify = Sqe::new(AdminOpcode::IDENTIFY.0, 0);
        let a = plan.inject(Rule::new(Fault::Drop).admin(AdminOpcode::IDENTIFY).always());
        let b = plan.inject(Rule::new(Fault::Swallow).on(Queues::Id(4)));
        assert_eq!(plan.strike(0, &identify), Some(Fault::Drop));
        assert_eq!(plan.strike(3, &identify), None);
        plan.remove(a);
        assert_eq!(plan.strike(0, &identify), None);
        assert_eq!(plan.strike(4, &identify), Some(Fault::Swallow));
        assert_eq!((plan.fired(a), plan.fired(b)), (1, 1));
    }
}
