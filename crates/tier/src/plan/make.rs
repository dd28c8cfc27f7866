//! A plan from a trace.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use varve_analyse::format;
use varve_model::{Address, Bytes, ObjectId, ObjectKind, PAGE_BYTES, Pages, Pid, SiteId};
use varve_trace::tables::{MappingRow, ObjectRow, ProcessRow, SiteRow};
use varve_trace::{Trace, TraceError};

use super::{Expected, PLAN_SCHEMA, Part, Place, Plan, Program, SiteFrame};
use crate::error::TierError;
use crate::knapsack;
use crate::model::Model;
use crate::objects::{place, place_with_spill, worth};
use crate::policies::{FirstTouch, Placed, Placement};
use crate::read::read;
use crate::replay::{Outcome, replay};
use crate::simulate::basis;
use crate::spec::{Tier, Tiers};
use crate::stream::{CHUNK_SLOTS, Stream};

/// What a plan is to name.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// Objects that stay in the default tier are named from this size on.
    pub min_named: Bytes,
    /// Objects that are named at most, the most worth first.
    pub max_places: usize,
}

impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions {
            min_named: Bytes(1 << 20),
            max_places: 2000,
        }
    }
}

/// Plans where the objects of a trace should lie: whole objects by accesses per byte, or the choice that is worth most, or with one
/// object divided, whichever is fastest by the model.
///
/// # Errors
/// A table that cannot be read, no touches, or more than there is room for.
pub fn plan(
    trace: &Trace,
    tiers: &Tiers,
    options: &PlanOptions,
    room: Bytes,
    progress: &mut dyn FnMut(f64),
) -> Result<Plan, TierError> {
    let (stream, found) = read(trace, room, &mut |share| progress(share * 0.5))?;
    tiers.must_hold(stream.peak_pages)?;
    let model = Model::new(tiers, &stream, basis(&stream, found.samples_are_time));
    let whole = worth(&stream, &model, 1).swap_remove(0);
    let names = Names::read(trace, &stream)?;
    let mut choices = vec![
        ("objects", place(&whole, tiers, knapsack::greedy).0, None),
        ("objects_best", place(&whole, tiers, knapsack::best).0, None),
    ];
    let divided = place_with_spill(&stream, &model, &whole, tiers);
    // What cannot be named by an offset cannot be asked for.
    if let Some(part) = names.part(&stream, &divided) {
        choices.push(("objects_spill", divided, Some(part)));
    }
    let mut best: Option<Chosen> = None;
    for (name, placement, part) in choices {
        let placed = Placed::new(stream.slots(), tiers, vec![placement.clone()]);
        let outcome = replay(&stream, placed, &model);
        let time = |o: &Outcome| (o.modelled_ns, o.slow());
        if best
            .as_ref()
            .is_none_or(|b| time(&outcome) < time(&b.outcome))
        {
            best = Some(Chosen {
                policy: name,
                placement,
                part,
                outcome,
            });
        }
    }
    progress(0.9);
    let plain = replay(&stream, FirstTouch::new(stream.slots(), tiers), &model);
    let Some(Chosen {
        policy,
        placement,
        part,
        outcome,
    }) = best
    else {
        return Err(TierError::NoTouches(trace.folder().to_owned()));
    };
    Ok(Plan {
        schema: PLAN_SCHEMA.to_owned(),
        program: names.program(trace),
        expected: Expected {
            policy: policy.to_owned(),
            slow_share: rounded(outcome.slow_share(&stream)),
            slow_share_of_first_touch: rounded(plain.slow_share(&stream)),
            modelled_slowdown: rounded(outcome.slowdown(&stream)),
            modelled_slowdown_of_first_touch: rounded(plain.slowdown(&stream)),
        },
        tiers: tiers.all().iter().map(described).collect(),
        default: tiers.all()[tiers.all().len() - 1].name.clone(),
        places: places(&stream, tiers, &placement, part, &names, options),
    })
}

