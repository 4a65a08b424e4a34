//! Prompts: a file of JSON lines, or the bundled chained additions.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::RolloutError;

/// One prompt: a line `{"prompt": "47+85=?\n", "answer": "132"}`. Other members are passed over.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Prompt {
    /// What the model is given.
    #[serde(rename = "prompt")]
    pub text: String,
    /// What is rewarded; without it a sample has no reward.
    #[serde(default)]
    pub answer: Option<String>,
}

const BUNDLED: &str = include_str!("../assets/chained-addition.jsonl");

impl Prompt {
    /// The bundled prompts: 1,024 sums of two to five terms, for the bundled model.
    pub fn bundled() -> Result<Vec<Self>, RolloutError> {
        parse(Path::new("bundled"), BUNDLED)
    }

    /// Reads a file of JSON lines; blank lines are passed over.
    pub fn read(path: &Path) -> Result<Vec<Self>, RolloutError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| RolloutError::PromptsUnreadable { path: path.to_owned(), source })?;
        parse(path, &text)
    }
}

fn parse(path: &Path, text: &str) -> Result<Vec<Prompt>, RolloutError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompts: Vec<Prompt> = lines
        .map(|(index, line)| {
            serde_json::from_str(line).map_err(|error| RolloutError::PromptMalformed {
                path: PathBuf::from(path),
                line: index + 1,
                reason: error.to_string(),
            })
        })
        .collect::<Result<_, _>>()?;
    if prompts.is_empty() { Err(RolloutError::NoPrompts { path: path.to_owned() }) } else { Ok(prompts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_prompts_are_right_sums() {
        let prompts = Prompt::bundled().unwrap();
        assert_eq!(prompts.len(), 1024);
        for prompt in prompts {
            let sum: u32 =
                prompt.text.trim_end_matches("=?\n").split('+').map(|n| n.parse::<u32>().unwrap()).sum();
            assert_eq!(Some(sum.to_string()), prompt.answer);
        }
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = parse(Path::new("p.jsonl"), "{\"prompt\":\"a\"}\n\n{\"answer\":\"b\"}\n").unwrap_err();
        assert!(error.to_string().starts_with("p.jsonl: line 3: missing field `prompt`"), "{error}");
        let empty = parse(Path::new("p.jsonl"), "\n").unwrap_err();
        assert_eq!(empty.to_string(), "no prompts in p.jsonl");
    }
}
