//! MIG layouts of the GPUs of a node: what is there, what the configuration wants, and the way from one to the other
//! (`docs/adr/0017-mig-layouts.md`).
//!
//! | module | what it does |
//! |---|---|
//! | `target` | the layout that a configuration wants on a GPU, before its places are known |
//! | `step` | the next call of the driver on the way to a layout |
//! | `arrangement` | the instances that a GPU gets for its layout, and those of them that stay |
//! | `work` | work on a GPU, and its result |
//! | `attempts` | attempts on a GPU, and the pauses between them |
//! | `hold` | devices that no container may get because of layouts |
//! | `decision` | decides about a GPU: what is held, its progress, the next work |
//! | `record` | what is known of a GPU's layout after a restart of the agent or of the node |

mod arrangement;
mod attempts;
mod decision;
mod hold;
mod record;
mod step;
mod target;
mod work;

pub use attempts::AttemptHistory;
pub use decision::{DeviceUse, FailedDrain, MigDecision, MigInputs, UsedDevices, decide, forget};
pub use hold::{DeviceHold, LayoutHolds};
pub use record::{ChangeRecord, MigFailure, MigRecord};
pub use step::{MigStep, next_step};
pub use target::LayoutTarget;
pub use work::{AttemptResult, MigAttempt, MigWork, MigWorkKind};
