//! A program that has its memory given back to the kernel itself, by `malloc_trim`.

use serde_json::Value;

use crate::support::{Recorded, compiled, record};

const ROUNDS: u64 = 300;
/// Of a round.
const BYTES: u64 = 1000 * 4000;

/// Fills blocks and frees them, so many times; with a word it trims after each. A block behind them stays, so that free alone never moves the heap's end.
const PROGRAM: &str = r#"
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
enum { ROUNDS = 300, BLOCKS = 1000, BYTES = 4000 };
static char *volatile blocks[BLOCKS];
static char *volatile last;
int main(int count, char **words) {
    (void)words;
    /* Each first touch is one of a small page */
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = malloc(BYTES);
            memset(blocks[i], 1, BYTES);
        }
        if (!last) last = malloc(BYTES);
        for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
        if (count > 1) malloc_trim(0);
    }
    return 0;
}
"#;

fn run(words: &[&str]) -> Recorded {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "trims", PROGRAM, &[]);
    record(&[], &[&[program.to_str().unwrap()], words].concat())
}

#[test]
fn the_program_is_named_and_no_bound_of_the_allocator() {
    let sick = run(&["trim"]);
    assert_eq!(sick.count("malloc_trim"), ROUNDS);
    let trims = &sick.judgement["operations"]["malloc_trim"];
    assert_eq!(trims["timed"], ROUNDS, "{trims}");
    // Each gives the free pages of one chunk back at least.
    let calls = trims["syscalls"].as_u64().unwrap();
    assert!(calls >= ROUNDS, "{trims}");
    assert!(sick.calls("madvise") >= ROUNDS);
    let given = sick.judgement["given_back"]["advised_bytes"].as_u64();
    assert!(given.unwrap() > ROUNDS * BYTES * 9 / 10, "{given:?}");
    assert_eq!(sick.diseases(), ["madvise_storm"]);
    let found = &sick.judgement["diagnoses"][0];
    assert_eq!(found["by_program"], true, "{found}");
    let text = |of: &Value| of.as_str().unwrap().to_owned();
    let (title, advice) = (text(&found["title"]), text(&found["advice"]));
    assert!(title.contains("malloc_trim"), "{title}");
    assert!(advice.contains("malloc_trim itself, 300 times"), "{advice}");
    assert!(!advice.contains("THRESHOLD"), "{advice}");
    assert_ne!(sick.judgement["verdict"]["answer"], "yes");

    let kept = run(&[]);
    assert_eq!(kept.count("malloc_trim"), 0);
    assert_eq!(kept.diseases(), [""; 0]);
}
