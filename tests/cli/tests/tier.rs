//! `varve tier` on a program that is recorded for it.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn varve(arguments: &[&str], folder: &Path) -> Output {
    varve_cli_tests::varve()
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("varve runs")
}

fn json(arguments: &[&str], folder: &Path) -> Value {
    let output = varve(arguments, folder);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

const TIERS: [&str; 4] = ["--tier", "fast=2MiB,80ns", "--tier", "slow=inf,250ns"];

#[test]
fn a_graph_program_is_simulated_and_planned() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = root().join("workloads/bin/graph_bfs");
    let program = program.canonicalize().expect("make -C workloads");
    let program = program.to_str().expect("a path");
    for (trace, kind) in [("kron.varve", "kron"), ("urand.varve", "urand")] {
        let record = ["record", "-o", trace, "--", program, kind, "14", "16", "20"];
        let output = varve(&record, folder.path());
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let with = |more: &[&str]| {
        let mut all = vec!["tier", "simulate", "kron.varve", "--json"];
        all.extend(more);
        json(&all, folder.path())
    };
    let found = with(&TIERS);
    assert_eq!(found["schema"], "varve-tier-simulate/1");
    let policies = found["policies"].as_array().expect("policies");
    let bound = &policies[0];
    assert_eq!(bound["name"], "optimum");
    for one in policies {
        let figure = |of: &Value, name: &str| of[name].as_u64().expect("a figure");
        for name in ["slow_touches", "modelled_ns"] {
            assert!(
                figure(bound, name) <= figure(one, name),
                "{name} of {}",
                one["name"]
            );
        }
        assert!(one["objects"].as_array().is_some_and(|o| !o.is_empty()));
    }
    // The edges are the largest object, 2^14 x 16 x 2 x 4 bytes, and the program's own line allocated them.
    let objects = policies[1]["objects"].as_array().expect("objects");
    let edges = objects.iter().find(|o| {
        o["name"].as_str().is_some_and(|n| n.contains("graph.h"))
            && o["peak_pages"].as_u64() >= Some(512)
    });
    assert!(edges.is_some(), "{objects:?}");
    // The control: with memory for all of it nothing is slow.
    let found = with(&[
        "--tier",
        "fast=4GiB,80ns",
        "--tier",
        "slow=inf,250ns",
        "--policy",
        "first_touch,lru,objects",
    ]);
    for one in found["policies"].as_array().expect("policies") {
        assert_eq!(one["slow_touches"], 0, "{}", one["name"]);
    }
    let found = with(&[&TIERS[..], &["--on", "urand.varve", "--policy", "objects"]].concat());
    assert!(found["planned_on"]["touches"].as_u64() > Some(0));

    let plan = [
        &["tier", "plan", "kron.varve", "-o", "plan.toml"],
        &TIERS[..],
    ]
    .concat();
    let output = varve(&plan, folder.path());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(folder.path().join("plan.toml")).expect("the plan");
    assert!(
        text.contains("schema = \"varve-tier-plan/1\"") && text.contains("[[place]]"),
        "{text}"
    );
}

#[test]
fn what_is_no_tier_is_refused_in_one_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    for (tiers, what) in [
        (
            &["--tier", "fast=4GiB"][..],
            "does not say what a read takes",
        ),
        (&["--tier", "fast=4GiB,80ns"], "a simulation needs 2 to 8"),
        (
            &["--tier", "a=inf,80ns", "--tier", "b=inf,250ns"],
            "holds all there is",
        ),
        (
            &["--tier", "a=1GiB,250ns", "--tier", "b=inf,80ns"],
            "comes before b",
        ),
    ] {
        let output = varve(
            &[&["tier", "simulate", "t.varve"], tiers].concat(),
            folder.path(),
        );
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!output.status.success() && said.contains(what), "{said}");
    }
}
