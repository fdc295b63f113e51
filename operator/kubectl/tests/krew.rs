//! The manifest for the kubectl plugin index.
#![allow(clippy::expect_used, clippy::panic, reason = "a test")]

use serde::Deserialize;
use std::{path::PathBuf, process::Command};

/// Fields that krew knows (`pkg/index/types.go`); it rejects any other.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "that a field can be read is the test")]
struct Plugin {
    api_version: String,
    kind: String,
    metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    version: String,
    homepage: String,
    short_description: String,
    description: String,
    caveats: String,
    platforms: Vec<Platform>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Platform {
    selector: Selector,
    uri: String,
    sha256: String,
    bin: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Selector {
    match_labels: MatchLabels,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchLabels {
    os: String,
    arch: String,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../manifests/krew")
}

#[test]
fn the_manifest_for_the_plugin_index_is_of_this_version() {
    let text = std::fs::read_to_string(folder().join("gpunode.yaml")).expect("the manifest");
    let Plugin {
        api_version,
        kind,
        metadata,
        spec,
    } = serde_yaml::from_str(&text).expect("a manifest of krew");
    assert_eq!(
        (api_version.as_str(), kind.as_str()),
        ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    );
    assert_eq!(
        (metadata.name.as_str(), spec.version),
        ("gpunode", format!("v{}", env!("CARGO_PKG_VERSION")))
    );
    // krew-index asks for less than 50 characters, and nothing of kubectl and Kubernetes in it.
    assert!(spec.short_description.len() < 50, "{}", spec.short_description);
    assert!(!spec.description.is_empty() && !spec.caveats.is_empty());
    for Platform {
        selector: Selector {
            match_labels: MatchLabels { os, arch },
        },
        uri,
        sha256,
        bin,
    } in spec.platforms
    {
        assert_eq!(uri, format!("DOWNLOADS/kubectl-gpunode-{os}-{arch}.tar.gz"));
        assert_eq!(
            (sha256, bin),
            (format!("SHA256-{os}-{arch}"), "kubectl-gpunode".to_owned())
        );
    }
}

#[test]
fn a_release_fills_in_the_sums_of_its_archives() {
    let release = std::env::temp_dir().join(format!("gpunode-krew-{}", std::process::id()));
    std::fs::create_dir_all(&release).expect("a folder");
    let fill = || {
        let arguments = ["https://example.com/gpunode", "https://example.com/gpunode/v1/"];
        Command::new(folder().join("fill.sh"))
            .args(arguments)
            .arg(&release)
            .output()
            .expect("the script")
    };
    assert!(!fill().status.success(), "there is no archive");
    std::fs::write(release.join("kubectl-gpunode"), "a program").expect("a file");
    for platform in ["linux-amd64", "linux-arm64"] {
        let archive = format!("kubectl-gpunode-{platform}.tar.gz");
        let mut tar = Command::new("tar");
        tar.arg("-czf")
            .arg(release.join(archive))
            .arg("-C")
            .arg(&release)
            .arg("kubectl-gpunode");
        assert!(tar.status().expect("tar").success());
    }
    let filled = fill();
    let text = String::from_utf8(filled.stdout).expect("text");
    assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
    std::fs::remove_dir_all(&release).expect("a folder of this test");
    let plugin: Plugin = serde_yaml::from_str(&text).expect("a manifest of krew");
    assert_eq!(plugin.spec.homepage, "https://example.com/gpunode");
    assert_eq!(plugin.spec.platforms.len(), 2, "those that the release has: {text}");
    for platform in plugin.spec.platforms {
        assert!(
            platform
                .uri
                .starts_with("https://example.com/gpunode/v1/kubectl-gpunode-linux-"),
            "{}",
            platform.uri
        );
        assert!(
            platform.sha256.len() == 64 && platform.sha256.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{text}"
        );
    }
}
