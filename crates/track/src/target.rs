//! Where numbers go, as it is written on the command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rollscope_config::{refused, without_user_info};

/// `wandb[:PROJECT[/NAME]]`, `tensorboard[:DIR]`, `mlflow:URL` or `jsonl[:FILE]`; shown without what stands before the host of
/// its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An offline run of Weights & Biases, in the run's folder: `wandb sync` sends it, also while it grows.
    Wandb {
        /// Project; `rollscope` unless told.
        project: Option<String>,
        /// Name of the run; without one nothing is said of the run, which then may be another program's.
        name: Option<String>,
    },
    /// Event files of TensorBoard.
    TensorBoard {
        /// Folder in which the run has one of its own; `tensorboard` in the run's unless told.
        dir: Option<PathBuf>,
    },
    /// A server of MLflow.
    Mlflow {
        /// Its address.
        url: String,
    },
    /// A line `{"step": N, "run": "…", "data": {…}}` a step.
    Jsonl {
        /// File; the run's own metrics.jsonl unless told, which is always written.
        path: Option<PathBuf>,
    },
}

/// A text that is no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a tracker, which is wandb[:PROJECT[/NAME]], tensorboard[:DIR], mlflow:URL or jsonl[:FILE]: {0}")]
pub struct NotATarget(String);

// === impl Target ===

impl FromStr for Target {
    type Err = NotATarget;

    fn from_str(text: &str) -> Result<Self, NotATarget> {
        let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        let not_a_target = || NotATarget(refused(text));
        if rest.is_some_and(str::is_empty) {
            return Err(not_a_target());
        }
        match (kind, rest) {
            ("wandb", rest) => {
                let (project, name) = match rest.map(|rest| rest.split_once('/').unwrap_or((rest, ""))) {
                    Some((project, name)) => (Some(project), Some(name).filter(|name| !name.is_empty())),
                    None => (None, None),
                };
                Ok(Self::Wandb { project: project.map(str::to_owned), name: name.map(str::to_owned) })
            }
            ("tensorboard", rest) => Ok(Self::TensorBoard { dir: rest.map(PathBuf::from) }),
            ("mlflow", Some(url)) if url.starts_with("http://") || url.starts_with("https://") => {
                Ok(Self::Mlflow { url: url.trim_end_matches('/').to_owned() })
            }
            ("jsonl", rest) => Ok(Self::Jsonl { path: rest.map(PathBuf::from) }),
            _ => Err(not_a_target()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wandb { project: None, .. } => f.write_str("wandb"),
            Self::Wandb { project: Some(project), name: None } => write!(f, "wandb:{project}"),
            Self::Wandb { project: Some(project), name: Some(name) } => write!(f, "wandb:{project}/{name}"),
            Self::TensorBoard { dir: None } => f.write_str("tensorboard"),
            Self::TensorBoard { dir: Some(dir) } => write!(f, "tensorboard:{}", dir.display()),
            Self::Mlflow { url } => write!(f, "mlflow:{}", without_user_info(url)),
            Self::Jsonl { path: None } => f.write_str("jsonl"),
            Self::Jsonl { path: Some(path) } => write!(f, "jsonl:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_they_are_written() {
        for text in [
            "wandb",
            "wandb:p",
            "wandb:p/n",
            "tensorboard",
            "tensorboard:boards/run",
            "mlflow:http://h:5000",
            "jsonl",
            "jsonl:a.jsonl",
        ] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["", "mlflow", "mlflow:", "mlflow:host", "wandb:", "aim", "jsonl:"] {
            assert_eq!(text.parse::<Target>(), Err(NotATarget(text.to_owned())));
        }
    }

    #[test]
    fn a_password_is_used_and_not_shown() {
        let target: Target = "mlflow:http://me:pw@h:5000".parse().unwrap();
        assert_eq!(target, Target::Mlflow { url: "http://me:pw@h:5000".to_owned() });
        assert_eq!(target.to_string(), "mlflow:http://<redacted>@h:5000");
        let refused = "mlflow:ftp://me:p/w@h".parse::<Target>().unwrap_err();
        assert!(refused.to_string().ends_with(": mlflow:ftp://<redacted>@h"), "{refused}");
    }
}
