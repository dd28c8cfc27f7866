//! Objects of one name, kind and site.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use varve_model::{Bytes, Duration, Pages, Pid, Time};

use super::{Whole, covered};
use crate::analysis::{Group, Reuse, Usage};

impl Whole<'_> {
    pub(super) fn groups(&self, order: &[usize]) -> Vec<Group> {
        let mut members: HashMap<u32, Vec<usize>> = HashMap::new();
        for &i in order {
            members.entry(self.fold.sites.of(i)).or_default().push(i);
        }
        let groups = members.iter().map(|(&site, m)| self.group(site, m));
        let mut groups: Vec<Group> = groups.collect();
        groups.sort_by(|a, b| {
            let key = |g: &Group| (Reverse(g.usage.page_touches), Reverse(g.bytes));
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
        let mut usage = Usage::default();
        let mut untouched = 0;
        let mut lives: Vec<Duration> = Vec::new();
        let mut changes: Vec<(Time, bool, u64)> = Vec::new();
        let mut bytes = 0_u64;
        let mut processes: BTreeSet<Pid> = BTreeSet::new();
        for &i in members {
            let (row, stats) = (&rows[i], &self.fold.objects[i]);
            add_usage(&mut usage, self.usage(i));
            untouched += u64::from(stats.touched == 0);
            bytes = bytes.saturating_add(row.bytes.0);
            changes.push((row.born_ns, true, row.bytes.0));
            if let Some(died) = row.died_ns {
                lives.push(died - row.born_ns);
                changes.push((died.max(row.born_ns), false, row.bytes.0));
            }
            let users = u32::try_from(i).ok().and_then(|i| self.users.get(&i));
            match users {
                Some(users) => processes.extend(users.iter().map(|(pid, _)| Pid(*pid))),
                None if self.all.is_shared(i as u32) => (),
                None => _ = processes.insert(row.pid),
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
        let over_lives = usage.touched_pages;
        // What is known of the site as a whole takes the place of the sums.
        if let Some(all) = self.fold.sites.all.get(site as usize) {
            usage.touched_pages = Pages(all.touched);
            usage.page_touches = all.touches;
            usage.intervals_touched = u64::from(all.seen.intervals);
            usage.written_pages = usage.written_pages.map(|_| Pages(all.written));
            usage.shared_page_touches = all.shared;
            usage.huge_page_touches = all.huge;
            usage.standing_page_touches = all.standing;
            usage.possibly_others_page_touches = all.possibly;
            usage.cold_pages = Pages(all.cold);
        }
        Group {
            name: first.name.clone(),
            kind: first.kind,
            site: self.site(first).map(str::to_owned),
            objects: members.len() as u64,
            processes: processes.len() as u64,
            bytes: Bytes(bytes),
            touched_bytes: covered(usage.touched_pages, Bytes(bytes)),
            peak_bytes: Bytes(peak),
            died: lives.len() as u64,
            median_life_ns: lives.get(lives.len() / 2).copied(),
            untouched_objects: untouched,
            touched_pages_over_lives: over_lives,
            usage,
        }
    }
}

fn add_reuse(sum: &mut Reuse, more: Reuse) {
    sum.once.0 += more.once.0;
    sum.twice.0 += more.twice.0;
    sum.more.0 += more.more.0;
}

fn add_usage(sum: &mut Usage, more: Usage) {
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
    sum.first_touches.0 += more.first_touches.0;
}