/// A way to place objects, and what it gives.
struct Chosen {
    policy: &'static str,
    placement: Placement,
    /// The part of a divided group.
    part: Option<(u32, Part)>,
    outcome: Outcome,
}

fn rounded(of: f64) -> f64 {
    (of * 1e4).round() / 1e4
}

/// A tier as `--tier` takes it.
fn described(tier: &Tier) -> String {
    let capacity = tier
        .capacity_bytes
        .map_or_else(|| "inf".to_owned(), |b| b.0.to_string());
    let bandwidth = tier
        .bandwidth
        .map_or_else(String::new, |b| format!(",bw={}MB/s", b as f64 / 1e6));
    format!(
        "{}={capacity},{}ns,write={}ns{bandwidth},move={}ns",
        tier.name, tier.read_ns.0, tier.write_ns.0, tier.move_ns.0
    )
}

fn places(
    stream: &Stream,
    tiers: &Tiers,
    placement: &Placement,
    part: Option<(u32, Part)>,
    names: &Names,
    options: &PlanOptions,
) -> Vec<Place> {
    let last = tiers.all().len() - 1;
    let of_objects = stream.groups.iter().enumerate();
    let named = of_objects.filter(|(_, g)| g.kind.is_some() && g.peak_pages.0 > 0);
    let mut order: Vec<usize> = named.map(|(number, _)| number).collect();
    let density = |number: usize| {
        let group = &stream.groups[number];
        group.touches as f64 / group.peak_pages.0 as f64
    };
    order.sort_by(|&a, &b| density(b).total_cmp(&density(a)).then(a.cmp(&b)));
    let count = order.len();
    let mut places = Vec::new();
    for (rank, &number) in order.iter().enumerate() {
        let group = &stream.groups[number];
        let tier = placement.tiers[number] as usize;
        let of_part = part
            .filter(|(of, _)| *of as usize == number)
            .map(|(_, p)| p);
        let is_small = group.peak_pages.bytes() < options.min_named;
        if (tier == last && is_small && of_part.is_none()) || places.len() >= options.max_places {
            continue;
        }
        let what = format!(
            "{} touches of {}: {:.1} for each page, the {} of {}",
            format::count(group.touches),
            format::pages_size(group.peak_pages),
            density(number),
            ordinal(rank + 1),
            format::counted(count as u64, "object")
        );
        let (tier, why) = match of_part {
            Some(_) => (0, format!("{what}; the part that is touched most fits")),
            None if tier == last => (tier, format!("{what}; others need the faster memory more")),
            None => (tier, what),
        };
        let place = Place {
            tier: tiers.all()[tier].name.clone(),
            why,
            kind: group.kind.map_or("heap", ObjectKind::as_str).to_owned(),
            name: group.name.clone(),
            peak_bytes: group.peak_bytes.0,
            peak_pages: group.peak_pages.0,
            part: of_part,
            ..Place::default()
        };
        places.push(names.complete(place, group.first));
    }
    places
}

/// `1st`, `2nd`, `23rd`.
fn ordinal(number: usize) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// What says in another run what objects are.
struct Names {
    objects: HashMap<ObjectId, ObjectRow>,
    sites: HashMap<SiteId, SiteRow>,
    mappings: Vec<MappingRow>,
    processes: Vec<ProcessRow>,
}

impl Names {
    fn read(trace: &Trace, stream: &Stream) -> Result<Names, TraceError> {
        let wanted: HashSet<ObjectId> = stream.groups.iter().filter_map(|g| g.first).collect();
        let mut objects = HashMap::new();
        for batch in trace.batches::<ObjectRow>()? {
            let rows = batch?.into_iter().filter(|r| wanted.contains(&r.object));
            objects.extend(rows.map(|r| (r.object, r)));
        }
        let used: HashSet<SiteId> = objects
            .values()
            .filter_map(|o: &ObjectRow| o.site)
            .collect();
        let mut sites = HashMap::new();
        for batch in trace.batches::<SiteRow>()? {
            let rows = batch?.into_iter().filter(|r| used.contains(&r.site));
            sites.extend(rows.map(|r| (r.site, r)));
        }
        Ok(Names {
            objects,
            sites,
            mappings: trace.rows()?,
            processes: trace.rows()?,
        })
    }

