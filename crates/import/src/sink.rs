//! Where every importer puts what it reads: the tables of one trace.

use std::collections::{BTreeMap, HashMap};

use varve_model::{
    Address, Bytes, Capability, Duration, Interval, Loss, ObjectKind, Page, PageRange, Pid,
    SampleSource, SiteId, Tid, Time, TouchSource, is_recorders,
};
use varve_trace::tables::{
    CountRow, CounterRow, FaultRow, Frame, IntervalRow, LossRow, MappingRow, ObjectRow, ProcessRow,
    SampleRow, SiteRow, SymbolRow, ThreadRow, TouchRow,
};
use varve_trace::{
    ClockUnit, Destination, Machine, TableWriter, TraceError, TraceFolder, write_table,
};

use crate::objects::{Birth, Objects};
use crate::stacks::{Code, Stacks, probe};

/// Samples that wait for their objects. Looking up owners sweeps over all objects, so few and large batches are quick.
const BATCH: usize = 1 << 17;
/// Frames of their call stacks that wait as well.
const FRAMES: usize = 1 << 18;
/// Rows of other tables that wait to be written.
const ROWS: usize = 1 << 14;

/// A text that ends within a line: it was cut, and nobody knows how much is missing.
pub(crate) const CUT_LINE: &str = Loss::CutLine.as_str();

/// A sample of which nothing is known but its time and its source.
pub(crate) fn sample(time: u64, source: SampleSource) -> SampleRow {
    SampleRow {
        time_ns: Time(time),
        pid: Pid(0),
        tid: None,
        cpu: None,
        ip: None,
        address: None,
        bytes: None,
        write: None,
        object: None,
        source,
        latency_cycles: None,
        level: None,
        resolved: None,
        mode: None,
        weight_ns: None,
        event: None,
        period: None,
        site: None,
    }
}

struct Thread {
    name: String,
    born: Time,
    died: Option<Time>,
}

/// A thread of a process.
pub(crate) type Task = (Pid, Tid);

/// What a source says of itself, or does not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traits {
    pub(crate) unit: ClockUnit,
    pub(crate) lacks: Vec<Capability>,
    pub(crate) machine: Option<Machine>,
}

/// The trace that is being made.
pub(crate) struct Sink<'a> {
    folder: &'a TraceFolder,
    samples: TableWriter<SampleRow>,
    touches: TableWriter<TouchRow>,
    counts: TableWriter<CountRow>,
    /// Each with the addresses of its call stack, innermost first, where it has no site yet.
    waiting: Vec<(SampleRow, Vec<Address>)>,
    waiting_frames: usize,
    touch_rows: Vec<TouchRow>,
    count_rows: Vec<CountRow>,
    pub(crate) objects: Objects,
    sites: HashMap<Vec<Frame>, SiteId>,
    site_rows: Vec<SiteRow>,
    threads: HashMap<Task, Thread>,
    /// The thread that was looked up last: most come in runs.
    last_thread: Option<Task>,
    /// Threads that live, of each process.
    alive: HashMap<Pid, u64>,
    processes: BTreeMap<Pid, ProcessRow>,
    /// As they were heard of. The table has what became of them: one for each object that is one or a part of one.
    mappings: Vec<MappingRow>,
    /// Call stacks that have no names yet.
    stacks: Stacks,
    /// Whether the kernel in them is the one that runs here.
    pub(crate) is_kernel_here: bool,
    pub(crate) traits: Traits,
    intervals: Vec<IntervalRow>,
    losses: BTreeMap<&'static str, (Time, u64)>,
    first: Option<Time>,
    last: Time,
    facts: Written,
}

/// What was written, for the manifest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    pub(crate) samples: u64,
    pub(crate) touches: u64,
    pub(crate) counts: u64,
    pub(crate) objects: u64,
    pub(crate) intervals: u64,
    /// The names of the processes.
    pub(crate) commands: Vec<String>,
    pub(crate) traits: Traits,
    pub(crate) losses: BTreeMap<String, u64>,
    pub(crate) start: Time,
    pub(crate) end: Time,
    /// Samples with an address.
    pub(crate) addressed: u64,
    /// Samples whose address lies in a known object.
    pub(crate) owned: u64,
}

