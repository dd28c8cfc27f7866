use std::io;

use varve_analyse::format;
use varve_model::{Bytes, Pid};
use varve_record::RecordError;
use varve_sys::{LimitError, SpawnError, ZramError};
use varve_tier::TierError;

/// Why a plan cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// There is one node.
    #[error("this machine has one node of memory: there is no other to place anything on")]
    OneNode,
    /// More tiers than nodes.
    #[error("the plan has {tiers} tiers, and this machine {nodes} nodes of memory")]
    FewNodes {
        /// Tiers of the plan.
        tiers: usize,
        /// Nodes that have memory.
        nodes: usize,
    },
    /// A node that is not there.
    #[error("there is no node {0} with memory on this machine")]
    NoNode(u32),
    /// A tier that the plan does not have.
    #[error("the plan has no tier `{0}`")]
    NoTier(String),
    /// Nothing can be swapped to.
    #[error("this machine has no swap that is free: pages that do not fit have nowhere to go")]
    NoSwap,
    /// The limit is not enough for any program.
    #[error("{} is too small a limit: a program alone takes {} and more", format::bytes(*limit), format::bytes(*least))]
    TinyLimit {
        /// What was asked for.
        limit: Bytes,
        /// What is the least.
        least: Bytes,
    },
    /// The limit and all swap do not hold the program.
    #[error("the plan's objects take {} at their peak, and the limit and free swap together hold {}", format::bytes(*needed), format::bytes(*room))]
    TooLittle {
        /// All planned objects at their peaks.
        needed: Bytes,
        /// The limit and what is free of swap.
        room: Bytes,
    },
    /// Nobody places anything in a process.
    #[error(
        "nothing is placed in process {0}: no `varve tier apply` runs it, or it has no memory shared with that"
    )]
    NotPlaced(Pid),
    /// Another plan.
    #[error("process {0} runs with another plan")]
    OtherPlan(Pid),
    /// Nobody can place objects.
    #[error("the preload library is not there, which places the objects")]
    NoLibrary,
    /// The preload library cannot be loaded.
    #[error("the preload library cannot be loaded: {0}")]
    Unreachable(String),
    /// Memory cannot be limited.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// No zram device.
    #[error(transparent)]
    Zram(#[from] ZramError),
    /// The command did not start.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The tiers of the plan.
    #[error(transparent)]
    Tiers(#[from] TierError),
    /// What is shared with the recorder.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Something of the system.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl PlaceError {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> PlaceError {
        move |source| PlaceError::System { action, source }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            PlaceError::OneNode => {
                Some("on one node, place memory and swap: --backend swap --memory SIZE")
            }
            PlaceError::FewNodes { .. } => Some(
                "plan for as many tiers as there are nodes, or give two tiers one node: --node TIER=NODE",
            ),
            PlaceError::NoNode(_) => Some("ls /sys/devices/system/node shows the nodes"),
            PlaceError::NoTier(_) => Some("`tiers` of the plan says which there are"),
            PlaceError::NoSwap => Some(
                "--zram SIZE makes one of compressed memory for as long as the command runs; or: modprobe zram && zramctl --find --size 4G, mkswap and swapon it",
            ),
            PlaceError::TinyLimit { .. } => Some("give more: --memory SIZE"),
            PlaceError::TooLittle { .. } => {
                Some("give more: --memory SIZE, or more swap: --zram SIZE")
            }
            PlaceError::NoLibrary => Some(
                "build it beside this program (cargo build -p varve-preload), or name it: VARVE_PRELOAD=/path/libvarve_preload.so",
            ),
            PlaceError::Limit(e) => Some(e.hint()),
            PlaceError::Zram(e) => Some(e.hint()),
            _ => None,
        }
    }

    /// The exit code: that of a shell where the command is at fault.
    pub fn exit_code(&self) -> u8 {
        match self {
            PlaceError::Spawn(e) => e.exit_code(),
            _ => 125,
        }
    }
}