    /// The mapping of a process in which an address lay.
    fn mapping(&self, pid: Pid, address: Address) -> Option<&MappingRow> {
        let holds = |m: &&MappingRow| {
            m.pid == pid
                && (m.address.0..m.address.0.saturating_add(m.bytes.0)).contains(&address.0)
        };
        self.mappings
            .iter()
            .filter(holds)
            .find(|m| !m.path.is_empty())
    }

    /// The build id of a file.
    fn build_id(&self, path: &str) -> String {
        let of = self.mappings.iter().filter(|m| m.path == path);
        of.filter_map(|m| m.build_id.clone())
            .next()
            .unwrap_or_default()
    }

    fn program(&self, trace: &Trace) -> Program {
        let target = &trace.manifest.target;
        let first = self.processes.iter().filter(|p| p.pid.0 == target.pid);
        // The program that it ran last: a shell's command is begun by exec.
        let row = first.max_by_key(|p| p.born_ns);
        let executable = row.map_or_else(String::new, |p| {
            p.file.clone().unwrap_or_else(|| p.exe.clone())
        });
        Program {
            command: target.command.clone(),
            build_id: self.build_id(&executable),
            executable,
        }
    }

    /// A place with what its objects are found by.
    fn complete(&self, mut place: Place, first: Option<ObjectId>) -> Place {
        let Some(row) = first.and_then(|id| self.objects.get(&id)) else {
            return place;
        };
        if row.kind == ObjectKind::Static {
            let mapping = self.mapping(row.pid, row.address);
            place.build_id = mapping.and_then(|m| m.build_id.clone()).unwrap_or_default();
        }
        let site = row.site.and_then(|s| self.sites.get(&s));
        let frames = site.map_or(&[][..], |s| &s.frames);
        place.frames = frames
            .iter()
            .map(|frame| {
                let mapping = self.mapping(row.pid, frame.address);
                let offset = mapping.map(|m| frame.address.0 - m.address.0 + m.offset);
                let module = frame.module.clone().unwrap_or_default();
                SiteFrame {
                    function: frame.function.clone().unwrap_or_default(),
                    file: frame.file.clone().unwrap_or_default(),
                    line: frame.line.unwrap_or(0),
                    build_id: mapping.and_then(|m| m.build_id.clone()).unwrap_or_default(),
                    offset: offset.unwrap_or(0),
                    module: Path::new(&module).to_string_lossy().into_owned(),
                }
            })
            .collect();
        place
    }

    /// The part of a divided object, by offsets, where it is the only one of its group and not in several processes.
    fn part(&self, stream: &Stream, placement: &Placement) -> Option<(u32, Part)> {
        let spill = placement.spill.as_ref()?;
        let group = &stream.groups[spill.group as usize];
        let row = self
            .objects
            .get(&group.first?)
            .filter(|_| group.objects == 1)?;
        let page = |slot: u32| {
            let (pid, number) = stream.chunks[(slot / CHUNK_SLOTS) as usize];
            let page = number * u64::from(CHUNK_SLOTS) + u64::from(slot % CHUNK_SLOTS);
            (pid == row.pid).then_some(page)
        };
        let pages: Option<Vec<u64>> = spill.slots.iter().map(|&s| page(s)).collect();
        let pages = pages?;
        let (first, last) = (*pages.iter().min()?, *pages.iter().max()?);
        // A part with holes would take more than it is planned to.
        if Pages(last - first + 1) != Pages(pages.len() as u64) {
            return None;
        }
        let offset = |page: u64| (page * PAGE_BYTES).saturating_sub(row.address.0);
        let part = Part {
            from: offset(first),
            to: offset(last + 1).min(row.bytes.0),
        };
        (part.from < part.to).then_some((spill.group, part))
    }
}
