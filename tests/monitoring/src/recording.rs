//! Scrapes over time. The notation of values is promtool's: `1 2 0x3 5+1x4 _ stale`.

use crate::{
    repository,
    scrape::{MetricFamily, Scrape},
};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt::Write as _, path::Path};

/// Job of the `PodMonitor`, as the Prometheus operator names it.
const JOB: &str = "gpunode-system/gpunode";

/// Scrapes of all pods of a cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Recording {
    /// Seconds between two scrapes.
    pub interval: u32,
    /// Number of the first scrape of each scene.
    pub scenes: BTreeMap<String, usize>,
    /// Type and help by name.
    pub families: BTreeMap<String, MetricFamily>,
    /// Series of each pod without the labels of the target.
    pub pods: BTreeMap<String, RecordedPod>,
}

/// Series of one pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RecordedPod {
    /// Name of its node.
    pub node: String,
    /// Values by series.
    pub series: BTreeMap<String, String>,
}

/// A series with all its labels, and one value for each scrape.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name and labels.
    pub name: String,
    /// One for each scrape.
    pub values: Vec<Value>,
}

/// Result of one scrape for one series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// It was scraped.
    Number(f64),
    /// The series was there before and is not any more.
    Stale,
    /// There is nothing.
    Absent,
}

impl Recording {
    /// Reads all recordings, each of other scenes.
    pub fn all() -> Result<Vec<Self>> {
        let folder = repository().join("tests/monitoring/recordings");
        let mut recordings: Vec<Self> = Vec::new();
        for file in std::fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let path = file?.path();
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let recording: Self = serde_yaml::from_str(&text).with_context(|| format!("read {}", path.display()))?;
            for scene in recording.scenes.keys() {
                let is_new = recordings.iter().all(|other| !other.scenes.contains_key(scene));
                ensure!(
                    is_new,
                    "the scene {scene} is in {} and in another recording",
                    path.display()
                );
            }
            recordings.push(recording);
        }
        ensure!(!recordings.is_empty(), "no recording in {}", folder.display());
        Ok(recordings)
    }

    /// Series of some scenes, which follow each other.
    pub fn scenes(&self, names: &[String]) -> Result<Vec<Series>> {
        let mut order: Vec<(usize, &String)> = self.scenes.iter().map(|(name, at)| (*at, name)).collect();
        order.sort_unstable();
        let first = names.first().context("no scene")?;
        let begin = order
            .iter()
            .position(|(_, name)| *name == first)
            .with_context(|| format!("no scene {first}"))?;
        let after = begin + names.len();
        ensure!(
            order
                .get(begin..after)
                .is_some_and(|part| part.iter().map(|(_, name)| *name).eq(names)),
            "the scenes {names:?} do not follow each other in {order:?}"
        );
        let (from, to) = (order[begin].0, order.get(after).map(|(at, _)| *at));
        let mut all = self.series()?;
        for series in &mut all {
            let to = to.unwrap_or(series.values.len());
            series.values = series.values.get(from..to).context("a scene after the end")?.to_vec();
        }
        all.retain(|series| series.values.iter().any(|value| matches!(value, Value::Number(_))));
        Ok(all)
    }

    /// All series.
    pub fn series(&self) -> Result<Vec<Series>> {
        let mut all = Vec::new();
        for (pod, recorded) in &self.pods {
            for (series, values) in &recorded.series {
                let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
                let mut text = String::new();
                for (label, value) in [
                    ("job", JOB),
                    ("namespace", "gpunode-system"),
                    ("node", &recorded.node),
                    ("pod", pod),
                ] {
                    // `honorLabels`: a label of the metric comes before that of the target.
                    let start = format!("{label}=\"");
                    if !labels.starts_with(&start) && !labels.contains(&format!(",{start}")) {
                        // Writing into a string cannot fail.
                        let _ = write!(text, "{start}{value}\",");
                    }
                }
                let text = if labels == "}" {
                    text.trim_end_matches(',')
                } else {
                    &text
                };
                all.push(Series {
                    name: format!("{name}{{{text}{labels}"),
                    values: decode(values).with_context(|| format!("read the values of {series}"))?,
                });
            }
        }
        Ok(all)
    }

    /// All series as one scrape in the text format of Prometheus, which `promtool check metrics` reads.
    pub fn text(&self) -> Result<String> {
        let all = self.series()?;
        let mut text = String::new();
        for (name, family) in &self.families {
            let text_name = family.text_name(name);
            let kind = if family.kind == "info" { "gauge" } else { &family.kind };
            let help = &family.help;
            // Writing into a string cannot fail.
            let _ = write!(text, "# HELP {text_name} {help}\n# TYPE {text_name} {kind}\n");
            for series in &all {
                let (sample, _) = series.name.split_once('{').unwrap_or_default();
                let last = series.values.iter().rev().find_map(|value| match value {
                    Value::Number(number) => Some(number),
                    _ => None,
                });
                if let (true, Some(last)) = (family.has(name, sample), last) {
                    let _ = writeln!(text, "{} {last}", series.name);
                }
            }
        }
        Ok(text)
    }
}

