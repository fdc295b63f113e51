use super::*;
use crate::boards::MigBoard;

fn geometry(board: &str) -> MigGeometry {
    MigBoard::named(board).unwrap().geometry
}

fn parsed(board: &str, text: &str) -> String {
    match MigLayout::parse(text, &geometry(board)) {
        Ok(layout) => layout.to_string(),
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn layouts_are_written_in_the_order_of_the_board() {
    for (text, written) in [
        ("1g.10gb:3,4g.40gb:1", "1g.10gb:3,4g.40gb:1"),
        (" 4g.40gb : 1 , 1g.10gb+me:1 ", "1g.10gb+me:1,4g.40gb:1"),
        ("{}", "{}"),
        ("all-enabled", "{}"),
        ("all-1g.10gb", "1g.10gb:7"),
        ("all-1g.10gb.me", "1g.10gb+me:1"),
        ("all-1g.10gb+me", "1g.10gb+me:1"),
        ("all-balanced", "1g.10gb:2,2g.20gb:1,3g.40gb:1"),
    ] {
        assert_eq!(parsed("A100-80GB", text), written, "{text}");
        assert_eq!(parsed("A100-80GB", written), written, "what is written can be read");
    }
    for text in ["1g.24gb+gfx:2,1g.24gb-me:1", "1g.24gb+me.all:1,1g.24gb-me:3"] {
        assert_eq!(parsed("RTX-PRO-6000", text), text);
    }
}

#[test]
fn what_is_no_layout_is_refused_with_what_to_write() {
    let profiles = "1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb";
    let malformed = |part: &str| {
        format!(
            "`{part}` is not PROFILE:COUNT; write a layout such as 1g.10gb:2, a preset such as all-balanced, or {{}}"
        )
    };
    let unknown = |profile: &str| format!("the board has no profile `{profile}`; it has {profiles}");
    let count = |count: &str| {
        format!("`{count}` is no count of 1g.10gb: write a whole number from 1, or leave the profile out")
    };
    for (text, error) in [
        ("", malformed("")),
        ("1g.10gb", malformed("1g.10gb")),
        ("1g.10gb:1,", malformed("")),
        (":1", malformed(":1")),
        ("1g.5gb:7", unknown("1g.5gb")),
        ("1g.10gb+gfx:1", unknown("1g.10gb+gfx")),
        ("1c.3g.20gb:1", unknown("1c.3g.20gb")),
        ("c.3g.40gb:1", unknown("c.3g.40gb")),
        ("1g.10gb:0", count("0")),
        ("1g.10gb:-1", count("-1")),
        ("1g.10gb:", count("")),
        ("1g.10gb:9999999999", count("9999999999")),
        (
            "1g.10gb:1,4g.40gb:1,1g.10gb:2",
            "the layout names 1g.10gb twice; write it once, with the sum of its counts".to_owned(),
        ),
        (
            "1c.3g.40gb:2",
            "`1c.3g.40gb` is a compute instance on part of a GPU instance, and a layout has only whole ones: write \
             `3g.40gb`"
                .to_owned(),
        ),
        (
            "all-1g.5gb",
            "the board has no preset `all-1g.5gb`; it has all-enabled, all-1g.10gb, all-1g.10gb.me, all-1g.20gb, \
             all-2g.20gb, all-3g.40gb, all-4g.40gb, all-7g.80gb, all-balanced"
                .to_owned(),
        ),
    ] {
        assert_eq!(parsed("A100-80GB", text), format!("error: {error}"), "{text}");
    }
}

/// The configurations of mig-parted's `deployments/systemd/config-default.yaml` for boards with a table here.
#[test]
fn presets_are_those_of_mig_parted() {
    for (board, preset, layout) in [
        ("A30-24GB", "all-1g.6gb", "1g.6gb:4"),
        ("A30-24GB", "all-1g.6gb.me", "1g.6gb+me:1"),
        ("A30-24GB", "all-2g.12gb", "2g.12gb:2"),
        ("A30-24GB", "all-2g.12gb.me", "2g.12gb+me:1"),
        ("A30-24GB", "all-4g.24gb", "4g.24gb:1"),
        ("A30-24GB", "all-balanced", "1g.6gb:2,2g.12gb:1"),
        ("A100-40GB", "all-1g.5gb", "1g.5gb:7"),
        ("A100-40GB", "all-1g.5gb.me", "1g.5gb+me:1"),
        ("A100-40GB", "all-1g.10gb", "1g.10gb:4"),
        ("A100-40GB", "all-2g.10gb", "2g.10gb:3"),
        ("A100-40GB", "all-3g.20gb", "3g.20gb:2"),
        ("A100-40GB", "all-4g.20gb", "4g.20gb:1"),
        ("A100-40GB", "all-7g.40gb", "7g.40gb:1"),
        ("A100-40GB", "all-balanced", "1g.5gb:2,2g.10gb:1,3g.20gb:1"),
        ("H100-80GB", "all-1g.10gb", "1g.10gb:7"),
        ("H100-80GB", "all-1g.20gb", "1g.20gb:4"),
        ("H100-80GB", "all-balanced", "1g.10gb:2,2g.20gb:1,3g.40gb:1"),
        ("H100-94GB", "all-1g.12gb", "1g.12gb:7"),
        ("H100-94GB", "all-1g.24gb", "1g.24gb:4"),
        ("H100-94GB", "all-3g.47gb", "3g.47gb:2"),
        ("H100-94GB", "all-balanced", "1g.12gb:2,2g.24gb:1,3g.47gb:1"),
        ("H200-141GB", "all-1g.18gb.me", "1g.18gb+me:1"),
        ("H200-141GB", "all-1g.35gb", "1g.35gb:4"),
        ("H200-141GB", "all-7g.141gb", "7g.141gb:1"),
        ("H200-141GB", "all-balanced", "1g.18gb:2,2g.35gb:1,3g.71gb:1"),
        ("B200-180GB", "all-1g.23gb", "1g.23gb:7"),
        ("B200-180GB", "all-2g.45gb", "2g.45gb:3"),
        ("B200-180GB", "all-balanced", "1g.23gb:2,2g.45gb:1,3g.90gb:1"),
        ("RTX-PRO-6000-96GB", "all-1g.24gb", "1g.24gb:4"),
        ("RTX-PRO-6000-96GB", "all-1g.24gb.gfx", "1g.24gb+gfx:4"),
        ("RTX-PRO-6000-96GB", "all-1g.24gb.me.all", "1g.24gb+me.all:1"),
        ("RTX-PRO-6000-96GB", "all-1g.24gb-me", "1g.24gb-me:4"),
        ("RTX-PRO-6000-96GB", "all-2g.48gb-me", "2g.48gb-me:2"),
        ("RTX-PRO-6000-96GB", "all-4g.96gb.gfx", "4g.96gb+gfx:1"),
        ("RTX-PRO-6000-96GB", "all-balanced", "1g.24gb:2,2g.48gb:1"),
    ] {
        assert_eq!(parsed(board, preset), layout, "{board} {preset}");
    }
}

#[test]
fn layout_of_counts_by_name_is_the_one_of_their_text() {
    let geometry = geometry("A100-80GB");
    let of = |counts: &[(&str, u32)]| MigLayout::of_profiles(counts.iter().copied(), &geometry);
    let layout = of(&[("4g.40gb", 1), ("1g.10gb", 3)]).unwrap();
    assert_eq!(layout, MigLayout::parse("1g.10gb:3,4g.40gb:1", &geometry).unwrap());
    let counts = geometry.profiles.iter().map(|profile| layout.count_of(profile.id));
    assert_eq!(counts.collect::<Vec<_>>(), [3, 0, 0, 0, 0, 1, 0]);
    assert_eq!(of(&[]), Ok(MigLayout::default()));
    let error = of(&[("1g.5gb", 7)]).unwrap_err().to_string();
    assert!(error.starts_with("the board has no profile `1g.5gb`"), "{error}");
    let instances = crate::parse_instances(&["4g.40gb@0", "1g.10gb@5"], &geometry).unwrap();
    assert_eq!(
        MigLayout::of_instances(&instances, &geometry).to_string(),
        "1g.10gb:1,4g.40gb:1"
    );
}

#[test]
fn board_without_a_balance_has_no_such_preset() {
    let mut geometry = geometry("A30");
    geometry.profiles.retain(|profile| profile.slices != 2);
    assert!(presets(&geometry).iter().all(|preset| preset.name != "all-balanced"));
    geometry.compute_slices = 2;
    assert!(presets(&geometry).iter().all(|preset| preset.name != "all-balanced"));
}
