//! Budgets: from what a person typed, and from a file.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use varve_compare::{Budget, Measure};

use super::Limits;
use crate::commands::Failure;
use crate::values::{MostGrowth, MostShare, Size};

/// Files of budgets that are larger are something else.
const MAX_BYTES: u64 = 1 << 20;
/// What growth is looked at where nobody says which.
const GROWTH: [Measure; 2] = [Measure::Touched, Measure::MedianWorkingSet];

/// What is to be judged.
pub(super) struct Wanted {
    pub(super) budgets: Vec<Budget>,
    pub(super) baseline: Vec<PathBuf>,
}

/// A value of a file, as it would be typed: a number, or a text with a unit.
#[derive(Debug, Deserialize)]
#[serde(try_from = "toml::Value")]
struct Value(String);

/// One word or several.
#[derive(Debug, Deserialize)]
#[serde(try_from = "toml::Value")]
struct Words(Vec<String>);

/// One share for all figures, or one for each.
#[derive(Debug, Deserialize)]
#[serde(try_from = "toml::Value")]
enum Growth {
    All(Value),
    Each(BTreeMap<String, Value>),
}

impl TryFrom<toml::Value> for Value {
    type Error = &'static str;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        match value {
            toml::Value::String(text) => Ok(Value(text)),
            toml::Value::Integer(number) => Ok(Value(number.to_string())),
            toml::Value::Float(number) => Ok(Value(number.to_string())),
            _ => Err("give a number, or a text with a unit such as \"80MiB\" or \"5%\""),
        }
    }
}

impl TryFrom<toml::Value> for Words {
    type Error = &'static str;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        const WRONG: &str = "give a text, or a list of texts";
        let word = |value| match value {
            toml::Value::String(text) => Ok(text),
            _ => Err(WRONG),
        };
        match value {
            toml::Value::Array(all) => all
                .into_iter()
                .map(word)
                .collect::<Result<_, _>>()
                .map(Words),
            one => word(one).map(|one| Words(vec![one])),
        }
    }
}

impl TryFrom<toml::Value> for Growth {
    type Error = &'static str;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        match value {
            toml::Value::Table(all) => {
                let each = all
                    .into_iter()
                    .map(|(word, value)| Ok((word, Value::try_from(value)?)));
                each.collect::<Result<_, _>>().map(Growth::Each)
            }
            one => Value::try_from(one).map(Growth::All),
        }
    }
}

/// A file of budgets.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    max_touched: Option<Value>,
    max_working_set: Option<Value>,
    max_median_working_set: Option<Value>,
    max_resident: Option<Value>,
    max_page_touches: Option<Value>,
    max_held: Option<Value>,
    no_finding: Option<Words>,
    baseline: Option<Words>,
    max_growth: Option<Growth>,
    #[serde(default)]
    objects: BTreeMap<String, OfObjects>,
}

/// Budgets of the objects of a name.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct OfObjects {
    max_touched: Option<Value>,
    max_allocated: Option<Value>,
    max_live: Option<Value>,
    max_page_touches: Option<Value>,
    max_objects: Option<Value>,
}

impl Value {
    fn size(&self) -> Result<f64, String> {
        Ok(self.0.parse::<Size>()?.0.0 as f64)
    }

    fn count(&self) -> Result<f64, String> {
        let count = self.0.parse::<u64>().map(|n| n as f64);
        count.map_err(|_| "give a whole number".to_owned())
    }

    fn share(&self) -> Result<f64, String> {
        Ok(self.0.parse::<MostShare>()?.0)
    }

    fn growth(&self) -> Result<f64, String> {
        Ok(self.0.parse::<MostGrowth>()?.0)
    }
}

impl Wanted {
    /// The names of objects whose touched memory is limited.
    pub(super) fn objects(&self) -> impl Iterator<Item = &str> {
        self.budgets.iter().filter_map(|budget| match budget {
            Budget::Objects {
                name,
                measure: Measure::Touched,
                ..
            } => Some(name.as_str()),
            _ => None,
        })
    }

    /// Those of the file, then those that were typed.
    pub(super) fn of(limits: &Limits) -> Result<Wanted, Failure> {
        let mut wanted = Wanted {
            budgets: Vec::new(),
            baseline: limits.baseline.clone(),
        };
        if let Some(path) = &limits.budget {
            wanted.read(path)?;
        }
        wanted.typed(limits);
        if wanted.budgets.is_empty() {
            return Err(Failure::new(
                "there is no budget to judge by",
                Some(
                    "give one, as in `varve check run.varve --max-touched 80MiB`, or a file with `--budget memory.toml`; `varve check --help` names all",
                ),
            ));
        }
        let needs_baseline = wanted
            .budgets
            .iter()
            .any(|b| matches!(b, Budget::Growth { .. }));
        if needs_baseline && wanted.baseline.is_empty() {
            return Err(Failure::new(
                "growth is relative to a baseline, and none is given",
                Some("name a kept trace with `--baseline kept.varve`"),
            ));
        }
        if !needs_baseline && !wanted.baseline.is_empty() {
            return Err(Failure::new(
                "there is a baseline, and no budget that is relative to it",
                Some("say how much more is permitted, as in `--max-growth 5%`"),
            ));
        }
        Ok(wanted)
    }

