//! The boards that can be simulated.

/// GPU generation, with NVML's number for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Architecture {
    /// Compute capability 7.0.
    Volta = 5,
    /// Compute capability 7.5.
    Turing = 6,
    /// Compute capability 8.0.
    Ampere = 7,
    /// Compute capability 8.9.
    Ada = 8,
    /// Compute capability 9.0.
    Hopper = 9,
    /// Compute capability 10.0.
    Blackwell = 10,
}

/// Product line, with NVML's number for it (`nvmlBrandType_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Brand {
    /// Boards named "Tesla ...".
    Tesla = 2,
    /// Data centre boards named "NVIDIA ...".
    Nvidia = 14,
}

/// `NVLink` ports of a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoardNvLink {
    /// Number of ports.
    pub links: u32,
    /// `NVLink` generation.
    pub version: u32,
    /// Ports lead to a base board (SXM) and not to a bridge plugged between two cards.
    pub base_board: bool,
}

/// Properties that every GPU of one product shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Board {
    /// The name that NVML reports.
    pub name: &'static str,
    /// Total memory that NVML reports, in MiB.
    pub memory_mib: u64,
    /// CUDA compute capability.
    pub compute_capability: (u32, u32),
    /// Generation.
    pub architecture: Architecture,
    /// PCI device id; the vendor is 0x10de.
    pub pci_device_id: u16,
    /// Power limit in watts.
    pub power_limit_w: u32,
    /// `NVLink` ports, if it has any.
    pub nvlink: Option<BoardNvLink>,
    /// Greatest number of MIG GPU instances, 0 on boards without MIG.
    pub max_mig_devices: u32,
}

/// Ports that lead to a base board.
const fn sxm(links: u32, version: u32) -> BoardNvLink {
    BoardNvLink {
        links,
        version,
        base_board: true,
    }
}

/// Ports for a bridge between two cards.
const fn bridge(links: u32, version: u32) -> BoardNvLink {
    BoardNvLink {
        links,
        version,
        base_board: false,
    }
}

macro_rules! boards {
    ($($name:literal, $mib:literal, $cc:expr, $arch:ident, $id:literal, $watts:literal, $nvlink:expr, $mig:literal;)*) => {
        &[$(Board {
            name: $name,
            memory_mib: $mib,
            compute_capability: $cc,
            architecture: Architecture::$arch,
            pci_device_id: $id,
            power_limit_w: $watts,
            nvlink: $nvlink,
            max_mig_devices: $mig,
        }),*]
    };
}

/// Name, MiB, compute capability, generation, PCI device id, watts, `NVLinks`, MIG instances.
const BOARDS: &[Board] = boards! {
    "Tesla V100-SXM2-32GB",  32_768,  (7, 0),  Volta,     0x1db5, 300,  Some(sxm(6, 2)),     0;
    "Tesla V100-SXM2-16GB",  16_384,  (7, 0),  Volta,     0x1db1, 300,  Some(sxm(6, 2)),     0;
    "Tesla T4",              15_360,  (7, 5),  Turing,    0x1eb8, 70,   None,                0;
    "NVIDIA T4",             15_360,  (7, 5),  Turing,    0x1eb8, 70,   None,                0;
    "NVIDIA DGX Display",    4_096,   (7, 5),  Turing,    0x1fb0, 50,   None,                0;
    "NVIDIA A30",            24_576,  (8, 0),  Ampere,    0x20b7, 165,  Some(bridge(4, 3)),  4;
    "NVIDIA A100-SXM4-40GB", 40_960,  (8, 0),  Ampere,    0x20b0, 400,  Some(sxm(12, 3)),    7;
    "NVIDIA A100-SXM4-80GB", 81_920,  (8, 0),  Ampere,    0x20b2, 400,  Some(sxm(12, 3)),    7;
    "NVIDIA A100 80GB PCIe", 81_920,  (8, 0),  Ampere,    0x20b5, 300,  Some(bridge(12, 3)), 7;
    "NVIDIA L4",             23_034,  (8, 9),  Ada,       0x27b8, 72,   None,                0;
    "NVIDIA L40S",           46_068,  (8, 9),  Ada,       0x26b5, 350,  None,                0;
    "NVIDIA H100 80GB HBM3", 81_559,  (9, 0),  Hopper,    0x2330, 700,  Some(sxm(18, 4)),    7;
    "NVIDIA H200",           143_771, (9, 0),  Hopper,    0x2335, 700,  Some(sxm(18, 4)),    7;
    "NVIDIA B200",           183_359, (10, 0), Blackwell, 0x2901, 1000, Some(sxm(18, 5)),    7;
    "NVIDIA GB200",          189_471, (10, 0), Blackwell, 0x2941, 1200, Some(sxm(18, 5)),    7;
};

impl Board {
    /// Every board that can be simulated.
    pub fn all() -> &'static [Board] {
        BOARDS
    }

    /// The board with exactly this NVML name.
    pub fn named(name: &str) -> Option<&'static Board> {
        BOARDS.iter().find(|board| board.name == name)
    }

    /// The known name most like `name`, for error messages.
    pub fn nearest_name(name: &str) -> &'static str {
        let wanted = name.to_lowercase();
        // A shortened name ("NVIDIA H100") is closer to what contains it than to a sibling.
        let likeness = |board: &Board| {
            let known = board.name.to_lowercase();
            let contained = if known.contains(&wanted) { 1.0 } else { 0.0 };
            contained + strsim::jaro_winkler(&wanted, &known)
        };
        BOARDS
            .iter()
            .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
            .map_or("", |board| board.name)
    }

    /// The product line, which the name tells.
    pub fn brand(&self) -> Brand {
        if self.name.starts_with("Tesla ") {
            Brand::Tesla
        } else {
            Brand::Nvidia
        }
    }

    /// The board draws on a monitor: the one of a DGX Station, beside its compute boards.
    fn is_display(&self) -> bool {
        self.name.ends_with("DGX Display")
    }

    /// PCI class: VGA controller or 3D controller.
    pub fn pci_class(&self) -> u32 {
        if self.is_display() { 0x03_00_00 } else { 0x03_02_00 }
    }

    /// The driver lists the graphics processes of the board: not on modules of a base board, which have no outputs.
    pub fn has_graphics(&self) -> bool {
        self.nvlink.is_none_or(|ports| !ports.base_board)
    }

    /// The MIG mode is kept in the board and takes a reset to change: boards before Hopper. Newer ones change it at once, and
    /// forget it with the driver.
    pub fn keeps_mig_mode(&self) -> bool {
        (self.architecture as u32) < Architecture::Hopper as u32
    }

    /// Bad memory rows are remapped (Ampere data centre boards and newer) and pages not retired.
    pub fn remaps_rows(&self) -> bool {
        self.architecture as u32 >= Architecture::Ampere as u32
    }
}

#[cfg(test)]
mod tests {
    use super::Board;

    #[test]
    fn nearest_name_finds_what_was_meant() {
        assert_eq!(Board::nearest_name("Tesla-V100-SXM2-32GB"), "Tesla V100-SXM2-32GB");
        assert_eq!(Board::nearest_name("nvidia h100"), "NVIDIA H100 80GB HBM3");
        assert_eq!(Board::nearest_name("A100-SXM4-40GB"), "NVIDIA A100-SXM4-40GB");
    }
}
