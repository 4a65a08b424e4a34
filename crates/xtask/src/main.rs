//! The project's own chores: `cargo xtask tidy`, `cargo xtask interop`, `cargo xtask fuzz`, `cargo xtask bench` and
//! `cargo xtask dist`.

mod bench;
mod dist;
mod fuzz;
mod host;
mod interop;
mod tidy;
mod workspace;

use std::process::ExitCode;

use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask tidy
       cargo xtask interop [--list | NAME...]
       cargo xtask fuzz [--cases N]
       cargo xtask bench gateway [--list | CASE... --seconds N --rounds N --binary PATH]
       cargo xtask bench viewer [--rounds N --binary PATH]
       cargo xtask bench fpm [publish | follow] [--rounds N --seconds N --binary PATH]
       cargo xtask bench engine [--rounds N --binary PATH]
       cargo xtask bench stats [--rounds N]
       cargo xtask dist

tidy     checks what the compiler does not: crate boundaries, file sizes, forbidden words, links
interop  runs the checks against other projects' programs; sets up what they need under target/interop
fuzz     makes up hostile input for the readers of forward passes, of pickles and of a run's log, up to a million cases of each
         unless told otherwise; builds under target/fuzz
bench    measures the gateway against its peers, as ratios, the page over large runs, forward-pass metrics against SGLang's
         publisher, the engine beside llama.cpp, or what numbers, imports and recording cost; sets up what it needs under target/bench and target/interop
dist     builds the program laid out by what its own work uses, as one installs it: target/dist/rollscope
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => Workspace::find().and_then(|workspace| tidy::run(&workspace)),
        ["interop", "--list"] => Ok(interop::list()),
        ["interop", names @ ..] => Workspace::find().and_then(|workspace| interop::run(&workspace, names)),
        ["fuzz", args @ ..] => Workspace::find().and_then(|workspace| fuzz::run(&workspace, args)),
        ["bench", "gateway", "--list"] => Ok(bench::list()),
        ["bench", "viewer", args @ ..] => {
            Workspace::find().and_then(|workspace| bench::viewer::run(&workspace, args))
        }
        ["bench", "fpm", args @ ..] => {
            Workspace::find().and_then(|workspace| bench::fpm::run(&workspace, args))
        }
        ["bench", "engine", args @ ..] => {
            Workspace::find().and_then(|workspace| bench::engine::run(&workspace, args))
        }
        ["bench", "stats", args @ ..] => {
            Workspace::find().and_then(|workspace| bench::stats::run(&workspace, args))
        }
        ["bench", "gateway", args @ ..] => {
            Workspace::find().and_then(|workspace| bench::run(&workspace, args))
        }
        ["dist"] => Workspace::find().and_then(|workspace| dist::run(&workspace)),
        _ => {
            workspace::say_aside(USAGE);
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            workspace::say_aside(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
