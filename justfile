# The chores of the project, one recipe each. CI runs test, interop, fmt, clippy and tidy; .ci/run does so on a bare machine.

# Everything that needs nothing but Rust.
check: fmt clippy tidy test

# The README's test command.
test:
    cargo test --workspace

# Checks against other projects' programs; NAMES as of `cargo xtask interop --list`, all by default.
interop *NAMES:
    cargo xtask interop {{NAMES}}

# What CI leaves out: checks that download much, and hostile payloads by the million.
nightly:
    .ci/nightly

fmt:
    cargo fmt --check

clippy:
    cargo clippy --workspace --all-targets -- -D warnings

# The gateway against its peers; ARGS as of `cargo xtask`: cases, --seconds, --rounds, --binary.
bench *ARGS:
    cargo xtask bench gateway {{ARGS}}

# The page over large runs; ARGS as of `cargo xtask`: --rounds, --binary.
bench-viewer *ARGS:
    cargo xtask bench viewer {{ARGS}}

# What the compiler does not check: crate boundaries, sizes, words, links.
tidy:
    cargo xtask tidy

# Licences, advisories and sources of dependencies; needs cargo-deny.
deny:
    cargo deny check

# The main job.
demo *ARGS:
    cargo run --release -- demo {{ARGS}}
