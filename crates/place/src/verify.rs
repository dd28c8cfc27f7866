//! Whether a plan held: where pages were while the program ran, and what that was worth.

use std::fs::File;
use std::time::{Duration, Instant};

use varve_analyse::format;
use varve_model::{Bytes, Pid};
use varve_preload_abi::placing::{Action, PLACING_NAME, Placements, place, place_at};
use varve_sys::{MapEntry, Signals, children_used, maps};
use varve_tier::{VERIFY_SCHEMA, Verified, VerifiedChange, VerifiedPlace, VerifiedRun};

use crate::apply::{ApplyOptions, apply};
use crate::backend::PlannedPlace;
use crate::error::PlaceError;
use crate::observe::{Observer, PlaceLook};

/// How often it is looked where pages are.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What was seen of one place.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    looks: u64,
    peak: u64,
    near: u64,
    all: u64,
    least: Option<f64>,
}

impl Seen {
    /// Adds a look.
    pub fn add(&mut self, look: PlaceLook) {
        let all = look.near + look.far;
        if all == 0 {
            return;
        }
        let share = look.near as f64 / all as f64;
        self.looks += 1;
        self.peak = self.peak.max(all);
        self.near += look.near;
        self.all += all;
        self.least = Some(self.least.map_or(share, |l| l.min(share)));
    }
}

/// What looks come to.
pub fn conclude(places: &[PlannedPlace], seen: &[Seen]) -> Verified {
    let mut verified = Verified {
        schema: VERIFY_SCHEMA,
        ..Verified::default()
    };
    let (mut near, mut all) = (0u64, 0u64);
    for (of, seen) in places.iter().zip(seen) {
        let share = (seen.all > 0).then(|| seen.near as f64 / seen.all as f64);
        let has_a_say = !matches!(of.action, Action::Yield | Action::List);
        if has_a_say {
            near += seen.near;
            all += seen.all;
        }
        verified.places.push(VerifiedPlace {
            name: of.place.name.clone(),
            kind: of.place.kind.clone(),
            tier: of.place.tier.clone(),
            looks: seen.looks,
            peak_pages: seen.peak,
            share_near: share,
            least_share_near: seen.least,
            share_right: share.filter(|_| has_a_say),
        });
    }
    verified.share_right = (all > 0).then(|| near as f64 / all as f64);
    let unseen = seen.iter().filter(|s| s.looks == 0).count() as u64;
    if unseen > 0 {
        verified.notes.push(format!(
            "Nothing was seen of {} of {}.",
            format::counted(unseen, "place"),
            format::count(places.len() as u64)
        ));
    }
    verified
}

/// Runs a command as planned and without the plan, in turns, and looks where pages are.
///
/// # Errors
/// Where the plan cannot be applied here, or the command does not start.
pub fn verify(
    options: &ApplyOptions,
    rounds: usize,
    signals: &mut Signals,
    progress: &mut dyn FnMut(f64),
) -> Result<Verified, PlaceError> {
    let mut seen: Vec<Seen> = Vec::new();
    let mut places: Vec<PlannedPlace> = Vec::new();
    let (mut planned, mut unplanned) = (Vec::new(), Vec::new());
    let mut notes: Vec<String> = Vec::new();
    let total = rounds * 2;
    for turn in 0..total {
        // Each goes first as often as the other.
        let is_planned = (turn % 2 == 0) == (turn / 2 % 2 == 0);
        let options = ApplyOptions {
            is_planned,
            is_silent: true,
            ..options.clone()
        };
        let mut observer = Observer::default();
        let mut looked_at = Instant::now();
        let before = children_used();
        let done = apply(&options, signals, &mut |_| {}, &mut |placements, of| {
            if !is_planned || looked_at.elapsed() < LOOK_EVERY {
                return;
            }
            looked_at = Instant::now();
            if seen.len() < of.places.len() {
                seen.resize(of.places.len(), Seen::default());
                places.clone_from(&of.places);
            }
            for (seen, look) in seen.iter_mut().zip(observer.look(placements, &of.places)) {
                seen.add(look);
            }
        })?;
        let after = children_used();
        let run = VerifiedRun {
            wall_ns: done.report.duration_ns,
            major_faults: after.major_faults.saturating_sub(before.major_faults),
            exit_code: done.exit_code,
        };
        match is_planned {
            true => {
                planned.push(run);
                if places.is_empty() {
                    places = done.planned.places;
                    seen = vec![Seen::default(); places.len()];
                }
                notes = done.report.notes;
            }
            false => unplanned.push(run),
        }
        progress((turn + 1) as f64 / total as f64);
        if done.is_interrupted {
            break;
        }
    }
    let mut verified = conclude(&places, &seen);
    notes.append(&mut verified.notes);
    verified.notes = notes;
    let codes: Vec<i32> = planned
        .iter()
        .chain(&unplanned)
        .map(|r| r.exit_code)
        .collect();
    if codes.windows(2).any(|c| c[0] != c[1]) {
        verified
            .notes
            .push("The runs did not all end with the same exit code.".to_owned());
    }
    verified.change = change(&planned, &unplanned);
    verified.planned = planned;
    verified.unplanned = unplanned;
    Ok(verified)
}

