//! A ring whose device posts what it likes, where and when it likes: no panic, and every command ends once.
#![no_main]

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use warprow_driver::queue::ring::{RingDoorbell, RingWords};
use warprow_driver::queue::{NEVER, Ring};
use warprow_driver::{Completion, CommandEnd};
use warprow_spec::Sqe;

#[derive(Clone)]
struct Memory(Rc<[Cell<u64>]>);

impl RingWords for Memory {
    fn load(&self, index: usize) -> u64 {
        self.0[index].get()
    }

    fn store<const N: usize>(&self, index: usize, values: [u64; N]) {
        values.into_iter().zip(&self.0[index..index + N]).for_each(|(value, word)| word.set(value));
    }
}

#[derive(Clone, Default)]
struct Register(Rc<Cell<u32>>);

impl RingDoorbell for Register {
    fn ring(&self, value: u32) {
        self.0.set(value);
    }
}

fn memory(words: usize) -> Memory {
    Memory(vec![Cell::new(0); words].into())
}

/// What the submitter knows of its commands, by tag.
#[derive(Default)]
struct Ledger {
    next: u64,
    outstanding: HashMap<u64, u16>,
    quarantined: HashMap<u64, u16>,
}

impl Ledger {
    fn end(&mut self, completion: Completion) {
        match completion.ended {
            CommandEnd::Answered(_) | CommandEnd::Lost => {
                assert!(self.outstanding.remove(&completion.tag).is_some(), "{completion:?} ended before")
            }
            CommandEnd::TimedOut => {
                let cid = self.outstanding.remove(&completion.tag).expect("it was outstanding");
                self.quarantined.insert(completion.tag, cid);
            }
            CommandEnd::Released => assert!(self.quarantined.remove(&completion.tag).is_some(), "{completion:?}"),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let [sq_size, cq_size, steps @ ..] = data else { return };
    let sq_size = 2 + u32::from(sq_size % 9);
    let cq_size = 2 + u32::from(cq_size % 9);
    let sq = memory(sq_size as usize * 8);
    let cq = memory(cq_size as usize * 2);
    let sq_bell = Register::default();
    let cq_bell = Register::default();
    let mut ring = Ring::new(3, (sq, sq_size, sq_bell.clone()), (cq.clone(), cq_size, cq_bell.clone()));
    let mut ledger = Ledger::default();
    let mut now = Duration::ZERO;
    let mut device = 0;
    let mut phase = 1u64;
    let mut steps = steps.iter().copied();
    let mut byte = || steps.next();
    while let Some(step) = byte() {
        match step % 8 {
            0 | 1 => {
                let deadline = if step & 8 == 0 { NEVER } else { now + Duration::from_secs(u64::from(step >> 4)) };
                let room = ring.has_room();
                match ring.push(Sqe::flush(1), ledger.next, deadline) {
                    Some(cid) => {
                        assert!(room && cid != 0xffff);
                        assert!(
                            !ledger.outstanding.values().chain(ledger.quarantined.values()).any(|&other| other == cid)
                        );
                        ledger.outstanding.insert(ledger.next, cid);
                        ledger.next += 1;
                    }
                    None => assert!(!room),
                }
            }
            2 => ring.ring(),
            // An entry where the device's next one belongs, for a command that is outstanding or for any.
            3 | 4 => {
                let cids: Vec<u16> = ledger.outstanding.values().chain(ledger.quarantined.values()).copied().collect();
                let any = u16::from_le_bytes([byte().unwrap_or(0), byte().unwrap_or(0)]);
                let mut cids = cids;
                cids.sort_unstable();
                let cid = if step & 8 == 0 || cids.is_empty() { any } else { cids[usize::from(any) % cids.len()] };
                let sqhd = u64::from(byte().unwrap_or(0)) % u64::from(sq_size + 1);
                let sqid = if step & 16 == 0 { 3 } else { u64::from(byte().unwrap_or(0)) };
                cq.store(device * 2, [0, sqhd | sqid << 16 | u64::from(cid) << 32 | phase << 48]);
                device += 1;
                if device == cq_size as usize {
                    (device, phase) = (0, phase ^ 1);
                }
            }
            // A word anywhere.
            5 => {
                let at = usize::from(byte().unwrap_or(0)) % (cq_size as usize * 2);
                cq.store(at, [u64::from_le_bytes(std::array::from_fn(|_| byte().unwrap_or(0)))]);
            }
            6 => {
                let consumed = ring.poll(|completion| ledger.end(completion));
                assert!(consumed <= cq_size);
            }
            _ if step & 8 == 0 => {
                now += Duration::from_secs(u64::from(step >> 4));
                let (expired, _) = ring.expire(now, |completion| ledger.end(completion));
                assert!(expired as usize <= ring.credit());
            }
            _ => {
                ring.restart(|completion| ledger.end(completion));
                (device, phase) = (0, 1);
                assert!(ledger.outstanding.is_empty() && ledger.quarantined.is_empty() && ring.has_room());
            }
        }
        assert_eq!(ring.outstanding() as usize, ledger.outstanding.len());
        assert_eq!(ring.quarantined() as usize, ledger.quarantined.len());
        assert!(ledger.outstanding.len() + ledger.quarantined.len() <= ring.credit());
        assert!(sq_bell.0.get() < sq_size && cq_bell.0.get() < cq_size);
    }
});
