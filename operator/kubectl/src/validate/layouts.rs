//! MIG layouts that the selected boards cannot have.

use super::problem::DocumentProblem;
use gpunode_config::{MigGroup, product_matches};
use gpunode_crds::GpuNodePolicy;
use gpunode_mig::MigBoard;
use gpunode_plan::{LayoutMisfit, on_board};
use serde_json::Value;

/// Returns a warning for each group of a policy with a layout that no board can have which one of its selectors names. Boards
/// are told by PCI id, or by the product of the group or of the policy; the tables know only some.
pub fn warnings(object: &Value) -> Vec<DocumentProblem> {
    // The problems name what cannot be read.
    let Ok(policy) = serde_json::from_value::<GpuNodePolicy>(object.clone()) else {
        return Vec::new();
    };
    let mig = policy.spec.device_plugin.and_then(|plugin| plugin.mig);
    let of_policy = policy.spec.gpu_selector.and_then(|selector| selector.products);
    let groups = mig.map(|mig| mig.layout).unwrap_or_default();
    let boards = MigBoard::all();
    let warning = |(place, group): (usize, &MigGroup)| {
        let why = obstacle(group, of_policy.as_deref(), &boards)?;
        let field = if group.preset.is_some() { "preset" } else { "instances" };
        Some(DocumentProblem::new(
            format!("spec.devicePlugin.mig.layout[{place}].{field}"),
            why.to_string(),
        ))
    };
    groups.iter().enumerate().filter_map(warning).collect()
}

/// Returns the reason why no board of a selector can have the layout of a group.
fn obstacle(group: &MigGroup, of_policy: Option<&[String]>, boards: &[MigBoard]) -> Option<LayoutMisfit> {
    let devices = group.devices.as_ref();
    let ids = devices.and_then(|devices| devices.device_ids.as_deref());
    let products = devices.and_then(|devices| devices.products.as_deref()).or(of_policy);
    let by_id = ids.into_iter().flatten().map(|id| {
        let board = MigBoard::named(id).ok();
        board.into_iter().collect::<Vec<_>>()
    });
    let by_product = products.filter(|_| ids.is_none()).into_iter().flatten().map(|glob| {
        let is_selected = |board: &&MigBoard| board.products.iter().any(|product| product_matches(glob, product));
        boards.iter().filter(is_selected).cloned().collect()
    });
    let mut selected = by_id.chain(by_product).filter(|boards| !boards.is_empty());
    selected.find_map(|boards| {
        let mut obstacles = boards.iter().map(|board| on_board(board, group).err());
        let first = obstacles.next().flatten()?;
        obstacles.all(|other| other.is_some()).then_some(first)
    })
}
