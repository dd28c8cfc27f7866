//! Which programs this machine has, and packages for those that it lacks.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use super::run::path;
use super::table::{Program, Words};
use crate::error::{Doing, Result, run};

/// Whether the program can be run here.
pub(super) fn is_there(program: &Program) -> Result<bool> {
    let status = Command::new("sh")
        .args(["-c", &program.probe()])
        .env("PATH", path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .doing(|| "start sh".to_owned())?;
    Ok(status.success())
}

/// Installs the packages of those programs that are missing.
pub(super) fn install(programs: &[Program]) -> Result<()> {
    let mut missing = BTreeSet::new();
    for program in programs {
        if !is_there(program)? {
            missing.extend(program.package.split_whitespace());
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    super::say(&format!(
        "installing {}",
        missing.iter().copied().collect::<Vec<_>>().join(" ")
    ));
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .args(arguments);
        command
    };
    run(&mut apt(&["update", "-q"]))?;
    run(apt(&["install", "-q", "-y", "--no-install-recommends"]).args(missing))?;
    Ok(())
}

/// Name and version of what is tested: of the table's package, or of the one that the program came with. `None` where no package has
/// it.
pub(super) fn version(program: &Program) -> Result<Option<String>> {
    let Some(package) = program.package.split_whitespace().next() else {
        return Ok(None);
    };
    if matches!(program.words, Words::Exec(_)) {
        return Ok(None);
    }
    let script = r#"
version() { dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$1" 2>/dev/null | sed -n 's/^installed //p' | head -n 1; }
found=$(version "$1")
if [ -z "$found" ]; then
    path=$(readlink -f "$(command -v "$2")") || exit 0
    package=$(dpkg-query -S "$path" 2>/dev/null | sed -n '1s/:.*//p')
    [ -n "$package" ] && found="$(version "$package") ($package)"
fi
echo "$found""#;
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh", package, program.name])
        .env("PATH", path());
    let text = run(&mut command)?.stdout;
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    Ok((!text.is_empty()).then_some(text))
}
