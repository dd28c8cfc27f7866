//! The variable that an allocation is assigned to, read from the line of source that allocates.
//!
//! A heuristic by design: it looks at one statement's text, and answers only where the statement has one of a few
//! well-known shapes. No answer is better than a wrong one.

/// A statement may start this many lines before the line of the call, or end this many after it.
const REACH: usize = 6;

/// Words that allocate. The statement must have one of them for an assignment to count.
const ALLOCATORS: &[&str] = &[
    "malloc",
    "alloc",
    "new ",
    "new(",
    "new[",
    "make_unique",
    "make_shared",
    "mmap",
    "memalign",
    "strdup",
    "vec!",
    "Vec",
    "with_capacity",
    "Box",
    "reserve",
    "resize",
    "assign",
    "create",
    "collect",
    "zeros",
    "sbrk",
    "shmat",
    "vector",
    "valarray",
];

/// Words that start a statement and are no variables.
const KEYWORDS: &[&str] = &[
    "return", "if", "while", "for", "else", "switch", "case", "sizeof", "new", "delete", "throw",
    "static", "const", "auto", "int", "double", "float", "char", "void", "long", "unsigned", "let",
    "mut", "call", "match", "loop", "std", "struct",
];

/// Finds the variable that the statement at `line` (from 1) assigns an allocation to. `column` (the byte, from 1) is where the
/// call stands, where that is known: it distinguishes what several statements, or declarations, of one line allocate.
pub(crate) fn assigned_variable(
    source: &[&str],
    line: usize,
    column: Option<u32>,
) -> Option<String> {
    let index = line.checked_sub(1)?;
    let own = strip_comment(source.get(index)?);
    let parts = allocating(own);
    if parts.len() > 1 {
        let Some(column) = column.filter(|c| *c > 0) else {
            // Without a column only a name that is all of theirs is right.
            let mut names = parts.iter().map(|(_, part)| from_statement(part));
            let first = names.next()??;
            return names.all(|n| n.as_ref() == Some(&first)).then_some(first);
        };
        let at = column as usize - 1;
        let own = |(from, part): &&(usize, &str)| (*from..from + part.len()).contains(&at);
        return parts.iter().find(own).and_then(|(_, p)| from_statement(p));
    }
    let statement = statement(source, index)?;
    from_statement(&statement).or_else(|| from_statement(own.trim()))
}

/// The statements and declarations of a line that allocate, each with the byte where it begins.
fn allocating(line: &str) -> Vec<(usize, &str)> {
    let mut ends = Vec::new();
    let mut depth = 0usize;
    for (at, letter) in line.bytes().enumerate() {
        match letter {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b';' | b'{' | b'}' => {
                depth = 0;
                ends.push(at);
            }
            b',' if depth == 0 => ends.push(at),
            _ => {}
        }
    }
    ends.push(line.len());
    let mut from = 0;
    let mut parts = Vec::new();
    for end in ends {
        if let Some(part) = line.get(from..end).filter(|part| allocates(part)) {
            parts.push((from, part));
        }
        from = end + 1;
    }
    parts
}

fn allocates(part: &str) -> bool {
    let lower = part.to_ascii_lowercase();
    let mut words = ALLOCATORS.iter();
    words.any(|word| part.contains(word) || lower.contains(word))
}

/// The text of the statement that covers the line.
fn statement(source: &[&str], index: usize) -> Option<String> {
    let ends = |line: &str| {
        let line = strip_comment(line);
        let line = line.trim_end();
        line.is_empty()
            || line.ends_with([';', '{', '}', ':'])
            || line.trim_start().starts_with('#')
    };
    let mut first = index;
    while first > 0 && index - first < REACH && !ends(source.get(first - 1)?) {
        first -= 1;
    }
    let mut last = index;
    while last - index < REACH && !ends(source.get(last)?) && last + 1 < source.len() {
        last += 1;
    }
    let lines: Vec<&str> = source
        .get(first..=last)?
        .iter()
        .map(|line| strip_comment(line).trim())
        .collect();
    Some(lines.join(" "))
}

fn strip_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

fn from_statement(statement: &str) -> Option<String> {
    // Of several statements on a line, the one that allocates.
    statement.split([';', '{', '}']).find_map(|part| {
        let part = part.trim();
        if !allocates(part) {
            return None;
        }
        out_argument(part)
            .or_else(|| assignment(part))
            .or_else(|| method(part))
            .or_else(|| declaration(part))
    })
}

