//! Threads that do pieces of work ahead of the caller who takes the results.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The most threads: fewer already use all of the memory's bandwidth.
const THREADS: usize = 8;

/// Work that several threads do at the same time, with results in the order in which the work was given.
pub(crate) struct OrderedWorkers<J, T> {
    queue: Arc<Queue<J, T>>,
    threads: Vec<JoinHandle<()>>,
    most: usize,
    /// The pieces of work that were given and whose results were not taken yet, with the cost of each.
    given: VecDeque<(Receiver<T>, u64)>,
    cost: u64,
}

struct Queue<J, T> {
    jobs: Mutex<Jobs<J, T>>,
    come: Condvar,
    work: Box<dyn Fn(J) -> T + Send + Sync>,
}

struct Jobs<J, T> {
    jobs: VecDeque<(J, SyncSender<T>)>,
    over: bool,
}

impl<J, T> Queue<J, T> {
    fn lock(&self) -> MutexGuard<'_, Jobs<J, T>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works until it is over.
    fn run(&self) {
        loop {
            let mut jobs = self.lock();
            let (job, done) = loop {
                if jobs.over {
                    return;
                }
                match jobs.jobs.pop_front() {
                    Some(job) => break job,
                    None => jobs = self.come.wait(jobs).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(jobs);
            // Nobody waits for it any longer only when all is over.
            let _ = done.send((self.work)(job));
        }
    }
}

impl<J: Send + 'static, T: Send + 'static> OrderedWorkers<J, T> {
    /// Threads that do `work`: as many as there are processors, each begun when there is something to do.
    pub(crate) fn new(work: impl Fn(J) -> T + Send + Sync + 'static) -> Self {
        let most = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let jobs = Mutex::new(Jobs { jobs: VecDeque::new(), over: false });
        let queue = Arc::new(Queue { jobs, come: Condvar::new(), work: Box::new(work) });
        Self { queue, threads: Vec::new(), most, given: VecDeque::new(), cost: 0 }
    }

    /// Whether another piece of work should be given: the threads have little left, and all that is under way costs less than
    /// `most`; or nothing is under way.
    pub(crate) fn wants(&self, most: u64) -> bool {
        self.given.is_empty() || (self.given.len() < 2 * self.most && self.cost < most)
    }

    /// Gives a piece of work that costs `cost`.
    pub(crate) fn give(&mut self, job: J, cost: u64) {
        let (sender, done) = sync_channel(1);
        self.queue.lock().jobs.push_back((job, sender));
        self.queue.come.notify_one();
        self.given.push_back((done, cost));
        self.cost += cost;
        if self.threads.len() < self.most.min(self.given.len()) {
            let queue = self.queue.clone();
            // Without a thread the others do its work.
            self.threads.extend(std::thread::Builder::new().spawn(move || queue.run()));
        }
    }

    /// The result of that piece of work that was given first; `None` if no work is under way, or the thread panicked.
    pub(crate) fn take(&mut self) -> Option<T> {
        let (done, cost) = self.given.pop_front()?;
        self.cost -= cost;
        if self.threads.is_empty() {
            let job = self.queue.lock().jobs.pop_front();
            return job.map(|(job, _)| (self.queue.work)(job));
        }
        done.recv().ok()
    }
}

impl<J, T> Drop for OrderedWorkers<J, T> {
    fn drop(&mut self) {
        let mut jobs = self.queue.lock();
        (jobs.over, jobs.jobs) = (true, VecDeque::new());
        drop(jobs);
        self.queue.come.notify_all();
        // What one panicked at, if it did, has been told by what did not come.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
