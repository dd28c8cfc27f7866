//! Names that act on a terminal do not reach one.

use varve_faults::{Stage, varve_binary};

/// Characters other than line breaks and tabs that do something rather than being seen.
fn acting(text: &str) -> Vec<char> {
    let acts = |c: &char| {
        (c.is_control() && !"\n\t".contains(*c))
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().filter(acts).collect()
}

#[test]
fn names_are_shown_and_do_not_act() {
    let stage = Stage::new();
    let program = varve_trust::program("escapes");
    let ended = stage.run(stage.record(&[], &[program])).require(0);
    stage.require_clean(ended.pid);
    let trace = "trace.varve";
    let mut seen = false;
    for arguments in [
        vec!["report", trace],
        vec!["report", trace, "--all"],
        vec!["report", trace, "--json"],
        vec!["export", trace, "--format", "folded", "-o", "-"],
        vec!["export", trace, "--format", "perf-script", "-o", "-"],
        vec!["export", trace, "--format", "csv", "-o", "-"],
        vec!["export", trace, "--format", "speedscope", "-o", "-"],
        vec!["report", "no\x1b[2Jwhere.varve"],
    ] {
        let mut command = stage.command(varve_binary());
        command.args(&arguments);
        let ended = stage.run(command);
        let text = String::from_utf8(ended.stdout.clone()).expect("text is UTF-8");
        assert_eq!(acting(&text), [], "{arguments:?}");
        assert_eq!(acting(&ended.stderr), [], "{arguments:?}");
        seen |= text.contains("\\x1b]0;x\\x07\\u{9b}");
    }
    assert!(seen, "the name of the thread is shown nowhere");
}