/// `posix_memalign((void **)&grid, ...)`, `cudaMallocHost(&grid, ...)`, Fortran's `allocate(grid(n, n))`.
fn out_argument(part: &str) -> Option<String> {
    let lower = part.to_ascii_lowercase();
    if let Some(rest) = lower.find("allocate").map(|at| at + "allocate".len()) {
        let before = lower[..rest - "allocate".len()].trim_end();
        let arguments = part.get(rest..)?.trim_start();
        if !before.ends_with(['.', '>', ':', '=', '_'])
            && !before.ends_with("de")
            && arguments.starts_with('(')
            && !before.contains('=')
        {
            let first = arguments[1..].split(['(', ',', ')']).next()?;
            return place(first);
        }
    }
    let at = part.find("memalign(")?;
    part.get(..at)?
        .trim_end()
        .ends_with("posix_")
        .then_some(())?;
    let first = part.get(at + "memalign(".len()..)?.split(',').next()?;
    let first = first.rsplit(')').next()?.trim().strip_prefix('&')?;
    place(first)
}

/// `T *x = ...`, `this->x = ...`, `let mut x: Vec<f64> = ...`, `if ((x = ...) == NULL)`.
fn assignment(part: &str) -> Option<String> {
    let equals = assignment_operator(part)?;
    let left = part.get(..equals)?.trim_end();
    let right = part.get(equals + 1..)?;
    if !ALLOCATORS.iter().any(|word| right.contains(word)) {
        return None;
    }
    // Rust's type stands between the name and the sign.
    let left = match left.strip_prefix("let ") {
        Some(binding) => binding.split(':').next()?.trim(),
        None => left,
    };
    place(left)
}

/// The position of the first `=` that assigns, outside of strings and comparisons.
fn assignment_operator(part: &str) -> Option<usize> {
    let bytes = part.as_bytes();
    let mut quoted = false;
    (0..bytes.len()).find(|&at| {
        if bytes[at] == b'"' {
            quoted = !quoted;
        }
        let before = at
            .checked_sub(1)
            .and_then(|at| bytes.get(at))
            .copied()
            .unwrap_or(b' ');
        let after = bytes.get(at + 1).copied().unwrap_or(b' ');
        !quoted && bytes[at] == b'=' && after != b'=' && !b"=!<>+-*/%&|^".contains(&before)
    })
}

/// `matrix.resize(n)`, `this->rows.reserve(n)`, `grid->assign(n, 0)`.
fn method(part: &str) -> Option<String> {
    [
        "resize",
        "reserve",
        "assign",
        "push_back",
        "emplace_back",
        "insert",
        "emplace",
        "push",
        "extend",
        "reset",
    ]
    .iter()
    .find_map(|name| {
        let at = part.match_indices(name).map(|(at, _)| at).find(|&at| {
            part.get(at + name.len()..)
                .is_some_and(|rest| rest.trim_start().starts_with('('))
        })?;
        let before = part.get(..at)?;
        let owner = before
            .strip_suffix('.')
            .or_else(|| before.strip_suffix("->"))?;
        place(owner)
    })
}

/// `std::vector<double> matrix(n * n)`, `std::vector<double> matrix{n}`.
fn declaration(part: &str) -> Option<String> {
    let close = part.rfind('>')?;
    if !part.trim_start().starts_with("std::")
        && !part.contains("vector<")
        && !part.contains("valarray<")
    {
        return None;
    }
    // `>` of the type, not of a comparison in the arguments.
    let open = part.find('(').unwrap_or(part.len());
    let close = if close > open {
        part.get(..open)?.rfind('>')?
    } else {
        close
    };
    let rest = part.get(close + 1..)?.trim_start();
    let name: String = rest
        .chars()
        .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
        .collect();
    let after = rest.get(name.len()..)?.trim_start();
    (after.starts_with(['(', ',']) || after.is_empty()).then_some(())?;
    place(&name)
}