    fn typed(&mut self, limits: &Limits) {
        let size = |size: &Option<Size>| size.map(|s| s.0.0 as f64);
        let program = [
            (Measure::Touched, size(&limits.max_touched)),
            (Measure::PeakWorkingSet, size(&limits.max_working_set)),
            (
                Measure::MedianWorkingSet,
                size(&limits.max_median_working_set),
            ),
            (Measure::PeakResident, size(&limits.max_resident)),
            (
                Measure::PageTouches,
                limits.max_page_touches.map(|n| n as f64),
            ),
            (Measure::Held, limits.max_held.map(|s| s.0)),
        ];
        for (measure, max) in program {
            self.budgets
                .extend(max.map(|max| Budget::Program { measure, max }));
        }
        for (name, size) in &limits.max_object {
            self.budgets.push(Budget::Objects {
                name: name.clone(),
                measure: Measure::Touched,
                max: size.0.0 as f64,
            });
        }
        for (finding, object) in &limits.no_finding {
            self.budgets.push(Budget::NoFinding {
                finding: finding.clone(),
                object: object.clone(),
            });
        }
        if let Some(share) = limits.max_growth {
            self.growth(share.0);
        }
    }

    fn growth(&mut self, max: f64) {
        let all = GROWTH.map(|measure| Budget::Growth { measure, max });
        self.budgets.extend(all);
    }

