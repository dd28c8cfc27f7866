//! Whose line the time in a library's function is: that of the program's code that called it.

use varve_model::{c_library, is_recorders};
use varve_trace::tables::Frame;

/// Files of runtimes that generate code, by the beginnings of their names: what they call on behalf of generated code is that code's.
const RUNTIMES: [&str; 6] = [
    "libjvm.so",
    "libcoreclr",
    "libclrgc",
    "libnode",
    "libv8",
    "node",
];
/// The module of generated code of which no source file is known.
const GENERATED: &str = "generated code";
/// Endings of functions of the C library of which there are several, for several processors.
const VARIANTS: [&str; 20] = [
    "avx",
    "avx2",
    "avx512",
    "evex",
    "evex512",
    "sse2",
    "sse3",
    "ssse3",
    "sse4",
    "sse42",
    "erms",
    "unaligned",
    "generic",
    "rtm",
    "sve",
    "asimd",
    "mops",
    "neon",
    "nocancel",
    "chk",
];

/// The frame whose line time at the top of a stack is counted for, and the function of the C library that it called, where the time is in
/// one. A stack that shows no caller, or one of which nothing is known, is its own.
pub(super) fn line_of(frames: &[Frame]) -> Option<(&Frame, Option<String>)> {
    let top = frames.first()?;
    let is_below = |f: &&Frame| is_libc(f) || is_recorders(module(f));
    let below = frames.iter().take_while(is_below).count();
    let of_libc = frames[..below].iter().rfind(|f| is_libc(f));
    let Some(of_libc) = of_libc.filter(|_| is_libc(top)) else {
        return Some((top, None));
    };
    let above = &frames[below..];
    let known = |f: &&Frame| f.function.is_some() || f.file.is_some() || f.module.is_some();
    match generated(above).or(above.first()).filter(known) {
        Some(caller) => Some((caller, Some(public_name(of_libc)))),
        None => Some((top, None)),
    }
}

/// The generated code on whose behalf a runtime runs.
fn generated(frames: &[Frame]) -> Option<&Frame> {
    let is_runtimes = |f: &&Frame| {
        let name = module(f).rsplit('/').next().unwrap_or_default();
        RUNTIMES.iter().any(|runtime| match *runtime {
            "node" => name == "node",
            start => name.starts_with(start),
        })
    };
    let runtimes = frames.iter().take_while(is_runtimes).count();
    let next = frames.get(runtimes).filter(|_| runtimes > 0)?;
    let is_script = [".js", ".mjs", ".cjs", ".ts"]
        .iter()
        .any(|end| module(next).ends_with(end));
    (next.function.is_some() && (module(next) == GENERATED || is_script)).then_some(next)
}

fn is_libc(frame: &Frame) -> bool {
    c_library(module(frame)).is_some()
}

fn module(frame: &Frame) -> &str {
    frame.module.as_deref().unwrap_or_default()
}

/// What programs call a function of the C library: `memmove` for `__memmove_avx_unaligned_erms`. Where its name is not known, the
/// library's.
fn public_name(frame: &Frame) -> String {
    let Some(function) = frame.function.as_deref() else {
        return module(frame)
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
    };
    let name = function.trim_start_matches('_');
    let name = name.strip_prefix("GI_").unwrap_or(name);
    let name = name.trim_start_matches('_');
    let mut name = name.strip_prefix("libc_").unwrap_or(name);
    while let Some((before, end)) = name.rsplit_once('_')
        && !before.is_empty()
        && VARIANTS.contains(&end)
    {
        name = before.trim_end_matches('_');
    }
    match name {
        "" => function.to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use varve_model::Address;

    use super::*;

    fn frame(module: &str, function: &str) -> Frame {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Frame {
            function: some(function),
            file: None,
            line: None,
            column: None,
            function_line: None,
            module: some(module),
            offset: None,
            address: Address(0),
        }
    }

    fn said(frames: &[Frame]) -> (&str, Option<String>) {
        let (frame, called) = line_of(frames).expect("frames");
        (frame.function.as_deref().unwrap_or_default(), called)
    }

    #[test]
    fn time_in_the_c_library_is_its_callers() {
        let memmove = frame("libc.so.6", "__memmove_avx_unaligned_erms");
        let copy = frame("app", "copy");
        assert_eq!(
            said(&[memmove.clone(), copy.clone()]),
            ("copy", Some("memmove".into()))
        );
        assert_eq!(said(std::slice::from_ref(&copy)), ("copy", None));
        // The function that the program called, not what that called in turn.
        let malloc = [
            frame("libc.so.6", "_int_malloc"),
            frame("libc.so.6", "malloc"),
            frame("libvarve_preload.so", "malloc"),
            copy.clone(),
        ];
        assert_eq!(said(&malloc), ("copy", Some("malloc".into())));
        // Without names the library's name is all that is known.
        let unnamed = [frame("libc.so.6", ""), copy.clone()];
        assert_eq!(said(&unnamed), ("copy", Some("libc.so.6".into())));
        // Another library is no C library, and a call back is the program's.
        let other = [frame("libc-client.so", "mail_open"), copy.clone()];
        assert_eq!(said(&other), ("mail_open", None));
        let back = [frame("app", "compare"), frame("libc.so.6", "qsort"), copy];
        assert_eq!(said(&back), ("compare", None));
    }

    #[test]
    fn a_stack_without_a_known_caller_is_its_own() {
        let memset = frame("libc.so.6", "__memset_evex_unaligned_erms");
        let alone = std::slice::from_ref(&memset);
        assert_eq!(said(alone), ("__memset_evex_unaligned_erms", None));
        let unknown = [memset.clone(), frame("", "")];
        assert_eq!(said(&unknown).1, None);
        assert!(line_of(&[]).is_none());
    }

    #[test]
    fn what_a_runtime_copies_is_the_generated_codes() {
        let memmove = frame("libc.so.6", "memmove");
        let jvm = frame("libjvm.so", "Copy::conjoint_jbytes");
        let method = frame(GENERATED, "Main.fill");
        let java = [memmove.clone(), jvm.clone(), jvm.clone(), method.clone()];
        assert_eq!(said(&java), ("Main.fill", Some("memmove".into())));
        assert_eq!(
            said(&[memmove.clone(), method]),
            ("Main.fill", Some("memmove".into()))
        );
        let script = [
            memmove.clone(),
            frame("node", "v8::internal::F"),
            frame("hot.js", "sum"),
        ];
        assert_eq!(said(&script), ("sum", Some("memmove".into())));
        // Without a name of generated code the runtime is what is known.
        let unnamed = [memmove.clone(), jvm.clone(), frame("", "")];
        assert_eq!(said(&unnamed).0, "Copy::conjoint_jbytes");
        // A runtime's own thread ends in the C library.
        let own = [memmove, jvm, frame("libc.so.6", "start_thread")];
        assert_eq!(said(&own).0, "Copy::conjoint_jbytes");
    }

    #[test]
    fn functions_have_the_names_that_programs_call() {
        let name = |function| public_name(&frame("libc.so.6", function));
        assert_eq!(name("__strlen_avx2"), "strlen");
        assert_eq!(name("__memcpy_chk"), "memcpy");
        assert_eq!(name("__GI___libc_read"), "read");
        assert_eq!(name("__read_nocancel"), "read");
        assert_eq!(name("__memset_avx2_unaligned_erms_rtm"), "memset");
        assert_eq!(name("pthread_mutex_lock"), "pthread_mutex_lock");
        assert_eq!(name("__"), "__");
    }
}
