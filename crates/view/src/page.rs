//! The page, embedded as it stands in `web/page`. It is served with its modules as one script.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use include_dir::{Dir, File, include_dir};
use rollscope_trace::StepNumber;
use sha2::{Digest as _, Sha256};

use crate::bundle::bundle;
use crate::source::Source;

static PAGE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../web/page");

/// The module that the page begins with, as the page asks for it.
const MAIN: &str = "<script type=\"module\" src=\"main.js\"></script>";
/// The same with all that it needs.
const BUNDLED: &str = "<script type=\"module\" src=\"page.js\"></script>";

/// The routes of the page over a run.
pub(crate) fn routes(source: Arc<Source>) -> Router {
    let (head, body) = around_script().unwrap_or_default();
    let script = Bytes::from(script());
    let index = async move || {
        let newest = tokio::task::spawn_blocking(move || source.newest()).await.ok().flatten();
        let page = format!("{head}{BUNDLED}{}{body}", preloads(newest));
        ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page)
    };
    Router::new()
        .route("/", get(index))
        .route("/page.js", get(async || ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], script)))
        .route("/{name}", get(async |Path(name): Path<String>| file(&name)))
}

/// The page before and behind its script, which is one, so that it needs no import map.
pub(crate) fn around_script() -> Option<(String, &'static str)> {
    let map = format!("<script type=\"importmap\">{}</script>", import_map()?);
    let (head, body) = text("index.html")?.split_once(MAIN)?;
    Some((head.replace(&map, ""), body))
}

/// All of its modules as one script.
pub(crate) fn script() -> String {
    bundle("main", modules())
}

/// Has a browser ask, while the script comes, for what the page asks for first: the steps, and the newest of them.
fn preloads(newest: Option<StepNumber>) -> String {
    let of_step = newest.iter().flat_map(|step| [format!("/{step}/table"), format!("/{step}")]);
    let steps = of_step.chain([String::new()]).map(|of| format!("api/steps{of}"));
    let link = |path| format!("\n    <link rel=\"preload\" href=\"{path}\" as=\"fetch\" crossorigin>");
    steps.chain(["api/run".to_owned()]).map(link).collect()
}

/// A source as a content security policy names it.
pub(crate) fn hash(source: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(source)))
}

/// The import map in `index.html`.
fn import_map() -> Option<&'static str> {
    let page = PAGE.get_file("index.html")?.contents_utf8()?;
    let (_, map) = page.split_once("<script type=\"importmap\">")?;
    map.split_once("</script>").map(|(map, _)| map)
}

/// A file of the page.
pub(crate) fn text(name: &str) -> Option<&'static str> {
    PAGE.get_file(name)?.contents_utf8()
}

/// Its modules: their names without `.js`, and their sources.
pub(crate) fn modules() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGE.files().filter_map(|file| Some((file.path().to_str()?.strip_suffix(".js")?, file.contents_utf8()?)))
}

fn file(name: &str) -> Response {
    match PAGE.get_file(name).and_then(|file| Some((content_type(file)?, file.contents()))) {
        Some((kind, contents)) => ([(header::CONTENT_TYPE, kind)], contents).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn content_type(file: &File<'_>) -> Option<&'static str> {
    match file.path().extension()?.to_str()? {
        "css" => Some("text/css; charset=utf-8"),
        "svg" => Some("image/svg+xml"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn the_import_map_names_every_module_and_each_imports_only_those() {
        let map: BTreeMap<String, BTreeMap<String, String>> =
            serde_json::from_str(import_map().unwrap()).unwrap();
        let modules: BTreeSet<_> = PAGE
            .files()
            .filter_map(|file| file.path().to_str()?.strip_suffix(".js"))
            .filter(|name| *name != "main")
            .map(|name| (format!("#{name}"), format!("./{name}.js")))
            .collect();
        assert_eq!(map["imports"].clone().into_iter().collect::<BTreeSet<_>>(), modules);
        for file in PAGE.files().filter(|file| file.path().extension().is_some_and(|kind| kind == "js")) {
            let source = file.contents_utf8().unwrap();
            for import in
                source.lines().filter_map(|line| line.strip_prefix("import ")?.rsplit_once(" from '"))
            {
                let name = import.1.trim_end_matches("';");
                assert!(map["imports"].contains_key(name), "{}: {name}", file.path().display());
            }
        }
    }

    #[test]
    fn the_page_is_served_with_one_script() {
        let (head, body) = around_script().unwrap();
        let page = format!("{head}{BUNDLED}{}{body}", preloads(Some(StepNumber(7))));
        assert_eq!((page.matches("<script").count(), page.matches(BUNDLED).count()), (1, 1), "{page}");
        assert_eq!(page.matches("rel=\"preload\"").count(), 4, "{page}");
        assert!(page.contains("href=\"api/steps/7/table\""), "{page}");
    }

    #[test]
    fn the_page_refers_to_nothing_elsewhere() {
        for file in PAGE.files() {
            let source = file.contents_utf8().unwrap();
            let allowed = source.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !allowed.contains("http://") && !allowed.contains("https://"),
                "{}",
                file.path().display()
            );
            assert!(!source.contains("innerHTML"), "{}", file.path().display());
        }
    }
}
