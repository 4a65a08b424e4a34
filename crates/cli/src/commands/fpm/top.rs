//! All ranks at work, a line each, again and again.
//!
//! A screen is a table of text; the terminal is told only to begin at its top and to forget the rest. So there is nothing to
//! restore however the program ends, and into a file the screens go one after the other. On a terminal a screen fits: names are
//! shortened, columns left out and ranks summed up until it does. In a file everything is there.

mod screen;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use rollscope_config::options;
use rollscope_fpm::{Accounts, Entry, ForwardPassMetrics, Heard, Message, Origin, What};
use rollscope_record::PassSource;
use rollscope_trace::sentence;
use terminal_size::{Height, Width, terminal_size_of};
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::screen::{Latest, Row, Size, screen};
use super::Watched;
use crate::exit::Failure;
use crate::output;

options! {
    /// Show all ranks at work, a line each.
    pub(crate) struct TopOptions, environment "ROLLSCOPE_FPM_TOP" {
        observability {
            /// Servers that are asked where they publish.
            server: Vec<String> = &[], value_name("URL");
            /// Seconds between two looks.
            interval: u16 = 1, range(1..=3600);
            /// End after so many looks.
            count: Option<u32> = None, range(1..=1_000_000);
        }
    }
}

/// Everything that is shown.
#[derive(Default)]
struct Board {
    places: BTreeMap<Origin<PassSource>, Place>,
}

/// An endpoint.
#[derive(Default)]
struct Place {
    /// One rank, unless a proxy carries several.
    ranks: Accounts<Rank>,
    /// Why nothing is heard of it.
    trouble: Option<String>,
}

/// One rank.
#[derive(Default)]
struct Rank {
    /// The latest pass; a heartbeat only until there is one, since some publishers send those amid a long pass too.
    last: ForwardPassMetrics,
    /// Whether a heartbeat has come since.
    is_silent: bool,
    lately: Lately,
}

/// What came since the screen before.
#[derive(Clone, Copy, Default)]
struct Lately {
    passes: u64,
    busy_s: f64,
    prefill_tokens: u64,
    /// A token for each request that decodes.
    decode_tokens: u64,
}

const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

pub(super) async fn run(mut watched: Watched, options: &TopOptions) -> Result<(), Failure> {
    let mut board = Board::default();
    let mut left = options.count;
    let mut looks = interval(Duration::from_secs(options.interval.into()));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks.tick().await;
    let mut since = Instant::now();
    while left != Some(0) {
        tokio::select! {
            heard = watched.recv() => match heard {
                Some(heard) => board.take(heard),
                None => return Ok(()),
            },
            now = looks.tick() => {
                show(&mut board, now.duration_since(since))?;
                since = now;
                left = left.map(|left| left - 1);
            }
        }
    }
    Ok(())
}

fn show(board: &mut Board, window: Duration) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if stdout.is_terminal() {
        let size = terminal_size_of(&stdout).map(|(Width(columns), Height(lines))| Size { columns, lines });
        write!(stdout, "{HOME}")?;
        for line in board.screen(window, size) {
            writeln!(stdout, "{line}{REST_OF_LINE}")?;
        }
        write!(stdout, "{REST_OF_SCREEN}")?;
    } else {
        writeln!(stdout, "{}\n", board.screen(window, None).join("\n"))?;
    }
    stdout.flush()
}

// === impl Board ===

impl Board {
    fn take(&mut self, Heard { from, what }: Heard<Origin<PassSource>>) {
        match what {
            What::Connected => self.place(from).trouble = None,
            What::Lost(error) => self.place(from).trouble = Some(sentence(&error)),
            What::Message(message) => self.place(from).take(message),
            What::Moved(_) => {
                // The map would keep the name of where it was.
                let mut place = self.places.remove(&from).unwrap_or_default();
                place.ranks.begin_anew();
                place.trouble = None;
                self.places.insert(from, place);
            }
            What::Left => drop(self.places.remove(&from)),
        }
    }

    fn place(&mut self, of: Origin<PassSource>) -> &mut Place {
        self.places.entry(of).or_default()
    }

    /// The screen after so long, and a new beginning for what is counted over time.
    fn screen(&mut self, window: Duration, size: Option<Size>) -> Vec<String> {
        let (mut rows, mut troubles) = (Vec::new(), Vec::new());
        for (source, place) in &mut self.places {
            let endpoint = source.endpoint.to_string();
            rows.extend(place.rows(&endpoint, window.as_secs_f64()));
            troubles.extend(place.troubles().map(|trouble| output::shown(&format!("{endpoint}: {trouble}"))));
        }
        screen(&rows, &troubles, size)
    }
}

// === impl Place ===

impl Place {
    fn take(&mut self, message: Message) {
        let taken = self.ranks.take(&message);
        if let (Some((_, Entry { state, .. })), Ok(metrics)) = (taken, message.metrics) {
            state.lately.add(&metrics);
            state.is_silent = metrics.is_heartbeat();
            if !state.is_silent {
                state.last = metrics;
            }
        }
    }

    /// Sentences.
    fn troubles(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let malformed = Some(self.ranks.malformed).filter(|&count| count > 0);
        let malformed = malformed.map(|count| format!("{count} messages are no record").into());
        self.trouble.as_deref().map(Cow::from).into_iter().chain(malformed)
    }

    fn rows(&mut self, endpoint: &str, window_s: f64) -> Vec<Row> {
        if self.ranks.is_empty() {
            return vec![Row::blank(endpoint)];
        }
        let (is_heard, is_shared) = (self.trouble.is_none(), self.ranks.len() > 1);
        let ranks = self.ranks.iter_mut();
        let row = |(worker, dp_rank, Entry { account, state }): (&str, u32, &mut Entry<Rank>)| {
            let name = match worker {
                "" if is_shared => format!("{endpoint} dp{dp_rank}"),
                "" => endpoint.to_owned(),
                worker => format!("{worker} dp{dp_rank}"),
            };
            let lately = std::mem::take(&mut state.lately);
            let latest =
                if state.is_silent { Latest::Heartbeat(&state.last) } else { Latest::Pass(&state.last) };
            Row::new(&name, Some(latest).filter(|_| is_heard), &lately, account, window_s)
        };
        ranks.map(row).collect()
    }
}

// === impl Lately ===

impl Lately {
    fn add(&mut self, metrics: &ForwardPassMetrics) {
        if metrics.is_heartbeat() {
            return;
        }
        self.passes += 1;
        self.busy_s += metrics.wall_time;
        let scheduled = &metrics.scheduled;
        self.prefill_tokens = self.prefill_tokens.saturating_add(scheduled.sum_prefill_tokens);
        self.decode_tokens = self.decode_tokens.saturating_add(scheduled.num_decode_requests);
    }
}

#[cfg(test)]
mod tests;
