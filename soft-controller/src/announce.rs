//! When a completion queue's interrupt is raised: the first completion of an idle host at once, those of a busy one together.
//!
//! An interrupt costs its host far more than a completion does, and the host looks at all that is there when one comes. So while it
//! has not answered the last interrupt by moving the head doorbell, there is no other; and a host that submits on while completions wait
//! for it is told of several at a time. A host that sends one command and waits is never held up.

use std::time::Duration;

/// The longest that completions wait for others, while the host goes on submitting: the unit of NVMe's own aggregation time (NVMe
/// Base 2.0, 5.27.1.6).
const HOLD: Duration = Duration::from_micros(100);
/// How long an interrupt is waited for that the host has not answered: it may answer late, or have lost it.
const UNANSWERED: Duration = Duration::from_micros(200);
/// Bounds of what tells a host that submits from one that has nothing more to send.
const GAP: (Duration, Duration) = (Duration::from_micros(2), Duration::from_micros(50));
/// Most completions for which an interrupt is held back.
const MOST: u32 = 64;

/// What is known of one queue's host. Times count from the controller's birth.
#[derive(Debug)]
pub(crate) struct Announcer {
    /// The queue's tail as last seen.
    tail: u32,
    /// There are entries of which the host was not told.
    pending: bool,
    /// When the first and the last of them were seen.
    first: Duration,
    last: Duration,
    /// Head and time of the last interrupt, until the head moves.
    raised: Option<(u32, Duration)>,
    /// Entries that are announced together: 1 until the host has been seen to submit while completions waited for it.
    together: u32,
    /// From one sight of new entries to the next, on average.
    pace: Duration,
}

impl Default for Announcer {
    fn default() -> Self {
        let zero = Duration::ZERO;
        Self { tail: 0, pending: false, first: zero, last: zero, raised: None, together: 1, pace: GAP.1 }
    }
}

impl Announcer {
    /// Whether `look` has something to do.
    #[inline]
    pub(crate) fn is_concerned(&self, tail: u32) -> bool {
        self.pending || tail != self.tail
    }

    /// Whether there are new entries, for a queue whose interrupts are never held back.
    pub(crate) fn take(&mut self, tail: u32) -> bool {
        std::mem::replace(&mut self.tail, tail) != tail
    }

    /// Whether the interrupt is to be raised now. `waiting`: entries from the head to the tail.
    pub(crate) fn look(&mut self, now: Duration, (head, tail, waiting): (u32, u32, u32)) -> bool {
        if tail != self.tail {
            self.tail = tail;
            let gap = now.saturating_sub(self.last).clamp(GAP.0, GAP.1);
            self.pace = (self.pace * 7 + gap) / 8;
            self.last = now;
            if !self.pending {
                (self.pending, self.first) = (true, now);
            }
        }
        if waiting == 0 {
            // The host has found them by itself.
            (self.pending, self.raised) = (false, None);
        }
        if !self.pending {
            return false;
        }
        if let Some((at, when)) = self.raised
            && at == head
            && now < when + UNANSWERED
        {
            // It submits while completions wait.
            if waiting > 1 && self.together == 1 {
                self.together = 2;
            }
            return false;
        }
        let is_enough = waiting >= self.together || now >= self.first + HOLD;
        let has_stopped = now >= self.last + self.pace * 2;
        if !is_enough && !has_stopped {
            return false;
        }
        if has_stopped {
            // All that it had to send has come, and it waits: half as many will let it go on meanwhile.
            self.together = (waiting / 2).max(1);
        } else if self.together > 1 && waiting >= self.together {
            self.together = (self.together + 1).min(MOST);
        }
        (self.pending, self.raised) = (false, Some((head, now)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with so many commands in flight, each of which is completed at once, on a queue of 1,000 entries. It submits one every
    /// `pace` µs, and takes `answer` µs to come when it is interrupted. Interrupts and completions within 100 ms.
    fn host(depth: u32, pace: u64, answer: u64) -> (u32, u32) {
        let mut it = Announcer::default();
        let mut head = 0u32;
        let mut posted = 0u32;
        let mut interrupts = 0;
        let mut comes = None;
        let mut next = 0;
        for now in 0..100_000 {
            if comes == Some(now) {
                (comes, head) = (None, posted);
                next = now + pace;
            } else if comes.is_none_or(|at| at > now + answer / 2) && now >= next && posted - head < depth {
                posted += 1;
                next = now + pace;
            }
            let place = (head % 1000, posted % 1000, posted - head);
            if it.is_concerned(place.1) && it.look(Duration::from_micros(now), place) {
                interrupts += 1;
                comes.get_or_insert(now + answer);
            }
        }
        (interrupts, posted)
    }

    #[test]
    fn one_command_at_a_time_is_announced_at_once() {
        for (pace, answer) in [(1, 1), (20, 10), (60, 30)] {
            let (interrupts, posted) = host(1, pace, answer);
            assert_eq!(interrupts, posted, "{pace} us, {answer} us");
            assert!(u64::from(posted) >= 100_000 / (pace + answer + 1), "{posted} of {pace} us, {answer} us");
        }
    }

    #[test]
    fn many_commands_in_flight_are_announced_together() {
        for (depth, pace, answer, most) in [(32, 2, 10, 20), (32, 20, 50, 5), (256, 1, 5, 50), (4, 2, 10, 2)] {
            let (interrupts, posted) = host(depth, pace, answer);
            assert!(interrupts * most < posted, "{interrupts} for {posted}");
            // And the host does not wait for them for long.
            let waits = if depth < 8 { 6 } else { 2 };
            assert!(u64::from(posted) * pace * 10 > 100_000 * (10 - waits), "{posted} of {depth}, {pace} us");
        }
        // One that answers each before it has sent the next cannot be told from one that waits.
        let (interrupts, posted) = host(32, 20, 10);
        assert_eq!(interrupts, posted);
    }

    #[test]
    fn an_interrupt_without_an_answer_is_repeated_for_what_came_since() {
        let mut it = Announcer::default();
        let at = Duration::from_micros;
        assert!(it.look(at(0), (0, 1, 1)));
        assert!(!it.is_concerned(1));
        assert!(!it.look(at(10), (0, 2, 2)));
        assert!(!it.look(at(199), (0, 2, 2)) && it.is_concerned(2));
        assert!(it.look(at(200), (0, 2, 2)));
        // Nothing is left to tell.
        assert!(!it.is_concerned(2));
    }

    #[test]
    fn what_the_host_has_not_seen_is_announced_when_it_moves_the_head() {
        let mut it = Announcer::default();
        let at = Duration::from_micros;
        assert!(it.look(at(0), (0, 1, 1)));
        assert!(!it.look(at(10), (0, 2, 2)));
        // It had looked before the second was there.
        assert!(!it.look(at(20), (1, 2, 1)), "another may come");
        assert!(it.look(at(110), (1, 2, 1)));
        // What it finds by itself needs no interrupt.
        assert!(!it.look(at(120), (1, 3, 2)));
        assert!(!it.look(at(130), (3, 3, 0)) && !it.is_concerned(3));
    }
}
