//! Which objects hold single bytes at single moments.

use varve_model::{Address, PageRange, Pages, Pid, Time};

use crate::owners::Owners;
use crate::span::{Share, Span, SpanIndex};

/// The innermost object at each of the points, of those that live at that very moment. Points may come in any order.
pub fn owners_at(spans: &[Span], points: &[(Pid, Address, Time)]) -> Vec<Option<SpanIndex>> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by_key(|&index| points[index].2);
    let mut owners = Owners::new(spans);
    let mut found = vec![None; points.len()];
    for index in order {
        let (pid, address, time) = points[index];
        owners.advance(time, Time(time.0.saturating_add(1)));
        let page = PageRange {
            first: address.page(),
            count: Pages(1),
        };
        owners.owners(pid, page, |_, shares| {
            let holds = |share: &&Share| {
                let span = &spans[share.object.0 as usize];
                address >= span.address && address.0 < span.end()
            };
            let best = shares
                .iter()
                .filter(holds)
                .max_by_key(|share| spans[share.object.0 as usize].layer);
            found[index] = best.map(|share| share.object);
        });
    }
    found
}
