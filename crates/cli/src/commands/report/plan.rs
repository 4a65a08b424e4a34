//! What the recorded forward passes tell a planner.

use rollscope_insight::{Fit, MIN_SAMPLES, NoFit, Plan, plan};
use rollscope_run::Run;
use rollscope_trace::{ForwardPass, StepNumber};
use serde_json::{Map, Value, json};

use super::missing_of_run;
use crate::damage::{StepDamage, Wanted};
use crate::exit::Failure;
use crate::output;
use crate::table::{duration, significant};

/// Prints the regressions and estimates over the steps given.
pub(super) fn print(run: &Run, steps: &[StepNumber], as_json: bool) -> Result<(), Failure> {
    let mut passes: Vec<ForwardPass> = Vec::new();
    for step in steps {
        passes.extend(run.passes_and_rests(*step).map_err(anyhow::Error::from)?);
    }
    let plans = plan(&passes);
    let damaged = StepDamage::of_each(run, steps, Wanted::Passes)?;
    let damaged: Vec<String> = damaged.iter().map(StepDamage::sentence).chain(missing_of_run(run)?).collect();
    if as_json {
        let plans: Vec<Value> = plans.iter().map(json_of).collect();
        let report = json!({"run": run.dir().display().to_string(), "damage": damaged, "plan": plans});
        output::line(format_args!("{report}"))?;
        return Ok(());
    }
    damaged.iter().try_for_each(|damage| output::line(format_args!("{damage}")))?;
    if plans.is_empty() {
        output::line(format_args!(
            "no forward passes in {}: see --enable-forward-pass-metrics",
            run.dir().display()
        ))?;
    }
    for line in plans.iter().flat_map(lines) {
        output::line(format_args!("{line}"))?;
    }
    Ok(())
}

pub(crate) fn lines(plan: &Plan) -> Vec<String> {
    let mut lines =
        vec![format!("{}: {} ranks, {} forward passes", plan.kind.name(), plan.ranks, plan.passes)];
    match &plan.fit {
        Ok(fit) => lines.extend(fit_lines(plan, fit)),
        Err(why) => lines.push(format!("  no regression: {}", reason(*why))),
    }
    lines.extend(plan.ttft_s.map(|ttft| {
        format!("  time to first token for the next request on the longest queue: {}", duration(ttft))
    }));
    lines.extend(plan.itl_s.map(|itl| format!("  next token on the fullest rank: {}", duration(itl))));
    lines
}

fn reason(why: NoFit) -> String {
    match why {
        NoFit::TooFew(count) => format!("{count} passes with a time, and {MIN_SAMPLES} are wanted"),
        NoFit::NoGrowth => {
            "passes with more in them do not take longer, so these passes cannot tell".to_owned()
        }
    }
}

fn fit_lines(plan: &Plan, fit: &Fit) -> Vec<String> {
    let of_features = plan.kind.features().iter().zip(&fit.coefficients_s);
    let of_features = of_features.map(|(name, cost)| (significant(cost * 1e6), name));
    // What costs too little to be shown costs nothing.
    let of_features = of_features.filter(|(cost_us, _)| cost_us != "0");
    let mut terms: Vec<String> =
        of_features.map(|(cost_us, name)| format!("{cost_us} µs × {name}")).collect();
    if fit.intercept_s > 0.0 || terms.is_empty() {
        terms.insert(0, duration(fit.intercept_s));
    }
    let explained = fit.r_squared.map_or_else(String::new, |share| format!("R² {share:.3}, "));
    let mut lines = vec![
        format!("  a pass takes {}", terms.join(" + ")),
        format!(
            "  {explained}off by {} on average, {} at most, over {} passes",
            duration(fit.mean_residual_s),
            duration(fit.max_residual_s),
            fit.samples
        ),
    ];
    let held = held(plan, fit);
    if !held.is_empty() {
        lines.push(format!("  not enough spread to tell what these cost, taken as 0: {}", held.join(", ")));
    }
    lines
}

/// The terms that the passes say nothing of.
fn held(plan: &Plan, fit: &Fit) -> Vec<&'static str> {
    let coefficients = plan.kind.features().iter().copied().zip(fit.coefficients_s.iter().copied());
    let terms = coefficients.chain([("an empty pass", fit.intercept_s)]);
    terms.filter(|(_, value)| *value == 0.0).map(|(name, _)| name).collect()
}

pub(crate) fn json_of(plan: &Plan) -> Value {
    let fit = plan.fit.as_ref().ok().map(|fit| {
        let names = plan.kind.features().iter().map(|name| (*name).to_owned());
        let coefficients: Map<String, Value> =
            names.zip(fit.coefficients_s.iter().map(|value| json!(value))).collect();
        json!({
            "coefficients_s": coefficients,
            "intercept_s": fit.intercept_s,
            "samples": fit.samples,
            "r_squared": fit.r_squared,
            "mean_residual_s": fit.mean_residual_s,
            "max_residual_s": fit.max_residual_s,
        })
    });
    json!({
        "kind": plan.kind.name(),
        "ranks": plan.ranks,
        "passes": plan.passes,
        "fit": fit,
        "no_fit": plan.fit.as_ref().err().map(|why| reason(*why)),
        "ttft_s": plan.ttft_s,
        "itl_s": plan.itl_s,
    })
}

#[cfg(test)]
mod tests {
    use rollscope_insight::PassKind;

    use super::*;

    #[test]
    fn a_plan_names_what_the_passes_do_not_tell() {
        let fit = |coefficients_s: Vec<f64>, intercept_s| Fit {
            coefficients_s,
            intercept_s,
            samples: 64,
            r_squared: Some(0.9),
            mean_residual_s: 1e-3,
            max_residual_s: 5e-3,
        };
        let of =
            |fit| Plan { kind: PassKind::Decode, ranks: 2, passes: 90, fit, ttft_s: None, itl_s: Some(0.02) };
        let off = "  R² 0.900, off by 1.00 ms on average, 5.00 ms at most, over 64 passes";
        let next = "  next token on the fullest rank: 20.0 ms";
        let head = "decode: 2 ranks, 90 forward passes";
        for (name, fit, expected) in [
            (
                "whole",
                Ok(fit(vec![1e-4, 2e-6], 6e-3)),
                vec![
                    head,
                    "  a pass takes 6.00 ms + 100 µs × decode_requests + 2.00 µs × decode_kv_tokens",
                    off,
                    next,
                ],
            ),
            (
                "held",
                Ok(fit(vec![0.0, 2e-6], 0.0)),
                vec![
                    head,
                    "  a pass takes 2.00 µs × decode_kv_tokens",
                    off,
                    "  not enough spread to tell what these cost, taken as 0: decode_requests, an empty pass",
                    next,
                ],
            ),
            (
                "next to nothing",
                Ok(fit(vec![1e-17, 2e-6], 0.595)),
                vec![head, "  a pass takes 595 ms + 2.00 µs × decode_kv_tokens", off, next],
            ),
            (
                "few",
                Err(NoFit::TooFew(4)),
                vec![head, "  no regression: 4 passes with a time, and 5 are wanted", next],
            ),
        ] {
            assert_eq!(lines(&of(fit)), expected, "{name}");
        }
        let told = json_of(&of(Err(NoFit::NoGrowth)));
        assert_eq!((&told["fit"], told["no_fit"].is_string()), (&Value::Null, true), "{told}");
    }
}
