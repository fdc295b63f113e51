//! The table of `docs/real-gpus.md`.

/// One question, and both answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The question.
    pub what: &'static str,
    /// The answer of nvidia-smi, or the contract.
    pub expected: String,
    /// The answer of the driver or of the agent.
    pub measured: String,
    /// Result of the comparison.
    pub verdict: Verdict,
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Both say the same.
    Same,
    /// They contradict each other.
    Differs,
    /// Nothing was compared.
    NotCompared,
}

impl Row {
    /// Returns a comparison; `is_same` is none if nothing was compared.
    pub fn compared(
        what: &'static str,
        expected: impl Into<String>,
        measured: impl Into<String>,
        is_same: impl Into<Option<bool>>,
    ) -> Self {
        Self {
            what,
            expected: expected.into(),
            measured: measured.into(),
            verdict: match is_same.into() {
                Some(true) => Verdict::Same,
                Some(false) => Verdict::Differs,
                None => Verdict::NotCompared,
            },
        }
    }

    /// Returns a comparison of two texts that must be equal.
    pub fn equal(what: &'static str, expected: impl Into<String>, measured: impl Into<String>) -> Self {
        let (expected, measured) = (expected.into(), measured.into());
        let is_same = expected == measured;
        Self::compared(what, expected, measured, is_same)
    }

    /// Returns a figure.
    pub fn measured(what: &'static str, measured: impl Into<String>) -> Self {
        Self::compared(what, "", measured, None::<bool>)
    }
}

/// Returns the rows as a table in Markdown.
pub fn markdown(rows: &[Row]) -> String {
    let lines = rows.iter().map(|row| {
        let verdict = match row.verdict {
            Verdict::Same => "same",
            Verdict::Differs => "**differs**",
            Verdict::NotCompared => "not compared",
        };
        format!(
            "| {} | {} | {} | {verdict} |\n",
            row.what,
            cell(&row.expected),
            cell(&row.measured)
        )
    });
    let head = "| what | expected | measured | |\n|---|---|---|---|\n";
    head.to_owned() + &lines.collect::<String>()
}

/// Returns a line for each row that differs, for people at a terminal.
pub fn differences(rows: &[Row]) -> Vec<String> {
    let differing = rows.iter().filter(|row| row.verdict == Verdict::Differs);
    differing
        .map(|row| format!("{}: expected {}, measured {}", row.what, row.expected, row.measured))
        .collect()
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Returns the answers of GPUs as one text, each answer once: `a` if all gave it, else `a (GPU 0, 2); b (GPU 1)`.
pub fn together<'a>(answers: impl IntoIterator<Item = (u32, &'a str)>) -> String {
    let mut by_answer: Vec<(&str, Vec<String>)> = Vec::new();
    for (gpu, answer) in answers {
        let gpu = gpu.to_string();
        match by_answer.iter_mut().find(|(known, _)| *known == answer) {
            Some((_, gpus)) => gpus.push(gpu),
            None => by_answer.push((answer, vec![gpu])),
        }
    }
    match by_answer.as_slice() {
        [(answer, _)] => (*answer).to_owned(),
        several => {
            let texts = several
                .iter()
                .map(|(answer, gpus)| format!("{answer} (GPU {})", gpus.join(", ")));
            texts.collect::<Vec<_>>().join("; ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_all_gpus_give_stands_once() {
        assert_eq!(together([(0, "a"), (1, "a")]), "a");
        assert_eq!(together([(0, "a"), (1, "b"), (2, "a")]), "a (GPU 0, 2); b (GPU 1)");
        assert_eq!(together([]), "");
    }

    #[test]
    fn rows_that_differ_stand_out_and_are_named() {
        let rows = [
            Row::equal("memory", "1 MiB", "1 MiB"),
            Row::equal("fabric", "a|b", "c\nd"),
            Row::measured("sessions", "3 ms"),
        ];
        assert_eq!(
            markdown(&rows),
            "| what | expected | measured | |\n|---|---|---|---|\n| memory | 1 MiB | 1 MiB | same |\n\
             | fabric | a\\|b | c d | **differs** |\n| sessions |  | 3 ms | not compared |\n"
        );
        assert_eq!(differences(&rows), ["fabric: expected a|b, measured c\nd"]);
    }
}