impl<'a> Sink<'a> {
    pub(crate) fn create(folder: &'a TraceFolder) -> Result<Self, TraceError> {
        let to = &Destination::from(folder);
        Ok(Sink {
            folder,
            samples: TableWriter::create(to)?,
            touches: TableWriter::create(to)?,
            counts: TableWriter::create(to)?,
            waiting: Vec::new(),
            waiting_frames: 0,
            touch_rows: Vec::new(),
            count_rows: Vec::new(),
            objects: Objects::default(),
            sites: HashMap::new(),
            site_rows: Vec::new(),
            threads: HashMap::new(),
            last_thread: None,
            alive: HashMap::new(),
            processes: BTreeMap::new(),
            mappings: Vec::new(),
            stacks: Stacks::default(),
            is_kernel_here: false,
            traits: Traits::default(),
            intervals: Vec::new(),
            losses: BTreeMap::new(),
            first: None,
            last: Time(0),
            facts: Written::default(),
        })
    }

    /// Notes that the record covers this moment. Mappings and tasks do not count: perf dates what was there before at 0.
    pub(crate) fn covers(&mut self, time: Time) {
        self.first = Some(self.first.map_or(time, |first| first.min(time)));
        self.last = self.last.max(time);
    }

    /// A sample. Where it names no object, its address finds one, of those that were named before [`BATCH`] more samples
    /// have come.
    pub(crate) fn sample(&mut self, row: SampleRow) -> Result<(), TraceError> {
        self.sample_of(row, Vec::new())
    }

    /// A sample with its call stack, innermost address first, which gets its names when the trace ends.
    pub(crate) fn sample_of(
        &mut self,
        row: SampleRow,
        stack: Vec<Address>,
    ) -> Result<(), TraceError> {
        self.covers(row.time_ns);
        match row.tid {
            Some(tid) => self.saw(row.pid, tid, row.time_ns),
            None => self.process(row.pid, row.time_ns),
        }
        self.waiting_frames += stack.len();
        self.waiting.push((row, stack));
        match self.waiting.len() < BATCH && self.waiting_frames < FRAMES {
            true => Ok(()),
            false => self.flush_samples(),
        }
    }

    fn flush_samples(&mut self) -> Result<(), TraceError> {
        let mut waiting = std::mem::take(&mut self.waiting);
        self.waiting_frames = 0;
        waiting.sort_by_key(|(row, _)| row.time_ns);
        self.find_sites(&mut waiting);
        let mut rows: Vec<SampleRow> = waiting.into_iter().map(|(row, _)| row).collect();
        let asks = |row: &SampleRow| {
            let address = row.address.filter(|_| row.object.is_none())?;
            Some((row.pid, address, row.time_ns))
        };
        let points: Vec<_> = rows.iter().filter_map(asks).collect();
        let mut found = self.objects.owners(&points).into_iter();
        for row in &mut rows {
            if asks(row).is_some() {
                row.object = found.next().flatten();
            }
            self.facts.addressed += u64::from(row.address.is_some());
            self.facts.owned += u64::from(row.object.is_some());
        }
        self.facts.samples += rows.len() as u64;
        self.samples.append(&rows)
    }

    /// The sites of call stacks: code is what was mapped at the time of its sample.
    fn find_sites(&mut self, waiting: &mut [(SampleRow, Vec<Address>)]) {
        let mut points = Vec::new();
        for (row, stack) in waiting.iter() {
            let frames = stack.iter().enumerate();
            points.extend(frames.map(|(at, address)| (row.pid, probe(at, *address), row.time_ns)));
        }
        let mut mappings = self.objects.mappings_at(&points).into_iter();
        for (row, stack) in waiting.iter_mut().filter(|(_, stack)| !stack.is_empty()) {
            let stack = std::mem::take(stack).into_iter();
            let frames = stack.map(|address| (address, mappings.next().flatten()));
            row.site = self.raw_site(frames.collect());
        }
    }

    /// Pages that were touched in an interval, in the order of intervals.
    pub(crate) fn touch(
        &mut self,
        interval: Interval,
        pid: Pid,
        pages: PageRange,
        written: Option<bool>,
        source: TouchSource,
    ) -> Result<(), TraceError> {
        let (mut first, mut left) = (pages.first.0, pages.count.0);
        while left > 0 {
            let run = u32::try_from(left).unwrap_or(u32::MAX);
            self.touch_rows.push(TouchRow {
                interval,
                pid,
                page: Page(first),
                pages: run,
                page_bytes: 4096,
                written,
                source,
            });
            first = first.saturating_add(u64::from(run));
            left -= u64::from(run);
        }
        if self.touch_rows.len() >= ROWS {
            self.flush_touches()?;
        }
        Ok(())
    }

