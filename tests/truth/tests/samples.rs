//! What samples say, against programs with known mixes of accesses, and against the scan of the same run: every
//! decoded address lies in mapped memory and on a page that the scan reports.
//!
//! A sample's weight is time. The workload is built so that the accesses that are compared cost the same: shares of time
//! are shares of accesses there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::process::ExitCode;
use std::time::Duration;

use varve_model::{Address, ObjectId, Page, Resolved, SampleMode, SiteId, Time};
use varve_trace::tables::{MappingRow, ObjectRow, SampleRow, SiteRow};
use varve_truth::{
    Case, Outcome, Plan, Problem, Recorded, Span, is_emulated, make_workloads, record, run_suite,
};

/// The exit code of a workload that cannot run on this machine.
const CANNOT: i32 = 77;
/// Of ten thousand decoded addresses so many lie on pages that the scan reports, at least.
const MIN_SHARE: usize = 9950;
const LONG: &str = "its work takes an emulated processor many minutes";
/// How far a share may be from the truth, in standard errors: one of the eight shares of a run of the suite is farther by chance once
/// in three million runs (a normal deviation above 5.5 has a probability of 3.8e-8).
const ERRORS: f64 = 5.5;

fn main() -> ExitCode {
    if let Err(problem) = make_workloads() {
        println!("FAIL the workloads cannot be built: {problem}");
        return ExitCode::FAILURE;
    }
    run_suite(
        "samples",
        &[
            Case::new("mix", || shares("mix", &[("hot", 0.9), ("cold", 0.1)])),
            Case::new("chain", || {
                shares("chain", &[("near_hot", 0.9), ("near_cold", 0.1)])
            }),
            Case::new("stride", || {
                shares("stride", &[("walked", 0.75), ("strolled", 0.25)])
            }),
            Case::new("readmostly", read_mostly),
            Case::new("threads", own_arrays),
            Case::new("copy", copies),
            Case::new("push", stack),
            Case::new("list", list),
            Case::new("spilled", spilled),
            Case::new("gather", gathers),
            Case::new("without behind", without_behind),
        ],
    )
}

/// A recording, with what its samples need to be judged.
struct Run {
    recorded: Recorded,
    samples: Vec<SampleRow>,
    objects: HashMap<ObjectId, ObjectRow>,
}

impl Run {
    fn of(case: &str, options: &[&str]) -> Result<Run, Problem> {
        let mut plan = Plan::workload("sampled", Duration::from_millis(50));
        plan.arguments = vec![case.into()];
        // Large pages fit the ends of arrays badly: accesses there would cost more than elsewhere.
        plan.options = ["--samples", "1000/s", "--thp", "never"]
            .map(Into::into)
            .into();
        plan.options.extend(options.iter().map(Into::into));
        let recorded = record(&plan)?;
        let samples = recorded.trace.rows::<SampleRow>()?;
        let objects = recorded.trace.rows::<ObjectRow>()?;
        Ok(Run {
            recorded,
            samples,
            objects: objects.into_iter().map(|o| (o.object, o)).collect(),
        })
    }

    fn name(&self, row: &SampleRow) -> Option<&str> {
        Some(&self.objects.get(&row.object?)?.name)
    }

    /// Whether a row lies in the static array of that name.
    fn is_in(&self, row: &SampleRow, array: &str) -> bool {
        self.name(row)
            .is_some_and(|name| name == array || name.starts_with(&format!("{array} (")))
    }

    /// The rows of the part that the case is about: those of the given arrays.
    fn rows<'a>(&'a self, arrays: &'a [&str]) -> impl Iterator<Item = &'a SampleRow> {
        self.samples
            .iter()
            .filter(|row| row.mode == Some(SampleMode::User))
            .filter(move |row| arrays.iter().any(|array| self.is_in(row, array)))
    }