/// The name at the end of an expression that denotes a place: `double *x` is `x`, `a->b[i].grid` is `grid`.
fn place(text: &str) -> Option<String> {
    let mut text = text.trim();
    // Indices say which element, not which variable.
    while text.ends_with([']', ')']) {
        let (close, open) = if text.ends_with(']') {
            (']', '[')
        } else {
            (')', '(')
        };
        let mut depth = 0usize;
        let start = text.char_indices().rev().find_map(|(at, letter)| {
            if letter == close {
                depth += 1;
            } else if letter == open {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            None
        })?;
        // `*(x)` and `(*x)`: the name is inside.
        if start == 0 || text.get(..start)?.trim_end().ends_with(['*', '(']) {
            text = text.get(start + 1..text.len() - 1)?.trim();
        } else {
            text = text.get(..start)?.trim_end();
        }
    }
    let letters = text
        .chars()
        .rev()
        .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
        .count();
    let name: String = text.chars().skip(text.chars().count() - letters).collect();
    let fine = name
        .chars()
        .next()
        .is_some_and(|first| first.is_alphabetic() || first == '_')
        && !KEYWORDS.contains(&name.as_str());
    fine.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Option<String> {
        let lines: Vec<&str> = text.lines().collect();
        assigned_variable(&lines, 1, None)
    }

    #[test]
    fn one_line_statements() {
        for (text, name) in [
            (
                "  double *matrix = malloc(n * n * sizeof(double));",
                "matrix",
            ),
            ("double *matrix = (double *)malloc(n);", "matrix"),
            ("this->matrix = new double[n];", "matrix"),
            ("a->grid = calloc(n, sizeof *a->grid);", "grid"),
            ("matrix.resize(n);", "matrix"),
            ("this->rows_.reserve(n);", "rows_"),
            ("std::vector<double> matrix(n);", "matrix"),
            (
                "std::vector<std::pair<int, double>> table(n, {0, 0.0});",
                "table",
            ),
            ("auto p = std::make_unique<T[]>(n);", "p"),
            ("  if ((buffer = malloc(n)) == NULL) abort();", "buffer"),
            ("if (posix_memalign((void **)&grid, 64, n) != 0) {", "grid"),
            ("rows[i] = malloc(n);", "rows"),
            ("m->rows[i][j] = xmalloc(n);", "rows"),
            ("*out = malloc(n);", "out"),
            ("let mut matrix: Vec<f64> = vec![0.0; n * n];", "matrix"),
            ("let matrix = vec![0.0; n];", "matrix"),
            ("let table = Vec::with_capacity(n);", "table"),
            ("      allocate(grid(n, m), stat=ierr)", "grid"),
            ("      ALLOCATE( U(5, NX, NY) )", "U"),
            ("char *text = strdup(\"a=b\");", "text"),
            (
                "void *area = mmap(NULL, n, PROT_READ, MAP_PRIVATE, -1, 0);",
                "area",
            ),
            (
                "for (int i = 0; i < n; i++) { cells[i] = new Cell[m]; }",
                "cells",
            ),
        ] {
            assert_eq!(named(text).as_deref(), Some(name), "{text}");
        }
    }

    #[test]
    fn statements_over_several_lines() {
        let lines = [
            "int n = 4;",
            "double *matrix =",
            "    (double *)malloc(n *",
            "        sizeof(double));",
            "f(x);",
        ];
        for line in 2..=4 {
            assert_eq!(
                assigned_variable(&lines, line, None).as_deref(),
                Some("matrix"),
                "line {line}"
            );
        }
    }

    #[test]
    fn the_column_tells_the_statements_of_a_line_apart() {
        for text in [
            "big = malloc(n); hot = malloc(n); auto cold = new double[n];",
            "double *big = malloc(n * f(1, 2)), *hot = malloc(n), *cold = calloc(n, 8);",
            "if (n) { big = malloc(n); hot = malloc(n); } cold = malloc(n);",
        ] {
            for name in ["big", "hot", "cold"] {
                let sign = text
                    .find(&format!("{name} ="))
                    .map(|at| at + name.len() + 3);
                let column = sign.and_then(|at| u32::try_from(at + 1).ok());
                let found = assigned_variable(&[text], 1, column);
                assert_eq!(found.as_deref(), Some(name), "{text}");
            }
            assert_eq!(assigned_variable(&[text], 1, None), None, "{text}");
            assert_eq!(assigned_variable(&[text], 1, Some(0)), None, "{text}");
            assert_eq!(assigned_variable(&[text], 1, Some(900)), None, "{text}");
        }
        let twice = "if (n) x = malloc(n); else { x = malloc(m); }";
        assert_eq!(named(twice).as_deref(), Some("x"));
    }

    #[test]
    fn no_name_where_none_is_assigned() {
        for text in [
            "return malloc(n);",
            "f(malloc(n));",
            "int x = y + 1;",
            "if (malloc(n) == NULL) {",
            "",
            "}",
            "deallocate(grid)",
        ] {
            assert_eq!(named(text), None, "{text}");
        }
        assert_eq!(assigned_variable(&["x"], 0, None), None);
        assert_eq!(assigned_variable(&["x"], 7, None), None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,120}", line in 0usize..4, column in 0u32..140) {
            let _ = assigned_variable(&text.split('|').collect::<Vec<_>>(), line, Some(column));
        }

        #[test]
        fn no_code_like_text_panics(text in "[a-z=(){}\\[\\]<>.;:,*&| \"->]{0,60}(malloc|allocate\\(|vector<|resize\\()[a-z=()\\[\\]<>.;*& ]{0,30}", column in 0u32..120) {
            let _ = assigned_variable(&text.split('|').collect::<Vec<_>>(), 1, Some(column));
        }
    }
}
