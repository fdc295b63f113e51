//! etcd, API server, controller manager and scheduler.

use std::{fs, net::Ipv4Addr, os::unix::fs::symlink, time::Duration};

use anyhow::{Context, Result, bail};

use crate::{
    files,
    kubeconfig::{self, API_PORT},
    kubectl::Kubectl,
    layout::Layout,
    pki::{Authority, SigningKey},
    sandbox::{BIN, Bind, Sandbox},
    subnet::{API_SERVICE, SERVICES, Subnet},
    wait,
};

const AUDIT_POLICY: &str = include_str!("audit-policy.yaml");
/// Certificates and keys, seen from inside.
const PKI: &str = "/etc/kubernetes/pki";
const ETCD: &str = "http://127.0.0.1:2379";
const AUDIT_LOG: &str = "/var/log/cluster/audit.log";
const READY_TIMEOUT: Duration = Duration::from_mins(3);

/// The control plane of a cluster.
#[derive(Debug, Clone)]
pub(crate) struct ControlPlane {
    layout: Layout,
    sandbox: Sandbox,
}

impl ControlPlane {
    pub(crate) fn new(layout: &Layout) -> Self {
        ControlPlane {
            sandbox: Sandbox::new(layout.folder(), &layout.logs(), "control-plane"),
            layout: layout.clone(),
        }
    }

    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Starts the namespaces, in which there is no program yet.
    pub(crate) fn start_sandbox(&self) -> Result<()> {
        let logs = self.layout.logs();
        fs::create_dir_all(&logs).with_context(|| format!("create {}", logs.display()))?;
        symlink("logs/audit.log", self.layout.audit_log()).context("link the audit log")?;
        let binds = [
            Bind {
                source: self.layout.bin(),
                target: BIN,
                writable: false,
            },
            Bind {
                source: logs,
                target: "/var/log/cluster",
                writable: true,
            },
        ];
        self.sandbox.start("control-plane", None, &binds)
    }

    /// Starts etcd and the API server and waits until that is ready.
    pub(crate) fn start_api(&self, authority: &Authority, subnet: Subnet, audit_contents: bool) -> Result<()> {
        let address = subnet.control_plane();
        self.write_files(authority, address)?;
        let policy = if audit_contents {
            AUDIT_POLICY.to_owned()
        } else {
            AUDIT_POLICY.replace("level: RequestResponse", "level: Metadata")
        };
        self.sandbox.write("/etc/kubernetes/audit-policy.yaml", policy)?;
        self.sandbox.daemon("etcd", &etcd_flags())?;
        self.start_api_server(address)
    }

    /// Kills the API server and starts it again, which ends every watch; etcd goes on.
    pub(crate) fn restart_api_server(&self, subnet: Subnet) -> Result<()> {
        if let Some(process) = self.sandbox.process("kube-apiserver")? {
            process.kill()?;
        }
        self.start_api_server(subnet.control_plane())
    }

    fn start_api_server(&self, address: Ipv4Addr) -> Result<()> {
        self.sandbox.daemon("kube-apiserver", &api_server_flags(address))?;
        let kubectl = Kubectl::new(&self.layout);
        wait::until("the API server to be ready", READY_TIMEOUT, || {
            for program in ["etcd", "kube-apiserver"] {
                if self.sandbox.process(program)?.is_none() {
                    bail!("{program} ended; {}", self.sandbox.log_tail(program));
                }
            }
            // The client takes longer to start than a connection to fail.
            let listens =
                std::net::TcpStream::connect_timeout(&(address, API_PORT).into(), Duration::from_secs(1)).is_ok();
            Ok((listens && kubectl.output(["get", "--raw", "/readyz"]).is_ok()).then_some(()))
        })
        .with_context(|| self.sandbox.log_tail("kube-apiserver"))
    }

