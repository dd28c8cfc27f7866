//! The line that says how a recording goes.

use std::cell::RefCell;

use varve_analyse::format;
use varve_model::Pages;
use varve_record::Live;
use varve_ui::Line;

thread_local! {
    // Drawn by the recorder's own thread alone.
    static LINE: RefCell<Option<Line>> = const { RefCell::new(None) };
}

/// Shows it.
pub(super) fn show(live: &Live) {
    LINE.with_borrow_mut(|line| line.get_or_insert_with(Line::new).set(&text(live)));
}

/// Takes the line away: other messages follow.
pub(super) fn clear() {
    LINE.with_borrow_mut(|line| *line = None);
}

fn text(live: &Live) -> String {
    let time = format::duration(live.recorded);
    if live.rests {
        return format!(
            "paused after {time}; kill -USR1 {} goes on, Ctrl-C ends it",
            std::process::id()
        );
    }
    let share = format::percent(live.held.0, live.recorded.0.max(1));
    format!(
        "{time} recorded, Ctrl-C ends it; {} touched in the last interval; held {share}, {} of CPU",
        format::pages_size(Pages(live.touched_pages)),
        format::duration(live.recorder_cpu)
    )
}
