//! Samples, faults or touches, as one kind of event.

use std::borrow::Cow;
use std::collections::HashMap;

use varve_model::{
    Address, Bytes, Capability, Cpu, MemoryLevel, ObjectId, ObjectKind, PageRange, Pages, Pid,
    SiteId, Tid, Time, TouchSource, is_recorders_work, visible,
};
use varve_objects::{Owners, Span, owners_at};
use varve_trace::tables::{
    FaultRow, Frame, IntervalRow, ObjectRow, ProcessRow, SampleRow, SiteRow, ThreadRow, TouchRow,
};
use varve_trace::{Trace, TraceError};

use super::ExportError;

/// Faults that wait for their objects. Looking up owners sweeps over all objects, so few and large batches are quick.
const AT_ONCE: usize = 1 << 17;

/// One access, or one run of touched pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event<'a> {
    pub(super) time: Time,
    pub(super) pid: Pid,
    pub(super) tid: Option<Tid>,
    pub(super) cpu: Option<Cpu>,
    pub(super) source: &'a str,
    pub(super) ip: Option<Address>,
    pub(super) address: Option<Address>,
    pub(super) bytes: Option<Bytes>,
    pub(super) write: Option<bool>,
    pub(super) latency: Option<u32>,
    pub(super) level: Option<MemoryLevel>,
    pub(super) object: Option<&'a ObjectRow>,
    /// Innermost first.
    pub(super) frames: &'a [Frame],
    /// Samples or faults count 1, touches their pages.
    pub(super) weight: u64,
}

impl Event<'_> {
    /// Whether it is the recorder's: its library was at work, or its memory was accessed.
    fn is_own(&self) -> bool {
        is_own_work(self.frames) || self.object.is_some_and(|o| o.kind == ObjectKind::Recorder)
    }
}

/// Where events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Samples,
    Faults,
    Touches,
}

/// The events of a trace and the names that they refer to.
pub(super) struct Events<'a> {
    trace: &'a Trace,
    pub(super) kind: Kind,
    objects: Vec<ObjectRow>,
    by_number: HashMap<ObjectId, usize>,
    sites: HashMap<SiteId, Vec<Frame>>,
    threads: HashMap<(Pid, Tid), String>,
    processes: HashMap<Pid, String>,
}

