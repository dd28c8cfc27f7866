//! The last stage of a recording: what was written raw becomes objects, sites and symbols.

mod marks;
mod names;
mod stacks;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use varve_model::{Address, Bytes, ObjectId, ObjectKind, Pid, SiteId, Tid, Time, is_recorders};
use varve_objects::{Deaths, Layer, RECORDERS};
use varve_symbols::{
    AddressSpaces, BuildId, DebugInfo, DebugServer, FileIdentity, Frame, Locator, Mapping,
    ModuleReport, ModuleStatus, NoClient, OpenFiles, Place, Stack, StaticObject, StaticsReader,
    is_memory, mapping_objects, short_place, static_name, symbolize,
};
use varve_trace::tables::{
    BegunMarkRow, BirthRow, DeathRow, EndedMarkRow, Frame as FrameRow, GeneratedRow, MappingRow,
    ObjectRow, ProcessRow, Row, SiteRow, StackRow, SymbolRow,
};
use varve_trace::{Destination, Lacks, ModuleNote, TableWriter, Trace, TraceError, write_table_to};

use self::names::{COPIED_STACK, Files, Names};
use self::stacks::MainStacks;
use crate::generated::Generated;
use crate::packages::{debug_servers, packages_of};
use crate::sampled::Sampled;

/// Objects that are named and written at once.
const OBJECTS_AT_ONCE: usize = 1 << 14;

/// What attribution found out about the trace as a whole.
#[derive(Debug, Default)]
pub struct Finished {
    /// Executables and libraries of which not everything could be read.
    pub modules: Vec<ModuleNote>,
    /// What is not known of code that no file holds.
    pub notes: Vec<String>,
}

/// Writes `objects`, `sites` and `symbols` of a trace whose other tables are merged, from the raw
/// births, deaths and stacks, and removes those where they are its own. A trace that has its objects is left alone.
/// `open_files` are files that the recorder has open still.
pub fn finish(
    trace: &Trace,
    to: &Destination,
    min_object: Bytes,
    open_files: OpenFiles,
) -> Result<Finished, TraceError> {
    if trace.is_merged::<ObjectRow>()? {
        return Ok(Finished::default());
    }
    marks::write(trace, to)?;
    let called = called(&trace.rows::<ProcessRow>()?);
    let mappings: Vec<Mapping> = trace
        .rows::<MappingRow>()?
        .into_iter()
        .map(|row| mapping(row, &called))
        .collect();
    let servers = DebugServer::of_environment();
    let servers = servers.map(|servers| servers.map(Arc::new));
    let locator = Locator {
        open_files,
        debug_server: servers.clone().unwrap_or_default(),
        ..Locator::default()
    };
    let mut reports: Vec<ModuleReport> = Vec::new();

    let (stacks, notes) = symbolized(trace, &locator, &mappings, &mut reports)?;
    write_table_to(to, &site_rows(&stacks))?;
    let statics = StaticsReader::new(locator, min_object).read(&mappings);
    reports.extend(statics.modules);
    write_table_to(to, &symbols(&statics.objects))?;

    // Last: a trace with objects counts as finished.
    let mut objects = TableWriter::<ObjectRow>::create(to)?;
    let mut sampled = Sampled::new(trace)?;
    let names = Names::new(trace, &stacks, Files::new(&mappings))?;
    let mut stacks_seen = MainStacks::new(&mappings);
    let next = write_born(trace, names, &mut stacks_seen, &mut objects, &mut sampled)?;
    let mut outer = mapping_objects(&mappings);
    outer.retain(|o| !stacks_seen.is_known(o));
    let named = statics.objects.iter().chain(&outer);
    let rows = named.zip(next..).map(|(o, id)| static_row(o, ObjectId(id)));
    let rows: Vec<ObjectRow> = rows.collect();
    sampled.meet(&rows);
    objects.append(&rows)?;
    sampled.write(to)?;
    objects.close()?;
    for table in [
        BirthRow::TABLE,
        DeathRow::TABLE,
        StackRow::TABLE,
        GeneratedRow::TABLE,
        BegunMarkRow::TABLE,
        EndedMarkRow::TABLE,
    ] {
        to.remove_parts(table.name)?;
    }
    Ok(Finished {
        modules: module_notes(reports, &servers),
        notes,
    })
}

/// What programs are called that were run through links, by their files. A file that was run by several names keeps its
/// own: its memory is that of all of them.
fn called(processes: &[ProcessRow]) -> HashMap<String, String> {
    let mut names: HashMap<&str, Option<&str>> = HashMap::new();
    for process in processes {
        let file = process.file.as_ref().unwrap_or(&process.exe);
        let name = process.exe.rsplit('/').next();
        names
            .entry(file)
            .and_modify(|known| *known = known.filter(|known| Some(*known) == name))
            .or_insert(name);
    }
    let agreed = names.into_iter();
    agreed
        .filter(|(file, name)| file.rsplit('/').next() != *name)
        .filter_map(|(file, name)| Some((file.to_owned(), name?.to_owned())))
        .collect()
}

