//! A screen of rows that fits where it is shown.

use rollscope_fpm::{Account, ForwardPassMetrics};

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::Lately;
use crate::output;
use crate::table::{Table, duration, significant};

/// Of a terminal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) columns: u16,
    pub(super) lines: u16,
}

/// A rank's line.
pub(super) struct Row {
    name: String,
    running: u64,
    queued: u64,
    lost: u64,
    /// By [`COLUMNS`].
    cells: [String; COLUMNS.len()],
}

/// What a rank told last.
#[derive(Clone, Copy, Debug)]
pub(super) enum Latest<'a> {
    /// A pass.
    Pass(&'a ForwardPassMetrics),
    /// A heartbeat: it rests, or is in the middle of a pass; and the pass before.
    Heartbeat(&'a ForwardPassMetrics),
}

/// Behind the name.
const COLUMNS: [&str; 12] = [
    "latest",
    "running",
    "queued",
    "KV tokens",
    "prefill/s",
    "decode/s",
    "forward",
    "passes/s",
    "idle",
    "messages",
    "lost",
    "restarts",
];
/// The columns in the order in which they are left out where there is no room.
const LEFT_OUT: [&str; 11] = [
    "messages",
    "restarts",
    "KV tokens",
    "passes/s",
    "prefill/s",
    "latest",
    "idle",
    "forward",
    "decode/s",
    "queued",
    "lost",
];
/// Columns of a name on a terminal.
const NAME_COLUMNS: usize = 40;
/// The same in a file, where every name has room that a worker may have, as long as it is readable.
const FILE_NAME_COLUMNS: usize = 300;
/// What troubles may take of a screen that is full: one line of so many.
const TROUBLES_SHARE: usize = 4;

/// The lines of a screen of rows and of troubles that can be shown as they are; it has room for all where no size is told.
pub(super) fn screen(rows: &[Row], troubles: &[String], size: Option<Size>) -> Vec<String> {
    let Some(Size { columns, lines }) = size else {
        return [table(rows, &COLUMNS, FILE_NAME_COLUMNS), troubles.to_vec()].concat();
    };
    let width = usize::from(columns);
    // The head takes a line, and the cursor stands in the last.
    let lines = usize::from(lines).saturating_sub(2);
    let troubles_shown = troubles.len().min(lines.saturating_sub(rows.len()).max(lines / TROUBLES_SHARE));
    let troubles =
        summed_up(troubles, troubles_shown, |hidden| format!("and {} troubles more", hidden.len()));
    let room = lines.saturating_sub(troubles.len());
    let (shown, more) = if rows.len() <= room {
        (rows, None)
    } else {
        let (shown, hidden) = rows.split_at(room.saturating_sub(1));
        let sum = |of: fn(&Row) -> u64| hidden.iter().map(of).fold(0, u64::saturating_add);
        let (running, queued, lost) = (sum(|row| row.running), sum(|row| row.queued), sum(|row| row.lost));
        let count = hidden.len();
        (shown, Some(format!("and {count} more: {running} running, {queued} queued, {lost} lost")))
    };
    let table = widest(shown, width);
    table.into_iter().chain(more).chain(troubles).map(|line| cut(&line, width)).collect()
}

/// The table with as many columns as there is room for.
fn widest(rows: &[Row], width: usize) -> Vec<String> {
    let mut columns = COLUMNS.to_vec();
    let mut left_out = LEFT_OUT.iter();
    loop {
        let lines = table(rows, &columns, NAME_COLUMNS);
        let fits = lines.iter().all(|line| line.width() <= width);
        let Some(column) = left_out.next().filter(|_| !fits) else { return lines };
        columns.retain(|other| other != column);
    }
}

fn table(rows: &[Row], columns: &[&str], name_columns: usize) -> Vec<String> {
    let mut table = Table::new(std::iter::once("rank").chain(columns.iter().copied()));
    for row in rows {
        let cells = COLUMNS.iter().zip(&row.cells).filter(|(column, _)| columns.contains(column));
        let name = shortened(&row.name, name_columns);
        table.row(std::iter::once(name).chain(cells.map(|(_, cell)| cell.clone())));
    }
    table.lines().collect()
}

/// As many of them as may be shown; the last one tells of the others.
fn summed_up(all: &[String], shown: usize, others: impl Fn(&[String]) -> String) -> Vec<String> {
    if all.len() <= shown || shown == 0 {
        return all.iter().take(shown).cloned().collect();
    }
    let (shown, hidden) = all.split_at(shown - 1);
    shown.iter().cloned().chain([others(hidden)]).collect()
}

/// A name of so many columns at most: its begin and its end, which often has the number.
fn shortened(name: &str, most: usize) -> String {
    if name.width() <= most {
        return name.to_owned();
    }
    let begin = most.saturating_sub(1) / 2;
    let end: Vec<char> = within(name.chars().rev(), most.saturating_sub(1) - begin).collect();
    within(name.chars(), begin).chain(['…']).chain(end.into_iter().rev()).collect()
}

fn cut(line: &str, width: usize) -> String {
    within(line.chars(), width).collect()
}

/// As many characters as have room in so many columns.
fn within(chars: impl Iterator<Item = char>, columns: usize) -> impl Iterator<Item = char> {
    chars
        .scan(0, |taken, char| {
            *taken += char.width().unwrap_or(0);
            Some((*taken, char))
        })
        .take_while(move |(taken, _)| *taken <= columns)
        .map(|(_, char)| char)
}

// === impl Row ===

impl Row {
    /// Of an endpoint that nothing was heard of yet.
    pub(super) fn blank(name: &str) -> Self {
        Self::new(name, None, &Lately::default(), &Account::default(), 1.0)
    }

    pub(super) fn new(
        name: &str,
        latest: Option<Latest<'_>>,
        lately: &Lately,
        account: &Account,
        window_s: f64,
    ) -> Self {
        let blank = || "-".to_owned();
        let (last, kind) = match latest {
            Some(Latest::Pass(last)) => (Some(last), "pass"),
            Some(Latest::Heartbeat(last)) => (Some(last), "heartbeat"),
            None => (None, "-"),
        };
        let per_second = |count: u64| significant(count as f64 / window_s);
        let of = |read: fn(&ForwardPassMetrics) -> u64| last.map_or(0, read);
        let running = of(|last| sum(last.scheduled.num_prefill_requests, last.scheduled.num_decode_requests));
        let queued = of(|last| sum(last.queued.num_prefill_requests, last.queued.num_decode_requests));
        let kv_tokens =
            of(|last| sum(last.scheduled.sum_prefill_kv_tokens, last.scheduled.sum_decode_kv_tokens));
        let idle = (1.0 - lately.busy_s / window_s).clamp(0.0, 1.0) * 100.0;
        let when_heard = |text: String| if last.is_some() { text } else { blank() };
        let cells = [
            kind.to_owned(),
            when_heard(running.to_string()),
            when_heard(queued.to_string()),
            when_heard(kv_tokens.to_string()),
            when_heard(per_second(lately.prefill_tokens)),
            when_heard(per_second(lately.decode_tokens)),
            if lately.passes == 0 { blank() } else { duration(lately.busy_s / lately.passes as f64) },
            when_heard(per_second(lately.passes)),
            when_heard(format!("{idle:.0}%")),
            account.received.to_string(),
            account.lost.to_string(),
            account.restarts.to_string(),
        ];
        // What is made harmless may become longer, so that is done before it is measured.
        Self { name: output::shown(name), running, queued, lost: account.lost, cells }
    }
}

fn sum(one: u64, other: u64) -> u64 {
    one.saturating_add(other)
}
