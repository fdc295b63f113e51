//! Compiles the kubelet's APIs, device plugins and PodResources, and the CRI, and says how the agent is linked.

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
    if std::env::var_os("GPUNODE_OLDER_GLIBC").is_none() {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // Of functions with the same code, one is enough: Rust does not tell them apart by address.
    println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    Ok(())
}
