//! JSON of the Firefox Profiler.

use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, SystemTime};

use fxprof_processed_profile::{
    CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, Profile, SamplingInterval, Timestamp,
    WeightType,
};
use varve_trace::Trace;

use super::ExportError;
use super::events::{Events, stack};

/// One track for each thread. The object that was accessed is the innermost frame.
pub(super) fn write(
    events: Events<'_>,
    trace: &Trace,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let clock = trace.manifest.clock;
    let began = SystemTime::UNIX_EPOCH + Duration::from_nanos(clock.start_unix_ns);
    // The time between samples is not known, and matters only where they are drawn.
    let mut profile = Profile::new("varve", began.into(), SamplingInterval::from_millis(1));
    let start = Timestamp::from_nanos_since_reference(0);
    let mut processes = HashMap::new();
    let mut threads = HashMap::new();
    events.for_each(|event| {
        let process = *processes.entry(event.pid).or_insert_with(|| {
            let name = events.process(event.pid);
            let name = if name.is_empty() { "(unknown)" } else { name };
            profile.add_process(name, event.pid.0, start)
        });
        let thread = *threads.entry((event.pid, event.tid)).or_insert_with(|| {
            let tid = event.tid.map_or(event.pid.0, |t| t.0);
            let thread = profile.add_thread(process, tid, start, tid == event.pid.0);
            profile.set_thread_name(thread, events.thread(event.pid, event.tid));
            profile.set_thread_samples_weight_type(thread, WeightType::Samples);
            thread
        });
        let frames: Vec<FrameInfo> = stack(event)
            .iter()
            .map(|name| FrameInfo {
                frame: Frame::Label(profile.intern_string(name)),
                category_pair: CategoryHandle::OTHER.into(),
                flags: FrameFlags::empty(),
            })
            .collect();
        let stack = profile.intern_stack_frames(thread, frames.into_iter());
        let since = event.time.0.saturating_sub(clock.start_ns.0);
        let at = Timestamp::from_nanos_since_reference(since);
        let weight = i32::try_from(event.weight).unwrap_or(i32::MAX);
        profile.add_sample(thread, at, stack, CpuDelta::ZERO, weight);
        Ok(())
    })?;
    serde_json::to_writer(&mut *out, &profile)?;
    out.write_all(b"\n")?;
    Ok(())
}
