//! The files of a checkpoint, on disk or embedded in the program, and the tensors in them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, SafeTensors};
use serde::Deserialize;

use crate::error::ModelError;

/// Where a checkpoint's files are.
#[derive(Debug)]
pub(crate) enum Files {
    /// In a directory.
    Dir(PathBuf),
    /// In memory: name and content.
    Memory(Vec<(&'static str, Cow<'static, [u8]>)>),
}

/// The tensors of one or several safetensors files.
#[derive(Debug)]
pub(crate) struct Tensors {
    shards: Vec<Shard>,
    /// What an error about a missing tensor names: the weights file or the index of the shards.
    path: PathBuf,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    metadata: Metadata,
    /// Offset of the first tensor's data in `bytes`.
    data_start: usize,
    bytes: Cow<'static, [u8]>,
}

/// `model.safetensors.index.json`: which file holds which tensor.
#[derive(Debug, Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

const WEIGHTS: &str = "model.safetensors";
const SHARD_INDEX: &str = "model.safetensors.index.json";

/// The embedded checkpoint: a byte-level Llama of 829 thousand parameters that adds two to five numbers step by step.
/// `tools/train_chained_addition.py` makes it again.
macro_rules! bundled {
    ($($name:literal),* $(,)?) => {
        vec![$(($name, Cow::Borrowed(include_bytes!(concat!("../assets/chained-addition/", $name)).as_slice()))),*]
    };
}

// === impl Files ===

impl Files {
    pub(crate) fn bundled() -> Self {
        Self::Memory(bundled![
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "model.safetensors"
        ])
    }

    pub(crate) fn open(dir: &Path) -> Result<Self, ModelError> {
        if dir.is_dir() {
            Ok(Self::Dir(dir.to_owned()))
        } else {
            Err(ModelError::NoDirectory { dir: dir.to_owned() })
        }
    }

    /// How errors name a file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Dir(dir) => dir.join(name),
            Self::Memory(_) => Path::new("bundled").join(name),
        }
    }

    /// A file's content.
    pub(crate) fn read(&self, name: &str) -> Result<Cow<'static, [u8]>, ModelError> {
        self.try_read(name)?.ok_or_else(|| ModelError::Read {
            path: self.path(name),
            source: io::Error::from(io::ErrorKind::NotFound),
        })
    }

    /// A file's content, if there is such a file.
    pub(crate) fn try_read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, ModelError> {
        match self {
            Self::Memory(files) => Ok(files.iter().find(|file| file.0 == name).map(|file| file.1.clone())),
            // Read, not mapped: the weights are converted at once, and a file that shrinks under a mapping kills the
            // process.
            Self::Dir(dir) => match std::fs::read(dir.join(name)) {
                Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(source) => Err(ModelError::Read { path: dir.join(name), source }),
            },
        }
    }
}

// === impl Tensors ===

impl Tensors {
    /// Reads the weights: one file, or the shards that an index names.
    pub(crate) fn read(files: &Files) -> Result<Self, ModelError> {
        let Some(index) = files.try_read(SHARD_INDEX)? else {
            return Ok(Self { shards: vec![Shard::read(files, WEIGHTS)?], path: files.path(WEIGHTS) });
        };
        let path = files.path(SHARD_INDEX);
        let index: ShardIndex = serde_json::from_slice(&index)
            .map_err(|source| ModelError::Json { path: path.clone(), source })?;
        let mut names: Vec<String> = index.weight_map.into_values().collect();
        names.sort_unstable();
        names.dedup();
        let shards = names.iter().map(|name| Shard::read(files, name)).collect::<Result<_, _>>()?;
        Ok(Self { shards, path })
    }

    /// A tensor's elements as f32, row-major, after checking its shape.
    pub(crate) fn load(&self, tensor: &str, expected: &[usize]) -> Result<Vec<f32>, ModelError> {
        let found = self.shards.iter().find_map(|shard| Some((shard, shard.metadata.info(tensor)?)));
        let Some((shard, info)) = found else {
            return Err(ModelError::NoTensor { path: self.path.clone(), tensor: tensor.to_owned() });
        };
        if info.shape != expected {
            return Err(ModelError::Shape {
                path: shard.path.clone(),
                tensor: tensor.to_owned(),
                found: info.shape.clone(),
                expected: expected.to_owned(),
            });
        }
        let (start, end) = info.data_offsets;
        let data = &shard.bytes[shard.data_start + start..shard.data_start + end];
        match info.dtype {
            Dtype::F32 => Ok(data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()),
            Dtype::BF16 => Ok(data
                .as_chunks()
                .0
                .iter()
                .map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32())
                .collect()),
            Dtype::F16 => {
                Ok(data.as_chunks().0.iter().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect())
            }
            dtype => Err(ModelError::Dtype {
                path: shard.path.clone(),
                tensor: tensor.to_owned(),
                dtype: format!("{dtype:?}"),
            }),
        }
    }

    /// Refuses weights with a tensor that is none of these: what is left out would be missing in every number. An output head
    /// beside one that is the embedding, and the rotary frequencies of old checkpoints, are no part of the model.
    pub(crate) fn check_unread(&self, read: &BTreeSet<String>) -> Result<(), ModelError> {
        let is_needless = |name: &str| name == "lm_head.weight" || name.ends_with(".rotary_emb.inv_freq");
        for shard in &self.shards {
            let mut names: Vec<_> = shard.metadata.tensors().into_keys().collect();
            names.sort_unstable();
            if let Some(name) = names.into_iter().find(|name| !read.contains(name) && !is_needless(name)) {
                return Err(ModelError::Unsupported {
                    path: shard.path.clone(),
                    what: format!("tensor {name}"),
                });
            }
        }
        Ok(())
    }
}

// === impl Shard ===

impl Shard {
    fn read(files: &Files, name: &str) -> Result<Self, ModelError> {
        let path = files.path(name);
        let bytes = files.read(name)?;
        match SafeTensors::read_metadata(&bytes) {
            // The data follows a header of `header` bytes and its length, a u64.
            Ok((header, metadata)) => {
                Ok(Self { path, metadata, data_start: size_of::<u64>() + header, bytes })
            }
            Err(source) => Err(ModelError::Safetensors { path, source }),
        }
    }
}