    /// How many decoded addresses there are, how many lie in mapped memory, and how many on pages of the scan.
    fn places(&self) -> Result<(usize, usize, usize), Problem> {
        let mappings = self.recorded.trace.rows::<MappingRow>()?;
        let touches = &self.recorded.touches;
        let mut known: BTreeMap<(usize, usize), varve_truth::Layer> = BTreeMap::new();
        let (mut all, mut mapped, mut touched) = (0, 0, 0);
        for row in &self.samples {
            let Some(address) = row.address else { continue };
            all += 1;
            let inside = |m: &MappingRow| {
                m.pid == row.pid && (m.address.0..m.address.0 + m.bytes.0).contains(&address.0)
            };
            mapped += usize::from(mappings.iter().any(inside));
            let around = touches.around(Span {
                from: row.time_ns,
                to: Time(row.time_ns.0 + 1),
            });
            let layer = known
                .entry((around.start, around.end))
                .or_insert_with(|| touches.union(around, row.pid));
            touched += usize::from(layer.pages.contains(Page(address.0 >> 12)));
        }
        Ok((all, mapped, touched))
    }

    /// What every case asks for, whatever else it does: the line, and whether it holds.
    fn sound(&self) -> Result<(String, bool), Problem> {
        self.sound_with(if is_emulated() { 1 } else { 100 })
    }

    /// The same where so many addresses are known at least.
    fn sound_with(&self, fewest: usize) -> Result<(String, bool), Problem> {
        let (all, mapped, touched) = self.places()?;
        let manifest = &self.recorded.trace.manifest;
        let note = manifest.samples;
        let (taken, dropped) = note.map_or((0, 0), |n| (n.taken, n.dropped));
        let counted = note.is_some_and(|n| {
            n.taken == n.in_calls + n.in_traps + n.behind + n.at + n.ahead + n.undecoded
        });
        let rate = |n: usize| n as f64 * 100.0 / all.max(1) as f64;
        let line = format!(
            "{taken} samples, {dropped} dropped; of {all} addresses {:.2} % mapped, {:.2} % on pages of the scan",
            rate(mapped),
            rate(touched)
        );
        let enough = all >= fewest
            && mapped * 10_000 >= all * MIN_SHARE
            && touched * 10_000 >= all * MIN_SHARE;
        Ok((line, enough && counted && manifest.completeness.complete))
    }
}

fn outcome(line: String, holds: bool) -> Result<Outcome, Problem> {
    Ok(if holds {
        Outcome::Pass(line)
    } else {
        Outcome::Fail(line, Vec::new())
    })
}

/// An emulated processor takes interrupts between translated blocks only, so where its samples lie says nothing of where
/// time goes: there only their addresses are judged.
fn of_emulation(line: &str, sound: bool) -> Option<Result<Outcome, Problem>> {
    is_emulated().then(|| outcome(format!("{line}; emulated: shares say nothing"), sound))
}

/// How many standard errors a count of so many is from the share that it should be.
fn errors(count: usize, of: usize, share: f64) -> f64 {
    let error = (share * (1.0 - share) / of.max(1) as f64).sqrt();
    (count as f64 / of.max(1) as f64 - share).abs() / error
}

fn shares(case: &str, truth: &[(&str, f64)]) -> Result<Outcome, Problem> {
    let run = Run::of(case, &[])?;
    let (mut line, mut holds) = run.sound()?;
    if let Some(outcome) = of_emulation(&line, holds) {
        return outcome;
    }
    let arrays: Vec<&str> = truth.iter().map(|(array, _)| *array).collect();
    // Filling the arrays writes; the mix only reads.
    let rows: Vec<&SampleRow> = run
        .rows(&arrays)
        .filter(|r| r.write == Some(false))
        .collect();
    for (array, share) in truth {
        let count = rows.iter().filter(|row| run.is_in(row, array)).count();
        let off = errors(count, rows.len(), *share);
        line += &format!(
            "; {array} {:.2} % of {} ({off:.1} errors from {:.0} %)",
            count as f64 * 100.0 / rows.len().max(1) as f64,
            rows.len(),
            share * 100.0
        );
        holds &= off <= ERRORS && rows.len() > 500;
    }
    outcome(line, holds)
}

fn read_mostly() -> Result<Outcome, Problem> {
    if is_emulated() {
        return Ok(Outcome::Skip(LONG.to_owned()));
    }
    let run = Run::of("readmostly", &[])?;
    let (line, holds) = run.sound()?;
    // Every 512th word is written once when the arrays are filled, before the loop: those samples sit in main.
    let first_read = run.rows(&["hot"]).find(|r| r.write == Some(false));
    let begun = first_read.map(|r| r.time_ns);
    let rows: Vec<&SampleRow> = run
        .rows(&["hot"])
        .filter(|r| Some(r.time_ns) >= begun)
        .collect();
    let writes = rows.iter().filter(|r| r.write == Some(true)).count();
    let off = errors(writes, rows.len(), 0.1);
    let line = format!(
        "{line}; {writes} writes of {} ({off:.1} errors from 10 %)",
        rows.len()
    );
    outcome(line, holds && off <= ERRORS && rows.len() > 500)
}

