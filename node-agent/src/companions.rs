//! Finds the files of companions on the host, and watches them.
//!
//! | module | what it does |
//! |---|---|
//! | `watch` | looks for the files again when a folder changes |
//! | `folder_watch` | tells that a folder has changed |
//! | `scan` | looks for the files that the globs match |
//! | `host_files` | opens files and folders of the host that only root can replace |
//! | `sysfs` | PCI slot and NUMA node of a device |

mod folder_watch;
mod host_files;
pub mod scan;
mod sysfs;
pub mod watch;
