//! Names of code that programs generated while they ran, and what to say where there are none.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use varve_model::{Address, Pid, Time};
use varve_symbols::{AddressSpaces, Frame, Mapping, Stack, in_its_language, is_memory};
use varve_trace::tables::{GeneratedRow, ProcessRow};
use varve_trace::{Trace, TraceError};

/// What code of no file is called.
const MODULE: &str = "generated code";

/// Runtimes by the files that they map, and what makes them write names.
const RUNTIMES: [(&str, &str, &str); 6] = [
    (
        "libjvm.so",
        "java",
        "`jcmd PID Compiler.perfmap`, or `java -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit`,",
    ),
    ("libcoreclr.so", "dotnet", "`DOTNET_PerfMapEnabled=1`"),
    ("libnode.so", "node", "`node --perf-basic-prof`"),
    ("node", "node", "`node --perf-basic-prof`"),
    ("libpython3", "python", "`python3 -X perf` (3.12 or later)"),
    ("python3", "python", "`python3 -X perf` (3.12 or later)"),
];

/// What runtimes reported of their code: by process, and by when its program ended.
pub(crate) struct Generated {
    reported: HashMap<Pid, BTreeMap<Time, Vec<GeneratedRow>>>,
}

impl Generated {
    pub(crate) fn new(trace: &Trace) -> Result<Self, TraceError> {
        let mut reported: HashMap<Pid, BTreeMap<Time, Vec<GeneratedRow>>> = HashMap::new();
        for row in trace.rows::<GeneratedRow>()? {
            let of = reported.entry(row.pid).or_default();
            of.entry(row.until_ns).or_default().push(row);
        }
        for rows in reported.values_mut().flat_map(BTreeMap::values_mut) {
            rows.sort_by_key(|row| row.address);
        }
        Ok(Self { reported })
    }

    fn at(&self, pid: Pid, time: Time, address: Address) -> Option<&GeneratedRow> {
        let (_, rows) = self.reported.get(&pid)?.range(time..).next()?;
        let after = rows.partition_point(|row| row.address <= address);
        // A map and a dump may both name it, and of its parts.
        let mut near = rows[..after].iter().rev().take(4);
        near.find(|row| address < row.address + row.bytes)
    }

    /// Names the frames in generated code, and gives the sentences to be said where nobody reported it. `times` are when the
    /// stacks were taken.
    pub(crate) fn name(
        &self,
        stacks: &[Stack],
        times: &[Time],
        spaces: &AddressSpaces<'_>,
        processes: &[ProcessRow],
        symbolized: &mut [Vec<Frame>],
    ) -> Vec<String> {
        let mut silent: BTreeSet<Pid> = BTreeSet::new();
        for ((stack, time), frames) in stacks.iter().zip(times).zip(symbolized) {
            for (index, frame) in frames.iter_mut().enumerate() {
                if frame.function.is_some() {
                    continue;
                }
                // A return address belongs to the call before it.
                let address = Address(frame.address.0.saturating_sub(u64::from(index > 0)));
                let mapping = spaces.at(stack.pid, address, Some(*time));
                if !mapping.is_none_or(is_generated) {
                    continue;
                }
                if let Some(row) = self.at(stack.pid, *time, address) {
                    let (function, file) = in_its_language(&row.name);
                    let base = file.as_deref().and_then(|file| file.rsplit('/').next());
                    frame.module = Some(base.unwrap_or(MODULE).to_owned());
                    frame.function = Some(function);
                    frame.file = file;
                    frame.offset = None;
                } else if mapping.is_some() {
                    frame.module = Some(MODULE.to_owned());
                    frame.offset = None;
                    if !self.reported.contains_key(&stack.pid) {
                        silent.insert(stack.pid);
                    }
                }
            }
        }
        let sentences = silent.iter().map(|pid| sentence(*pid, spaces, processes));
        let sentences: BTreeSet<String> = sentences.collect();
        sentences.into_iter().collect()
    }
}

/// Whether code of a mapping comes from no file, nor from one in memory, which has a build id.
fn is_generated(mapping: &Mapping) -> bool {
    mapping.perms.as_bytes().get(2) == Some(&b'x')
        && is_memory(&mapping.path)
        && mapping.build_id.is_none()
}

fn sentence(pid: Pid, spaces: &AddressSpaces<'_>, processes: &[ProcessRow]) -> String {
    let mut files: Vec<&str> = spaces
        .of(pid)
        .filter_map(|mapping| mapping.path.rsplit('/').next())
        .collect();
    files.sort_unstable();
    files.dedup();
    let runtime = RUNTIMES.iter().find(|(file, ..)| match *file {
        "node" => files.contains(file),
        file => files.iter().any(|of| of.starts_with(file)),
    });
    let why = "no map for `perf` was found";
    if let Some((_, name, option)) = runtime {
        return format!(
            "The names of code that {name} generated: {why}; {option} writes one as it runs or ends."
        );
    }
    let of_process = processes.iter().filter(|process| process.pid == pid);
    let name = of_process
        .filter_map(|process| process.exe.rsplit('/').next())
        .next_back()
        .filter(|name| !name.is_empty())
        .unwrap_or("a program");
    format!(
        "The names of code that {name} generated: {why} (`/tmp/perf-PID.map`, or a jitdump file)."
    )
}