fn own_arrays() -> Result<Outcome, Problem> {
    let run = Run::of("threads", &[])?;
    let (line, holds) = run.sound()?;
    if let Some(outcome) = of_emulation(&line, holds) {
        return outcome;
    }
    let mut of: BTreeMap<(u32, &str), usize> = BTreeMap::new();
    for row in run
        .rows(&["hot", "cold"])
        .filter(|r| r.write == Some(false))
    {
        let array = if run.is_in(row, "hot") { "hot" } else { "cold" };
        *of.entry((row.tid.expect("a thread").0, array)).or_default() += 1;
    }
    // The main thread reads `hot`, the other one `cold`, and nothing else; both as often.
    let counts: Vec<usize> = of.values().copied().collect();
    let apart = of.len() == 2 && {
        let keys: Vec<_> = of.keys().collect();
        keys[0].0 != keys[1].0 && keys[0].1 != keys[1].1
    };
    outcome(
        format!("{line}; {of:?}"),
        holds && apart && counts.iter().all(|n| *n > 300),
    )
}

fn copies() -> Result<Outcome, Problem> {
    if is_emulated() {
        return Ok(Outcome::Skip(LONG.to_owned()));
    }
    let run = Run::of("copy", &[])?;
    let (line, holds) = run.sound()?;
    // Both are filled before the first copy reads: a sample of that is a write alone.
    let first_read = run.rows(&["from"]).find(|r| r.write == Some(false));
    let begun = first_read.map(|r| r.time_ns);
    let rows: Vec<&SampleRow> = run
        .rows(&["from", "to"])
        .filter(|r| Some(r.time_ns) >= begun)
        .collect();
    let at: Vec<&&SampleRow> = rows
        .iter()
        .filter(|r| r.resolved == Some(Resolved::At))
        .collect();
    // Each sample within the copy has one row of each side; reads are of the source, writes of the target.
    let reads = at
        .iter()
        .filter(|r| run.is_in(r, "from") && r.write == Some(false));
    let writes = at
        .iter()
        .filter(|r| run.is_in(r, "to") && r.write == Some(true));
    let (reads, writes) = (reads.count(), writes.count());
    let line = format!(
        "{line}; {reads} reads, {writes} writes, {} rows",
        rows.len()
    );
    // The ends of the copies are few.
    let most = (reads + writes) * 100 >= rows.len() * 95;
    outcome(line, holds && reads == writes && reads > 250 && most)
}

fn stack() -> Result<Outcome, Problem> {
    let run = Run::of("push", &[])?;
    let (line, holds) = run.sound()?;
    if let Some(outcome) = of_emulation(&line, holds) {
        return outcome;
    }
    let decoded: Vec<&SampleRow> = run.samples.iter().filter(|r| r.address.is_some()).collect();
    let on_stack = decoded.iter().filter(|r| {
        r.object
            .and_then(|o| run.objects.get(&o))
            .is_some_and(|o| o.name.contains("stack"))
    });
    let on_stack = on_stack.count();
    let line = format!("{line}; {on_stack} of {} on the stack", decoded.len());
    outcome(line, holds && on_stack * 100 >= decoded.len() * 80)
}

/// The samples of a walk over `links`, told from those before it by the function in which they were taken.
struct Walk {
    line: String,
    sound: bool,
    /// Samples at user code whose address is gone.
    gone: usize,
    /// Samples behind the read of the list.
    read: usize,
    /// Those of them whose address is gone.
    gone_at_read: usize,
    /// Those of them that are at the list.
    links_at_read: usize,
}

