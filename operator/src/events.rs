//! Kubernetes events of the operator.
//!
//! | module | what it does |
//! |---|---|
//! | `operator_event` | what an event says |
//! | `channel` | the bounded channel on which tasks hand over events |
//! | `recorder` | task: sends events while this process leads |

mod channel;
mod operator_event;
mod recorder;

pub use channel::{OperatorEventSender, event_channel};
pub use operator_event::OperatorEvent;
pub use recorder::EventRecorder;
