//! Compiles the kubelet's APIs: device plugins and PodResources.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // protox does not tell cargo what to watch.
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["v1beta1/api.proto", "podresources/v1/api.proto"], ["proto"])?;
    tonic_prost_build::configure().emit_rerun_if_changed(false).compile_fds(descriptors)?;
    Ok(())
}
