//! Errors of the API server, with the next step.

use anyhow::anyhow;

/// A request that the caller may not make.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {message}; ask for a role that allows you to {what}")]
pub struct ForbiddenRequest {
    /// The request, such as `list nodes`.
    pub what: String,
    /// The API server's reason.
    pub message: String,
}

/// Returns the error of a request such as `list nodes`, with the next step and without the wording of the kube library.
pub fn explain(what: &str, error: kube::Error) -> anyhow::Error {
    let status = match error {
        kube::Error::Api(status) => status,
        error => {
            let error = anyhow::Error::new(error);
            let root = error.root_cause();
            return anyhow!("{what}: {root}; check that the cluster is running and that your kubeconfig names it");
        }
    };
    match status.code {
        // The message is of no use: a missing API group is not answered with a Status object.
        404 => {
            anyhow!(
                "{what}: the cluster does not have this kind; install gpunode with `kubectl apply -k manifests/default`"
            )
        }
        403 => anyhow::Error::new(ForbiddenRequest {
            what: what.to_owned(),
            message: status.message.clone(),
        }),
        401 => anyhow!("{what}: {}; check the credentials in your kubeconfig", status.message),
        _ => anyhow!("{what}: {}", status.message),
    }
}
