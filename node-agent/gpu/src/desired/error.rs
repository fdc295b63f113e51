//! Reasons to reject a configuration.

/// Size limit of a device list in bytes: gRPC's default receive limit, which the kubelet does not raise.
pub const MAX_LIST_BYTES: usize = 4 * 1024 * 1024;

/// Reason to reject a configuration on a node with these GPUs.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DesiredDevicesError {
    /// The device list is larger than a kubelet receives.
    #[error(
        "resource {resource}: the list of {shares} shares has {bytes} bytes, but a kubelet accepts at most \
         {MAX_LIST_BYTES}; {remedy}"
    )]
    ListTooLong {
        /// Name of the extended resource.
        resource: String,
        /// Number of shares in its list.
        shares: usize,
        /// Size of the list in bytes.
        bytes: usize,
        /// The change that helps.
        remedy: &'static str,
    },
    /// A glob does not compile, though the loader accepted it.
    #[error("resource {resource}: devices.{field}: {reason}")]
    Glob {
        /// Name of the extended resource.
        resource: String,
        /// The field of the selector.
        field: &'static str,
        /// Message of the glob library.
        reason: String,
    },
}