fn walk(case: &str) -> Result<Walk, Problem> {
    let run = Run::of(case, &[])?;
    let (line, sound) = run.sound_with(0)?;
    let sites = run.recorded.trace.rows::<SiteRow>()?;
    let within: HashSet<SiteId> = sites
        .iter()
        .filter(|site| {
            let innermost = site.frames.first();
            innermost.is_some_and(|f| f.function.as_deref() == Some(case))
        })
        .map(|site| site.site)
        .collect();
    let rows: Vec<&SampleRow> = run
        .samples
        .iter()
        .filter(|r| r.mode == Some(SampleMode::User))
        .filter(|r| r.site.is_some_and(|site| within.contains(&site)))
        .collect();
    let is_gone = |r: &&&SampleRow| r.resolved == Some(Resolved::Overwritten);
    let gone = rows.iter().filter(is_gone).count();
    // Behind the read of the list most samples stand, however fast memory and caches are. At others the thread may have waited for the stack.
    let mut at: HashMap<Option<Address>, Vec<&SampleRow>> = HashMap::new();
    for row in &rows {
        at.entry(row.ip).or_default().push(row);
    }
    let read: Vec<&SampleRow> = at.into_values().max_by_key(Vec::len).unwrap_or_default();
    let is_link = |r: &&&SampleRow| r.address.is_some() && run.is_in(r, "links");
    let gone_at_read = read.iter().filter(is_gone).count();
    let links_at_read = read.iter().filter(is_link).count();
    Ok(Walk {
        line: format!(
            "{line}; of {} samples of the walk {gone} at addresses that are gone; of {} behind the read of the list {gone_at_read}, {links_at_read} are of the list",
            rows.len(),
            read.len(),
        ),
        sound,
        gone,
        read: read.len(),
        gone_at_read,
        links_at_read,
    })
}

/// A step of a list replaces the pointer that it followed: where it read is not known, and the counter on the stack that
/// comes next is not what the thread waited for.
fn list() -> Result<Outcome, Problem> {
    if is_emulated() {
        return Ok(Outcome::Skip(LONG.to_owned()));
    }
    let walk = walk("list")?;
    let is_said = walk.gone > 300 && walk.gone_at_read + walk.links_at_read == walk.read;
    outcome(walk.line, walk.sound && is_said)
}

/// A pointer that was loaded from the stack is read there.
fn spilled() -> Result<Outcome, Problem> {
    if is_emulated() {
        return Ok(Outcome::Skip(LONG.to_owned()));
    }
    let walk = walk("spilled")?;
    let is_found = walk.read > 300 && walk.links_at_read == walk.read && walk.gone == 0;
    outcome(walk.line, walk.sound && is_found)
}

/// Where an index sits in a vector register no sample carries it: nothing may be said, and nothing wrong.
fn gathers() -> Result<Outcome, Problem> {
    let run = Run::of("gather", &[])?;
    if run.recorded.finished.code == CANNOT {
        return Ok(Outcome::Skip(
            run.recorded.finished.stderr.trim().to_owned(),
        ));
    }
    let (line, holds) = run.sound_with(1)?;
    if let Some(outcome) = of_emulation(&line, holds) {
        return outcome;
    }
    let note = run.recorded.trace.manifest.samples;
    let (undecoded, gathers) = note.map_or((0, 0), |n| (n.undecoded, n.gathers));
    let wrong = run
        .rows(&["hot"])
        .filter(|r| r.write == Some(false))
        .count();
    let line = format!("{line}; {undecoded} undecoded, {gathers} of them gathers, {wrong} guessed");
    outcome(line, holds && wrong == 0 && gathers > 300)
}

/// The negative control: without the look back, time goes to whatever comes next, which is no access of the mix.
fn without_behind() -> Result<Outcome, Problem> {
    if is_emulated() {
        return Ok(Outcome::Skip(
            "an emulated processor does not stop behind what it waits for".to_owned(),
        ));
    }
    let share = |options: &[&str]| -> Result<(usize, usize), Problem> {
        let run = Run::of("mix", options)?;
        let in_loop = run
            .samples
            .iter()
            .filter(|r| r.mode == Some(SampleMode::User))
            .count();
        let found = run.rows(&["hot", "cold"]).count();
        Ok((found, in_loop))
    };
    let (with, of_with) = share(&[])?;
    let (without, of_without) = share(&["--without", "behind"])?;
    let line = format!(
        "of user samples {:.1} % lie in the arrays, without the look back {:.1} %",
        with as f64 * 100.0 / of_with.max(1) as f64,
        without as f64 * 100.0 / of_without.max(1) as f64
    );
    // The next access is a random one as well, but of another place: the share that is resolved is the test.
    outcome(line, with * of_without > without * of_with)
}
