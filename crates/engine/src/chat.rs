//! From the messages of a chat to a prompt, by the checkpoint's own template.
//!
//! Templates are Jinja as Hugging Face's libraries run it: with Python's methods of texts and lists, `raise_exception`, and
//! blocks that leave no line behind. A checkpoint without one is no chat model; its prompt is the messages, one after the other.

use std::sync::Arc;

use minijinja::{Environment, ErrorKind, Value, context};
use rollscope_model::{ChatTemplate, Model, ModelError, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::Map;

/// One message. Fields that only templates know pass through.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Message {
    role: String,
    /// A text, or a list of parts of which those that are text count.
    #[serde(default)]
    content: Content,
    #[serde(flatten)]
    rest: Map<String, serde_json::Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
    Nothing(Option<()>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

/// How a model's messages become prompts: its template, compiled once.
#[derive(Debug)]
pub(crate) struct Chat {
    template: Option<Result<Environment<'static>, Arc<minijinja::Error>>>,
    bos_token: String,
    eos_token: String,
}

/// Why messages make no prompt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChatError {
    #[error("content of type {0} is not supported by this engine")]
    Part(String),
    #[error("the model's chat template: {0}")]
    Template(Arc<minijinja::Error>),
    #[error("{0}")]
    Tokenizer(#[source] ModelError),
}

/// The template's name among templates, of which there is one.
const NAME: &str = "chat";

// === impl Chat ===

impl Chat {
    /// Of this model. A template that cannot be compiled is an error of each chat, not of the server.
    pub(crate) fn of(model: &Model) -> Self {
        let Some(ChatTemplate { source, bos_token, eos_token }) = model.chat_template().cloned() else {
            return Self { template: None, bos_token: String::new(), eos_token: String::new() };
        };
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        let compiled = environment.add_template_owned(NAME, source).map(|()| environment);
        Self { template: Some(compiled.map_err(Arc::new)), bos_token, eos_token }
    }

    /// The tokens of a prompt at whose end the model is to answer. `extra` is for the template.
    pub(crate) fn render(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        extra: Map<String, serde_json::Value>,
    ) -> Result<Vec<u32>, ChatError> {
        let messages: Vec<Message> = messages.iter().map(Message::flat).collect::<Result<_, _>>()?;
        let Some(template) = &self.template else {
            let texts = messages.iter().map(|message| match &message.content {
                Content::Text(text) => text.as_str(),
                Content::Parts(_) | Content::Nothing(_) => "",
            });
            let prompt: String = texts.collect();
            return tokenizer.encode(&prompt).map_err(ChatError::Tokenizer);
        };
        let environment = template.as_ref().map_err(|error| ChatError::Template(Arc::clone(error)))?;
        let context = context! {
            messages => messages,
            add_generation_prompt => true,
            bos_token => self.bos_token,
            eos_token => self.eos_token,
            ..Value::from_serialize(extra)
        };
        let prompt = environment.get_template(NAME).and_then(|template| template.render(context));
        let prompt = prompt.map_err(|error| ChatError::Template(Arc::new(error)))?;
        // The template writes the special tokens itself.
        tokenizer.encode_plain(&prompt).map_err(ChatError::Tokenizer)
    }
}

// === impl Message ===

impl Message {
    /// With one text as its content.
    fn flat(&self) -> Result<Self, ChatError> {
        let content = match &self.content {
            Content::Text(text) => text.clone(),
            Content::Nothing(_) => String::new(),
            Content::Parts(parts) => {
                let text = |part: &Part| match &part.text {
                    Some(text) if part.kind == "text" => Ok(text.clone()),
                    _ => Err(ChatError::Part(part.kind.clone())),
                };
                parts.iter().map(text).collect::<Result<_, _>>()?
            }
        };
        Ok(Self { role: self.role.clone(), content: Content::Text(content), rest: self.rest.clone() })
    }
}

// === impl Content ===

impl Default for Content {
    fn default() -> Self {
        Self::Nothing(None)
    }
}