fn mapping(row: MappingRow, called: &HashMap<String, String>) -> Mapping {
    Mapping {
        called: called.get(&row.path).cloned(),
        file: FileIdentity::of_text(&row.device, row.inode),
        pid: row.pid,
        address: row.address,
        bytes: row.bytes,
        perms: row.perms,
        offset: Bytes(row.offset),
        path: row.path,
        build_id: row.build_id.as_deref().and_then(BuildId::from_hex),
        from: row.from_ns,
        to: row.to_ns,
    }
}

/// The call stacks of a trace, with names.
type Sites = HashMap<SiteId, Vec<Frame>>;

/// The call stacks of the trace, and what is not known of those.
fn symbolized(
    trace: &Trace,
    locator: &Locator,
    mappings: &[Mapping],
    reports: &mut Vec<ModuleReport>,
) -> Result<(Sites, Vec<String>), TraceError> {
    let rows: Vec<StackRow> = trace.rows()?;
    let times: Vec<Time> = rows.iter().map(|row| row.time_ns).collect();
    let stacks: Vec<Stack> = rows
        .into_iter()
        .map(|row| Stack {
            site: row.site,
            pid: row.pid,
            // A library may have been loaded and used between two looks at the mappings.
            at: None,
            frames: if row.first_is_return {
                row.frames
                    .iter()
                    .enumerate()
                    .map(|(i, a)| Address(a.0 - u64::from(i == 0 && a.0 > 0)))
                    .collect()
            } else {
                row.frames
            },
        })
        .collect();
    let spaces = AddressSpaces::new(mappings);
    let mut done = symbolize(locator, &spaces, &stacks);
    reports.extend(done.modules);
    let processes: Vec<ProcessRow> = trace.rows()?;
    let generated = Generated::new(trace)?;
    let notes = generated.name(&stacks, &times, &spaces, &processes, &mut done.stacks);
    let named = stacks.iter().map(|s| s.site).zip(done.stacks).collect();
    Ok((named, notes))
}

/// The thread that made an object: the first where none is known.
fn maker(birth: &BirthRow) -> Tid {
    birth.tid.unwrap_or(Tid(birth.pid.0))
}

/// Writes the objects that were born in the recording, as they come: there may be more than fit into
/// memory. Gives the first number that is free.
fn write_born(
    trace: &Trace,
    mut names: Names<'_>,
    stacks_seen: &mut MainStacks,
    objects: &mut TableWriter<ObjectRow>,
    sampled: &mut Sampled<'_>,
) -> Result<u64, TraceError> {
    let mut deaths = Deaths::new(trace)?;
    let mut next = 0;
    let mut rows = Vec::new();
    for births in trace.batches::<BirthRow>()? {
        for births in births?.chunks(OBJECTS_AT_ONCE) {
            for birth in births {
                let mut row = object_row(birth, names.name(birth), deaths.of(birth)?);
                stacks_seen.join(&mut row);
                rows.push(row);
                next = birth.object.0 + 1;
            }
            sampled.meet(&rows);
            objects.append(&rows)?;
            rows.clear();
        }
    }
    Ok(next)
}

fn object_row(birth: &BirthRow, name: String, died_ns: Option<Time>) -> ObjectRow {
    // Heap that a program took from the kernel itself holds what its own allocator makes of it.
    let layer = match birth.made_by.as_ref() {
        // What is mapped into a reservation later hides it.
        _ if birth.reserved => Layer::SEGMENT,
        "brk" => Layer::SITE,
        _ => Layer::of(birth.kind, birth.pool),
    };
    ObjectRow {
        object: birth.object,
        pid: birth.pid,
        kind: birth.kind,
        name,
        site: birth.site,
        address: birth.address,
        bytes: birth.bytes,
        born_ns: birth.born_ns,
        died_ns,
        tid: Some(if birth.made_by == COPIED_STACK {
            // Its owner did not come along: the child began with its first thread alone.
            Tid(birth.pid.0)
        } else {
            maker(birth)
        }),
        pool: birth.pool,
        layer: layer.number(),
        continues: birth.continues,
    }
}

fn layer_of(place: Place) -> Layer {
    match place {
        Place::Mapping => Layer::MAPPING,
        Place::Segment => Layer::SEGMENT,
        Place::Variable { depth } => Layer::variable(depth),
    }
}

fn static_row(object: &StaticObject, id: ObjectId) -> ObjectRow {
    let (kind, name) = match is_recorders(&object.module) {
        true => (ObjectKind::Recorder, RECORDERS.to_owned()),
        false => (object.kind, static_name(object)),
    };
    ObjectRow {
        object: id,
        pid: object.pid,
        kind,
        name,
        site: None,
        address: object.address,
        bytes: object.bytes,
        born_ns: object.born,
        died_ns: object.died,
        tid: None,
        pool: false,
        layer: layer_of(object.place).number(),
        continues: None,
    }
}

