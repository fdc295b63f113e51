//! The program without a cluster that it can use: the words that `docs/troubleshooting.md` quotes.
#![allow(clippy::expect_used, clippy::panic, reason = "a test")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
};
use tempfile::TempDir;

/// Commands that read the cluster first.
const COMMANDS: [&[&str]; 4] = [&["status"], &["explain", "n1"], &["doctor"], &["dump"]];

/// Runs the program with an API server at a port of this machine. Returns its exit code and what it says.
fn gpunode(port: u16, arguments: &[&str]) -> (Option<i32>, String) {
    let folder = TempDir::new().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    let config = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    );
    std::fs::write(&kubeconfig, config).expect("a kubeconfig");
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-gpunode"))
        .args(arguments)
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .env_remove("COLUMNS")
        .output()
        .expect("the program");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("text"))
}

/// Serves answers by the path of the request, as long as the test program runs. Returns the port.
fn api_server(answer: fn(&str) -> (u16, &'static str)) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(stream, answer));
        }
    });
    port
}

/// Answers one request. A client that goes away is no matter.
fn serve(mut stream: TcpStream, answer: fn(&str) -> (u16, &'static str)) {
    let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    // The headers, up to the empty line.
    lines.find(String::is_empty);
    let (status, body) = answer(request.split(' ').nth(1).unwrap_or_default());
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    _ = stream.write_all((head + body).as_bytes());
}

#[test]
fn a_cluster_without_gpunode_is_told_how_to_install_it() {
    let port = api_server(|path| match path {
        path if path.starts_with("/apis/gpunode.dev") => (404, "404 page not found\n"),
        _ => (
            200,
            r#"{"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}"#,
        ),
    });
    for arguments in COMMANDS {
        let (code, text) = gpunode(port, arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {text}");
        let words = ": the cluster does not have this kind; install gpunode with `kubectl apply -k manifests/default`";
        assert!(
            text.contains("list gpunode") && text.contains(words),
            "{arguments:?}: {text}"
        );
    }
}

#[test]
fn refused_credentials_and_a_missing_server_are_told_with_the_next_step() {
    let unauthorized = api_server(|_| {
        let status = r#"{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "Unauthorized",
            "reason": "Unauthorized", "code": 401}"#;
        (401, status)
    });
    // Nobody listens there.
    let closed = 1;
    for (port, words) in [
        (unauthorized, ": Unauthorized; check the credentials in your kubeconfig"),
        (
            closed,
            "; check that the cluster is running and that your kubeconfig names it",
        ),
    ] {
        for arguments in COMMANDS {
            let (code, text) = gpunode(port, arguments);
            assert_eq!(code, Some(1), "{arguments:?}: {text}");
            assert!(text.contains("list ") && text.contains(words), "{arguments:?}: {text}");
        }
    }
}
