//! Addresses: every cluster on the machine has its own.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// Service addresses; they mean something only inside a cluster, so all clusters have the same.
pub(crate) const SERVICES: &str = "10.96.0.0/16";
/// Address of the API server's service.
pub(crate) const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// The addresses of one cluster, made from its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subnet(u8);

/// An IPv4 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) address: Ipv4Addr,
    pub(crate) prefix: u8,
}

/// Number of clusters that fit into the address ranges.
const SUBNETS: u8 = 100;

impl Subnet {
    /// Numbers whose networks overlap none of the machine's routes, the lowest first.
    pub(crate) fn free(routes: &[Network]) -> impl Iterator<Item = Subnet> {
        (0..SUBNETS).map(Subnet).filter(|subnet| {
            !routes
                .iter()
                .any(|route| route.overlaps(subnet.nodes()) || route.overlaps(subnet.pods()))
        })
    }

    /// Network of the machine, the control plane and the nodes.
    pub(crate) fn nodes(self) -> Network {
        Network {
            address: Ipv4Addr::new(10, 88, self.0, 0),
            prefix: 24,
        }
    }

    /// Network of all pods.
    pub(crate) fn pods(self) -> Network {
        Network {
            address: Ipv4Addr::new(10, 128 + self.0, 0, 0),
            prefix: 16,
        }
    }

    /// Network of the pods of the node with this index.
    pub(crate) fn node_pods(self, node: u8) -> Network {
        Network {
            address: Ipv4Addr::new(10, 128 + self.0, node, 0),
            prefix: 24,
        }
    }

    /// The machine, in this cluster's network.
    pub(crate) fn machine(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 88, self.0, 1)
    }

    /// The control plane.
    pub(crate) fn control_plane(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 88, self.0, 2)
    }

    /// The node with this index.
    pub(crate) fn node(self, node: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 88, self.0, 10 + node)
    }

    /// The machine's end of the cable to the cluster. Creating it is what reserves the number.
    pub(crate) fn link(self) -> String {
        format!("gpn{}", self.0)
    }
}

impl Network {
    /// Reads `10.0.0.0/8`; an address without length is a single one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        Some(Network {
            address: address.parse().ok()?,
            prefix: prefix.parse().ok().filter(|prefix| *prefix <= 32)?,
        })
    }

    fn overlaps(self, other: Network) -> bool {
        let common = u32::from(self.prefix.min(other.prefix));
        let mask = u32::MAX.checked_shl(32 - common).unwrap_or(0);
        self.address.to_bits() & mask == other.address.to_bits() & mask
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(routes: &[&str]) -> Vec<u8> {
        let routes: Vec<_> = routes.iter().map(|route| Network::parse(route).unwrap()).collect();
        Subnet::free(&routes).map(|subnet| subnet.0).collect()
    }

    #[test]
    fn the_first_is_taken_on_a_machine_without_clusters() {
        assert_eq!(free(&["192.0.2.0/24"]).first(), Some(&0));
    }

    #[test]
    fn networks_of_other_clusters_are_left_alone() {
        assert_eq!(free(&["10.88.0.0/24", "10.128.0.0/16", "10.88.2.0/24"])[..2], [1, 3]);
    }

    #[test]
    fn other_peoples_networks_are_left_alone() {
        // Podman's default network covers every node network, a single host one pod network.
        assert_eq!(free(&["10.88.0.0/16"]), [0_u8; 0]);
        assert_eq!(free(&["10.128.7.7"]).first(), Some(&1));
    }

    #[test]
    fn what_is_no_network_is_not_parsed() {
        assert_eq!(Network::parse("default"), None);
        assert_eq!(Network::parse("10.0.0.0/33"), None);
    }

    #[test]
    fn link_names_fit_the_kernel() {
        assert!(Subnet::free(&[]).all(|subnet| subnet.link().len() <= 15));
    }
}
