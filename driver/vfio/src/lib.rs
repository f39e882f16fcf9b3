//! The transport over Linux VFIO.
