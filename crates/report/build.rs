//! Finds the template of the HTML report, and builds it when it is missing or older than its source.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::SystemTime;

/// What the page is made of, in `web/`.
const SOURCES: [&str; 6] = [
    "src",
    "build.mjs",
    "package.json",
    "package-lock.json",
    "tsconfig.json",
    "Makefile",
];

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
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", web.join(source).display());
    }
    println!("cargo::rerun-if-changed={}", page.display());
    let newest = newest(&web);
    if is_fresh(&page, newest) {
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
        // As old as its sources: cargo runs this script again, and compiles again, for a file that is newer than its beginning.
        let dated = newest.map_or(Ok(()), |time| {
            fs::OpenOptions::new()
                .write(true)
                .open(&page)?
                .set_modified(time)
        });
        return dated
            .map(|()| page)
            .map_err(|e| format!("the time of the page of the HTML report: {e}"));
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

/// When the youngest source of the page changed. A page without sources has none.
fn newest(web: &Path) -> Option<SystemTime> {
    let changed = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    let inside = fs::read_dir(web.join("src"))
        .into_iter()
        .flatten()
        .flatten();
    let beside = SOURCES.iter().map(|source| web.join(source));
    inside
        .map(|entry| entry.path())
        .chain(beside.filter(|path| path.is_file()))
        .filter_map(|path| changed(&path))
        .max()
}

/// Whether the page is there and no older than its youngest source.
fn is_fresh(page: &Path, newest: Option<SystemTime>) -> bool {
    let built = fs::metadata(page).and_then(|m| m.modified());
    built.is_ok_and(|built| newest.is_none_or(|newest| newest <= built))
}