impl<'a> Events<'a> {
    pub(super) fn open(trace: &'a Trace) -> Result<Events<'a>, ExportError> {
        // Trapped accesses are what such a recording was made for; its samples are by the way.
        let traps = trace.manifest.has(Capability::Traps);
        let kind = match () {
            () if traps && trace.count::<FaultRow>()? > 0 => Kind::Faults,
            () if trace.count::<SampleRow>()? > 0 => Kind::Samples,
            () if trace.count::<FaultRow>()? > 0 => Kind::Faults,
            () if trace.count::<TouchRow>()? > 0 => Kind::Touches,
            () => return Err(ExportError::Empty),
        };
        // Names are whatever a program wants, and exports are read by terminals too: they are made harmless here, once
        // for all formats.
        let mut objects: Vec<ObjectRow> = trace.rows()?;
        objects.iter_mut().for_each(|o| show(&mut o.name));
        let named = |name: &String| !name.is_empty();
        Ok(Events {
            trace,
            kind,
            by_number: objects.iter().map(|o| o.object).zip(0..).collect(),
            objects,
            sites: rows(trace, |s: SiteRow| (s.site, shown(s.frames)))?,
            threads: rows(trace, |t: ThreadRow| {
                ((t.pid, t.tid), visible(&t.name).into_owned())
            })?,
            processes: trace
                .rows::<ProcessRow>()?
                .into_iter()
                .filter(|p| named(&p.command) || named(&p.exe))
                .map(|p| (p.pid, if named(&p.command) { p.command } else { p.exe }))
                .map(|(pid, name)| (pid, visible(&name).into_owned()))
                .collect(),
        })
    }

    /// The name of a thread, or of its process; empty where neither is known.
    pub(super) fn thread(&self, pid: Pid, tid: Option<Tid>) -> &str {
        let own = tid.and_then(|tid| self.threads.get(&(pid, tid)));
        own.filter(|name| !name.is_empty())
            .map_or_else(|| self.process(pid), String::as_str)
    }

    /// The name of a process; empty where none is known.
    pub(super) fn process(&self, pid: Pid) -> &str {
        self.processes.get(&pid).map_or("", String::as_str)
    }

    /// Calls `each` for every event, in the order of the table.
    pub(super) fn for_each(
        &self,
        mut each: impl FnMut(&Event<'_>) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        // What the recorder's own library does is not the program's.
        let mut each = |event: &Event<'_>| match event.is_own() {
            true => Ok(()),
            false => each(event),
        };
        match self.kind {
            Kind::Samples => self.samples(&mut each),
            Kind::Faults => self.faults(&mut each),
            Kind::Touches => self.touches(&mut each),
        }
    }

    fn samples(
        &self,
        each: &mut dyn FnMut(&Event<'_>) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        for batch in self.trace.batches::<SampleRow>()? {
            for row in batch? {
                let object = row.object.and_then(|o| self.by_number.get(&o));
                let frames = row.site.and_then(|s| self.sites.get(&s));
                each(&Event {
                    time: row.time_ns,
                    pid: row.pid,
                    tid: row.tid,
                    cpu: row.cpu,
                    source: row.source.as_str(),
                    ip: row.ip,
                    address: row.address,
                    bytes: row.bytes,
                    write: row.write,
                    latency: row.latency_cycles,
                    level: row.level,
                    object: object.map(|&o| &self.objects[o]),
                    frames: frames.map_or(&[], Vec::as_slice),
                    weight: 1,
                })?;
            }
        }
        Ok(())
    }

    fn faults(
        &self,
        each: &mut dyn FnMut(&Event<'_>) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let spans: Vec<Span> = self.objects.iter().map(Span::of).collect();
        let mut waiting: Vec<FaultRow> = Vec::new();
        for batch in self.trace.batches::<FaultRow>()? {
            waiting.append(&mut batch?);
            if waiting.len() >= AT_ONCE {
                self.placed(&waiting, &spans, each)?;
                waiting.clear();
            }
        }
        self.placed(&waiting, &spans, each)
    }

    /// Whether what lies in this object is exported.
    fn is_chosen(&self, owner: Option<usize>) -> bool {
        let object = owner.map(|o| self.objects[o].object);
        self.trace.selection().is_none_or(|s| s.object(object))
    }

    /// Faults, each with the object that held its address.
    fn placed(
        &self,
        rows: &[FaultRow],
        spans: &[Span],
        each: &mut dyn FnMut(&Event<'_>) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let points: Vec<_> = rows.iter().map(|r| (r.pid, r.address, r.time_ns)).collect();
        for (row, owner) in rows.iter().zip(owners_at(spans, &points)) {
            if !self.is_chosen(owner.map(|o| o.0 as usize)) {
                continue;
            }
            each(&Event {
                time: row.time_ns,
                pid: row.pid,
                tid: Some(row.tid),
                cpu: Some(row.cpu),
                source: "page_fault",
                ip: Some(row.ip),
                address: Some(row.address),
                bytes: None,
                write: row.write,
                latency: None,
                level: None,
                object: owner.map(|o| &self.objects[o.0 as usize]),
                frames: &[],
                weight: 1,
            })?;
        }
        Ok(())
    }

    /// A touch that lies in several objects is cut; a page of several objects is given to the one that has most of it.
    /// What others may have touched is no event of this program.
    fn touches(
        &self,
        each: &mut dyn FnMut(&Event<'_>) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let spans: Vec<Span> = self.objects.iter().map(Span::of).collect();
        let mut owners = Owners::new(&spans);
        let intervals: HashMap<u32, (Time, Time)> = rows(self.trace, |i: IntervalRow| {
            (i.interval.0, (i.start_ns, i.end_ns))
        })?;
        for batch in self.trace.batches::<TouchRow>()? {
            for row in batch? {
                if row.source == TouchSource::PossiblyOthers {
                    continue;
                }
                let times = intervals.get(&row.interval.0).copied();
                let (start, end) = times.unwrap_or_default();
                owners.advance(start, end);
                let pages = PageRange {
                    first: row.page,
                    count: Pages(row.pages.into()),
                };
                let mut done = Ok(());
                owners.owners(row.pid, pages, |part, shares| {
                    if done.is_err() {
                        return;
                    }
                    let owner = shares.first().map(|s| s.object.0 as usize);
                    if !self.is_chosen(owner) {
                        return;
                    }
                    done = each(&Event {
                        time: end,
                        pid: row.pid,
                        tid: None,
                        cpu: None,
                        source: row.source.as_str(),
                        ip: None,
                        address: Some(part.first.address()),
                        bytes: Some(part.count.bytes()),
                        write: row.written,
                        latency: None,
                        level: None,
                        object: owner.map(|o| &self.objects[o]),
                        frames: &[],
                        weight: part.count.0,
                    });
                });
                done?;
            }
        }
        Ok(())
    }
}

fn rows<R: varve_trace::Row, K: Eq + std::hash::Hash, V>(
    trace: &Trace,
    pair: impl Fn(R) -> (K, V),
) -> Result<HashMap<K, V>, TraceError> {
    Ok(trace.rows::<R>()?.into_iter().map(pair).collect())
}

fn show(name: &mut String) {
    if let Cow::Owned(harmless) = visible(name) {
        *name = harmless;
    }
}

/// Whether the recorder's library was at work.
fn is_own_work(frames: &[Frame]) -> bool {
    is_recorders_work(frames.iter().map(|frame| frame.module.as_deref()))
}

/// Whether a frame is in a library that the recorder put into the target.
fn is_recorders(frame: &Frame) -> bool {
    frame
        .module
        .as_deref()
        .is_some_and(varve_model::is_recorders)
}

/// The frames as they are shown: those of the recorder's library that the program came through are left out.
fn shown(mut frames: Vec<Frame>) -> Vec<Frame> {
    if !is_own_work(&frames) {
        frames.retain(|frame| !is_recorders(frame));
    }
    for frame in &mut frames {
        let names = [&mut frame.function, &mut frame.file, &mut frame.module];
        names.into_iter().flatten().for_each(show);
    }
    frames
}

/// A frame in a word or two.
pub(super) fn frame_name(frame: &Frame) -> String {
    let file = frame
        .file
        .as_deref()
        .map(|f| f.rsplit('/').next().unwrap_or(f));
    match (&frame.function, file, frame.line, &frame.module) {
        (Some(function), ..) => function.clone(),
        (None, Some(file), Some(line), _) => format!("{file}:{line}"),
        (None, Some(file), None, _) => file.to_owned(),
        (None, None, _, Some(module)) if frame.offset.is_none() => {
            let module = module.rsplit('/').next().unwrap_or(module);
            format!("{module}!{}", frame.address)
        }
        (None, None, ..) => frame
            .in_module()
            .unwrap_or_else(|| frame.address.to_string()),
    }
}

/// The stack of an event, outermost first: its frames, or its instruction, and the object that was accessed.
pub(super) fn stack(event: &Event<'_>) -> Vec<String> {
    let mut stack: Vec<String> = event.frames.iter().rev().map(frame_name).collect();
    if let (true, Some(ip)) = (stack.is_empty(), event.ip) {
        stack.push(ip.to_string());
    }
    stack.push(match event.object {
        Some(object) => format!("[{}]", object.name),
        None => "[no known object]".to_owned(),
    });
    stack
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, module: &str) -> Frame {
        Frame {
            function: Some(function.into()),
            module: Some(module.into()),
            ..Frame::default()
        }
    }

    #[test]
    fn code_without_symbols_has_its_offset_or_its_address() {
        let unnamed = Frame {
            module: Some("/bin/app".into()),
            offset: Some(0x11d2),
            address: Address(0x5555_0000_11d3),
            ..Frame::default()
        };
        assert_eq!(frame_name(&unnamed), "app+0x11d2");
        let imported = Frame {
            offset: None,
            ..unnamed
        };
        assert_eq!(frame_name(&imported), "app!0x5555000011d3");
        let nowhere = Frame {
            module: None,
            ..imported
        };
        assert_eq!(frame_name(&nowhere), "0x5555000011d3");
    }

    #[test]
    fn the_recorders_library_is_not_the_programs() {
        let app = frame("main", "app");
        let own = frame("malloc", "/opt/libvarve_preload.so");
        let through = shown(vec![
            frame("_int_malloc", "libc.so.6"),
            own.clone(),
            app.clone(),
        ]);
        assert_eq!(through.len(), 2);
        let within = shown(vec![own, app]);
        let event = |frames| Event {
            time: Time(0),
            pid: Pid(1),
            tid: None,
            cpu: None,
            source: "clock",
            ip: None,
            address: None,
            bytes: None,
            write: None,
            latency: None,
            level: None,
            object: None,
            frames,
            weight: 1,
        };
        assert!(!event(&through[..]).is_own());
        assert!(event(&within[..]).is_own());
        let clock = frame("__vdso_clock_gettime", "[vdso]");
        let mut timed = vec![clock];
        timed.extend_from_slice(&within);
        let timed = shown(timed);
        assert_eq!(timed.len(), 3);
        assert!(event(&timed[..]).is_own());
        let row = ObjectRow {
            object: ObjectId(0),
            pid: Pid(1),
            kind: ObjectKind::Recorder,
            name: "recorder's memory".to_owned(),
            site: None,
            address: Address(0x1000),
            bytes: Bytes(0x1000),
            born_ns: Time(0),
            died_ns: None,
            tid: None,
            pool: false,
            layer: 0,
            continues: None,
        };
        let memory = Event {
            object: Some(&row),
            ..event(&[])
        };
        assert!(memory.is_own());
    }
}
