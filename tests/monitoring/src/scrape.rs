//! The metrics of one scrape, in the OpenMetrics text format.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Samples of one moment with their families.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// Families by name, without the suffixes of their samples.
    pub families: BTreeMap<String, MetricFamily>,
    /// Values by series, such as `up{job="x"}`.
    pub samples: BTreeMap<String, f64>,
}

/// Type and help of all series of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricFamily {
    /// `counter`, `gauge`, `histogram` or `info`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Text for people.
    pub help: String,
}

impl MetricFamily {
    /// Name of the family in the text format of Prometheus, which has no family without the suffix of its samples.
    pub fn text_name(&self, name: &str) -> String {
        match self.kind.as_str() {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        }
    }

    /// True if the family has samples of this name.
    pub fn has(&self, name: &str, sample: &str) -> bool {
        let Some(suffix) = sample.strip_prefix(name) else {
            return false;
        };
        match self.kind.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
            _ => sample == self.text_name(name),
        }
    }
}

impl Scrape {
    /// Reads the answer of `/metrics`.
    pub fn read(text: &str) -> Result<Self> {
        let mut scrape = Self::default();
        let mut ended = false;
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let mut words = comment.splitn(3, ' ');
                match (words.next(), words.next(), words.next()) {
                    (Some("TYPE"), Some(name), Some(kind)) => kind.clone_into(&mut scrape.family(name).kind),
                    // The library ends each help with a dot.
                    (Some("HELP"), Some(name), Some(help)) => help.clone_into(&mut scrape.family(name).help),
                    (Some("EOF"), None, None) => ended = true,
                    (Some("UNIT"), Some(name), Some(unit)) if name.ends_with(unit) => {}
                    _ => bail!("what does this line mean: {line}"),
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').with_context(|| format!("no value: {line}"))?;
            let value = value.parse().with_context(|| format!("no number: {line}"))?;
            if scrape.samples.insert(series.to_owned(), value).is_some() {
                bail!("twice: {series}");
            }
        }
        if !ended {
            bail!("the answer does not end with # EOF: {text:.200}");
        }
        Ok(scrape)
    }

    fn family(&mut self, name: &str) -> &mut MetricFamily {
        self.families.entry(name.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_has_the_name_of_its_samples_in_the_text_format() {
        let scrape = Scrape::read(
            "# HELP a_b Things.\n# TYPE a_b counter\na_b_total{x=\"y z\"} 3\n# HELP a_c_seconds Time.\n# TYPE a_c_seconds histogram\n# UNIT a_c_seconds seconds\na_c_seconds_sum 0.5\n# EOF\n",
        );
        let scrape = scrape.unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(scrape.samples["a_b_total{x=\"y z\"}"].to_string(), "3");
        let [counter, histogram] = ["a_b", "a_c_seconds"].map(|name| &scrape.families[name]);
        assert_eq!(counter.text_name("a_b"), "a_b_total");
        assert!(counter.has("a_b", "a_b_total") && !counter.has("a_b", "a_b"));
        assert!(histogram.has("a_c_seconds", "a_c_seconds_sum") && !histogram.has("a_c_seconds", "a_c_seconds"));
    }

    #[test]
    fn half_an_answer_is_none() {
        assert!(Scrape::read("a 1\n").is_err());
    }
}
