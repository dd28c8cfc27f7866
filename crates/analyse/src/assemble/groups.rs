//! Objects of one name, kind and site.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use varve_model::{Bytes, Capability, Duration, Pages, Pid, Tid, Time};

use super::Whole;
use super::objects::covered;
use crate::analysis::{Faulted, Group, GroupProcess, Reuse, ThreadShare, Touched};

impl Whole<'_> {
    pub(super) fn groups(&self, order: &[usize]) -> Vec<Group> {
        let mut members: HashMap<u32, Vec<usize>> = HashMap::new();
        for &i in order {
            members.entry(self.fold.sites.of(i)).or_default().push(i);
        }
        let groups = members.iter().map(|(&site, m)| self.group(site, m));
        let mut groups: Vec<Group> = groups.collect();
        groups.sort_by(|a, b| {
            let touches = |g: &Group| g.usage.touched.get().map(|t| t.page_touches);
            let key = |g: &Group| (Reverse(touches(g)), Reverse(g.bytes));
            key(a)
                .cmp(&key(b))
                .then_with(|| a.name.cmp(&b.name))
                .then_with(|| a.site.cmp(&b.site))
        });
        groups
    }

    fn group(&self, site: u32, members: &[usize]) -> Group {
        let rows = &self.tables.objects;
        let first = &rows[members[0]];
        let (mut sum, mut faulted) = (Touched::default(), Faulted::default());
        let has_touches = self.has(Capability::Touches);
        let mut untouched = 0;
        let mut lives: Vec<Duration> = Vec::new();
        let mut changes: Vec<(Time, bool, u64)> = Vec::new();
        let mut bytes = 0_u64;
        let mut processes: BTreeMap<Pid, GroupProcess> = BTreeMap::new();
        let mut threads: BTreeMap<(Pid, Tid), u64> = BTreeMap::new();
        for &i in members {
            let (row, stats) = (&rows[i], &self.fold.objects[i]);
            add_touched(&mut sum, self.touched(i));
            let of = self.faulted(i);
            faulted.first_touches.0 += of.first_touches.0;
            faulted.faults += of.faults;
            untouched += u64::from(stats.touched == 0);
            bytes = bytes.saturating_add(row.bytes.0);
            changes.push((row.born_ns, true, row.bytes.0));
            if let Some(died) = row.died_ns {
                lives.push(died - row.born_ns);
                changes.push((died.max(row.born_ns), false, row.bytes.0));
            }
            let position = i as u32;
            let mut used = |pid, touched, touches| {
                let of = processes.entry(pid).or_insert(GroupProcess {
                    pid,
                    objects: 0,
                    touched_pages_over_lives: has_touches.then_some(Pages(0)),
                    page_touches: has_touches.then_some(0),
                });
                of.objects += 1;
                of.touched_pages_over_lives
                    .iter_mut()
                    .for_each(|p| p.0 += touched);
                of.page_touches.iter_mut().for_each(|t| *t += touches);
            };
            match self.users.get(&position) {
                Some(users) => users
                    .iter()
                    .for_each(|(pid, user)| used(Pid(*pid), user.touched, user.touches)),
                None if self.all.is_shared(position) => (),
                None => used(row.pid, stats.touched, stats.touches),
            }
            for share in self.shares.get(&position).into_iter().flatten() {
                *threads.entry((share.pid, share.tid)).or_default() += share.pages.0;
            }
        }
        // Deaths come before births of the same moment.
        changes.sort_unstable();
        let (mut now, mut peak) = (0_u64, 0_u64);
        for (_, born, bytes) in changes {
            now = if born {
                now.saturating_add(bytes)
            } else {
                now.saturating_sub(bytes)
            };
            peak = peak.max(now);
        }
        lives.sort_unstable();
        let over_lives = sum.touched_pages;
        // What is known of the site as a whole takes the place of the sums.
        if let Some(all) = self.fold.sites.all.get(site as usize) {
            sum.touched_pages = Pages(all.touched);
            sum.page_touches = all.touches;
            sum.intervals_touched = u64::from(all.seen.intervals);
            sum.written_pages = sum.written_pages.map(|_| Pages(all.written));
            sum.shared_page_touches = all.shared;
            sum.huge_page_touches = all.huge;
            sum.standing_page_touches = all.standing;
            sum.possibly_others_page_touches = all.possibly;
            sum.cold_pages = Pages(all.cold);
        }
        let mut processes: Vec<GroupProcess> = processes.into_values().collect();
        sum.touched_bytes = covered(sum.touched_pages, Bytes(bytes));
        let has_places = self.has(Capability::Places);
        let has_lives = self.has(Capability::Lives);
        processes.sort_by_key(|p| (Reverse(p.page_touches), p.pid));
        let threads = threads.into_iter();
        let threads = threads.map(|((pid, tid), pages)| ThreadShare {
            pid,
            tid,
            pages: Pages(pages),
        });
        let mut threads: Vec<ThreadShare> = threads.collect();
        threads.sort_by_key(|t| (Reverse(t.pages), t.tid));
        Group {
            name: first.name.clone(),
            kind: first.kind,
            site: self.tables.site(first).map(str::to_owned),
            objects: members.len() as u64,
            processes,
            threads: self.has(Capability::Faults).then_some(threads),
            bytes: has_places.then_some(Bytes(bytes)),
            peak_bytes: (has_places && has_lives).then_some(Bytes(peak)),
            died: has_lives.then_some(lives.len() as u64),
            median_life_ns: lives.get(lives.len() / 2).copied(),
            untouched_objects: has_touches.then_some(untouched),
            touched_pages_over_lives: has_touches.then_some(over_lives),
            touch_share: self.touch_share(members),
            usage: self.usage(sum, faulted),
        }
    }
}

fn add_reuse(sum: &mut Reuse, more: Reuse) {
    sum.once.0 += more.once.0;
    sum.twice.0 += more.twice.0;
    sum.more.0 += more.more.0;
}

fn add_touched(sum: &mut Touched, more: Touched) {
    sum.touched_pages.0 += more.touched_pages.0;
    sum.page_touches += more.page_touches;
    sum.intervals_touched += more.intervals_touched;
    sum.first_touch_ns = match (sum.first_touch_ns, more.first_touch_ns) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    sum.last_touch_ns = sum.last_touch_ns.max(more.last_touch_ns);
    add_reuse(&mut sum.reuse, more.reuse);
    if let Some(written) = more.written_pages {
        sum.written_pages.get_or_insert_default().0 += written.0;
    }
    sum.shared_page_touches += more.shared_page_touches;
    sum.huge_page_touches += more.huge_page_touches;
    sum.standing_page_touches += more.standing_page_touches;
    sum.possibly_others_page_touches += more.possibly_others_page_touches;
    sum.cold_pages.0 += more.cold_pages.0;
}
