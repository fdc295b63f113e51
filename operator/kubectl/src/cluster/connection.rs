//! The connection to a cluster.

use crate::cli::ClusterArgs;
use anyhow::Context;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use std::time::Duration;

/// Longest wait for one answer; a fleet's list comes in pages.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to the cluster that the arguments name, or to the current one.
///
/// # Errors
/// When there is no usable kubeconfig.
pub async fn connect(args: &ClusterArgs) -> anyhow::Result<Client> {
    let options = KubeConfigOptions {
        context: args.context.clone(),
        ..KubeConfigOptions::default()
    };
    let mut config = match (&args.kubeconfig, &args.context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).with_context(|| format!("read kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &options)
                .await
                .with_context(|| format!("use kubeconfig {}", path.display()))?
        }
        (None, Some(context)) => Config::from_kubeconfig(&options)
            .await
            .with_context(|| format!("use context {context}"))?,
        (None, None) => Config::infer()
            .await
            .context("find a cluster (name a kubeconfig with --kubeconfig or $KUBECONFIG)")?,
    };
    config.connect_timeout = Some(TIMEOUT);
    config.read_timeout = Some(TIMEOUT);
    // A connection that was idle for almost as long would end in the middle of a request.
    config.reset_reader_on_write = true;
    // A person is waiting and can run the command again.
    config.default_retry = false;
    Client::try_from(config).context("connect to the cluster")
}
