//! Call stacks that come as addresses.

use std::collections::HashMap;

use varve_model::{Address, Bytes, Pid, SiteId, Time};
use varve_symbols::{AddressSpaces, BuildId, Locator, Mapping, Stack, symbolize};
use varve_trace::tables::{Frame, MappingRow};

/// Distinct call stacks.
#[derive(Default)]
pub(crate) struct Stacks {
    sites: HashMap<(Pid, Vec<Address>), SiteId>,
    stacks: Vec<Stack>,
}

impl Stacks {
    /// The site of a stack, and whether it is new: then it is `next`.
    pub(crate) fn site(
        &mut self,
        pid: Pid,
        at: Time,
        frames: Vec<Address>,
        next: SiteId,
    ) -> (SiteId, bool) {
        let key = (pid, frames);
        if let Some(site) = self.sites.get(&key) {
            return (*site, false);
        }
        self.stacks.push(Stack {
            site: next,
            pid,
            at: Some(at),
            frames: key.1.clone(),
        });
        self.sites.insert(key, next);
        (next, true)
    }

    /// The stacks with names. A file of this machine is read only where its build id is the one that was recorded: else it
    /// might be another; then the module is all that is known.
    pub(crate) fn names(self, mappings: &[MappingRow]) -> Vec<(SiteId, Vec<Frame>)> {
        if self.stacks.is_empty() {
            return Vec::new();
        }
        let known: Vec<Mapping> = mappings.iter().filter_map(identified).collect();
        let done = symbolize(
            &Locator::default(),
            &AddressSpaces::new(&known),
            &self.stacks,
        );
        let modules = Modules::new(mappings);
        let stacks = self.stacks.iter().zip(done.stacks);
        let named = stacks.map(|(stack, frames)| {
            let frames = frames.into_iter().map(|f| Frame {
                module: f.module.or_else(|| modules.of(stack.pid, f.address)),
                function: f.function,
                file: f.file,
                line: f.line,
                column: f.column,
                function_line: f.function_line,
                offset: f.offset.filter(|_| f.line.is_none()),
                address: f.address,
            });
            (stack.site, frames.collect())
        });
        named.collect()
    }
}

fn identified(row: &MappingRow) -> Option<Mapping> {
    Some(Mapping {
        pid: row.pid,
        address: row.address,
        bytes: row.bytes,
        perms: row.perms.clone(),
        offset: Bytes(row.offset),
        path: row.path.clone(),
        called: None,
        file: None,
        build_id: Some(BuildId::from_hex(row.build_id.as_deref()?)?),
        from: row.from_ns,
        to: row.to_ns,
    })
}

/// Which file an address of code is in.
struct Modules<'a>(HashMap<Pid, Vec<&'a MappingRow>>);

impl<'a> Modules<'a> {
    fn new(mappings: &'a [MappingRow]) -> Self {
        let mut by_pid: HashMap<Pid, Vec<&MappingRow>> = HashMap::new();
        for row in mappings.iter().filter(|m| m.perms.contains('x')) {
            by_pid.entry(row.pid).or_default().push(row);
        }
        Modules(by_pid)
    }

    fn of(&self, pid: Pid, address: Address) -> Option<String> {
        let holds =
            |row: &&&MappingRow| row.address <= address && address.0 - row.address.0 < row.bytes.0;
        let row = self.0.get(&pid)?.iter().rfind(holds)?;
        let name = row.path.rsplit('/').next().unwrap_or(&row.path);
        Some(name.to_owned()).filter(|n| !n.is_empty())
    }
}
