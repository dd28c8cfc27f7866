//! The end of an interval: what was read becomes rows.

use varve_model::{Bytes, Duration, Interval, Loss, Time, TouchSource};
use varve_sys::{cpu_time, monotonic_now};
use varve_trace::Overhead;
use varve_trace::tables::{CounterRow, IntervalRow};

use super::Recorder;
use super::boundary::Boundary;
use super::budget::{Budget, Cost};
use super::meter::Done;
use super::reclaim::reclaim;
use super::touch_rows::{Details, Writes, append_runs};
use crate::RecordError;
use crate::probes::{Closed, Limit, Reading, Took};
use crate::rests::Rests;
use crate::state::found::{Found, Unseen};
use crate::state::mapped_again::mapped_again;

/// An interval that is not paid for yet is looked at again so soon: what it costs may have changed.
const RECHECK: Duration = Duration(100_000_000);

/// CPU time of the recorder while it closes an interval, the hold's apart.
struct Work {
    since: Duration,
    /// What each boundary takes, however long the interval was. The rest grows with it: events and samples.
    of_boundary: Duration,
}

impl Work {
    fn begin() -> Work {
        Work {
            since: cpu_time(),
            of_boundary: Duration(0),
        }
    }

    /// What was done since the last call was a boundary's, but for what was done in the hold.
    fn boundary(&mut self, held: Duration) {
        let now = cpu_time();
        let worked = Duration((now - self.since).0.saturating_sub(held.0));
        self.of_boundary = self.of_boundary + worked;
        self.since = now;
    }

    /// It was not.
    fn running(&mut self) {
        self.since = cpu_time();
    }
}

