//! The network of a cluster.
//!
//! A bridge in the control plane's network namespace connects everything; the machine has one cable to it. All of it
//! goes with the namespaces.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{
    run,
    sandbox::{Sandbox, ip_batch},
    subnet::{Network, Subnet},
};

#[derive(Deserialize)]
struct Route {
    dst: String,
}

/// Connects the control plane's namespace with the machine, and with that reserves addresses for the cluster.
pub(crate) fn connect_machine(control_plane: &Sandbox) -> Result<Subnet> {
    let routes = run::output(Command::new("ip").args(["-json", "-4", "route", "show", "table", "all"]))?;
    let routes: Vec<Route> = serde_json::from_str(&routes).context("parse the machine's routes")?;
    let routes: Vec<_> = routes.iter().filter_map(|route| Network::parse(&route.dst)).collect();
    let namespace = control_plane.holder()?.pid().to_string();

    for subnet in Subnet::free(&routes) {
        let link = subnet.link();
        let add = Command::new("ip")
            .args(["link", "add", &link, "type", "veth", "peer", "name", "uplink", "netns", &namespace])
            .output()
            .context("start ip")?;
        if add.status.success() {
            wire(control_plane, subnet)?;
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

fn wire(control_plane: &Sandbox, subnet: Subnet) -> Result<()> {
    let (link, machine, gateway) = (subnet.link(), subnet.machine(), subnet.control_plane());
    let pods = subnet.pods();
    let prefix = subnet.nodes().prefix;
    ip_batch(
        &mut control_plane.network_command("ip")?,
        &format!(
            "link add br0 type bridge\n\
             link set uplink master br0 up\n\
             link set br0 up\n\
             address add {gateway}/{prefix} dev br0\n"
        ),
    )?;
    // Pods of different nodes reach one another through here.
    run::finished(control_plane.command("sh")?.args(["-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]))?;
    ip_batch(
        &mut Command::new("ip"),
        &format!(
            "address add {machine}/{prefix} dev {link}\n\
             link set {link} up\n\
             route add {pods} via {gateway} dev {link}\n"
        ),
    )
}

/// Connects the namespace of the node with this index.
pub(crate) fn connect_node(control_plane: &Sandbox, node: &Sandbox, subnet: Subnet, index: u8) -> Result<()> {
    let namespace = node.holder()?.pid();
    let (address, gateway, pods) = (subnet.node(index), subnet.control_plane(), subnet.node_pods(index));
    let prefix = subnet.nodes().prefix;
    ip_batch(
        &mut control_plane.network_command("ip")?,
        &format!(
            "link add node{index} type veth peer name eth0 netns {namespace}\n\
             link set node{index} master br0 up\n\
             route add {pods} via {address}\n"
        ),
    )?;
    ip_batch(
        &mut node.network_command("ip")?,
        &format!(
            "address add {address}/{prefix} dev eth0\n\
             link set eth0 up\n\
             route add default via {gateway}\n"
        ),
    )
}
