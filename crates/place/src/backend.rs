//! What is to be done with the objects of each place.

use varve_analyse::format;
use varve_model::Bytes;
use varve_preload_abi::placing::{Action, MAX_PLACES};
use varve_sys::{LimitKind, Node};
use varve_tier::{Place, Plan};

use crate::error::PlaceError;

/// A tier and the node that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChoice {
    /// The tier's name.
    pub tier: String,
    /// The node's number.
    pub node: u32,
}

/// What tiers are on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Nodes of memory: the tiers of the plan, in their order, are the nodes from the nearest on, unless chosen.
    Numa {
        /// Tiers whose nodes are chosen.
        nodes: Vec<NodeChoice>,
    },
    /// The first tier is memory, all others are swap.
    Swap {
        /// What the program may have of memory.
        memory: Bytes,
        /// Which limit of the kernel's.
        limit: LimitKind,
    },
}

/// A limit below this does not hold a program's code, stack and page tables.
const LEAST: Bytes = Bytes(2 << 20);

/// A place, and what is done with it here.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedPlace {
    /// The place.
    pub place: Place,
    /// What is done with its objects.
    pub action: Action,
}

/// A plan on this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Its places, as many as there is room for.
    pub places: Vec<PlannedPlace>,
    /// The node from which all comes that no place names.
    pub default_node: Option<u32>,
    /// Bytes that may be locked.
    pub lock_limit: Bytes,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// What a plan comes to on this machine. `swap` is what is free to be swapped to, `memlock` what a process may lock.
///
/// # Errors
/// Where it cannot work here.
pub fn resolve(
    plan: &Plan,
    backend: &Backend,
    nodes: &[Node],
    swap: Bytes,
    memlock: Option<Bytes>,
) -> Result<Planned, PlaceError> {
    let tiers = plan.resolve_tiers()?;
    let mut notes = Vec::new();
    if plan.places.len() > MAX_PLACES {
        notes.push(format!(
            "The plan has {} places; the first {} are applied.",
            format::count(plan.places.len() as u64),
            format::count(MAX_PLACES as u64)
        ));
    }
    let fastest = tiers.all()[0].name.clone();
    let mut lock_limit = Bytes(0);
    let mut default_node = None;
    let action: Box<dyn Fn(&Place) -> Action> = match backend {
        Backend::Numa { nodes: chosen } => {
            if nodes.len() < 2 {
                return Err(PlaceError::OneNode);
            }
            for choice in chosen {
                if !nodes.iter().any(|n| n.number == choice.node) {
                    return Err(PlaceError::NoNode(choice.node));
                }
                if !tiers.all().iter().any(|t| t.name == choice.tier) {
                    return Err(PlaceError::NoTier(choice.tier.clone()));
                }
            }
            let mut of_tiers = Vec::new();
            for (rank, tier) in tiers.all().iter().enumerate() {
                let choice = chosen.iter().find(|c| c.tier == tier.name).map(|c| c.node);
                let node = choice.or_else(|| nodes.get(rank).map(|n| n.number));
                let node = node.ok_or(PlaceError::FewNodes {
                    tiers: tiers.all().len(),
                    nodes: nodes.len(),
                })?;
                of_tiers.push((tier.name.clone(), node));
            }
            let node_of = move |tier: &str| {
                let found = of_tiers.iter().find(|(name, _)| name == tier);
                found.map_or(0, |(_, node)| *node)
            };
            default_node = Some(node_of(&plan.default));
            Box::new(move |place: &Place| Action::Bind(node_of(&place.tier)))
        }
        Backend::Swap { memory, .. } => {
            if *memory < LEAST {
                return Err(PlaceError::TinyLimit {
                    limit: *memory,
                    least: LEAST,
                });
            }
            if swap.0 == 0 {
                return Err(PlaceError::NoSwap);
            }
            let needed = Bytes(
                plan.places
                    .iter()
                    .map(|p| p.peak_bytes)
                    .fold(0, u64::saturating_add),
            );
            let room = Bytes(memory.0.saturating_add(swap.0));
            if needed > room {
                return Err(PlaceError::TooLittle { needed, room });
            }
            lock_limit = kept_at_most(*memory);
            let kept: u64 = plan
                .places
                .iter()
                .filter(|p| p.tier == fastest)
                .map(|p| p.part.map_or(p.peak_bytes, |part| part.to - part.from))
                .fold(0, u64::saturating_add);
            if let Some(most) = memlock.filter(|most| *most < lock_limit) {
                lock_limit = most;
                if kept > most.0 {
                    notes.push(format!(
                        "RLIMIT_MEMLOCK lets a process lock {}, and {} are to be kept: the rest is left to the kernel; `ulimit -l` raises it.",
                        format::bytes(most),
                        format::bytes(Bytes(kept))
                    ));
                }
            }
            if kept > lock_limit.0 && memlock.is_none_or(|most| most >= lock_limit) {
                notes.push(format!(
                    "{} belong to `{fastest}`, and {} of {} can be kept, as the rest of the program needs room too: what comes last is left to the kernel.",
                    format::bytes(Bytes(kept)),
                    format::bytes(lock_limit),
                    format::bytes(*memory)
                ));
            }
            Box::new(move |place: &Place| match place.tier == fastest {
                true => Action::Keep,
                false => Action::Yield,
            })
        }
    };
    let places = plan
        .places
        .iter()
        .take(MAX_PLACES)
        .map(|place| PlannedPlace {
            action: action(place),
            place: place.clone(),
        })
        .collect();
    Ok(Planned {
        places,
        default_node,
        lock_limit,
        notes,
    })
}

