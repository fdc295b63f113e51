use super::*;
use crate::output::TextWidth;
use serde_json::json;

fn drawn(board: &str, layout: &str, in_use: &[&str]) -> anyhow::Result<LayoutDrawing> {
    let board = MigBoard::named(board).expect("a board");
    let names: Vec<String> = in_use.iter().map(|name| (*name).to_owned()).collect();
    let in_use = parse_instances(in_use, &board.geometry).expect("instances");
    LayoutDrawing::new(&board, layout, &in_use, &names)
}

fn listed(board: &str, in_use: &[&str]) -> BoardListing {
    let board = MigBoard::named(board).expect("a board");
    BoardListing::new(&board, &parse_instances(in_use, &board.geometry).expect("instances"))
}

fn stripped(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

fn drawing_text(board: &str, layout: &str, in_use: &[&str]) -> String {
    let drawing = drawn(board, layout, in_use).expect("a layout that fits");
    stripped(&text::drawing(&drawing, TextWidth::of(80)))
}

#[test]
fn slices_of_a_layout_are_drawn() {
    assert_eq!(
        drawing_text("A100-80GB", "1g.10gb:3,4g.40gb:1", &[]),
        "A100-80GB with 1g.10gb:3,4g.40gb:1\n\
         \n\
         INSTANCE   START   MEMORY     COMPUTE   STATE\n\
         4g.40gb    0       ####....   ####...   new\n\
         1g.10gb    4       ....#...   ....#..   new\n\
         1g.10gb    5       .....#..   .....#.   new\n\
         1g.10gb    6       ......#.   ......#   new\n\
         free       -       .......#   .......   -\n\
         \n\
         nothing else fits\n"
    );
    assert_eq!(
        drawing_text("A100-80GB", "2g.20gb:1,4g.40gb:1", &["4g.40gb@0", "1g.10gb@6"]),
        "A100-80GB with 2g.20gb:1,4g.40gb:1\n\
         \n\
         INSTANCE   START   MEMORY     COMPUTE   STATE\n\
         4g.40gb    0       ####....   ####...   in use\n\
         2g.20gb    4       ....##..   ....##.   new\n\
         1g.10gb    6       ......#.   ......#   in use, not in the layout\n\
         free       -       .......#   .......   -\n\
         \n\
         nothing else fits\n"
    );
    assert_eq!(
        drawing_text("RTX-PRO-6000", "1g.24gb-me:1", &[]),
        "RTX-PRO-6000-96GB with 1g.24gb-me:1\n\
         \n\
         INSTANCE     START   MEMORY         COMPUTE   STATE\n\
         1g.24gb-me   0       ###.........   #...      new\n\
         free         -       ...#########   .###      -\n\
         \n\
         still fits: 1g.24gb:3 or 1g.24gb+me:1 or 1g.24gb+gfx:3 or 1g.24gb+me.all:1 or\n  \
         1g.24gb-me:3 or 2g.48gb:1 or 2g.48gb+gfx:1 or 2g.48gb+me.all:1 or 2g.48gb-me:1\n"
    );
}

#[test]
fn profiles_of_a_board_are_listed_with_what_is_free() {
    assert_eq!(
        stripped(&text::listing(&listed("A30", &["2g.12gb@2"]), TextWidth::of(80))),
        "A30-24GB: 4 memory and 4 compute slices; PCI ids 0x20B710DE\n\
         \n\
         PROFILE      ID   COMPUTE   MEMORY   FREE   STARTS AT\n\
         1g.6gb       14   1 of 4    1 of 4   2/4    0, 1, 2, 3\n\
         1g.6gb+me    21   1 of 4    1 of 4   1/1    0, 1, 2, 3\n\
         2g.12gb      5    2 of 4    2 of 4   1/2    0, 2\n\
         2g.12gb+me   6    2 of 4    2 of 4   1/1    0, 2\n\
         4g.24gb      0    4 of 4    4 of 4   0/1    0\n\
         \n\
         presets: all-enabled, all-1g.6gb, all-1g.6gb.me, all-2g.12gb, all-2g.12gb.me,\n  \
         all-4g.24gb, all-balanced\n"
    );
}

#[test]
fn what_does_not_fit_comes_with_the_next_command() {
    let refused = |board: &str, layout: &str, in_use: &[&str]| {
        let error = drawn(board, layout, in_use).expect_err("no layout");
        format!("{error:#}")
    };
    assert_eq!(
        refused("A100-80GB", "1g.10gb:1,3g.40gb:2", &[]),
        "place 1g.10gb:1,3g.40gb:2 on A100-80GB: it needs 9 memory slices, and a GPU has 8; the nearest layout that \
         fits is 3g.40gb:2; draw it with `kubectl gpunode mig --board A100-80GB 3g.40gb:2`"
    );
    assert_eq!(
        refused("a30", "all-4g.24gb", &["1g.6gb@3"]),
        "place 4g.24gb:1 on A30-24GB: it fits a GPU that is free, but not around what is in use: 1g.6gb@3; the \
         nearest layout that fits is 2g.12gb:1; draw it with \
         `kubectl gpunode mig --board A30-24GB 2g.12gb:1 --in-use 1g.6gb@3`"
    );
    assert_eq!(
        refused("A30", "2g.12gb:1", &["4g.24gb@0"]),
        "place 2g.12gb:1 on A30-24GB: it fits a GPU that is free, but not around what is in use: 4g.24gb@0; nothing \
         of it fits; see what fits with `kubectl gpunode mig --board A30-24GB --in-use 4g.24gb@0`"
    );
    assert_eq!(
        refused("A30", "1g.5gb:1", &[]),
        "read layout `1g.5gb:1` for A30-24GB: the board has no profile `1g.5gb`; it has 1g.6gb, 1g.6gb+me, 2g.12gb, \
         2g.12gb+me, 4g.24gb"
    );
}

#[test]
fn programs_get_the_same_as_people() {
    let drawing = drawn("A30", "1g.6gb:1", &["1g.6gb+me@0"]).expect("a layout that fits");
    let instance = |profile: &str, id: u32, start: u32, state: &str| {
        json!({
            "profile": profile, "id": id, "start": start, "memorySlices": 1, "computeSlices": 1, "state": state,
        })
    };
    assert_eq!(
        serde_json::to_value(&drawing).expect("JSON"),
        json!({
            "board": "A30-24GB",
            "layout": "1g.6gb:1",
            "memorySlices": 4,
            "computeSlices": 4,
            "instances": [instance("1g.6gb+me", 21, 0, "surplus"), instance("1g.6gb", 14, 1, "new")],
            "freeMemorySlices": [2, 3],
            "freeComputeSlices": 2,
            "fits": [{"profile": "1g.6gb", "count": 2}, {"profile": "2g.12gb", "count": 1}],
        })
    );
    let listing = serde_json::to_value(listed("A100-80GB", &[])).expect("JSON");
    assert_eq!(listing["deviceIds"][0], "0x20B210DE");
    assert_eq!(
        listing["profiles"][2],
        json!({
            "profile": "1g.20gb", "id": 15, "computeSlices": 1, "memorySlices": 2, "max": 4, "free": 4,
            "starts": [0, 2, 4, 6],
        })
    );
    assert_eq!(
        listing["presets"][8],
        json!({"name": "all-balanced", "layout": "1g.10gb:2,2g.20gb:1,3g.40gb:1"})
    );
}

#[test]
fn every_preset_of_every_board_fits_80_columns() {
    for board in MigBoard::all() {
        let listing = BoardListing::new(&board, &[]);
        let mut texts = vec![text::listing(&listing, TextWidth::of(80))];
        for preset in &listing.presets {
            let drawing = LayoutDrawing::new(&board, &preset.name, &[], &[]).expect("a layout that fits");
            texts.push(text::drawing(&drawing, TextWidth::of(80)));
        }
        for text in texts {
            let text = stripped(&text);
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            assert!(!text.contains('…'), "{text}");
        }
    }
}
