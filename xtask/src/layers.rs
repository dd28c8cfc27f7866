//! Which crates may build on which: what a reader of traces must not pull in.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Crates that read traces and ask for owners.
const READERS: [&str; 4] = [
    "varve-trace",
    "varve-objects",
    "varve-analyse",
    "varve-tier",
];
/// What reads debug information and unwinds.
const DEBUGGERS: [&str; 5] = ["gimli", "addr2line", "framehop", "object", "varve-symbols"];

/// The packages that each package of the workspace depends on, by name; not those of tests and build scripts.
fn dependencies(repository: &Path) -> HashMap<String, HashSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        // What other platforms need was never downloaded.
        .arg(format!(
            "--filter-platform={}-unknown-linux-gnu",
            std::env::consts::ARCH
        ))
        .current_dir(repository)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let metadata: Value = serde_json::from_slice(&output.stdout).expect(&errors);
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let names: HashMap<String, String> = list(&metadata["packages"])
        .iter()
        .map(|package| (text(&package["id"]), text(&package["name"])))
        .collect();
    let is_normal = |kinds: &Value| list(kinds).iter().any(|kind| kind["kind"].is_null());
    let nodes = list(&metadata["resolve"]["nodes"]);
    let name = |id: &Value| names[&text(id)].clone();
    let mut known: HashMap<String, HashSet<String>> = HashMap::new();
    for node in &nodes {
        // Two versions of a package count as one.
        let of = known.entry(name(&node["id"])).or_default();
        let all = list(&node["deps"]);
        let normal = all.iter().filter(|d| is_normal(&d["dep_kinds"]));
        of.extend(normal.map(|d| name(&d["pkg"])));
    }
    known
}

/// Whatever a package depends on, directly or not.
fn reached(from: &str, dependencies: &HashMap<String, HashSet<String>>) -> HashSet<String> {
    let mut found = HashSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(package) = open.pop() {
        for next in &dependencies[&package] {
            if found.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    found
}

#[test]
fn who_reads_traces_builds_no_debugger() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let dependencies = dependencies(repository);
    // The names are those of packages that exist.
    let naming = reached("varve-attribute", &dependencies);
    for package in DEBUGGERS {
        assert!(naming.contains(package), "{package}");
    }
    for reader in READERS {
        let all = reached(reader, &dependencies);
        for package in DEBUGGERS {
            assert!(!all.contains(package), "{reader} depends on {package}");
        }
    }
}
