//! What a recording takes from the threads of a target.
#![allow(clippy::unwrap_used)]

use varve_faults::Stage;
use varve_goals::Goals;

/// Percent of runs in which the first of 128 busy threads had a tenth of what another had, or more.
fn fair(rounds: usize) -> f64 {
    let is_fair = || {
        let stage = Stage::new();
        let crowd = stage.record_actor(&["--interval", "10ms"], &["crowd", "128"]);
        let ended = stage.run(crowd).require(0);
        stage.require_clean(ended.pid);
        ended.text() == "fair\n"
    };
    let fair = (0..rounds).filter(|_| is_fair()).count();
    100.0 * fair as f64 / rounds as f64
}

fn main() {
    let mut goals = Goals::from_arguments("faults");
    let rounds = goals.rounds(5);
    let name = "128 busy threads: runs in which the first had its turns";
    goals.at_least(name, "%", 100.0, || fair(rounds));
    std::process::exit(goals.finish());
}