impl Series {
    /// Values in promtool's notation.
    pub fn notation(&self) -> String {
        encode(&self.values)
    }
}

/// Reads the raw scrapes that `record.sh` left in a folder.
pub fn compact(raw: &Path, interval: u32) -> Result<Recording> {
    let mut recording = Recording {
        interval,
        ..Recording::default()
    };
    let scenes = std::fs::read_to_string(raw.join("scenes")).context("read the scenes")?;
    for line in scenes.lines() {
        let (at, name) = line.split_once(' ').with_context(|| format!("no scene: {line}"))?;
        recording
            .scenes
            .insert(name.to_owned(), at.parse().with_context(|| line.to_owned())?);
    }
    let mut pods: BTreeMap<String, (String, BTreeMap<String, Vec<Value>>)> = BTreeMap::new();
    let mut count = 0;
    while raw.join(count.to_string()).is_dir() {
        for (_, series) in pods.values_mut() {
            for values in series.values_mut() {
                // Overwritten below if it is still there.
                let was_there = matches!(values.last(), Some(Value::Number(_)));
                values.push(if was_there { Value::Stale } else { Value::Absent });
            }
        }
        for file in std::fs::read_dir(raw.join(count.to_string()))? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            let [pod, node, _] = name.split('~').collect::<Vec<_>>()[..] else {
                bail!("no scrape: {name}");
            };
            let text = std::fs::read_to_string(file.path())?;
            let mut samples = BTreeMap::from([("up".to_owned(), if text.is_empty() { 0.0 } else { 1.0 })]);
            if !text.is_empty() {
                let scrape = Scrape::read(&text).with_context(|| format!("read {}", file.path().display()))?;
                samples.extend(scrape.samples);
                recording.families.extend(scrape.families);
            }
            let (_, series) = pods
                .entry(pod.to_owned())
                .or_insert_with(|| (node.to_owned(), BTreeMap::new()));
            for (name, number) in samples {
                let values = series.entry(name).or_insert_with(|| vec![Value::Absent; count + 1]);
                if let Some(last) = values.last_mut() {
                    *last = Value::Number(number);
                }
            }
        }
        count += 1;
    }
    ensure!(count > 0, "no scrape in {}", raw.display());
    let encoded = |(name, values): (String, Vec<Value>)| (name, encode(&values));
    recording.pods = pods
        .into_iter()
        .map(|(pod, (node, series))| {
            let series = series.into_iter().map(encoded).collect();
            (pod, RecordedPod { node, series })
        })
        .collect();
    Ok(recording)
}

