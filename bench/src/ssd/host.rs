//! Processors alone.

use std::time::Instant;

use anyhow::Context;
use warprow_store::Store;
use warprow_workload::{PowerLaw, RowsAnswer, SeededRandom, mix_all, verify};
use zerocopy::IntoBytes;

use super::{Contender, GpuWay, Ground, Means, SsdSetup, TABLE, Taken, Team};
use crate::processor_time;

/// A machine without a GPU: rows end up in memory.
#[derive(Debug)]
pub struct HostGround {
    random: SeededRandom,
}

impl HostGround {
    /// Ids by the setup's seed.
    pub fn new(setup: &SsdSetup) -> Self {
        Self { random: SeededRandom::new(mix_all([setup.seed, 0x55d])) }
    }
}

struct Threads<'a> {
    setup: &'a SsdSetup,
    random: &'a mut SeededRandom,
    team: Team<Vec<f32>>,
    ids: Vec<i64>,
    checked: u64,
}

impl Ground for HostGround {
    fn by_gpu<'a>(
        &'a mut self,
        _: &'a SsdSetup,
        _: &'a Store,
        _: u64,
        _: GpuWay,
    ) -> anyhow::Result<Option<Box<dyn Contender + 'a>>> {
        Ok(None)
    }

    fn by_threads<'a>(
        &'a mut self,
        setup: &'a SsdSetup,
        means: Means<'_>,
        count: u64,
        by: u32,
    ) -> anyhow::Result<Box<dyn Contender + 'a>> {
        let dim = setup.dim as usize;
        let team = Team::new(means, TABLE, dim, count, by, |rows| Ok(vec![0f32; rows * dim]))?;
        let ids = vec![0; usize::try_from(count)?];
        Ok(Box::new(Threads { setup, random: &mut self.random, team, ids, checked: 0 }))
    }
}

impl Contender for Threads<'_> {
    fn prepare(&mut self) -> anyhow::Result<()> {
        let rows = self.setup.rows();
        let law = PowerLaw::new(rows, self.setup.alpha).filter(|_| self.setup.alpha != 0.0);
        let random = &mut *self.random;
        let mut draw = || match law {
            Some(law) => law.sample(random),
            None => random.below(rows),
        };
        self.ids.fill_with(|| draw() as i64);
        self.team.deal(&self.ids);
        Ok(())
    }

    fn look_up(&mut self) -> anyhow::Result<Taken> {
        let began = Instant::now();
        let before = processor_time::of_this_thread()?;
        let commands = self.team.look_up(self.setup.dim as usize, |_, _, _| Ok(()))?;
        let caller = processor_time::of_this_thread()? - before;
        Ok(Taken { seen: began.elapsed(), caller, commands, stages: None })
    }

    fn check(&mut self) -> anyhow::Result<u64> {
        let content = self.setup.content();
        let ids = &self.ids;
        let before = self.checked;
        let stride = self.setup.dim as usize * 4;
        let checked = &mut self.checked;
        self.team.each(|first, count, landing| {
            let part = ids.get(first..first + count).context("a part that was not dealt")?;
            let answer = RowsAnswer { rows: landing.as_bytes(), stride, mask: None };
            *checked += verify(&content, part, answer).context("a wrong row was returned")?.rows;
            Ok(())
        })?;
        Ok(self.checked - before)
    }
}
