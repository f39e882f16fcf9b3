//! Rows of a compressed file, made on threads while those before them are used.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::error::FileError;
use crate::input::{Input, room};
use crate::streams::RowStream;

/// Bytes of a block, and how many lie ready.
const BLOCK: u64 = 1 << 20;
const READY: usize = 4;

/// Rows that one thread makes in their order, up to [`READY`] blocks ahead: what cannot be divided overlaps at least with what is
/// done to it afterwards.
pub(crate) struct Ahead {
    input: Arc<Input>,
    /// Gone only while this is dropped: then the thread ends at its next block.
    blocks: Option<Receiver<Result<Vec<u8>, FileError>>>,
    used: SyncSender<Vec<u8>>,
    thread: Option<JoinHandle<()>>,
    block: Vec<u8>,
    at: usize,
}

impl Ahead {
    /// The `bytes` that `rows` has.
    pub(crate) fn new(input: Arc<Input>, mut rows: impl RowStream + 'static, bytes: u64) -> Result<Self, FileError> {
        let (made, blocks) = sync_channel(READY);
        // Never full: there are no more blocks than these.
        let (used, empty) = sync_channel::<Vec<u8>>(READY + 2);
        let file = input.clone();
        let make = move || {
            let mut left = bytes;
            while left > 0 {
                let len = left.min(BLOCK);
                let block = match empty.try_recv() {
                    Ok(mut block) => {
                        block.resize(len as usize, 0);
                        Ok(block)
                    }
                    Err(_) => room(&file.path, len),
                };
                let block = block.and_then(|mut block| rows.next(&mut block).map(|()| block));
                let failed = block.is_err();
                if made.send(block).is_err() || failed {
                    return;
                }
                left -= len;
            }
        };
        let thread = std::thread::Builder::new()
            .spawn(make)
            .map_err(|error| FileError::io(&input.path, "cannot be unpacked on a thread of its own", error))?;
        Ok(Self { input, blocks: Some(blocks), used, thread: Some(thread), block: Vec::new(), at: 0 })
    }
}

impl RowStream for Ahead {
    fn next(&mut self, mut rows: &mut [u8]) -> Result<(), FileError> {
        while !rows.is_empty() {
            if self.at == self.block.len() {
                let next = self.blocks.as_ref().and_then(|blocks| blocks.recv().ok());
                let next = next.unwrap_or_else(|| Err(self.input.damaged("a row past the last was asked for")))?;
                // Whether the thread is still there to use it again does not matter.
                let _ = self.used.try_send(std::mem::replace(&mut self.block, next));
                self.at = 0;
            }
            let there = self.block.get(self.at..).unwrap_or_default();
            let count = there.len().min(rows.len());
            let (now, rest) = rows.split_at_mut(count);
            now.copy_from_slice(there.get(..count).unwrap_or_default());
            (rows, self.at) = (rest, self.at + count);
        }
        Ok(())
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.blocks = None;
        if let Some(thread) = self.thread.take() {
            // What it panicked at, if it did, has been told by the rows that did not come.
            let _ = thread.join();
        }
    }
}
