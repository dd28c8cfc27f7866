//! Lines.

use std::io::Write;

use varve_model::MemoryLevel;

use super::ExportError;
use super::events::{Event, Events, frame_name};

/// Comma-separated values, one event a line. What is not known is empty.
pub(super) fn csv(events: Events<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    writeln!(
        out,
        "time_ns,pid,tid,cpu,source,ip,address,bytes,write,latency_cycles,level,object,place,weight"
    )?;
    events.for_each(|e| {
        write!(out, "{},{},", e.time.0, e.pid)?;
        cell(out, e.tid)?;
        cell(out, e.cpu)?;
        write!(out, "{},", e.source)?;
        cell(out, e.ip)?;
        cell(out, e.address)?;
        cell(out, e.bytes.map(|b| b.0))?;
        cell(out, e.write)?;
        cell(out, e.latency)?;
        cell(out, e.level)?;
        cell(out, e.object.map(|o| quoted(&o.name)))?;
        cell(out, e.frames.first().map(|f| quoted(&frame_name(f))))?;
        writeln!(out, "{}", e.weight)?;
        Ok(())
    })
}

fn cell(out: &mut dyn Write, value: Option<impl std::fmt::Display>) -> std::io::Result<()> {
    match value {
        Some(value) => write!(out, "{value},"),
        None => out.write_all(b","),
    }
}

/// A text as one field.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// Lines such as `perf script` prints of a recording of `perf mem`, which `varve import` reads again.
pub(super) fn perf_script(events: Events<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    events.for_each(|e| {
        let name = events.thread(e.pid, e.tid).trim();
        let name = if name.is_empty() { ":unknown" } else { name };
        // As perf where it knows no thread.
        let tid = e.tid.map_or(-1, |tid| i64::from(tid.0));
        write!(out, "{name:>16} {:>5}/{tid:<5} ", e.pid)?;
        if let Some(cpu) = e.cpu {
            write!(out, "[{:03}] ", cpu.0)?;
        }
        let (seconds, rest) = (e.time.0 / 1_000_000_000, e.time.0 % 1_000_000_000);
        write!(
            out,
            "{seconds:>5}.{rest:09}: {:>10} {}: ",
            e.weight,
            event_name(e)
        )?;
        write!(
            out,
            "{:>16x} {}",
            e.address.unwrap_or_default().0,
            data_source(e)
        )?;
        write!(out, " {:>16}", e.latency.unwrap_or(0))?;
        if let Some(ip) = e.ip {
            write!(out, " {:>16x}", ip.0)?;
            let function = e.frames.first().and_then(|f| f.function.as_deref());
            let module = e.frames.first().and_then(|f| f.module.as_deref());
            let offset = e.frames.first().and_then(|f| f.offset);
            let (function, known) = (function.unwrap_or("[unknown]"), module.is_some());
            write!(out, " {function} ({}", module.unwrap_or("[unknown]"))?;
            if let Some(offset) = offset.filter(|_| known) {
                write!(out, "+{offset:#x}")?;
            }
            write!(out, ")")?;
        }
        writeln!(out)?;
        Ok(())
    })
}

fn event_name(event: &Event<'_>) -> &'static str {
    match event.write {
        Some(true) => "mem-stores",
        Some(false) => "mem-loads",
        None => "memory",
    }
}

/// perf's words, with `0` for the bits.
fn data_source(event: &Event<'_>) -> String {
    let operation = match event.write {
        Some(true) => "STORE",
        Some(false) => "LOAD",
        None => "N/A",
    };
    let level = match event.level {
        None => "N/A",
        Some(MemoryLevel::L1) => "L1 hit",
        Some(MemoryLevel::L2) => "L2 hit",
        Some(MemoryLevel::L3) => "L3 hit",
        Some(MemoryLevel::L4) => "L4 hit",
        Some(MemoryLevel::FillBuffer) => "LFB hit",
        Some(MemoryLevel::LocalDram) => "Local RAM hit",
        Some(MemoryLevel::RemoteDram) => "Remote RAM (1 hop) hit",
        Some(MemoryLevel::RemoteCache) => "Remote Cache (1 hop) hit",
        Some(MemoryLevel::Dram) => "RAM hit",
        Some(MemoryLevel::Pmem) => "PMEM hit",
        Some(MemoryLevel::Cxl) => "CXL hit",
        Some(MemoryLevel::Io) => "I/O hit",
        Some(MemoryLevel::Uncached) => "Uncached hit",
    };
    format!(
        "{:>16} |OP {operation}|LVL {level}|SNP N/A|TLB N/A|LCK N/A|BLK  N/A",
        0
    )
}