    fn flush_touches(&mut self) -> Result<(), TraceError> {
        self.facts.touches += self.touch_rows.len() as u64;
        self.touches.append(&self.touch_rows)?;
        self.touch_rows.clear();
        Ok(())
    }

    /// How often a page was accessed.
    pub(crate) fn count(&mut self, row: CountRow) -> Result<(), TraceError> {
        if let Some(tid) = row.tid {
            let at = self.first.unwrap_or_default();
            self.saw(row.pid, tid, at);
        }
        self.count_rows.push(row);
        match self.count_rows.len() < ROWS {
            true => Ok(()),
            false => self.flush_counts(),
        }
    }

    fn flush_counts(&mut self) -> Result<(), TraceError> {
        self.facts.counts += self.count_rows.len() as u64;
        self.counts.append(&self.count_rows)?;
        self.count_rows.clear();
        Ok(())
    }

    /// The next interval. They come in the order of time.
    pub(crate) fn interval(&mut self, start: Time, end: Time) -> Interval {
        self.covers(start);
        self.covers(end);
        let interval = Interval(u32::try_from(self.intervals.len()).unwrap_or(u32::MAX));
        self.intervals.push(IntervalRow {
            interval,
            start_ns: start,
            end_ns: end,
            held_ns: Duration(0),
            longest_hold_ns: Duration(0),
            longest_stop_ns: Duration(0),
            holds: 0,
            overlap_ns: Duration(0),
            resident_pages: 0,
            mappings: 0,
            processes: 0,
            threads: 0,
            recorder_cpu_ns: Duration(0),
        });
        interval
    }

    /// How many intervals there are so far.
    pub(crate) fn intervals(&self) -> usize {
        self.intervals.len()
    }

    /// A call stack, innermost frame first.
    pub(crate) fn site(&mut self, frames: Vec<Frame>) -> Option<SiteId> {
        if let Some(site) = self.sites.get(&frames) {
            return Some(*site);
        }
        let site = SiteId(u32::try_from(self.site_rows.len()).ok()?.checked_add(1)?);
        self.site_rows.push(SiteRow {
            site,
            label: label(frames.first()?),
            frames: frames.clone(),
        });
        self.sites.insert(frames, site);
        Some(site)
    }

    /// A file or anonymous memory was mapped.
    pub(crate) fn mapping(&mut self, row: MappingRow) {
        let Ok(number) = u32::try_from(self.mappings.len()) else {
            return;
        };
        self.process(row.pid, row.from_ns);
        self.objects.map(Birth {
            pid: row.pid,
            kind: kind(&row.path),
            name: name(&row.path),
            address: row.address,
            bytes: row.bytes,
            born: row.from_ns,
            site: None,
            tid: None,
            mapping: Some(number),
        });
        self.mappings.push(row);
    }

    /// A call stack of addresses that gets its names when the trace ends.
    fn raw_site(&mut self, frames: Vec<Code>) -> Option<SiteId> {
        let next = SiteId(u32::try_from(self.site_rows.len()).ok()?.checked_add(1)?);
        let (site, is_new) = self.stacks.site(frames, next);
        if is_new {
            self.site_rows.push(SiteRow {
                site,
                label: String::new(),
                frames: Vec::new(),
            });
        }
        Some(site)
    }