fn symbols(objects: &[StaticObject]) -> Vec<SymbolRow> {
    let mut seen: HashSet<(Pid, Address, &str, Time)> = HashSet::new();
    objects
        .iter()
        .filter(|o| o.kind == ObjectKind::Static)
        .filter(|o| seen.insert((o.pid, o.address, &o.name, o.born)))
        .map(|o| SymbolRow {
            pid: o.pid,
            address: o.address,
            bytes: o.bytes,
            name: o.name.clone(),
            module: o.module.clone(),
            file: o.file.clone(),
            line: o.line,
        })
        .collect()
}

fn site_rows(stacks: &HashMap<SiteId, Vec<Frame>>) -> Vec<SiteRow> {
    let mut rows: Vec<SiteRow> = stacks
        .iter()
        .map(|(site, frames)| SiteRow {
            site: *site,
            label: short_place(frames),
            frames: frames
                .iter()
                .map(|f| FrameRow {
                    function: f.function.clone(),
                    file: f.file.clone(),
                    line: f.line,
                    column: f.column,
                    function_line: f.function_line,
                    module: f.module.clone(),
                    offset: f.offset.filter(|_| f.line.is_none()),
                    address: f.address,
                })
                .collect(),
        })
        .collect();
    rows.sort_by_key(|r| r.site);
    rows
}

fn lacks(status: &ModuleStatus) -> Lacks {
    match status {
        ModuleStatus::Unusable(_) => Lacks::Names,
        status if status.has_names() => Lacks::Lines,
        _ => Lacks::LocalNames,
    }
}

/// The servers of debug files that the environment names.
type Servers = Result<Option<Arc<DebugServer>>, NoClient>;

/// What to do about a module whose debug file was not found, besides installing it.
fn ask_servers(servers: &Servers) -> String {
    match servers {
        Ok(None) => {
            let client = match DebugServer::has_client() {
                true => "",
                false => " and debuginfod-find installed",
            };
            format!("record with DEBUGINFOD_URLS={}{client}", debug_servers())
        }
        Ok(Some(server)) => match server.failure() {
            Some(why) => format!("record when the servers of DEBUGINFOD_URLS answer ({why})"),
            None => "name other servers: those of DEBUGINFOD_URLS do not have it".to_owned(),
        },
        Err(NoClient) => {
            "install debuginfod-find, which asks the servers of DEBUGINFOD_URLS".to_owned()
        }
    }
}

/// What a reader should know of the modules, each once.
fn module_notes(reports: Vec<ModuleReport>, servers: &Servers) -> Vec<ModuleNote> {
    let stripped = |report: &'_ ModuleReport| match &report.status {
        ModuleStatus::Found(DebugInfo::Stripped { build_id }) => build_id.clone(),
        _ => None,
    };
    let ids: Vec<(String, BuildId)> = reports
        .iter()
        .filter_map(|report| Some((report.path.clone(), stripped(report)?)))
        .collect();
    let files = ids.iter().map(|(path, id)| (path.as_str(), id)).collect();
    let packages = packages_of(&files);
    let ask = ask_servers(servers);
    let mut notes: Vec<ModuleNote> = Vec::new();
    for report in reports {
        // Memory without a file is no module of which something could be missing.
        if is_recorders(&report.path) || is_memory(&report.path) {
            continue;
        }
        let Some(hint) = report.status.hint() else {
            continue;
        };
        let hint = match stripped(&report) {
            Some(_) => format!("{hint}, or {ask}"),
            None => hint,
        };
        let note = ModuleNote {
            package: packages.get(&report.path).cloned(),
            path: report.path,
            lacks: lacks(&report.status),
            why: report.status.to_string(),
            hint,
        };
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_run_through_a_link_has_the_links_name() {
        let ran = |exe: &str, file: Option<&str>| ProcessRow {
            pid: Pid(1),
            parent: Pid(0),
            exe: exe.into(),
            file: file.map(str::to_owned),
            command: String::new(),
            born_ns: Time(0),
            died_ns: None,
            exit_code: None,
            objects: None,
            objects_why: None,
            peak_resident_bytes: None,
            peak_resident_why: None,
        };
        let server = ran("/bin/server", Some("/bin/check"));
        let of = |rows: &[ProcessRow]| called(rows).get("/bin/check").cloned();
        assert_eq!(
            of(&[server.clone(), server.clone()]).as_deref(),
            Some("server")
        );
        assert_eq!(of(&[server, ran("/bin/check", None)]), None);
        assert_eq!(of(&[ran("/bin/check", None)]), None);
    }
}
