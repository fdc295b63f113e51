//! Errors of the API server, with the next step.

use anyhow::anyhow;

/// What went wrong with `what`, such as `list nodes`, and what to do, without the library's own words around it.
pub fn explain(what: &str, error: kube::Error) -> anyhow::Error {
    let status = match error {
        kube::Error::Api(status) => status,
        error => {
            let error = anyhow::Error::new(error);
            let root = error.root_cause();
            return anyhow!("{what}: {root}; check that the cluster runs and that the kubeconfig names it");
        }
    };
    match status.code {
        // Where the whole API group is missing, the answer is no Status object.
        404 => {
            anyhow!("{what}: this cluster has no such kind; install gpunode with `kubectl apply -k manifests/default`")
        }
        403 => anyhow!("{what}: {}; ask for a role that may {what}", status.message),
        401 => anyhow!("{what}: {}; check the credentials in the kubeconfig", status.message),
        _ => anyhow!("{what}: {}", status.message),
    }
}
