//! The layout that a group gives a GPU, if it can have it: checked against the tables of boards. On the node the driver decides.

use crate::mig_layouts::observed::CountedLayout;
use gpunode_config::MigGroup;
use gpunode_crds::GpuDevice;
use gpunode_mig::{MigBoard, MigLayout, solve};
use thiserror::Error;

/// The layout that a group gives a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedLayout {
    /// It fits, as far as is known.
    Known {
        /// The layout.
        layout: CountedLayout,
        /// False where the board has no table, so that the agent decides if the layout fits.
        is_checked: bool,
    },
    /// A preset, for a board without a table.
    Preset(String),
    /// The GPU cannot have it.
    Impossible(LayoutObstacle),
}

/// A layout that a board cannot have.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{layout} cannot be on {board}: {why}")]
pub struct LayoutMisfit {
    layout: String,
    board: &'static str,
    /// The reason, and the nearest layout that fits.
    why: String,
}

/// The reason why a GPU cannot have a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutObstacle {
    /// It has no MIG.
    NoMig,
    /// It does not fit.
    DoesNotFit(LayoutMisfit),
}

/// Returns the layout that a group gives a GPU.
pub fn wanted(gpu: &GpuDevice, group: &MigGroup) -> WantedLayout {
    if gpu.mig_mode.is_none() {
        return WantedLayout::Impossible(LayoutObstacle::NoMig);
    }
    if let Some(board) = MigBoard::of_product(&gpu.product) {
        return match on_board(&board, group) {
            Ok(layout) => WantedLayout::Known {
                layout,
                is_checked: true,
            },
            Err(obstacle) => WantedLayout::Impossible(LayoutObstacle::DoesNotFit(obstacle)),
        };
    }
    match (&group.instances, &group.preset) {
        (None, Some(preset)) => WantedLayout::Preset(preset.clone()),
        (instances, _) => WantedLayout::Known {
            layout: instances.as_ref().map_or(CountedLayout::Off, |instances| {
                let count = |(profile, count): (&String, &i32)| Some((profile.clone(), u32::try_from(*count).ok()?));
                CountedLayout::Instances(instances.iter().filter_map(count).collect())
            }),
            is_checked: group.disabled.is_some(),
        },
    }
}

/// Returns the layout that a group gives each GPU of a board, or says why it does not fit and what does.
pub fn on_board(board: &MigBoard, group: &MigGroup) -> Result<CountedLayout, LayoutMisfit> {
    let text = match (&group.instances, &group.preset) {
        (None, None) => return Ok(CountedLayout::Off),
        (None, Some(preset)) => preset.clone(),
        (Some(instances), _) if instances.is_empty() => "{}".to_owned(),
        (Some(instances), _) => {
            let parts = instances.iter().map(|(profile, count)| format!("{profile}:{count}"));
            parts.collect::<Vec<_>>().join(",")
        }
    };
    let refused = |why: String| LayoutMisfit {
        layout: text.clone(),
        board: board.name,
        why,
    };
    let layout = MigLayout::parse(&text, &board.geometry).map_err(|error| refused(error.to_string()))?;
    solve(&board.geometry, &layout, &[]).map_err(|error| refused(error.to_string()))?;
    // A layout has the same form in a status.
    Ok(CountedLayout::parse(&layout.to_string()).unwrap_or(CountedLayout::Off))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(product: &str, mode: Option<&str>, group: &str) -> String {
        let config = gpunode_config::load(&format!("mig: {{strategy: Mixed, layout: [{group}]}}\n"));
        let mig = config.expect("a configuration").mig.expect("a layout");
        let gpu = json!({"index": 0, "uuid": "GPU-0", "product": product, "memoryMiB": 1, "migMode": mode});
        let gpu: GpuDevice = serde_json::from_value(gpu).expect("a GPU");
        match wanted(&gpu, &mig.layout[0]) {
            WantedLayout::Known { layout, is_checked } => format!("{layout} {is_checked}"),
            WantedLayout::Preset(preset) => preset,
            WantedLayout::Impossible(LayoutObstacle::NoMig) => "no MIG".to_owned(),
            WantedLayout::Impossible(LayoutObstacle::DoesNotFit(misfit)) => misfit.to_string(),
        }
    }

    #[test]
    fn a_layout_is_that_of_the_board_or_says_why_not() {
        let a100 = ("NVIDIA-A100-SXM4-40GB", Some("Disabled"));
        for ((product, mode), group, expected) in [
            (a100, "{disabled: true}", "off true"),
            (a100, "{instances: {}}", "{} true"),
            (a100, "{preset: all-enabled}", "{} true"),
            (a100, "{preset: all-balanced}", "1g.5gb:2,2g.10gb:1,3g.20gb:1 true"),
            (a100, "{instances: {1g.5gb: 3, 4g.20gb: 1}}", "1g.5gb:3,4g.20gb:1 true"),
            (
                a100,
                "{instances: {3g.20gb: 2, 1g.5gb: 1}}",
                "1g.5gb:1,3g.20gb:2 cannot be on A100-40GB: it needs 9 memory slices, and a GPU has 8; the nearest layout that fits is 3g.20gb:2",
            ),
            (
                a100,
                "{instances: {1g.6gb: 1}}",
                "1g.6gb:1 cannot be on A100-40GB: the board has no profile `1g.6gb`; it has 1g.5gb, 1g.5gb+me, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb",
            ),
            (("Tesla-V100-SXM2-32GB", None), "{disabled: true}", "no MIG"),
            (("NVIDIA-H20", Some("Enabled")), "{disabled: true}", "off true"),
            (
                ("NVIDIA-H20", Some("Enabled")),
                "{instances: {1g.12gb: 7}}",
                "1g.12gb:7 false",
            ),
            (
                ("NVIDIA-H20", Some("Enabled")),
                "{preset: all-balanced}",
                "all-balanced",
            ),
        ] {
            assert_eq!(shown(product, mode, group), expected, "{product} {group}");
        }
    }
}
