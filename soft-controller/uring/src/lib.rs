//! io_uring reads and writes between files and DMA memory.