    /// Starts the controller manager and the scheduler.
    pub(crate) fn start_controllers(&self) -> Result<()> {
        let kubeconfig = |name: &str| {
            let path = format!("/etc/kubernetes/{name}.kubeconfig");
            ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
                .map(|flag| format!("--{flag}={path}"))
        };
        let mut flags = kubeconfig("kube-controller-manager").to_vec();
        flags.extend([
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            "--use-service-account-credentials".to_owned(),
            // It starts its controllers one after the other, each with several requests.
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
            // Says why a DaemonSet gets no pods.
            "--vmodule=daemon_controller=4,controller_utils=4".to_owned(),
            format!("--service-account-private-key-file={PKI}/service-account.key"),
            format!("--root-ca-file={PKI}/ca.crt"),
        ]);
        self.sandbox.daemon("kube-controller-manager", &flags)?;
        let mut flags = kubeconfig("kube-scheduler").to_vec();
        flags.extend(["--leader-elect=false".to_owned(), "--bind-address=127.0.0.1".to_owned()]);
        self.sandbox.daemon("kube-scheduler", &flags)
    }

    fn write_files(&self, authority: &Authority, address: Ipv4Addr) -> Result<()> {
        let write = |name: &str, content: &str| self.sandbox.write(&format!("{PKI}/{name}"), content);
        let server = authority.server(
            &[
                "kube-apiserver",
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
            ],
            &[address, API_SERVICE, Ipv4Addr::LOCALHOST],
        )?;
        let to_kubelet = authority.client("kube-apiserver-kubelet-client", Some("system:masters"))?;
        write("ca.crt", authority.certificate())?;
        write("server.crt", &server.certificate)?;
        write("server.key", &server.key)?;
        write("kubelet-client.crt", &to_kubelet.certificate)?;
        write("kubelet-client.key", &to_kubelet.key)?;
        let signing = SigningKey::new()?;
        write("service-account.key", &signing.private)?;
        write("service-account.pub", &signing.public)?;

        for name in ["kube-controller-manager", "kube-scheduler"] {
            let user = format!("system:{name}");
            let credential = authority.client(&user, None)?;
            let document = kubeconfig::document(address, authority, &user, &credential)?;
            self.sandbox
                .write(&format!("/etc/kubernetes/{name}.kubeconfig"), document)?;
        }
        let credential = authority.client("admin", Some("system:masters"))?;
        let document = kubeconfig::document(address, authority, "admin", &credential)?;
        files::replace(&self.layout.admin_kubeconfig(), document.as_bytes())
    }
}

fn etcd_flags() -> Vec<String> {
    // A cluster does not outlive its machine: nothing has to reach the disk.
    vec![
        "--data-dir=/var/lib/etcd".to_owned(),
        format!("--listen-client-urls={ETCD}"),
        format!("--advertise-client-urls={ETCD}"),
        "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
        // The greatest size that etcd advises: a fleet of 5,000 nodes writes
        // more in one run than the default of 2 GiB holds.
        "--quota-backend-bytes=8589934592".to_owned(),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ]
}

fn api_server_flags(address: Ipv4Addr) -> Vec<String> {
    vec![
        format!("--etcd-servers={ETCD}"),
        "--bind-address=0.0.0.0".to_owned(),
        format!("--secure-port={API_PORT}"),
        format!("--advertise-address={address}"),
        format!("--tls-cert-file={PKI}/server.crt"),
        format!("--tls-private-key-file={PKI}/server.key"),
        format!("--client-ca-file={PKI}/ca.crt"),
        format!("--kubelet-client-certificate={PKI}/kubelet-client.crt"),
        format!("--kubelet-client-key={PKI}/kubelet-client.key"),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        format!("--service-account-key-file={PKI}/service-account.pub"),
        format!("--service-account-signing-key-file={PKI}/service-account.key"),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
        // No kube-proxy runs here: webhooks are reached at the addresses of their pods.
        "--enable-aggregator-routing=true".to_owned(),
        "--audit-policy-file=/etc/kubernetes/audit-policy.yaml".to_owned(),
        format!("--audit-log-path={AUDIT_LOG}"),
        // Megabytes; without it the log is rotated away from under the tests that read it.
        "--audit-log-maxsize=100000".to_owned(),
        "--audit-log-mode=blocking".to_owned(),
    ]
}
