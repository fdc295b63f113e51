//! Access to a cluster: the connection, lists of objects, and errors that say the next step.
//!
//! | module | what it does |
//! |---|---|
//! | `connection` | connects as the arguments or the kubeconfig say |
//! | `list` | lists the objects of a kind, and those that cannot be read |
//! | `request_error` | turns an answer of the API server into an error with the next step |

mod connection;
mod list;
mod request_error;

pub use connection::{TIMEOUT, connect};
pub use list::{
    ListedObjects, UnreadableObject, list, list_permitted, list_some, require, unreadable_lines, unreadable_names, warn,
};
pub use request_error::{ForbiddenRequest, explain};