    /// Says what a process is.
    pub(crate) fn describe(&mut self, pid: Pid, words: String) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.command = words;
        }
    }

    /// A thread has a name.
    pub(crate) fn names(&mut self, pid: Pid, tid: Tid, name: &str, at: Time) {
        self.saw(pid, tid, at);
        if let Some(thread) = self.threads.get_mut(&(pid, tid))
            && thread.name != name
        {
            name.clone_into(&mut thread.name);
        }
        if pid.0 == tid.0
            && let Some(process) = self.processes.get_mut(&pid)
            && process.command != name
        {
            name.clone_into(&mut process.command);
        }
    }

    /// A thread or a process began, called as the thread that made it. Of one that ran before the recording (`before`) the recorder
    /// tells name and mappings by themselves.
    pub(crate) fn forks(&mut self, by: Task, (pid, tid): Task, at: Time, before: bool) {
        let parent = by.0;
        let is_new = !self.processes.contains_key(&pid);
        self.saw(pid, tid, at);
        let name = self.threads.get(&by).map(|thread| thread.name.clone());
        if let Some(thread) = self.threads.get_mut(&(pid, tid)) {
            // A number that comes again.
            let is_again = thread.died.take().is_some();
            if is_again {
                *self.alive.entry(pid).or_default() += 1;
            }
            if (is_again || thread.name.is_empty()) && !before {
                thread.name = name.unwrap_or_default();
            }
        }
        if parent == pid {
            return;
        }
        let inherited = self.processes.get(&parent).map(|p| p.command.clone());
        if let Some(process) = self.processes.get_mut(&pid) {
            process.died_ns = None;
            if is_new {
                process.parent = parent;
            }
            if let Some(command) = inherited {
                process.command = command;
            }
        }
        self.objects.fork(parent, pid, at, !before);
    }

    /// A process has another program.
    pub(crate) fn execs(&mut self, pid: Pid, at: Time) {
        self.objects.exec(pid, at);
    }

    /// A thread ended, and its process with the last one: the first may end before the others.
    pub(crate) fn exits(&mut self, pid: Pid, tid: Tid, at: Time) {
        self.saw(pid, tid, at);
        if let Some(thread) = self.threads.get_mut(&(pid, tid)) {
            let was_alive = thread.died.replace(at).is_none();
            let alive = self.alive.entry(pid).or_default();
            *alive -= u64::from(was_alive);
            if *alive > 0 {
                return;
            }
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            process.died_ns = Some(at);
        }
        self.objects.clear(pid, at);
    }

    /// The source itself lost something.
    pub(crate) fn lost(&mut self, kind: &'static str, count: u64, at: Time) {
        let sum = self.losses.entry(kind).or_insert((at, 0));
        sum.1 = sum.1.saturating_add(count);
    }

    /// A text ended within a line (`is_cut`), which is left out: half of a number is another number.
    pub(crate) fn cut(&mut self, is_cut: bool, at: Time) {
        if is_cut {
            self.lost(CUT_LINE, 1, at);
        }
    }

    pub(crate) fn process(&mut self, pid: Pid, at: Time) {
        self.processes.entry(pid).or_insert_with(|| ProcessRow {
            pid,
            parent: Pid(0),
            exe: String::new(),
            file: None,
            command: String::new(),
            born_ns: at,
            died_ns: None,
            exit_code: None,
            objects: None,
            objects_why: None,
            peak_resident_bytes: None,
            peak_resident_why: None,
        });
    }

    fn saw(&mut self, pid: Pid, tid: Tid, at: Time) {
        if self.last_thread == Some((pid, tid)) {
            return;
        }
        self.last_thread = Some((pid, tid));
        self.process(pid, at);
        self.threads.entry((pid, tid)).or_insert_with(|| {
            *self.alive.entry(pid).or_default() += 1;
            Thread {
                name: String::new(),
                born: at,
                died: None,
            }
        });
    }

    /// Ends the tables.
    pub(crate) fn finish(mut self) -> Result<Written, TraceError> {
        self.flush_samples()?;
        self.flush_touches()?;
        self.flush_counts()?;
        self.samples.close()?;
        self.touches.close()?;
        self.counts.close()?;
        let folder = self.folder;
        let mappings = mapping_rows(&self.objects, &self.mappings);
        for (site, frames) in self.stacks.names(&self.mappings, self.is_kernel_here) {
            if let Some(row) = self.site_rows.get_mut((site.0 as usize).wrapping_sub(1)) {
                row.label = frames.first().map(label).unwrap_or_default();
                row.frames = frames;
            }
        }
        write_table::<IntervalRow>(folder, &self.intervals)?;
        write_table::<FaultRow>(folder, &[])?;
        write_table::<CounterRow>(folder, &[])?;
        write_table::<SymbolRow>(folder, &[])?;
        write_table::<SiteRow>(folder, &self.site_rows)?;
        write_table::<ObjectRow>(folder, self.objects.rows())?;
        write_table::<MappingRow>(folder, &mappings)?;
        let mut threads: Vec<ThreadRow> = self
            .threads
            .into_iter()
            .map(|((pid, tid), thread)| ThreadRow {
                pid,
                tid,
                name: thread.name,
                born_ns: thread.born,
                died_ns: thread.died,
            })
            .collect();
        threads.sort_by_key(|row| (row.pid, row.tid));
        write_table::<ThreadRow>(folder, &threads)?;
        let processes: Vec<ProcessRow> = self.processes.into_values().collect();
        write_table::<ProcessRow>(folder, &processes)?;
        let losses = self.losses.iter().map(|(kind, (time, count))| LossRow {
            time_ns: *time,
            kind: (*kind).to_owned(),
            count: *count,
        });
        write_table::<LossRow>(folder, &losses.collect::<Vec<_>>())?;
        Ok(Written {
            objects: self.objects.rows().len() as u64,
            intervals: self.intervals.len() as u64,
            commands: processes.into_iter().map(|p| p.command).collect(),
            traits: self.traits,
            losses: self
                .losses
                .into_iter()
                .map(|(kind, (_, count))| (kind.to_owned(), count))
                .collect(),
            start: self.first.unwrap_or_default(),
            end: self.last,
            ..self.facts
        })
    }
}

