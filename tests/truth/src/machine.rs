//! What a case changes on the machine, and gives back.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Problem;

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

/// Some reserved huge pages. A small shell waits for the end of its input and then sets the number
/// back: on drop, and also where the tests are killed.
#[derive(Debug)]
pub struct HugePages {
    restorer: Option<Child>,
}

impl HugePages {
    /// Makes sure that at least `wanted` huge pages are reserved.
    pub fn reserve(wanted: u64) -> Result<HugePages, Problem> {
        let before = reserved()?;
        if before >= wanted {
            return Ok(HugePages { restorer: None });
        }
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("read -r _; echo {before} >{RESERVED}")])
            .stdin(Stdio::piped())
            .process_group(0);
        let restorer = shell
            .spawn()
            .map_err(Problem::file("run", Path::new("sh")))?;
        let guard = HugePages {
            restorer: Some(restorer),
        };
        fs::write(RESERVED, wanted.to_string())
            .map_err(Problem::file("write", Path::new(RESERVED)))?;
        match reserved()? {
            got if got >= wanted => Ok(guard),
            got => Err(Problem::Other(format!(
                "the kernel reserved {got} of {wanted} huge pages"
            ))),
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(restorer) = &mut self.restorer {
            drop(restorer.stdin.take());
            let _ = restorer.wait();
        }
    }
}

fn reserved() -> Result<u64, Problem> {
    let path = Path::new(RESERVED);
    let text = fs::read_to_string(path).map_err(Problem::file("read", path))?;
    text.trim()
        .parse()
        .map_err(|_| Problem::Other(format!("{RESERVED} says `{}`", text.trim())))
}
