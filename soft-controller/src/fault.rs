//! Faults that a test asks for: which command is hit, and what happens to it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use warprow_spec::{AdminOpcode, NvmOpcode, Sqe, Status};

use crate::turn_gate::TurnGate;

/// What happens to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The command is not executed, and completes with this status.
    Status(Status),
    /// The command is executed, and its completion is never posted.
    Drop,
    /// The command is neither executed nor completed.
    Swallow,
    /// The command is executed and completed this much later, perhaps after the host's time-out: its data lands later
    /// too.
    Delay(Duration),
    /// The command completes twice.
    Duplicate,
    /// The command completes with this command identifier instead of its own.
    WrongCid(u16),
    /// One bit of the data that it moves is flipped, and it succeeds.
    Corrupt,
    /// The controller sets CSTS.CFS, executes nothing more and posts nothing more until it is reset.
    Fatal,
    /// The controller is gone: registers read as all ones, and there is no DMA any more, until
    /// [`power_cut`](crate::SoftController::power_cut).
    Disappear,
}

/// A switch by which a host stops a controller: see [`FaultRules::disobey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSwitch {
    /// CC.EN.
    Enable,
    /// The reset of the function.
    Reset,
    /// Bus master enable.
    BusMaster,
}

impl StopSwitch {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Queues whose commands a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum QueueMatch {
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

/// A fault and the commands that it hits: those that match every condition given. [`nth`](Self::nth) lets the first
/// matches pass; [`times`](Self::times) and [`always`](Self::always) say how many are hit after that, one by default.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    queues: QueueMatch,
    opcode: Option<u8>,
    nsid: Option<u32>,
    lbas: Option<Range<u64>>,
    pass: u64,
    times: u64,
}

impl Rule {
    /// `fault` on the next command of any kind, once.
    pub fn new(fault: Fault) -> Self {
        Self { fault, queues: QueueMatch::Any, opcode: None, nsid: None, lbas: None, pass: 0, times: 1 }
    }

    /// Only commands of these queues.
    pub fn on(mut self, queues: QueueMatch) -> Self {
        self.queues = queues;
        self
    }

    /// Only I/O commands with this opcode.
    pub fn io(mut self, opcode: NvmOpcode) -> Self {
        self.opcode = Some(opcode.0);
        self.queues = if let QueueMatch::Id(id) = self.queues { QueueMatch::Id(id) } else { QueueMatch::Io };
        self
    }

    /// Only admin commands with this opcode.
    pub fn admin(mut self, opcode: AdminOpcode) -> Self {
        self.opcode = Some(opcode.0);
        self.queues = QueueMatch::Admin;
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
            QueueMatch::Any => true,
            QueueMatch::Admin => sqid == 0,
            QueueMatch::Io => sqid != 0,
            QueueMatch::Id(id) => sqid == id,
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
pub struct FaultRules(Arc<Plan>);

#[derive(Debug, Default)]
struct Plan {
    active: AtomicBool,
    rules: Mutex<Rules>,
    /// The bits of switches.
    disobeyed: AtomicU8,
    /// The gates of controllers with offloads, which know no faults.
    gates: Mutex<Vec<Weak<TurnGate>>>,
}

impl FaultRules {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.0.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule; it holds from the next command that the controller fetches. Where an [offload](crate::Offload) executes commands,
    /// this waits for the end of the turn under way, some microseconds, unless it is called in a turn.
    pub fn inject(&self, rule: Rule) -> RuleId {
        let id = {
            let mut rules = self.rules();
            let id = RuleId(rules.next);
            rules.next += 1;
            rules.armed.push(Armed { id, rule, fired: 0 });
            self.0.active.store(true, Ordering::SeqCst);
            id
        };
        // Commands that are submitted after this has returned are not for the turn under way.
        let gates: Vec<_> = self.gates().iter().filter_map(Weak::upgrade).collect();
        gates.iter().for_each(|gate| gate.end_and_wait());
        id
    }

    fn gates(&self) -> MutexGuard<'_, Vec<Weak<TurnGate>>> {
        self.0.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has rules end the turns of a controller with an offload.
    pub(crate) fn end_turns_of(&self, gate: &Arc<TurnGate>) {
        let mut gates = self.gates();
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(Arc::downgrade(gate));
    }

    /// Removes a rule. Commands that it has delayed stay delayed.
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

    /// Makes the controller disobey a switch until [`clear`](Self::clear). [`StopSwitch::Enable`]: CC.EN stays set
    /// until the function is reset. [`StopSwitch::Reset`]: a reset of the function is not supported.
    /// [`StopSwitch::BusMaster`]: bus mastering stays as it is.
    pub fn disobey(&self, switch: StopSwitch) {
        self.0.disobeyed.fetch_or(switch.bit(), Ordering::SeqCst);
    }

    pub(crate) fn obey(&self, switch: StopSwitch) {
        self.0.disobeyed.fetch_and(!switch.bit(), Ordering::SeqCst);
    }

    pub(crate) fn disobeys(&self, switch: StopSwitch) -> bool {
        self.0.disobeyed.load(Ordering::SeqCst) & switch.bit() != 0
    }

    /// Removes all rules, and makes the controller obey every switch again.
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
        let plan = FaultRules::default();
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
        let plan = FaultRules::default();
        let identify = Sqe::new(AdminOpcode::IDENTIFY.0, 0);
        let a = plan.inject(Rule::new(Fault::Drop).admin(AdminOpcode::IDENTIFY).always());
        let b = plan.inject(Rule::new(Fault::Swallow).on(QueueMatch::Id(4)));
        assert_eq!(plan.strike(0, &identify), Some(Fault::Drop));
        assert_eq!(plan.strike(3, &identify), None);
        plan.remove(a);
        assert_eq!(plan.strike(0, &identify), None);
        assert_eq!(plan.strike(4, &identify), Some(Fault::Swallow));
        assert_eq!((plan.fired(a), plan.fired(b)), (1, 1));
    }
}
