//! Programs of Debian, each with work of a few seconds whose outcome is the same every time.

mod languages;
mod servers;
mod tools;

/// What is run, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Words {
    /// A line for `sh`, in the folder of the run. `$INPUT` is the folder that [`Program::prepare`] made, and nobody compares what
    /// lies in `$TMPDIR`, which is `$HOME` too and empty at first.
    Line(&'static str),
    /// Words that no shell sees but alone: the recorder starts the program itself. Standard error is the recorder's too then, and is
    /// not compared.
    Exec(&'static [&'static str]),
}

/// What the program reads on standard input.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Input {
    /// Nothing: `/dev/null`.
    Nothing,
    /// A text.
    Text(&'static str),
    /// A file that [`Program::prepare`] made.
    Prepared(&'static str),
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    /// What it is called here, and to select it.
    pub(crate) name: &'static str,
    /// The Debian package to install; empty where every Debian has it.
    pub(crate) package: &'static str,
    /// A shell line that succeeds where the program is there; empty: a program of that name is in `PATH`.
    pub(crate) probe: &'static str,
    /// A shell line that makes the input once, in a folder of its own; empty: none is needed.
    pub(crate) prepare: &'static str,
    /// What is run.
    pub(crate) words: Words,
    /// What it reads.
    pub(crate) input: Input,
    /// The exit code that is right, as a shell says it: 128 + signal if one ended it.
    pub(crate) code: i32,
}

impl Program {
    const fn line(name: &'static str, package: &'static str, line: &'static str) -> Self {
        Program {
            name,
            package,
            probe: "",
            prepare: "",
            words: Words::Line(line),
            input: Input::Nothing,
            code: 0,
        }
    }

    const fn exec(name: &'static str, words: &'static [&'static str]) -> Self {
        Program {
            words: Words::Exec(words),
            ..Program::line(name, "", "")
        }
    }

    const fn probed(self, probe: &'static str) -> Self {
        Program { probe, ..self }
    }

    const fn prepared(self, prepare: &'static str) -> Self {
        Program { prepare, ..self }
    }

    const fn reads(self, text: &'static str) -> Self {
        Program {
            input: Input::Text(text),
            ..self
        }
    }

    const fn reads_file(self, name: &'static str) -> Self {
        Program {
            input: Input::Prepared(name),
            ..self
        }
    }

    const fn ends_with(self, code: i32) -> Self {
        Program { code, ..self }
    }

    /// The shell line that tells whether the program is there.
    pub(crate) fn probe(&self) -> String {
        if self.probe.is_empty() {
            format!("command -v {}", self.name)
        } else {
            self.probe.to_owned()
        }
    }
}

/// Makes `text`, 8 MB of lines of eight made-up words.
macro_rules! text {
    () => {
        r#"
awk 'BEGIN {
    x = 1
    for (i = 0; i < 200000; i++) {
        line = ""
        for (j = 0; j < 8; j++) { x = (x * 16807) % 2147483647; line = line sprintf("%x ", x % 65521) }
        print line
    }
}' >text"#
    };
}

/// Makes `tree`, 6,000 small files in 60 folders.
macro_rules! tree {
    () => {
        r#"
mkdir tree
seq 0 59 | while read -r folder; do
    mkdir "tree/$folder"
    seq 1 100 | (cd "tree/$folder" && split -l 1 -a 3 - file.)
done"#
    };
}

const TEXT: &str = text!();
const TREE: &str = tree!();
const TEXT_AND_TREE: &str = concat!(text!(), tree!());

/// The whole table, in the order in which it is run.
pub(crate) fn all() -> Vec<Program> {
    [
        languages::LANGUAGES,
        tools::TOOLS,
        servers::SERVERS,
        servers::ENDINGS,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Words, all};

    #[test]
    fn names_are_names_of_files_and_there_once() {
        let mut seen = BTreeSet::new();
        for program in all() {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-".contains(c);
            assert!(program.name.chars().all(plain), "{}", program.name);
            assert!(seen.insert(program.name), "{} is there twice", program.name);
        }
        assert!(seen.len() >= 40);
    }

    #[test]
    fn there_is_something_to_run() {
        for program in all() {
            assert!(match program.words {
                Words::Line(line) => !line.trim().is_empty(),
                Words::Exec(words) => !words.is_empty(),
            });
        }
    }
}
