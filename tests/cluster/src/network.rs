//! The network of a cluster.
//!
//! A bridge in the control plane's network namespace connects everything; the machine has one cable to it. All of it
//! goes with the namespaces.

use std::{
    fs,
    io::{Seek, SeekFrom, Write},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{
    node::Node,
    run,
    sandbox::Sandbox,
    subnet::{Network, Subnet},
};

/// The kernel's own choice changes as nodes come and go, and others go on sending to the old one for half a minute. The
/// same holds for nodes that are switched off and on.
const BRIDGE_MAC: &str = "02:00:00:00:00:01";

#[derive(Deserialize)]
struct Route {
    dst: String,
}

/// Connects the control plane's namespace with the machine, and with that reserves addresses for the cluster. Its
/// unique name goes on the machine's end.
pub(crate) fn connect_machine(control_plane: &Sandbox, cluster: &str) -> Result<Subnet> {
    let routes = run::output(Command::new("ip").args(["-json", "-4", "route", "show", "table", "all"]))?;
    let routes: Vec<Route> = serde_json::from_str(&routes).context("parse the machine's routes")?;
    let routes: Vec<_> = routes.iter().filter_map(|route| Network::parse(&route.dst)).collect();
    let namespace = control_plane.holder()?.pid().to_string();

    for subnet in Subnet::free(&routes) {
        let link = subnet.link();
        let add = Command::new("ip")
            .args([
                "link", "add", &link, "type", "veth", "peer", "name", "uplink", "netns", &namespace,
            ])
            .output()
            .context("start ip")?;
        if add.status.success() {
            wire(control_plane, subnet, cluster)?;
            return Ok(subnet);
        }
        let said = String::from_utf8_lossy(&add.stderr);
        // Another cluster that starts at the same time was faster.
        if !said.contains("File exists") {
            bail!("create network link {link}: {}", said.trim());
        }
    }
    bail!(
        "no addresses are free for the cluster: 10.88.N.0/24 with 10.(128+N).0.0/16 is needed for some N below 100; \
         stop a cluster, or remove the route that covers them (ip route)"
    )
}

/// Removes the machine's end of a cluster's network. The kernel does it too, but only when the last connection in the
/// namespace at the other end has timed out.
pub(crate) fn disconnect_machine(cluster: &str) -> Result<()> {
    for entry in fs::read_dir("/sys/class/net").context("list network devices")? {
        let device = entry.context("list network devices")?;
        // A device that goes meanwhile has no alias.
        let alias = fs::read_to_string(device.path().join("ifalias")).unwrap_or_default();
        if alias.trim() == cluster {
            delete(&mut Command::new("ip"), &device.file_name().to_string_lossy())?;
        }
    }
    Ok(())
}

fn delete(ip: &mut Command, device: &str) -> Result<()> {
    match run::finished(ip.args(["link", "delete", device])) {
        Err(error) if !error.to_string().contains("Cannot find device") => Err(error),
        _ => Ok(()),
    }
}

fn wire(control_plane: &Sandbox, subnet: Subnet, cluster: &str) -> Result<()> {
    let (link, machine, gateway) = (subnet.link(), subnet.machine(), subnet.control_plane());
    let pods = subnet.pods();
    let prefix = subnet.nodes().prefix;
    ip_batch(
        &mut control_plane.network_command("ip")?,
        &format!(
            "link add br0 address {BRIDGE_MAC} type bridge\n\
             link set uplink master br0 up\n\
             link set br0 up\n\
             address add {gateway}/{prefix} dev br0\n"
        ),
    )?;
    // Pods of different nodes reach one another through here.
    run::finished(
        control_plane
            .command("sh")?
            .args(["-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]),
    )?;
    ip_batch(
        &mut Command::new("ip"),
        &format!(
            "link set {link} alias {cluster}\n\
             address add {machine}/{prefix} dev {link}\n\
             link set {link} up\n\
             route add {pods} via {gateway} dev {link}\n"
        ),
    )
}

/// Connects the namespace of a node.
pub(crate) fn connect_node(control_plane: &Sandbox, node: &Node) -> Result<()> {
    let (subnet, index) = (node.subnet(), node.index());
    let namespace = node.sandbox().holder()?.pid();
    let mac = format!("02:00:00:00:01:{index:02x}");
    let (address, gateway, pods) = (subnet.node(index), subnet.control_plane(), subnet.node_pods(index));
    let prefix = subnet.nodes().prefix;
    ip_batch(
        &mut control_plane.network_command("ip")?,
        &format!(
            "link add node{index} type veth peer name eth0 address {mac} netns {namespace}\n\
             link set node{index} master br0 up\n\
             route replace {pods} via {address}\n"
        ),
    )?;
    ip_batch(
        &mut node.sandbox().network_command("ip")?,
        &format!(
            "address add {address}/{prefix} dev eth0\n\
             link set eth0 up\n\
             route add default via {gateway}\n"
        ),
    )
}

/// Takes away what is left of the cable to a node that has been switched off.
pub(crate) fn disconnect_node(control_plane: &Sandbox, index: u8) -> Result<()> {
    delete(&mut control_plane.network_command("ip")?, &format!("node{index}"))
}

/// Runs `ip` commands, one a line, on the machine or wherever `command` leads.
fn ip_batch(command: &mut Command, lines: &str) -> Result<()> {
    let mut file = tempfile::tempfile().context("create a temporary file")?;
    file.write_all(lines.as_bytes()).context("write ip commands")?;
    file.seek(SeekFrom::Start(0)).context("rewind ip commands")?;
    run::finished(command.args(["-batch", "-"]).stdin(file)).map(drop)
}
