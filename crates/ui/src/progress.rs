use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps of a whole bar.
const STEPS: u64 = 1000;

/// A bar on standard error for work that may take over a second; nothing is drawn before it does, nor
/// where standard error is not a terminal.
pub struct Progress {
    bar: ProgressBar,
    began: std::time::Instant,
}

impl Progress {
    /// A bar that says what is being done.
    pub fn new(what: &'static str) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} %") {
            bar.set_style(style);
        }
        bar.set_message(what);
        Progress {
            bar,
            began: std::time::Instant::now(),
        }
    }

    /// Sets the share that is done, 0 to 1.
    pub fn set(&self, share: f64) {
        if self.bar.is_hidden() && self.began.elapsed() > Duration::from_secs(1) {
            self.bar
                .set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        }
        self.bar
            .set_position((share.clamp(0.0, 1.0) * STEPS as f64) as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A line on standard error that changes, for work whose end nobody knows; nothing where standard error is not a terminal.
pub struct Line {
    bar: ProgressBar,
}

impl Line {
    /// An empty one.
    #[expect(clippy::new_without_default, reason = "it draws")]
    pub fn new() -> Line {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
        if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
            bar.set_style(style);
        }
        Line { bar }
    }

    /// Says something else.
    pub fn set(&self, text: &str) {
        self.bar
            .set_message(varve_model::visible(text).into_owned());
        self.bar.tick();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
