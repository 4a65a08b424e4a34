//! The page with a run's answers in it: one file that opens from disk, without a server.
//!
//! Its modules stand in it as one script, since a browser loads none from a file. What the API would answer
//! stands in an element `data`, an object with the API's paths as keys, which the page asks instead. The content
//! security policy names what may run by its hash and allows no connection at all. A search is the one thing
//! that only a server answers.

use std::io::{self, Write};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rollscope_run::Run;
use rollscope_trace::StepNumber;
use serde_json::Value;
use tower::ServiceExt as _;

use crate::given::Given;
use crate::page::hash;
use crate::source::Source;
use crate::{api, page};

/// What the API answers.
enum Answer {
    Json(Vec<u8>),
    /// Numbers in columns, bytes.
    Columns(Vec<u8>),
}

/// A part of what the API tells of a step.
struct Part {
    name: &'static str,
    is_numbered: bool,
}

/// All parts that the page may ask for.
const PARTS: [Part; 5] = [
    Part { name: "table", is_numbered: false },
    Part { name: "tiles", is_numbered: true },
    Part { name: "workers", is_numbered: true },
    Part { name: "passes", is_numbered: false },
    Part { name: "samples", is_numbered: true },
];

/// How the page names a style sheet.
const STYLE: &str = "<link rel=\"stylesheet\" href=\"";

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum HtmlError {
    /// It cannot be written.
    #[error("cannot write the page")]
    Write(#[from] io::Error),
    /// The run cannot be read.
    #[error("the viewer has no answer for {path}: {answer}")]
    Answer {
        /// What was asked.
        path: String,
        /// What came instead.
        answer: String,
    },
    /// The page is not as it is taken apart here.
    #[error("the page has no {0}")]
    Page(&'static str),
}

/// Writes the page with some steps of a run in it.
pub async fn export_html(run: Run, steps: &[StepNumber], out: &mut impl Write) -> Result<(), HtmlError> {
    let api = api::routes(Arc::new(Source::new(run, Given::default())), None);
    let (head, body) = page()?;
    out.write_all(head.as_bytes())?;
    out.write_all(b"<script type=\"application/json\" id=\"data\">{")?;
    put(out, "api/run", &must(&api, "api/run").await?)?;
    let Answer::Json(known) = must(&api, "api/steps").await? else {
        return Err(HtmlError::Page("list of steps"));
    };
    let mut known: Value = serde_json::from_slice(&known).unwrap_or_default();
    if let Some(list) = known.get_mut("steps").and_then(Value::as_array_mut) {
        list.retain(|step| steps.iter().any(|wanted| step["step"] == wanted.0));
    }
    out.write_all(b",\n")?;
    put(out, "api/steps", &Answer::Json(known.to_string().into_bytes()))?;
    for step in steps {
        let path = format!("api/steps/{step}");
        out.write_all(b",\n")?;
        put(out, &path, &must(&api, &path).await?)?;
        for part in PARTS {
            // Each part of a kind that there is, from 0.
            let numbers = if part.is_numbered { 0..u64::MAX } else { 0..1 };
            for number in numbers {
                let number = if part.is_numbered { format!("/{number}") } else { String::new() };
                let path = format!("{path}/{}{number}", part.name);
                let Some(answer) = ask(&api, &path).await? else {
                    break;
                };
                out.write_all(b",\n")?;
                put(out, &path, &answer)?;
            }
        }
    }
    out.write_all(b"}</script>\n")?;
    out.write_all(body.as_bytes())?;
    Ok(out.flush()?)
}

async fn must(api: &Router, path: &str) -> Result<Answer, HtmlError> {
    let missing = || HtmlError::Answer { path: path.to_owned(), answer: "there is nothing here".to_owned() };
    ask(api, path).await?.ok_or_else(missing)
}

/// What the API answers; nothing where it has nothing.
async fn ask(api: &Router, path: &str) -> Result<Option<Answer>, HtmlError> {
    let failed = |answer: String| HtmlError::Answer { path: path.to_owned(), answer };
    let request = Request::get(format!("/{path}")).body(Body::empty());
    let request = request.map_err(|error| failed(error.to_string()))?;
    let answer = match api.clone().oneshot(request).await {
        Ok(answer) => answer,
        Err(never) => match never {},
    };
    let (head, body) = answer.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.map_err(|error| failed(error.to_string()))?.to_vec();
    let is_json = head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    match head.status {
        StatusCode::NOT_FOUND => Ok(None),
        status if !status.is_success() => Err(failed(String::from_utf8_lossy(&bytes).into_owned())),
        _ if is_json => Ok(Some(Answer::Json(bytes))),
        _ => Ok(Some(Answer::Columns(bytes))),
    }
}

/// An answer as a member of the object; `<` is escaped, so that nothing in it ends the element.
fn put(out: &mut impl Write, path: &str, answer: &Answer) -> io::Result<()> {
    write!(out, "\"{path}\":")?;
    let json = match answer {
        Answer::Json(json) => json,
        Answer::Columns(bytes) => return write!(out, "{{\"base64\":\"{}\"}}", STANDARD.encode(bytes)),
    };
    for piece in json.split_inclusive(|byte| *byte == b'<') {
        match piece.split_last() {
            Some((b'<', before)) => {
                out.write_all(before)?;
                out.write_all(b"\\u003c")?;
            }
            _ => out.write_all(piece)?,
        }
    }
    Ok(())
}

/// The page before and behind the answers.
fn page() -> Result<(String, String), HtmlError> {
    let (head, body) = page::around_script().ok_or(HtmlError::Page("main module"))?;
    let script = page::script();
    let (mut file, mut styles) =
        (format!("{head}<script type=\"module\">{script}</script>{body}"), String::new());
    while let Some((before, behind)) = file.split_once(STYLE) {
        let (name, behind) = behind.split_once("\">").ok_or(HtmlError::Page("style sheet"))?;
        let style = page::text(name).ok_or(HtmlError::Page("style sheet"))?;
        styles = format!("{styles} {}", hash(style));
        file = format!("{before}<style>{style}</style>{behind}");
    }
    let policy = format!(
        "default-src 'none'; script-src {}; style-src{styles}; img-src data:; base-uri 'none'; form-action 'none'",
        hash(&script),
    );
    let icon = page::text("icon.svg").ok_or(HtmlError::Page("icon"))?;
    let icon = format!("data:image/svg+xml;base64,{}", STANDARD.encode(icon));
    for (what, old, new) in [
        (
            "character set",
            "<meta charset=\"utf-8\">",
            format!(
                "<meta charset=\"utf-8\">\n    <meta http-equiv=\"content-security-policy\" content=\"{policy}\">"
            ),
        ),
        ("icon", "href=\"icon.svg\"", format!("href=\"{icon}\"")),
    ] {
        let (before, behind) = file.split_once(old).ok_or(HtmlError::Page(what))?;
        file = format!("{before}{new}{behind}");
    }
    let (head, body) = file.rsplit_once("</body>").ok_or(HtmlError::Page("body"))?;
    Ok((head.to_owned(), format!("</body>{body}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_an_answer_ends_its_element() {
        let mut out = Vec::new();
        put(&mut out, "p", &Answer::Json(br#"{"a":"</script><!--"}"#.to_vec())).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), r#""p":{"a":"\u003c/script>\u003c!--"}"#);
    }

    #[test]
    fn the_file_refers_to_no_other() {
        let (head, body) = page().unwrap();
        let file = format!("{head}{body}");
        for other in ["src=\"", "href=\"style", "href=\"icon", "\"./"] {
            assert!(!file.contains(other), "{other}");
        }
        assert!(file.contains("default-src 'none'") && !file.contains("importmap"));
        assert_eq!(file.matches("</script").count(), 1, "no source ends its element");
        assert!(!page::script().contains("<!--"), "nor has its end passed over");
        assert!(file.contains("const $main = "));
    }
}
