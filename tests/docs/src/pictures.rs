//! Pictures of a terminal, from the output of `kubectl gpunode`.

use anstyle::RgbColor;
use anstyle_svg::{Palette, Term};
use anyhow::{Context as _, ensure};
use std::{path::Path, process::Command};

/// Folder in which the commands run, with the files that they read.
const FOLDER: &str = "docs/pictures";

/// File, arguments of `kubectl gpunode` and exit code of each picture.
const PICTURES: [(&str, &[&str], i32); 6] = [
    ("plan.svg", &["plan", "-f", "policy.yaml", "--nodes", "cluster.yaml"], 2),
    ("explain.svg", &["explain", "gpu-v100", "--nodes", "cluster.yaml"], 0),
    ("doctor.svg", &["doctor", "--nodes", "cluster.yaml"], 1),
    (
        "topo.svg",
        &["topo", "gpu-v100", "--request", "3", "--nodes", "cluster.yaml"],
        0,
    ),
    ("mig.svg", &["mig", "--board", "A100-80GB", "1g.10gb:3,4g.40gb:1"], 0),
    ("validate.svg", &["validate", "-f", "mistake.yaml"], 1),
];

/// Background and text: dark, which is readable on light and on dark pages.
const COLORS: [RgbColor; 2] = [RgbColor(0x0d, 0x11, 0x17), RgbColor(0xe6, 0xed, 0xf3)];
/// Black, red, green, yellow, blue, magenta, cyan and white, then the same in bright: all readable on the background.
const PALETTE: [RgbColor; 16] = [
    RgbColor(0x6e, 0x76, 0x81),
    RgbColor(0xff, 0x7b, 0x72),
    RgbColor(0x3f, 0xb9, 0x50),
    RgbColor(0xd2, 0x99, 0x22),
    RgbColor(0x58, 0xa6, 0xff),
    RgbColor(0xbc, 0x8c, 0xff),
    RgbColor(0x39, 0xc5, 0xcf),
    RgbColor(0xb1, 0xba, 0xc4),
    RgbColor(0x8b, 0x94, 0x9e),
    RgbColor(0xff, 0xa1, 0x98),
    RgbColor(0x56, 0xd3, 0x64),
    RgbColor(0xe3, 0xb3, 0x41),
    RgbColor(0x79, 0xc0, 0xff),
    RgbColor(0xd2, 0xa8, 0xff),
    RgbColor(0x56, 0xd4, 0xdd),
    RgbColor(0xf0, 0xf6, 0xfc),
];

/// Returns the pictures by file name.
pub fn pictures(root: &Path, program: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
    let [background, foreground] = COLORS;
    let palette = Palette::from(PALETTE);
    let terminal = Term::new()
        .palette(palette)
        .bg_color(background.into())
        .fg_color(foreground.into());
    let svg = |(file, arguments, code): (&'static str, &[&str], i32)| {
        let output = output(&root.join(FOLDER), program, arguments, code)?;
        // The prompt in bold, as in most terminals.
        let screen = format!("\x1b[1m$ kubectl gpunode {}\x1b[0m\n{output}", arguments.join(" "));
        Ok((file, terminal.render_svg(screen.trim_end())))
    };
    PICTURES.map(svg).into_iter().collect()
}

fn output(folder: &Path, program: &Path, arguments: &[&str], code: i32) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).env_clear();
    command.env("COLUMNS", "100").env("CLICOLOR_FORCE", "1");
    let output = command
        .output()
        .with_context(|| format!("run {}; build it first", program.display()))?;
    ensure!(
        output.status.code() == Some(code),
        "{command:?} ended with {} instead of {code}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}
