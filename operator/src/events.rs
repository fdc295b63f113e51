//! Events for people: what they say, and sending them.
//!
//! | module | what it does |
//! |---|---|
//! | `notice` | what an event says; transitions only |
//! | `recorder` | sends events while this process leads |

pub mod notice;
pub mod recorder;

pub use notice::Notice;
pub use recorder::publish_events;
