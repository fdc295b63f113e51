//! Compiles the kubelet's device plugin API, the kubelet's side and the plugin's.

const PROTO: &str = "../../node-agent/proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let descriptors = protox::compile(["v1beta1/api.proto"], [PROTO])?;
    tonic_prost_build::configure().emit_rerun_if_changed(false).compile_fds(descriptors)?;
    Ok(())
}
