//! Names as a person types them.

/// Whether a name is meant: all of it, without its place (`plate` for `plate (solver.c:3)`), or by `*` and `?`.
pub fn is_named(wanted: &str, name: &str) -> bool {
    let short = name.split(" (").next().unwrap_or(name);
    glob(wanted, name) || glob(wanted, short)
}

/// Whether a pattern is all of a text; `*` stands for any letters, `?` for one.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go on when the last star has to take one letter more.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => (p, t) = (p + 1, t + 1),
            _ => {
                let Some((after, taken)) = star else {
                    return false;
                };
                star = Some((after, taken + 1));
                (p, t) = (after, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_all_of_them_their_beginning_and_patterns() {
        let name = "plate (solver.cpp:34, in Solver::setup)";
        for wanted in [name, "plate", "pl*", "*solver.cpp*", "p?ate", "*"] {
            assert!(is_named(wanted, name), "{wanted}");
        }
        for wanted in ["plat", "late", "?", "", "next_*"] {
            assert!(!is_named(wanted, name), "{wanted}");
        }
        assert!(glob("a*b*c", "aXbYbZc") && !glob("a*b*c", "aXbYbZ"));
    }
}
