//! What a guest says of its cases, on its way to the terminal.

use std::collections::BTreeSet;
use std::io::{Result, Write};

/// Passes on what is written, and keeps which cases have ended: each ends with a line `passed: LABEL, ...`,
/// `FAILED: LABEL, ...` or `skipped: LABEL: ...`.
pub(crate) struct Watched<W> {
    inner: W,
    line: Vec<u8>,
    labels: BTreeSet<String>,
    /// Labels of the cases that have ended.
    pub(crate) ended: BTreeSet<String>,
    /// Of them, those that failed.
    pub(crate) failed: BTreeSet<String>,
}

impl<W: Write> Watched<W> {
    /// A writer to `inner` that knows the labels of all cases.
    pub(crate) fn new(inner: W, labels: BTreeSet<String>) -> Self {
        Watched {
            inner,
            line: Vec::new(),
            labels,
            ended: BTreeSet::new(),
            failed: BTreeSet::new(),
        }
    }

    fn see(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        for verdict in ["passed", "FAILED", "skipped"] {
            let Some(rest) = line
                .strip_prefix(verdict)
                .and_then(|r| r.strip_prefix(": "))
            else {
                continue;
            };
            let is_this = |label: &&String| {
                rest.strip_prefix(label.as_str())
                    .is_some_and(|r| r.starts_with([',', ':']))
            };
            if let Some(label) = self.labels.iter().find(is_this) {
                self.ended.insert(label.clone());
                if verdict == "FAILED" {
                    self.failed.insert(label.clone());
                }
            }
        }
    }
}

impl<W: Write> Write for Watched<W> {
    fn write(&mut self, data: &[u8]) -> Result<usize> {
        let n = self.inner.write(data)?;
        for &byte in &data[..n] {
            if byte == b'\n' {
                self.see();
                self.line.clear();
            } else {
                self.line.push(byte);
            }
        }
        Ok(n)
    }

    fn flush(&mut self) -> Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::Watched;

    #[test]
    fn lines_may_come_in_pieces() {
        let labels = ["a 'x' on 6.1", "a 'y' on 6.1", "a 'z' on 6.1"];
        let mut watched = Watched::new(Vec::new(), labels.map(str::to_owned).into());
        for piece in [
            "pass",
            "ed: a 'x' on 6.1, 3 s\nFAILED: a 'y' on 6",
            ".1, exit code 1\nskipped: a 'z' on 6.1",
        ] {
            watched.write_all(piece.as_bytes()).expect("memory");
        }
        assert_eq!(watched.ended.len(), 2);
        assert_eq!(watched.failed.len(), 1);
        watched.write_all(b": no PMU\n").expect("memory");
        assert_eq!(watched.ended.len(), 3);
        assert_eq!(watched.failed.len(), 1);
    }
}