/// What may be locked under a limit: code, stacks, page tables and what goes through memory need the rest.
fn kept_at_most(memory: Bytes) -> Bytes {
    let rest = (memory.0 / 8).max(4 << 20).min(memory.0 / 2);
    Bytes(memory.0 - rest)
}

#[cfg(test)]
mod tests {
    use varve_tier::PLAN_SCHEMA;

    use super::*;

    fn plan() -> Plan {
        let place = |tier: &str, bytes: u64| Place {
            tier: tier.into(),
            kind: "heap".into(),
            name: "x".into(),
            peak_bytes: bytes,
            ..Place::default()
        };
        Plan {
            schema: PLAN_SCHEMA.into(),
            program: Default::default(),
            expected: Default::default(),
            tiers: vec!["fast=64MiB,80ns".into(), "slow=inf,250ns".into()],
            default: "slow".into(),
            places: vec![place("fast", 60 << 20), place("slow", 100 << 20)],
        }
    }

    fn node(number: u32) -> Node {
        Node {
            number,
            has_cpus: number == 0,
            distance: 10 + number,
            bytes: Bytes(1 << 30),
        }
    }

    fn swap(memory: u64) -> Backend {
        Backend::Swap {
            memory: Bytes(memory),
            limit: LimitKind::Max,
        }
    }

    #[test]
    fn tiers_are_nodes_in_their_order_unless_chosen() {
        let numa = |nodes: Vec<NodeChoice>| Backend::Numa { nodes };
        let on =
            |backend: Backend, nodes: &[Node]| resolve(&plan(), &backend, nodes, Bytes(0), None);
        let found = on(numa(vec![]), &[node(0), node(1)]).unwrap();
        let actions: Vec<Action> = found.places.iter().map(|p| p.action).collect();
        assert_eq!(actions, [Action::Bind(0), Action::Bind(1)]);
        assert_eq!(found.default_node, Some(1));
        let choice = |tier: &str, node| NodeChoice {
            tier: tier.into(),
            node,
        };
        let found = on(
            numa(vec![choice("fast", 1), choice("slow", 0)]),
            &[node(0), node(1)],
        );
        assert_eq!(found.unwrap().places[0].action, Action::Bind(1));
        let one = on(numa(vec![]), &[node(0)]).unwrap_err();
        assert!(one.to_string().contains("one node"), "{one}");
        let none = on(numa(vec![choice("fast", 7)]), &[node(0), node(1)]).unwrap_err();
        assert_eq!(
            none.to_string(),
            "there is no node 7 with memory on this machine"
        );
        let other = on(numa(vec![choice("cold", 1)]), &[node(0), node(1)]).unwrap_err();
        assert!(other.to_string().contains("no tier `cold`"));
    }

    #[test]
    fn memory_and_swap_must_hold_the_plan() {
        let on = |memory: u64, free: u64, lock: Option<u64>| {
            resolve(
                &plan(),
                &swap(memory),
                &[node(0)],
                Bytes(free),
                lock.map(Bytes),
            )
        };
        assert!(matches!(
            on(1 << 20, 1 << 30, None),
            Err(PlaceError::TinyLimit { .. })
        ));
        assert!(matches!(on(1 << 27, 0, None), Err(PlaceError::NoSwap)));
        assert!(matches!(
            on(64 << 20, 1 << 20, None),
            Err(PlaceError::TooLittle { .. })
        ));
        let found = on(128 << 20, 1 << 30, None).unwrap();
        assert_eq!(found.places[0].action, Action::Keep);
        assert_eq!(found.places[1].action, Action::Yield);
        assert_eq!(found.lock_limit, Bytes(112 << 20));
        assert!(found.notes.is_empty());
        // Less than what is to be kept: said, and the limit of locks bounds it.
        let found = on(64 << 20, 1 << 30, None).unwrap();
        assert!(found.notes[0].contains("can be kept"), "{:?}", found.notes);
        let found = on(128 << 20, 1 << 30, Some(8 << 20)).unwrap();
        assert_eq!(found.lock_limit, Bytes(8 << 20));
        assert!(
            found.notes[0].contains("RLIMIT_MEMLOCK"),
            "{:?}",
            found.notes
        );
    }
}
