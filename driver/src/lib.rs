//! NVMe driver core: bring-up, admin commands, host-driven queue pairs.