impl Recorder<'_> {
    /// Closes the interval that began at `start`, and chooses how long the next one is. Unless it `keeps` it nothing of
    /// it gets into the trace. None where the interval goes on.
    pub(super) fn close(
        &mut self,
        start: Time,
        keeps: bool,
        last: bool,
    ) -> Result<Option<Boundary>, RecordError> {
        let mut work = Work::begin();
        let (kernel, hold) = (&mut self.kernel, &mut self.target.hold);
        let events = &mut self.events;
        let made = self.boundaries.close(kernel, hold, events, last)?;
        let Some((boundary, mut reading)) = made else {
            return Ok(None);
        };
        work.boundary(boundary.cpu_last);
        work.of_boundary = work.of_boundary + boundary.cpu_between;
        self.events.state.boundary = Some(boundary.end);
        self.events.state.boundary_began =
            Time((boundary.read.0).saturating_sub(boundary.overlap.0));
        self.events.state.released = Some(boundary.read);
        self.events.state.ran_on = boundary.overlap != Duration(0);
        self.drain()?;
        work.running();
        let rests = Rests::begin();
        let state = &mut self.events.state;
        state.boundary = None;
        state.processes.refresh_all_maps(boundary.read);
        state.inherit_pending();
        let again = mapped_again(&state.residents, &state.processes);
        reading.resident_pages = reading.resident_pages.saturating_sub(again);
        rests.rest();
        let found = self.refined(&rests);
        let touched = found
            .iter()
            .flat_map(|f| &f.regions)
            .map(|region| u64::from(region.touched_count()))
            .sum::<u64>();
        let events = &mut self.events;
        let mut unseen = Vec::new();
        for probe in &mut events.probes {
            unseen.extend(probe.unseen(&found, &mut events.state));
            rests.rest();
        }
        if keeps {
            let before = std::mem::take(&mut self.unseen_before);
            self.append_unseen(&before);
            self.append_unseen(&unseen);
            // It may have gone after the end of the interval, and been accessed in between.
            if boundary.overlap != Duration(0) {
                self.unseen_before = unseen;
            }
            self.write_interval(start, &boundary, &reading, &found, &rests);
            self.held = self.held + boundary.held;
        } else {
            self.discard(boundary.end);
            self.reclaim_before = reclaim();
            let closed = Closed {
                end: boundary.end,
                found: &found,
                rows: &[],
                held: boundary.held,
            };
            self.events
                .tell(|probe, state| probe.closed(&closed, state));
        }
        work.boundary(Duration(0));
        self.meter(&boundary, touched, work, keeps)?;
        self.note_cost();
        Ok(Some(boundary))
    }

    /// Asks what probes and the kernel's part have taken of the target in the interval that runs.
    fn collect_costs(&mut self) -> Result<(), RecordError> {
        if self.meter.is_none() {
            return Ok(());
        }
        let reports_took = self.kernel.reports_took()?;
        let reported = Took {
            reports: self.took.reports
                + (reports_took.time - self.reports_took.time)
                + Duration((reports_took.runs - self.reports_took.runs) * self.report_way.0),
            ..self.took
        };
        self.reports_took = reports_took;
        let probes = self.events.probes.iter_mut();
        self.took = probes.fold(reported, |sum, p| sum.plus(p.took()));
        Ok(())
    }

    /// How much longer the interval that runs is to be, by what was spent before it and what it has cost so far; none where its
    /// time has come. Its end takes the time `lead` by itself.
    pub(super) fn unpaid(
        &mut self,
        now: Time,
        lead: Duration,
    ) -> Result<Option<Duration>, RecordError> {
        if !self.policy.is_by_budget() {
            return Ok(None);
        }
        self.collect_costs()?;
        let Some(meter) = &self.meter else {
            return Ok(None);
        };
        let so_far = Done {
            wall: now - self.metered.0 + lead,
            took: self.took,
            recorder_cpu: cpu_time() - self.metered.1,
            ..Done::default()
        };
        let running = meter.price(&so_far).total();
        let left = self.policy.left(so_far.wall, running);
        Ok((left > Duration(0)).then_some(left.min(RECHECK)))
    }

    /// Notes what the interval cost the target, and chooses the next one's length and the rate of samples by it.
    fn meter(
        &mut self,
        boundary: &Boundary,
        touched: u64,
        work: Work,
        keeps: bool,
    ) -> Result<(), RecordError> {
        self.collect_costs()?;
        let Some(meter) = &mut self.meter else {
            return Ok(());
        };
        let cpu = cpu_time();
        let recorder_cpu = Duration((cpu - self.metered.1).0.saturating_sub(boundary.cpu.0));
        let done = Done {
            wall: boundary.next_start - self.metered.0,
            held: boundary.held,
            touched,
            took: std::mem::take(&mut self.took),
            recorder_cpu,
        };
        self.metered = (boundary.next_start, cpu);
        let load = meter.look(&self.target.hold.processes(), &done);
        if std::mem::take(&mut self.begins) {
            return Ok(());
        }
        let at_the_end = Done {
            took: Took::default(),
            recorder_cpu: work.of_boundary.min(recorder_cpu),
            ..done
        };
        let all_the_time = Done {
            held: Duration(0),
            touched: 0,
            recorder_cpu: recorder_cpu - at_the_end.recorder_cpu,
            ..done
        };
        let cost = Cost {
            wall: done.wall,
            boundary: meter.price(&at_the_end),
            running: meter.price(&all_the_time),
        };
        if keeps {
            meter.add(cost.boundary.plus(cost.running));
        }
        self.policy.ended(&cost);
        let limit = Limit {
            share: Budget::of_probe(self.options.overhead),
            contention: load.contention,
            ran: Duration((done.wall.0 as f64 * load.threads) as u64),
        };
        self.events.tell(|probe, _| probe.limit(&limit));
        Ok(())
    }

    /// What probes have read at the boundary, by whose memory it is, as all others have corrected it.
    fn refined(&mut self, rests: &Rests) -> Vec<Found> {
        let events = &mut self.events;
        let mut all: Vec<Found> = events.probes.iter_mut().flat_map(|p| p.found()).collect();
        // Until then it is the recorder's copy.
        all.retain(|found| events.state.waits_for_exec_of != Some(found.pid));
        for found in &mut all {
            found.pid = events.state.processes.owner_of_memory(found.pid);
            for probe in &events.probes {
                probe.refine(found, &events.state);
            }
            rests.rest();
        }
        all
    }

    fn append(&mut self, found: &Found, writes: Writes, source: Option<TouchSource>) {
        let probes = &self.events.probes;
        append_runs(
            &mut self.events.state.tables.touches,
            self.interval,
            found.pid,
            &found.regions,
            writes,
            source,
            |region| {
                let mut asked = probes.iter();
                let first = asked.find_map(|p| p.first_accesses(found.pid, region));
                let mut details = Details {
                    first: first.unwrap_or_default(),
                    ..Details::default()
                };
                // Elsewhere a page that was not seen to be written is left open anyway.
                let asked = probes.iter().filter(|_| writes == Writes::Known);
                for probe in asked {
                    let more = probe.perhaps_written(found.pid, region);
                    for (bits, more) in details.perhaps_written.iter_mut().zip(more) {
                        *bits |= more;
                    }
                }
                details
            },
        );
    }

    /// The vanished pages of the interval that ends; those of the next are next.
    fn append_vanished(&mut self, writes: Writes) {
        let state = &mut self.events.state;
        let next = std::mem::take(&mut state.vanished_next);
        let vanished = std::mem::replace(&mut state.vanished, next);
        for found in vanished.into_found() {
            self.append(&found, writes, Some(TouchSource::Vanish));
        }
    }

    /// What went and nobody saw it go: nothing is known of writes.
    fn append_unseen(&mut self, unseen: &[Unseen]) {
        let rows = &mut self.events.state.tables.touches;
        for unseen in unseen {
            for (regions, source) in [
                (&unseen.accessed, TouchSource::Vanish),
                (&unseen.perhaps, TouchSource::Gone),
            ] {
                let (interval, pid) = (self.interval, unseen.pid);
                let unknown = Writes::Unknown;
                append_runs(rows, interval, pid, regions, unknown, Some(source), |_| {
                    Details::default()
                });
            }
        }
    }

    fn write_interval(
        &mut self,
        start: Time,
        boundary: &Boundary,
        reading: &Reading,
        found: &[Found],
        rests: &Rests,
    ) {
        let writes = match self.writes {
            Writes::Known if reading.loses_writes => Writes::Partly,
            writes => writes,
        };
        let before = std::mem::take(&mut self.events.state.tables.touches);
        for found in found {
            self.append(found, writes, None);
            rests.rest();
        }
        let rows = std::mem::replace(&mut self.events.state.tables.touches, before);
        let closed = Closed {
            end: boundary.end,
            found,
            rows: &rows,
            held: boundary.held,
        };
        self.touched_pages = rows.iter().map(|row| u64::from(row.pages)).sum();
        self.events.state.tables.touches.extend_from_slice(&rows);
        self.append_vanished(writes);
        rests.rest();
        self.events
            .tell(|probe, state| probe.closed(&closed, state));
        self.watch_losses(boundary.next_start, reading);
        let state = &mut self.events.state;
        state.tables.intervals.push(IntervalRow {
            interval: self.interval,
            start_ns: start,
            end_ns: boundary.end,
            held_ns: boundary.held,
            longest_hold_ns: boundary.longest_hold,
            longest_stop_ns: boundary.longest_stop,
            holds: boundary.holds,
            overlap_ns: boundary.overlap,
            resident_pages: reading.resident_pages,
            mappings: state.processes.count_mappings(),
            processes: reading.processes,
            threads: state.processes.threads() as u32,
            recorder_cpu_ns: cpu_time() - self.cpu_before,
        });
        self.manifest.clock.end_ns = boundary.end;
        self.interval = Interval(self.interval.0 + 1);
    }

    fn note_cost(&mut self) {
        let cpu = cpu_time();
        let spent = self.meter.as_ref().map(|m| m.total).unwrap_or_default();
        self.manifest.overhead = Overhead {
            held_ns: self.held,
            first_accesses_ns: spent.first_accesses,
            samples_ns: spent.samples,
            objects_ns: spent.objects,
            reports_ns: spent.reports,
            contention_ns: spent.contention,
            recorder_cpu_ns: cpu - self.cpu_began,
            recorder_peak_bytes: Bytes(0),
        };
        self.manifest.features.hold = self.boundaries.name(&self.target.hold);
        self.cpu_before = cpu;
    }

    /// Forgets what was accessed up to a moment.
    pub(super) fn discard(&mut self, until: Time) {
        let state = &mut self.events.state;
        state.vanished = std::mem::take(&mut state.vanished_next);
        state.tables.faults.retain(|fault| fault.time_ns > until);
        self.events.tell(|probe, _| probe.discard(until));
    }

    /// Counts what the kernel may have hidden in this interval.
    fn watch_losses(&mut self, now: Time, reading: &Reading) {
        let tables = &mut self.events.state.tables;
        if reading.failures > 0 {
            tables.lost(now, Loss::UnreadableTables, reading.failures);
        }
        let reclaim = reclaim();
        if let (Some(before), Some(after)) = (self.reclaim_before, reclaim)
            && after > before
        {
            // Reclaim takes accessed bits and leaves no trace of them.
            tables.lost(now, Loss::ReclaimScannedPages, (after - before) as u64);
            tables.counters.push(CounterRow {
                time_ns: now,
                node: None,
                name: "pgscan".into(),
                value: after,
            });
        }
        self.reclaim_before = reclaim;
    }

    /// Takes everything that has come: from the probes' own sources, and of the kernel's events.
    pub(super) fn drain(&mut self) -> Result<(), RecordError> {
        let (kernel, events) = (&mut self.kernel, &mut self.events);
        events.each(|probe, state| probe.collect(state))?;
        let heard = monotonic_now();
        kernel.events(&mut |event| events.take(&event))?;
        events.collected(heard);
        events.each(|probe, _| probe.apply(kernel))?;
        self.count_losses()
    }

    fn count_losses(&mut self) -> Result<(), RecordError> {
        let dropped = self.kernel.dropped_records()?;
        let mut lost = vec![
            (Loss::ProcessEvents, dropped.life),
            (Loss::MappingEvents, dropped.mappings),
            (Loss::UntrackedChildren, dropped.tracking),
        ];
        // What an emulator is missed of is not the program's.
        if self.policy.length().is_some() {
            lost.extend([
                (Loss::Faults, dropped.faults),
                (Loss::VanishedPages, dropped.vanish_pages),
                (Loss::VanishWalks, dropped.vanish_walks),
                (Loss::HoldsCutShort, self.boundaries.let_go),
                (Loss::UnheldProcesses, self.boundaries.unheld),
            ]);
        }
        for probe in &self.events.probes {
            probe.losses(&mut lost);
        }
        let now = monotonic_now();
        let tables = &mut self.events.state.tables;
        // What several have lost of a kind is lost together.
        lost.sort_by_key(|(kind, _)| *kind);
        for of_kind in lost.chunk_by(|a, b| a.0 == b.0) {
            let total = of_kind.iter().map(|(_, count)| count).sum();
            tables.lost_in_all(now, of_kind[0].0, total);
        }
        Ok(())
    }
}
