//! Names the library as the real one, and writes a stub for every NVML function that `src/ffi`
//! does not define.

use std::{
    collections::BTreeSet,
    env, fs,
    io::{self, Write},
    path::Path,
};

const SYMBOLS: &str = "scenario/nvml-symbols.txt";
const IMPLEMENTED: &str = "src/ffi";

fn main() -> io::Result<()> {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rerun-if-changed={SYMBOLS}");
    println!("cargo:rerun-if-changed={IMPLEMENTED}");

    let mut implemented = BTreeSet::new();
    for file in fs::read_dir(IMPLEMENTED)? {
        for line in fs::read_to_string(file?.path())?.lines() {
            implemented.extend(defined_function(line).map(str::to_owned));
        }
    }
    let out_dir = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    let mut stubs = fs::File::create(Path::new(&out_dir).join("stubs.rs"))?;
    for name in fs::read_to_string(SYMBOLS)?.lines() {
        if !implemented.contains(name) {
            writeln!(stubs, "stub!({name});")?;
        }
    }
    Ok(())
}

/// `nvmlX` of a line `extern "C" fn nvmlX(...`.
fn defined_function(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("extern \"C\" fn ")?;
    let (name, _) = rest.split_once('(')?;
    name.starts_with("nvml").then_some(name)
}
