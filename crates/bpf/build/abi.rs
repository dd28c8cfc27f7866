//! The Rust side of `bpf/abi.h`: a constant for each `#define` of a number, and a struct for each struct.
//!
//! Only what the header is written in is understood, and anything else fails the build: a `struct`, its fields a line each of
//! integers and arrays of them, comments and `#define NAME NUMBER`. What passes through the ring begins with `struct record r`,
//! which is read by itself, and may end in bytes or structs of which there are as many as it says: neither is part of the
//! Rust struct.

use std::fmt::Write;

/// The Rust source that says what the header says.
pub(crate) fn rust(header: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut lines = plain(header)?;
    while let Some(line) = lines.next() {
        if let Some(define) = line.strip_prefix("#define ") {
            constant(&mut out, define)?;
        } else if let Some(name) = line.strip_prefix("struct ") {
            let name = name.strip_suffix(" {").ok_or(format!("`{line}`"))?;
            structure(&mut out, name, &mut lines)?;
        } else if !line.starts_with("#ifndef") && line != "#endif" {
            return Err(format!("`{line}` is neither a struct nor a number"));
        }
    }
    Ok(out)
}

/// The lines without comments, and without those that are empty then.
fn plain(header: &str) -> Result<impl Iterator<Item = String>, String> {
    let mut text = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        text += before;
        (_, rest) = comment.split_once("*/").ok_or("a comment without an end")?;
    }
    text += rest;
    let lines: Vec<String> = text.lines().map(|l| l.trim().to_owned()).collect();
    Ok(lines.into_iter().filter(|l| !l.is_empty()))
}

fn constant(out: &mut String, define: &str) -> Result<(), String> {
    // The guard against a second inclusion has no value.
    let Some((name, value)) = define.split_once(' ') else {
        return Ok(());
    };
    let number = value.trim().trim_end_matches('u');
    let parsed = match number.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    };
    parsed.map_err(|e| format!("`{define}`: {e}"))?;
    let _ = writeln!(out, "pub(crate) const {name}: u32 = {number};");
    Ok(())
}

fn structure(
    out: &mut String,
    name: &str,
    lines: &mut impl Iterator<Item = String>,
) -> Result<(), String> {
    let mut fields = String::new();
    let mut is_open = false;
    loop {
        let line = lines.next().ok_or(format!("struct {name} has no end"))?;
        if line == "};" {
            break;
        }
        if line == "struct record r;" {
            continue;
        }
        // What has no fixed length comes last.
        if is_open {
            return Err(format!("struct {name}: `{line}` comes after the end"));
        }
        let wrong = || format!("struct {name}: `{line}`");
        let (kind, names) = line
            .strip_suffix(';')
            .and_then(|l| l.split_once(' '))
            .ok_or_else(wrong)?;
        let kind = match kind {
            "u64" | "u32" | "u16" => kind,
            "s64" => "i64",
            "s32" => "i32",
            "char" | "struct" if line.ends_with("];") => {
                is_open = true;
                continue;
            }
            _ => return Err(wrong()),
        };
        for field in names.split(", ") {
            let (field, kind) = match field.strip_suffix(']').map(|f| f.split_once('[')) {
                None => (field, kind.to_owned()),
                Some(Some((field, count))) => (field, format!("[{kind}; {count}]")),
                Some(None) => return Err(wrong()),
            };
            let _ = write!(fields, " {field}: {kind},");
        }
    }
    if !fields.is_empty() {
        let _ = writeln!(out, "plain!({} {{{fields} }});", camel(name));
    }
    Ok(())
}

fn camel(name: &str) -> String {
    let parts = name.split('_').map(|part| {
        let (first, rest) = part.split_at(1);
        first.to_uppercase() + rest
    });
    parts.collect()
}