    fn read(&mut self, path: &Path) -> Result<(), Failure> {
        let wrong = |why: String| {
            Failure::new(
                format!("cannot take budgets from {}: {why}", path.display()),
                Some("docs/check.md shows such a file"),
            )
        };
        let opened = varve_sys::open_regular(path).map_err(|e| wrong(e.to_string()))?;
        let mut text = String::new();
        opened
            .take(MAX_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|e| wrong(e.to_string()))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(wrong(format!(
                "it has more than {MAX_BYTES} bytes, which no file of budgets has"
            )));
        }
        let file: File = toml::from_str(&text).map_err(|e| {
            let line = |span: std::ops::Range<usize>| 1 + text[..span.start].matches('\n').count();
            let at = e
                .span()
                .map_or(String::new(), |span| format!("line {}: ", line(span)));
            wrong(at + &e.message().replace('\n', " "))
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        self.take(file, folder).map_err(wrong)
    }

    fn take(&mut self, file: File, folder: &Path) -> Result<(), String> {
        type Read = fn(&Value) -> Result<f64, String>;
        let program: [(&str, Measure, Option<Value>, Read); 6] = [
            (
                "max-touched",
                Measure::Touched,
                file.max_touched,
                Value::size,
            ),
            (
                "max-working-set",
                Measure::PeakWorkingSet,
                file.max_working_set,
                Value::size,
            ),
            (
                "max-median-working-set",
                Measure::MedianWorkingSet,
                file.max_median_working_set,
                Value::size,
            ),
            (
                "max-resident",
                Measure::PeakResident,
                file.max_resident,
                Value::size,
            ),
            (
                "max-page-touches",
                Measure::PageTouches,
                file.max_page_touches,
                Value::count,
            ),
            ("max-held", Measure::Held, file.max_held, Value::share),
        ];
        for (key, measure, value, read) in program {
            if let Some(value) = value {
                let max = read(&value).map_err(|why| format!("{key}: {why}"))?;
                self.budgets.push(Budget::Program { measure, max });
            }
        }
        for (name, of) in file.objects {
            let objects: [(&str, Measure, Option<Value>, Read); 5] = [
                ("max-touched", Measure::Touched, of.max_touched, Value::size),
                (
                    "max-allocated",
                    Measure::Bytes,
                    of.max_allocated,
                    Value::size,
                ),
                ("max-live", Measure::PeakBytes, of.max_live, Value::size),
                (
                    "max-page-touches",
                    Measure::PageTouches,
                    of.max_page_touches,
                    Value::count,
                ),
                (
                    "max-objects",
                    Measure::Objects,
                    of.max_objects,
                    Value::count,
                ),
            ];
            for (key, measure, value, read) in objects {
                if let Some(value) = value {
                    let max =
                        read(&value).map_err(|why| format!("objects {name}: {key}: {why}"))?;
                    let name = name.clone();
                    self.budgets.push(Budget::Objects { name, measure, max });
                }
            }
        }
        for word in file.no_finding.iter().flat_map(|words| &words.0) {
            let (finding, object) = finding(word)?;
            self.budgets.push(Budget::NoFinding { finding, object });
        }
        // Where the file lies is where its baseline does.
        let baseline = file.baseline.iter().flat_map(|words| &words.0);
        self.baseline.extend(baseline.map(|path| folder.join(path)));
        match file.max_growth {
            None => (),
            Some(Growth::All(value)) => {
                let max = value.growth().map_err(|why| format!("max-growth: {why}"))?;
                self.growth(max);
            }
            Some(Growth::Each(each)) => {
                for (word, value) in each {
                    let measure = measure(&word)?;
                    let max = value
                        .growth()
                        .map_err(|why| format!("max-growth, {word}: {why}"))?;
                    self.budgets.push(Budget::Growth { measure, max });
                }
            }
        }
        Ok(())
    }
}

/// A figure of the program, by its word.
fn measure(word: &str) -> Result<Measure, String> {
    let all = Measure::OF_PROGRAM;
    all.into_iter().find(|m| m.as_str() == word).ok_or_else(|| {
        let words = all.map(Measure::as_str).join(", ");
        format!("max-growth: there is no figure {word}; there are {words}")
    })
}

/// `NAME=SIZE`.
pub(super) fn object(text: &str) -> Result<(String, Size), String> {
    let (name, size) = text
        .rsplit_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or("give a name and a size, such as 'plate*=10MiB'")?;
    Ok((name.to_owned(), size.parse()?))
}

/// `FINDING`, or `FINDING:NAME`.
pub(super) fn finding(text: &str) -> Result<(String, Option<String>), String> {
    let (word, name) = match text.split_once(':') {
        Some((word, name)) if !name.is_empty() => (word, Some(name.to_owned())),
        _ => (text, None),
    };
    match varve_compare::finding(word) {
        Some(id) => Ok((id.as_str().to_owned(), name)),
        None => Err(format!(
            "there is no finding {word}; there are {}",
            varve_compare::finding_words().join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Wanted, String> {
        let file: File = toml::from_str(text).map_err(|e| e.to_string())?;
        let mut wanted = Wanted {
            budgets: Vec::new(),
            baseline: Vec::new(),
        };
        wanted.take(file, Path::new("ci"))?;
        Ok(wanted)
    }

    #[test]
    fn a_file_says_what_options_say() {
        let wanted = of(r#"
            max-touched = "80MiB"
            max-held = "1%"
            max-page-touches = 1000
            no-finding = ["never-touched", "false-sharing:queue*"]
            baseline = "kept.varve"
            max-growth = { touched_bytes = "0%", faults = "10%" }
            [objects."plate*"]
            max-touched = 4096
            max-live = "1GiB"
        "#)
        .unwrap_or_else(|why| panic!("{why}"));
        let titles: Vec<String> = wanted.budgets.iter().map(Budget::title).collect();
        assert_eq!(
            titles,
            [
                "touched at most 80 MiB",
                "page touches at most 1,000",
                "held at most 1 %",
                "touched of objects plate* at most 4 KiB",
                "live, peak of objects plate* at most 1 GiB",
                "no finding never-touched",
                "no finding false-sharing of objects queue*",
                "page faults at most 10 % above the baseline",
                "touched at most 0 % above the baseline",
            ]
        );
        assert_eq!(wanted.baseline, [PathBuf::from("ci/kept.varve")]);
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        for (text, says) in [
            ("max-touchd = 1", "max-touchd"),
            ("max-touched = \"80 apples\"", "max-touched: give a size"),
            (
                "no-finding = \"never\"",
                "there is no finding never; there are",
            ),
            (
                "max-growth = { rss = \"5%\" }",
                "there is no figure rss; there are",
            ),
            ("max-growth = \"5x\"", "max-growth"),
            ("[objects.plate]\nmax = 1", "max"),
        ] {
            let why = of(text).err().unwrap_or_default();
            assert!(why.contains(says), "{text}: {why}");
        }
    }

    #[test]
    fn names_and_sizes_are_read() {
        assert_eq!(object("a=b=4k").map(|(name, _)| name), Ok("a=b".to_owned()));
        assert!(object("=4k").is_err() && object("plate").is_err() && object("plate=x").is_err());
        assert_eq!(
            finding("churn:a:b"),
            Ok(("churn".into(), Some("a:b".into())))
        );
    }
}
