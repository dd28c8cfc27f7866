//! Each object, and what a trace can know of it.

use std::cmp::Reverse;

use varve_model::{Bytes, Capability, ObjectKind, Pages, Pid, Tid, Time};
use varve_objects::Layer;

use super::Whole;
use crate::analysis::*;
use crate::fold::User;
use crate::stats::{NEVER, SHARE};

impl Whole<'_> {
    fn moment(&self, interval: u32) -> Option<Time> {
        (interval != NEVER)
            .then(|| {
                self.tables
                    .intervals
                    .get(interval as usize)
                    .map(|i| i.end_ns)
            })
            .flatten()
    }

    /// What touches say of an object.
    pub(super) fn touched(&self, i: usize) -> Touched {
        let (stats, seen) = (&self.fold.objects[i], &self.fold.seen[i]);
        let pages = Pages(stats.touched);
        Touched {
            touched_pages: pages,
            touched_bytes: covered(pages, self.tables.objects[i].bytes),
            page_touches: stats.touches,
            intervals_touched: u64::from(seen.intervals),
            first_touch_ns: self.moment(seen.first),
            last_touch_ns: self.moment(seen.last),
            reuse: stats.reuse,
            written_pages: (self.pass.writes != Writes::Unknown).then_some(Pages(stats.written)),
            shared_page_touches: stats.shared,
            huge_page_touches: stats.huge,
            standing_page_touches: stats.standing,
            possibly_others_page_touches: stats.possibly,
            cold_pages: Pages(stats.cold),
        }
    }

    /// The share that objects have of all page touches; none in a trace without touches.
    pub(super) fn touch_share(&self, objects: &[usize]) -> Option<f64> {
        let divided = objects.iter().map(|&i| self.fold.objects[i].divided);
        let all = u128::from(self.pass.page_touches) * SHARE;
        let share = divided.sum::<u128>() as f64 / all.max(1) as f64;
        self.has(Capability::Touches).then_some(share)
    }

    /// What page faults say of an object.
    pub(super) fn faulted(&self, i: usize) -> Faulted {
        let stats = &self.fold.objects[i];
        Faulted {
            first_touches: Pages(stats.first_touches),
            faults: stats.faults,
        }
    }

    /// What of the figures the trace can know.
    pub(super) fn usage(&self, touched: Touched, faulted: Faulted) -> Usage {
        Usage {
            touched: self.together(Capability::Touches, touched),
            faulted: self.together(Capability::Faults, faulted),
        }
    }

    /// Fills in the objects of the chosen names and kinds, and their groups.
    pub(super) fn list(
        &self,
        analysis: &mut Analysis,
        most: usize,
        is_chosen: impl Fn(&str, ObjectKind) -> bool,
    ) {
        let stats = |i: usize| &self.fold.objects[i];
        let rows = &self.tables.objects;
        let mut order: Vec<usize> = (0..rows.len())
            .filter(|&i| !stats(i).own && is_chosen(&rows[i].name, rows[i].kind))
            .collect();
        order.sort_by_key(|&i| {
            (
                Reverse(stats(i).touches),
                Reverse(rows[i].bytes),
                rows[i].object,
            )
        });
        analysis.groups = self.groups(&order);
        let omitted = order.get(most..).unwrap_or_default().iter().copied();
        let bytes = omitted
            .clone()
            .map(|i| rows[i].bytes.0)
            .fold(0, u64::saturating_add);
        let pages = omitted.clone().map(|i| stats(i).touched).sum();
        let touches = omitted.clone().map(|i| stats(i).touches).sum();
        let has_touches = self.has(Capability::Touches);
        analysis.omitted = Omitted {
            objects: omitted.len() as u64,
            bytes: self.has(Capability::Places).then_some(Bytes(bytes)),
            touched_pages_over_lives: has_touches.then_some(Pages(pages)),
            page_touches: has_touches.then_some(touches),
        };
        order.truncate(most);
        analysis.objects = order.into_iter().map(|i| self.object(i)).collect();
    }

    fn object(&self, i: usize) -> ObjectUse {
        let (row, stats) = (&self.tables.objects[i], &self.fold.objects[i]);
        let first = self.fold.threads.get(stats.first_thread as usize);
        let position = u32::try_from(i).unwrap_or(u32::MAX);
        let has_places = self.has(Capability::Places);
        ObjectUse {
            object: row.object,
            name: row.name.clone(),
            kind: row.kind,
            site: self.tables.site(row).map(str::to_owned),
            pid: row.pid,
            address: has_places.then_some(row.address),
            bytes: has_places.then_some(row.bytes),
            pool: row.pool,
            born_ns: self.has(Capability::Lives).then_some(row.born_ns),
            died_ns: row.died_ns,
            born_tid: row.tid,
            usage: self.usage(self.touched(i), self.faulted(i)),
            touch_share: self.touch_share(&[i]),
            reserved: row.kind == ObjectKind::Mapping && row.layer == Layer::SEGMENT.number(),
            processes: self.users_of(position),
            reads: None,
            writes: None,
            first_touch_tid: first.map(|t| Tid(t.tid)),
            threads: self
                .has(Capability::Faults)
                .then(|| self.shares.get(&position).cloned().unwrap_or_default()),
        }
    }

    fn users_of(&self, object: u32) -> Vec<ObjectProcess> {
        let thread = |user: &User| self.fold.threads.get(user.first_thread as usize);
        let users = self.users.get(&object).into_iter().flatten();
        let has_touches = self.has(Capability::Touches);
        users
            .map(|(pid, user)| ObjectProcess {
                pid: Pid(*pid),
                touched_pages: has_touches.then_some(Pages(user.touched)),
                page_touches: has_touches.then_some(user.touches),
                written_pages: (self.pass.writes != Writes::Unknown).then_some(Pages(user.written)),
                first_touch_tid: thread(user).map(|t| Tid(t.tid)),
            })
            .collect()
    }
}

/// What objects of this size cover of pages, at most. Where sizes are not known, all of them.
pub(super) fn covered(pages: Pages, bytes: Bytes) -> Bytes {
    match bytes.0 {
        0 => pages.bytes(),
        _ => pages.bytes().min(bytes),
    }
}