fn encode(values: &[Value]) -> String {
    let mut parts = Vec::new();
    let mut rest = values;
    while let Some(first) = rest.first() {
        let (part, length) = match first {
            Value::Number(number) => {
                let step = match rest.get(1) {
                    Some(Value::Number(next)) => next - number,
                    _ => 0.0,
                };
                // Steps that are not whole would not add up to the same numbers.
                let step = if step.fract() == 0.0 && number.fract() == 0.0 {
                    step
                } else {
                    0.0
                };
                let follows = |(at, value): &(usize, &Value)| {
                    let at = u32::try_from(*at).map(f64::from).unwrap_or_default();
                    **value == Value::Number(number + step * at)
                };
                let length = rest.iter().enumerate().take_while(follows).count();
                let part = match (length, step == 0.0) {
                    (0 | 1, _) => number.to_string(),
                    (_, true) => format!("{number}x{}", length - 1),
                    (_, false) => format!("{number}{step:+}x{}", length - 1),
                };
                (part, length.max(1))
            }
            other => {
                let length = rest.iter().take_while(|value| *value == other).count();
                match other {
                    Value::Stale => ("stale".to_owned(), 1),
                    _ if length == 1 => ("_".to_owned(), 1),
                    _ => (format!("_x{length}"), length),
                }
            }
        };
        parts.push(part);
        rest = &rest[length..];
    }
    parts.join(" ")
}

fn decode(notation: &str) -> Result<Vec<Value>> {
    let mut values = Vec::new();
    for part in notation.split(' ') {
        let (value, times) = match part.split_once('x') {
            Some((value, times)) => (value, Some(times.parse::<u32>().with_context(|| part.to_owned())?)),
            None => (part, None),
        };
        match value {
            "stale" => values.push(Value::Stale),
            "_" => values.extend((0..times.unwrap_or(1)).map(|_| Value::Absent)),
            _ => {
                // A sign after the first character is that of the step, unless it is that of an exponent.
                let sign = value
                    .char_indices()
                    .skip(1)
                    .find(|(at, sign)| matches!(sign, '+' | '-') && !value[..*at].ends_with('e'));
                let (start, step) = sign.map_or((value, "0"), |(at, _)| value.split_at(at));
                let start: f64 = start.parse().with_context(|| part.to_owned())?;
                let step: f64 = step.parse().with_context(|| part.to_owned())?;
                values.extend((0..=times.unwrap_or(0)).map(|at| Value::Number(start + step * f64::from(at))));
            }
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Value::{Absent, Number, Stale};

    #[test]
    fn labels_of_a_metric_come_before_those_of_its_target() -> Result<()> {
        let recorded = RecordedPod {
            node: "n".to_owned(),
            series: [("up", "1"), ("a{gpu=\"0\"}", "2"), ("b{pod=\"train\",gpu=\"0\"}", "3")]
                .map(|(name, values)| (name.to_owned(), values.to_owned()))
                .into(),
        };
        let recording = Recording {
            pods: BTreeMap::from([("agent".to_owned(), recorded)]),
            ..Recording::default()
        };
        let target = format!("job=\"{JOB}\",namespace=\"gpunode-system\",node=\"n\"");
        let names: Vec<String> = recording.series()?.into_iter().map(|series| series.name).collect();
        let expected = [
            format!("a{{{target},pod=\"agent\",gpu=\"0\"}}"),
            format!("b{{{target},pod=\"train\",gpu=\"0\"}}"),
            format!("up{{{target},pod=\"agent\"}}"),
        ];
        assert_eq!(names, expected);
        Ok(())
    }

    #[test]
    fn values_are_the_same_after_they_were_written_and_read() -> Result<()> {
        let tables = [
            (
                vec![Absent, Absent, Number(1.0), Number(1.0), Stale, Absent],
                "_x2 1x1 stale _",
            ),
            (
                vec![Number(0.0), Number(1.0), Number(2.0), Number(7.5), Number(8.5)],
                "0+1x2 7.5 8.5",
            ),
            (
                vec![Number(3.0), Number(1.0), Stale, Number(0.000_002)],
                "3-2x1 stale 0.000002",
            ),
        ];
        for (values, notation) in tables {
            assert_eq!(encode(&values), notation);
            assert_eq!(decode(notation)?, values, "{notation}");
        }
        Ok(())
    }
}