/// What became of mappings.
fn mapping_rows(objects: &Objects, mappings: &[MappingRow]) -> Vec<MappingRow> {
    let row = |(object, number): (&ObjectRow, u32)| {
        let of = mappings.get(number as usize)?;
        let is_file = of.path.starts_with('/') && !of.path.starts_with("//");
        let behind = match is_file {
            true => object.address.0.saturating_sub(of.address.0),
            false => 0,
        };
        Some(MappingRow {
            pid: object.pid,
            address: object.address,
            bytes: object.bytes,
            offset: of.offset.wrapping_add(behind),
            from_ns: object.born_ns,
            to_ns: object.died_ns,
            ..of.clone()
        })
    };
    let mut rows: Vec<MappingRow> = objects.of_mappings().filter_map(row).collect();
    rows.sort_by_key(|m| (m.pid, m.from_ns, m.address, m.bytes));
    rows
}

/// A frame in one line.
fn label(frame: &Frame) -> String {
    let place = match (&frame.file, frame.line) {
        (Some(file), Some(line)) => {
            let name = file.rsplit('/').next().unwrap_or(file);
            Some(format!("{name}:{line}"))
        }
        (Some(file), None) => Some(file.clone()),
        _ => None,
    };
    match (place, &frame.function) {
        (Some(place), Some(function)) => format!("{place}, in {function}"),
        (Some(place), None) => place,
        (None, Some(function)) => function.clone(),
        (None, None) => match (frame.in_module(), frame.offset) {
            (Some(place), Some(_)) => place,
            (Some(module), None) => format!("{} ({module})", frame.address),
            (None, _) => frame.address.to_string(),
        },
    }
}

fn kind(path: &str) -> ObjectKind {
    match path {
        "[heap]" => ObjectKind::Heap,
        path if path.starts_with("[stack") => ObjectKind::Stack,
        // As perf names memory without a file.
        path if path.starts_with("//anon") => ObjectKind::Mapping,
        path if is_recorders(path) => ObjectKind::Recorder,
        path if path.starts_with('/') && !path.starts_with("/dev/zero") => ObjectKind::File,
        _ => ObjectKind::Mapping,
    }
}

fn name(path: &str) -> String {
    match path {
        "" | "//anon" => "anonymous memory".to_owned(),
        path => path.to_owned(),
    }
}

/// An instruction with what is known of it.
pub(crate) fn frame(address: u64, function: Option<String>, module: Option<String>) -> Frame {
    Frame {
        function,
        module,
        address: Address(address),
        ..Frame::default()
    }
}

/// A mapping of which only the place is known.
pub(crate) fn plain_mapping(
    pid: Pid,
    address: u64,
    bytes: u64,
    path: String,
    at: Time,
) -> MappingRow {
    MappingRow {
        pid,
        address: Address(address),
        bytes: Bytes(bytes),
        perms: "----".to_owned(),
        offset: 0,
        path,
        device: "00:00".to_owned(),
        inode: 0,
        build_id: None,
        from_ns: at,
        to_ns: None,
    }
}
