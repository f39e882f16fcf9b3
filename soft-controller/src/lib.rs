//! A complete NVMe controller model.