#[cfg(test)]
mod tests {
    use varve_model::{Bytes, SiteId};
    use varve_symbols::BuildId;

    use super::*;

    fn mapping(address: u64, perms: &str, path: &str) -> Mapping {
        Mapping {
            pid: Pid(1),
            address: Address(address),
            bytes: Bytes(0x1000),
            perms: perms.into(),
            offset: Bytes(0),
            path: path.into(),
            called: None,
            file: None,
            build_id: None,
            from: Time(0),
            to: None,
        }
    }

    fn named(rows: Vec<GeneratedRow>, address: u64, time: u64) -> (Frame, Vec<String>) {
        let mut mappings = [
            mapping(0x10_0000, "r-xp", ""),
            mapping(0x20_0000, "rw-p", ""),
            mapping(0x30_0000, "r-xp", "/usr/bin/node"),
            mapping(0x40_0000, "r-xs", "/memfd:doublemapper (deleted)"),
            mapping(0x50_0000, "r-xs", "/dev/zero (deleted)"),
            mapping(0x60_0000, "r-xp", "/memfd:program (deleted)"),
        ];
        mappings[5].build_id = BuildId::from_hex("00ff");
        let mut reported: HashMap<Pid, BTreeMap<Time, Vec<GeneratedRow>>> = HashMap::new();
        for row in rows {
            let of = reported.entry(row.pid).or_default();
            of.entry(row.until_ns).or_default().push(row);
        }
        let stack = Stack {
            site: SiteId(0),
            pid: Pid(1),
            at: None,
            frames: vec![Address(address)],
        };
        let mut frames = [vec![Frame {
            address: Address(address),
            ..Frame::default()
        }]];
        let said = Generated { reported }.name(
            &[stack],
            &[Time(time)],
            &AddressSpaces::new(&mappings),
            &[],
            &mut frames,
        );
        (frames[0][0].clone(), said)
    }

    fn row(address: u64, until: u64, name: &str) -> GeneratedRow {
        GeneratedRow {
            pid: Pid(1),
            until_ns: Time(until),
            address: Address(address),
            bytes: Bytes(0x20),
            name: name.into(),
        }
    }

    #[test]
    fn code_has_the_name_that_its_program_reported() {
        let rows = || {
            vec![
                row(0x10_0010, 50, "JS:*mix /a/hot.js:3:14"),
                row(0x10_0010, 90, "later"),
            ]
        };
        let (frame, said) = named(rows(), 0x10_001f, 7);
        assert_eq!(frame.function.as_deref(), Some("mix"));
        assert_eq!(frame.file.as_deref(), Some("/a/hot.js"));
        assert_eq!(frame.module.as_deref(), Some("hot.js"));
        assert!(said.is_empty());
        let (frame, _) = named(rows(), 0x10_001f, 60);
        assert_eq!(frame.function.as_deref(), Some("later"));
        assert_eq!(frame.module.as_deref(), Some(MODULE));
        // It reported other code.
        let (frame, said) = named(rows(), 0x10_0030, 7);
        assert_eq!(
            (frame.function, frame.module.as_deref()),
            (None, Some(MODULE))
        );
        assert!(said.is_empty());
        // Memory of a file has no names of others.
        let (frame, _) = named(vec![row(0x30_0000, 50, "f")], 0x30_0001, 7);
        assert_eq!(frame.function, None);
    }

    #[test]
    fn code_in_shared_memory_was_generated_unless_a_file_is_there() {
        for address in [0x40_0000, 0x50_0000] {
            let (frame, _) = named(vec![row(address, 50, "f")], address + 1, 7);
            assert_eq!(frame.function.as_deref(), Some("f"));
            assert_eq!(frame.module.as_deref(), Some(MODULE));
        }
        let (frame, said) = named(vec![row(0x60_0000, 50, "f")], 0x60_0001, 7);
        assert_eq!((frame.function, said), (None, Vec::new()));
    }

    #[test]
    fn where_nobody_reported_the_option_of_the_runtime_is_named() {
        let (frame, said) = named(Vec::new(), 0x10_0010, 7);
        assert_eq!(frame.module.as_deref(), Some(MODULE));
        assert_eq!(said.len(), 1);
        assert!(said[0].contains("node --perf-basic-prof"), "{said:?}");
        let (frame, said) = named(Vec::new(), 0x20_0010, 7);
        assert_eq!((frame.module, said), (None, Vec::new()));
    }
}
