//! Finds the template of the HTML report, and builds it when it is missing or older than its source.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::SystemTime;

fn main() -> ExitCode {
    match template() {
        Ok(path) => {
            println!("cargo::rustc-env=VARVE_REPORT_TEMPLATE={}", path.display());
            ExitCode::SUCCESS
        }
        Err(message) => {
            for line in message.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn template() -> Result<PathBuf, String> {
    let here = env::var("CARGO_MANIFEST_DIR").map_err(|e| format!("CARGO_MANIFEST_DIR: {e}"))?;
    let web = Path::new(&here).join("../../web");
    let page = web.join("dist/report.html");
    for source in [
        "src",
        "build.mjs",
        "package.json",
        "package-lock.json",
        "Makefile",
    ] {
        println!("cargo::rerun-if-changed={}", web.join(source).display());
    }
    println!("cargo::rerun-if-changed={}", page.display());
    if fresh(&page, &web.join("src")) {
        return Ok(page);
    }
    let missing = |what: &str| {
        format!(
            "the page of the HTML report needs {what} to be built once from web/\nhint: install it (Debian: apt install npm make), or copy a built page to web/dist/report.html"
        )
    };
    if Command::new("npm").arg("--version").output().is_err() {
        return Err(missing("npm"));
    }
    // Not cargo's own job server: npm knows nothing of it, and make would complain.
    let make = Command::new("make")
        .arg("-C")
        .arg(&web)
        .env_remove("MAKEFLAGS")
        .env_remove("CARGO_MAKEFLAGS")
        .output()
        .map_err(|_| missing("make"))?;
    if make.status.success() && page.is_file() {
        return Ok(page);
    }
    let last = |text: &[u8]| {
        let text = String::from_utf8_lossy(text).into_owned();
        let lines: Vec<_> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    };
    Err(format!(
        "`make -C web`, which builds the page of the HTML report, failed:\n{}\n{}\nhint: run it by hand to see all of its output",
        last(&make.stdout),
        last(&make.stderr)
    ))
}

/// Whether the page is there and no older than any of its sources. A page without sources counts.
fn fresh(page: &Path, sources: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    let Some(built) = changed(page) else {
        return false;
    };
    let newest: Option<SystemTime> = fs::read_dir(sources)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| changed(&entry.path()))
        .max();
    newest.is_none_or(|newest| newest <= built)
}
