//! Compiles the kubelet's APIs, device plugins and PodResources, and the CRI, and says how the agent is linked.

use std::{env, fs, path::Path};

/// Patterns for the names of functions, one per line; written by `make function-order`.
const ORDER: &str = "function-order.txt";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // protox does not tell cargo what to watch.
    println!("cargo::rerun-if-changed=proto");
    let files = ["v1beta1/api.proto", "podresources/v1/api.proto", "cri/v1/api.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    // Relocations are all read at the start and stay in memory: packed they take kilobytes instead of a megabyte. A program
    // with packed ones needs glibc 2.36, which the image has and a host may lack.
    println!("cargo::rerun-if-env-changed=GPUNODE_OLDER_GLIBC");
    if env::var_os("GPUNODE_OLDER_GLIBC").is_none() {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // Rust links with LLVM's linker for this target alone (https://blog.rust-lang.org/2025/09/01/rust-lld-on-1.90.0-stable/).
    if env::var("TARGET").is_ok_and(|target| target == "x86_64-unknown-linux-gnu") {
        // Of functions with the same code, one is enough: Rust does not tell them apart by address.
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        // Other builds need no order, and take longer to link with it.
        if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
            println!("cargo::rerun-if-changed={ORDER}");
            let script = Path::new(&env::var("OUT_DIR")?).join("function-order.ld");
            let patterns = fs::read_to_string(ORDER).map_err(|error| format!("read {ORDER}: {error}"))?;
            fs::write(&script, order_script(&patterns)?)?;
            // Two arguments: in one for `-Wl`, a comma in the path would end it.
            println!("cargo::rustc-link-arg-bins=-T");
            println!("cargo::rustc-link-arg-bins={}", script.display());
        }
    }
    Ok(())
}

/// Returns a linker script that puts the functions side by side that an agent executes, by patterns for their names. So fewer
/// pages of the program are in memory (docs/adr/0020-function-order.md).
fn order_script(patterns: &str) -> Result<String, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.$".contains(&byte);
    let sections = |(index, line): (usize, &str)| {
        let name = line.strip_suffix('*').unwrap_or(line);
        if name.is_empty() || !name.bytes().all(is_name) {
            let number = index + 1;
            return Err(format!(
                "{ORDER}:{number}: {line:?} is no name of a function: run `make function-order`"
            ));
        }
        // A function that is marked as cold has a section of another name.
        Ok(format!("*(.text.{line} .text.unlikely.{line})\n"))
    };
    let lines = patterns
        .lines()
        .enumerate()
        .map(sections)
        .collect::<Result<String, _>>()?;
    // The program's start is of the C library, in sections without names.
    let start = "*crt1.o(.text .text.*) *crti.o(.text .text.*) *crtbeginS.o(.text .text.*)";
    Ok(format!(
        "SECTIONS {{ .text.recorded : {{\n{start}\n{lines}}} }} INSERT BEFORE .text;\n"
    ))
}
