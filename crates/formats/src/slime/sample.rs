//! A sample of a dump: its mark, and its trace.

use rollscope_trace::{self as trace, Measure, Profile, Reading, Record, SampleKey, SampleTrace, StepNumber};
use serde_json::{Map, Value as Json, json};

use super::carrier::Carrier;
use super::element::{Element, Part};
use super::{mark, read, write};
use crate::tree::{Scalar, Tree};

/// What slime counts of speculative decoding, by sample.
pub(super) const DRAFTS: [Measure; 3] =
    [Measure::SpecAcceptTokens, Measure::SpecDraftTokens, Measure::SpecVerifyCount];

/// How samples are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleOptions<'a> {
    /// The step that they were sampled in.
    pub(crate) step: StepNumber,
    /// Which of several rewards counts.
    pub(crate) reward_key: Option<&'a str>,
    /// Which of several rewards names the sample's category.
    pub(crate) category_key: Option<&'a str>,
    /// They were sampled for an evaluation.
    pub(crate) evaluation: bool,
}

/// Reads a sample, the `position`-th of its dump: its mark, then its trace. `numbers` reads a tensor.
pub(crate) fn read_sample<T: Tree>(
    tree: &T,
    options: SampleOptions<'_>,
    position: usize,
    numbers: &mut dyn FnMut(&T) -> Option<Vec<f64>>,
) -> Vec<Record> {
    let trace = tree.member("trace");
    let carrier = trace.as_ref().and_then(|trace| Carrier::of(trace));
    let key = sample_key(tree, carrier.as_ref(), options.step, position);
    let mut records = vec![Record::Sample(mark::read(tree, key.clone(), options, numbers))];
    let (Some(carrier), Some(trace)) = (carrier, trace) else {
        return records;
    };
    let mut elements = read::elements(&carrier, &key, || trace.to_json());
    set_weight_versions(tree, &mut elements);
    set_drafts(tree, &mut elements);
    records.extend(elements.into_iter().map(|element| match element {
        Element::Request(request) => Record::Profile(request),
        Element::Span(span) => Record::Span(span),
    }));
    records
}

fn sample_key(tree: &impl Tree, carrier: Option<&Carrier>, step: StepNumber, position: usize) -> SampleKey {
    let own = |name: &str| tree.member(name).and_then(|value| value.scalar());
    // A sample that we wrote says how it was named; slime numbers them.
    let said = tree.member(mark::OURS);
    let said = |name: &str| said.as_ref().and_then(|said| said.member(name)?.text());
    let name = |id: Option<Scalar>| match id {
        Some(Scalar::Int(id)) => Some(id.to_string().into()),
        Some(Scalar::Text(id)) => Some(Box::from(&*id)),
        _ => None,
    };
    let sample = carrier.map(|carrier| carrier.sample_id.clone());
    let group = said("group").map(|group| Box::from(&*group));
    let group = group.or_else(|| name(carrier.map(|carrier| carrier.group_id.clone())));
    let sample = said("sample").map(|sample| Box::from(&*sample)).or_else(|| name(sample));
    SampleKey {
        step,
        group: group.or_else(|| name(own("group_index"))),
        sample: sample.or_else(|| name(own("index"))).unwrap_or_else(|| position.to_string().into()),
    }
}

/// The version of the weights that answered each call, where there is one for each.
fn set_weight_versions(tree: &impl Tree, elements: &mut [Element]) {
    let mut versions = Vec::new();
    if let Some(list) = tree.member("weight_versions") {
        list.each_element(&mut |version| {
            versions.push(match version.scalar() {
                Some(Scalar::Text(text)) => Some(Box::from(&*text)),
                Some(Scalar::Int(number)) => Some(number.to_string().into()),
                _ => None,
            });
        });
    }
    let requests: Vec<_> = requests(elements).collect();
    if requests.len() != versions.len() {
        return;
    }
    for (request, version) in requests.into_iter().zip(versions) {
        if let Some(leg) = request.legs.last_mut() {
            leg.report.weight_version = version;
        }
    }
}

/// What speculative decoding did for the sample as a whole; with its last request, so that the sums are right.
fn set_drafts(tree: &impl Tree, elements: &mut [Element]) {
    let Some(info) = tree.member("spec_info") else {
        return;
    };
    let leg = requests(elements).last().and_then(|request| request.legs.last_mut());
    let Some(measures) = leg.map(|leg| &mut leg.report.measures) else {
        return;
    };
    for measure in DRAFTS {
        let count = info.member(measure.name()).and_then(|count| count.number());
        // Zeros stand there for a sample that had none.
        if let Some(count) = count.filter(|count| *count != 0.0) {
            measures.set(measure, Reading::check(measure, trace::Scalar::Number(count)));
        }
    }
}

fn requests(elements: &mut [Element]) -> impl Iterator<Item = &mut Profile> {
    elements.iter_mut().filter_map(|element| match element {
        // One that we wrote says it itself.
        Element::Request(request) if Part::Request(request).is_foreign() => Some(&mut **request),
        _ => None,
    })
}

/// A sample as a dump holds it, in JSON.
pub(crate) fn sample_json(sample: &SampleTrace) -> Json {
    let requests = sample.requests.iter().map(Part::Request);
    let parts: Vec<Part<'_>> = requests.chain(sample.spans.iter().map(Part::Span)).collect();
    let trace = write::carrier_json(&sample.key, &parts);
    let mut members = mark::write(&sample.mark);
    let mut put = |name: &str, value: Json| members.insert(name.to_owned(), value);
    put("index", trace.get("sample_id").cloned().unwrap_or_default());
    put("group_index", trace.get("group_id").cloned().unwrap_or_default());
    let versions: Vec<_> = sample.requests.iter().filter_map(Profile::weight_version).collect();
    if versions.len() == sample.requests.len() {
        put("weight_versions", json!(versions));
    }
    let drafts = DRAFTS.into_iter().filter_map(|measure| {
        let counts = sample.requests.iter().filter_map(|request| request.measure(measure));
        counts.reduce(|sum, count| sum + count).map(|sum| (measure.name().to_owned(), json!(sum)))
    });
    let drafts: Map<String, Json> = drafts.collect();
    if !drafts.is_empty() {
        put("spec_info", Json::Object(drafts));
    }
    put("trace", trace);
    Json::Object(members)
}
