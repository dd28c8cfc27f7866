//! Plans applied to a running program.
//!
//! ```text
//! Plan ──Matcher──► which place a call stack, a variable, a file is ──Server──► the preload library places, and lists
//!      └─Tiers on nodes or swap: what is done with each place      └─Pager: what is cold goes out, from outside
//! ```
//!
//! [`apply`] is the one entry: it starts the command in a cgroup with a limit, answers the preload library, and takes back all that it
//! made when the command has ended. Watchdogs of the recorder take it back where this process is killed.

mod apply;
mod backend;
mod error;
mod matcher;
mod observe;
mod pager;
mod report;
mod server;
mod verify;
mod watch;

pub use apply::{Applied, ApplyOptions, apply, dry_run};
pub use backend::{Backend, NodeChoice, Planned, PlannedPlace, resolve};
pub use error::PlaceError;
pub use matcher::Match;
pub use observe::{Observer, PlaceLook};
pub use report::{APPLY_SCHEMA, AppliedPlace, ApplyReport};
pub use verify::{Seen, attached, conclude, verify};
pub use watch::{
    MIN_INTERVAL, WATCH_SCHEMA, Watch, WatchLook, WatchNode, WatchObject, WatchProcess, family,
};
