//! Compiles the kubelet's APIs, the kubelet's side and the plugin's, and the container runtime's.

const AGENT: &str = "../../node-agent/proto";
const POD_RESOURCES: &str = "proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (file, folder) in [
        ("v1beta1/api.proto", AGENT),
        ("podresources.proto", POD_RESOURCES),
        ("cri/v1/api.proto", AGENT),
    ] {
        println!("cargo::rerun-if-changed={folder}/{file}");
        let descriptors = protox::compile([file], [folder])?;
        tonic_prost_build::configure()
            .emit_rerun_if_changed(false)
            .compile_fds(descriptors)?;
    }
    Ok(())
}