/// Looks at a process that somebody else's `apply` runs with the same plan: what it has listed stands in memory that it has mapped.
///
/// # Errors
/// Where nobody placed anything in it, or it cannot be looked at.
pub fn attached(options: &ApplyOptions, pid: Pid) -> Result<Verified, PlaceError> {
    // What it swaps to, it has already: that much is not free any more.
    let planned = options.resolve_with(Bytes(u64::MAX))?;
    let looking = || PlaceError::system("look at the process's mappings");
    let maps = maps(pid).map_err(looking())?;
    let is_it = |entry: &&MapEntry| {
        let name = entry.path.strip_prefix("/memfd:");
        name.is_some_and(|name| name.starts_with(PLACING_NAME))
    };
    let entry = maps.iter().find(is_it).ok_or(PlaceError::NotPlaced(pid))?;
    let end = entry.address.0 + entry.bytes.0;
    let path = format!("/proc/{pid}/map_files/{:x}-{end:x}", entry.address.0);
    let file = File::options()
        .read(true)
        .write(true)
        .open(path)
        .map_err(looking())?;
    let placements = Placements::open(file.into()).map_err(looking())?;
    let same =
        planned.places.iter().enumerate().all(|(number, of)| {
            placements.get(place_at(number, place::ACTION)) == of.action.word()
        });
    if !same {
        return Err(PlaceError::OtherPlan(pid));
    }
    let mut seen = vec![Seen::default(); planned.places.len()];
    let looks = Observer::default().look(&placements, &planned.places);
    for (seen, look) in seen.iter_mut().zip(looks) {
        seen.add(look);
    }
    Ok(conclude(&planned.places, &seen))
}

fn change(planned: &[VerifiedRun], unplanned: &[VerifiedRun]) -> Option<VerifiedChange> {
    let median = |of: &[VerifiedRun], what: fn(&VerifiedRun) -> u64| {
        let mut all: Vec<u64> = of.iter().map(what).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    };
    let ratio = |what: fn(&VerifiedRun) -> u64| {
        let (with, without) = (median(planned, what)?, median(unplanned, what)?);
        (without > 0).then(|| with as f64 / without as f64)
    };
    Some(VerifiedChange {
        wall: ratio(|r| r.wall_ns)?,
        major_faults: ratio(|r| r.major_faults),
    })
}

#[cfg(test)]
mod tests {
    use varve_tier::Place;

    use super::*;

    #[test]
    fn the_share_is_of_what_was_seen_and_what_yields_has_no_say() {
        let of = |action| PlannedPlace {
            place: Place::default(),
            action,
        };
        let places = [of(Action::Keep), of(Action::Yield), of(Action::Keep)];
        let mut seen = vec![Seen::default(); 3];
        seen[0].add(PlaceLook { near: 30, far: 10 });
        seen[0].add(PlaceLook { near: 40, far: 0 });
        seen[0].add(PlaceLook::default());
        seen[1].add(PlaceLook { near: 0, far: 100 });
        let found = conclude(&places, &seen);
        assert_eq!(found.share_right, Some(70.0 / 80.0));
        assert_eq!(found.places[0].least_share_near, Some(0.75));
        assert_eq!(found.places[0].looks, 2);
        assert_eq!(found.places[1].share_right, None);
        assert_eq!(found.places[1].share_near, Some(0.0));
        assert_eq!(found.notes, ["Nothing was seen of 1 place of 3."]);
    }

    #[test]
    fn medians_are_compared() {
        let run = |wall_ns, major_faults| VerifiedRun {
            wall_ns,
            major_faults,
            exit_code: 0,
        };
        let found = change(
            &[run(5, 1), run(6, 1), run(90, 9)],
            &[run(12, 0), run(12, 0)],
        );
        assert_eq!(
            found,
            Some(VerifiedChange {
                wall: 0.5,
                major_faults: None
            })
        );
        assert_eq!(change(&[], &[]), None);
    }
}
