//! What recording costs a program in time, each figure with its goal.
#![allow(clippy::unwrap_used)]

#[path = "goals/cost.rs"]
mod cost;
#[path = "goals/hold.rs"]
mod hold;
#[path = "goals/waits.rs"]
mod waits;

use varve_goals::Goals;

fn main() {
    let mut goals = Goals::from_arguments("trust");
    cost::measure(&mut goals);
    hold::measure(&mut goals);
    waits::measure(&mut goals);
    std::process::exit(goals.finish());
}
