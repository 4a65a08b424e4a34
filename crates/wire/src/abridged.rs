//! What a reply says of itself, taken from it while it passes by.
//!
//! A reply that is merely passed on need not be held to be read. This scanner is pushed piece by piece, however the
//! network cut them, and keeps an abridged reply: the scalars of `meta_info` and of its `finish_reason`, those of
//! `usage` and of its `prompt_tokens_details`, the `finish_reason` of each of the `choices`, and whether there is an
//! `error`; `[]` stands for lists, objects and long texts. [`Reply::scan`](crate::Reply::scan) reads the same from it as
//! from the whole. All else is skipped as in the whole: the ends of strings and the brackets of containers are searched
//! for, by 64 bytes at a time. Objects that are entered are at most three deep, and known beforehand, so the state is a
//! word and not a stack.
//!
//! ```text
//! // value: Value => (FirstName | FirstElement | Text | Literal | Container)
//! // object: FirstName => InName => Colon => Value … After => (Name | After)
//! // anything unexpected in an element => Broken => (After | End)
//! ```
//!
//! What is malformed in the inside of an element is skipped up to the brace that balances the element's first, and nothing
//! is read of the reply. So the form of it is judged alike, however it was cut.

use memchr::memchr2;

use crate::chunks::Chunks;
use crate::cursor::MAX_SCALAR_BYTES;
use crate::error::{Malformed, Problem};
use crate::nesting::Nesting;
use crate::reply::{CHOICES, FINISH_REASON, PROMPT_DETAILS, USAGE};
use crate::scalar;

/// A reply that is abridged as it comes.
#[derive(Debug)]
pub struct Abridged {
    out: Vec<u8>,
    limit_bytes: usize,
    is_batch: bool,
    /// Malformed in its inside, or it says too much.
    is_unread: bool,
    level: Level,
    state: State,
    /// Of the member that is being read, as it is spelled.
    name: Vec<u8>,
    /// Where its value begins in `out`.
    value: usize,
    /// Bytes before the piece that is being taken.
    passed: usize,
    /// Why it is no reply, if that is certain.
    no_reply: Option<Malformed>,
}

/// What a reply that has passed by was.
#[derive(Debug, PartialEq)]
pub enum Summary {
    /// A reply, abridged.
    Reply(Chunks),
    /// Malformed in its inside, or one that says too much.
    Unread,
    /// No object and no list of objects, or one that is not whole.
    NoReply(Malformed),
}

/// The object whose members, or the list whose elements, are being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// None: the body itself, or the list of a batch.
    Body,
    Element,
    MetaInfo,
    FinishReason,
    Usage,
    PromptDetails,
    /// The list.
    Choices,
    Choice,
}

/// What comes next, after space.
#[derive(Debug)]
enum State {
    Value,
    /// An element or the end of the list.
    FirstElement,
    /// A name or the end of the object.
    FirstName,
    Name,
    InName {
        is_escaped: bool,
    },
    Colon,
    Text {
        is_escaped: bool,
        is_kept: bool,
    },
    Literal {
        is_kept: bool,
    },
    Container(Nesting),
    /// A comma or the end of what the value stands in.
    After,
    /// Nothing.
    End,
    /// The rest of an element that is malformed.
    Broken(Nesting),
}

// === impl Abridged ===

impl Abridged {
    /// Nothing of it has come. No more than so many bytes are kept.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            out: Vec::new(),
            limit_bytes,
            is_batch: false,
            is_unread: false,
            level: Level::Body,
            state: State::Value,
            name: Vec::new(),
            value: 0,
            passed: 0,
            no_reply: None,
        }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while let Some(byte) = rest.first() {
            let place = self.passed + piece.len() - rest.len();
            let passed = match &mut self.state {
                _ if self.no_reply.is_some() => return,
                State::Container(nesting) => nesting.end_in(rest).inspect(|_| self.state = State::After),
                State::Broken(nesting) => nesting.end_in(rest).inspect(|_| self.leave_broken()),
                State::InName { .. } => Some(self.pass_name(rest)),
                State::Text { .. } => Some(self.pass_text(rest)),
                State::Literal { .. } => Some(self.pass_literal(rest)),
                _ if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') => Some(1),
                _ => Some(usize::from(self.take(*byte, place))),
            };
            rest = &rest[passed.unwrap_or(rest.len())..];
        }
        self.passed += piece.len();
        if self.out.len() > self.limit_bytes {
            self.keep_nothing();
        }
    }

    /// Why it is no reply, if what has come so far makes that certain.
    pub fn no_reply(&self) -> Option<Malformed> {
        self.no_reply
    }

    /// What it was, now that all of it has come.
    pub fn finish(self) -> Summary {
        match (self.state, self.no_reply) {
            (_, Some(why)) => Summary::NoReply(why),
            (State::End, None) if self.is_unread => Summary::Unread,
            (State::End, None) => Summary::Reply(self.out.into()),
            (_, None) => Summary::NoReply(Malformed { offset: self.passed, problem: Problem::End }),
        }
    }

    /// Takes a byte that is no space and not within a value, and its place; whether it is used up.
    fn take(&mut self, byte: u8, place: usize) -> bool {
        match (&self.state, self.level, byte) {
            (State::Value | State::FirstElement, Level::Body | Level::Choices, b'{') => {
                if self.out.last() == Some(&b'}') {
                    self.out.push(b',');
                }
                self.enter(if self.level == Level::Body { Level::Element } else { Level::Choice });
            }
            (State::Value, Level::Body, b'[') if !self.is_batch => {
                self.is_batch = true;
                self.out.push(b'[');
                self.state = State::FirstElement;
            }
            (State::FirstElement | State::After, Level::Choices, b']') => {
                self.out.push(b']');
                (self.level, self.state) = (Level::Element, State::After);
            }
            (State::FirstElement, ..) | (State::After, Level::Body, b']') if byte == b']' => {
                self.out.push(b']');
                self.state = State::End;
            }
            (State::FirstName | State::Name, _, b'"') => {
                self.name.clear();
                self.state = State::InName { is_escaped: false };
            }
            (State::FirstName | State::After, level, b'}') if !level.is_list() => self.leave(),
            (State::Colon, _, b':') => self.state = State::Value,
            (State::After, level, b',') => {
                self.state = if level.is_list() { State::Value } else { State::Name };
            }
            (State::Value | State::FirstElement, level, _) if level != Level::Body => {
                return self.begin_value(byte);
            }
            (state, Level::Body, _) => {
                let problem = match state {
                    State::Value | State::FirstElement => Problem::NotAnObject,
                    State::End => Problem::Trailing,
                    _ => Problem::Unexpected,
                };
                self.no_reply = Some(Malformed { offset: place, problem });
            }
            _ => return self.break_off(),
        }
        true
    }

    /// Decides on a member by its name and the first byte of its value, or on an element of `choices` that is none; whether
    /// that byte is used up.
    fn begin_value(&mut self, byte: u8) -> bool {
        // A longer name was not kept whole; nobody asks for it.
        let is_name_whole = self.name.len() < MAX_SCALAR_BYTES;
        let raw = if is_name_whole { &self.name[..] } else { &[] };
        let Ok(name) = scalar::unescape(raw.into(), 0) else { return self.break_off() };
        let inner = match (self.level, &*name, byte) {
            (Level::Element, b"meta_info", b'{') => Some(Level::MetaInfo),
            (Level::MetaInfo, FINISH_REASON, b'{') => Some(Level::FinishReason),
            (Level::Element, USAGE, b'{') => Some(Level::Usage),
            (Level::Usage, PROMPT_DETAILS, b'{') => Some(Level::PromptDetails),
            _ => None,
        };
        let is_scalar_read = match self.level {
            Level::Body | Level::Element | Level::Choices => false,
            Level::Choice => &*name == FINISH_REASON,
            _ => is_name_whole,
        };
        // Of these it only matters whether they are literals.
        let is_kind_read = self.level == Level::Element
            && matches!(&*name, b"meta_info" | b"index" | b"error" | USAGE | CHOICES);
        match byte {
            b'[' if self.level == Level::Element && &*name == CHOICES => {
                self.begin_member();
                self.out.push(b'[');
                (self.level, self.state) = (Level::Choices, State::FirstElement);
            }
            b'{' if let Some(inner) = inner => {
                self.begin_member();
                self.enter(inner);
            }
            b'"' => {
                if is_scalar_read {
                    self.begin_member();
                    self.out.push(b'"');
                } else if is_kind_read {
                    self.begin_member();
                    self.out.extend(b"\"\"");
                }
                self.state = State::Text { is_escaped: false, is_kept: is_scalar_read };
            }
            b'{' | b'[' => {
                if is_scalar_read || is_kind_read {
                    self.begin_member();
                    self.out.extend(b"[]");
                }
                self.state = State::Container(Nesting::new(byte, if byte == b'{' { b'}' } else { b']' }));
                return false;
            }
            b',' | b':' | b']' | b'}' => return self.break_off(),
            _ => {
                let is_kept = is_scalar_read || is_kind_read;
                if is_kept {
                    self.begin_member();
                }
                self.state = State::Literal { is_kept };
                return false;
            }
        }
        true
    }

    fn begin_member(&mut self) {
        if self.out.last() != Some(&b'{') {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(&self.name);
        self.out.extend(b"\":");
        self.value = self.out.len();
    }

    fn enter(&mut self, level: Level) {
        self.out.push(b'{');
        self.level = level;
        self.state = State::FirstName;
    }

    fn leave(&mut self) {
        self.out.push(b'}');
        (self.level, self.state) = match self.level {
            Level::FinishReason => (Level::MetaInfo, State::After),
            Level::PromptDetails => (Level::Usage, State::After),
            Level::MetaInfo | Level::Usage | Level::Choices => (Level::Element, State::After),
            Level::Choice => (Level::Choices, State::After),
            Level::Element if self.is_batch => (Level::Body, State::After),
            Level::Element | Level::Body => (Level::Body, State::End),
        };
    }

    fn pass_name(&mut self, rest: &[u8]) -> usize {
        let State::InName { is_escaped } = &mut self.state else { return 0 };
        let (length, is_over) = text_length(rest, is_escaped);
        self.name.extend_from_slice(&rest[..length - usize::from(is_over)]);
        self.name.truncate(MAX_SCALAR_BYTES);
        if is_over {
            self.state = State::Colon;
        }
        length
    }

    fn pass_text(&mut self, rest: &[u8]) -> usize {
        let State::Text { is_escaped, is_kept } = &mut self.state else { return 0 };
        let (length, is_over) = text_length(rest, is_escaped);
        if *is_kept {
            self.out.extend_from_slice(&rest[..length]);
            if self.out.len() - self.value > MAX_SCALAR_BYTES {
                self.out.truncate(self.value);
                self.out.extend(b"[]");
                *is_kept = false;
            }
        }
        if is_over {
            self.state = State::After;
        }
        length
    }

    fn pass_literal(&mut self, rest: &[u8]) -> usize {
        let is_end = |byte: &u8| {
            matches!(byte, b',' | b']' | b'}' | b':' | b'"' | b'[' | b'{') || byte.is_ascii_whitespace()
        };
        let end = rest.iter().position(is_end);
        let length = end.unwrap_or(rest.len());
        if matches!(self.state, State::Literal { is_kept: true }) {
            self.out.extend_from_slice(&rest[..length]);
        }
        if end.is_some() {
            self.state = State::After;
        }
        length
    }

    /// The element is malformed from the byte on that is being taken, which is not used up.
    fn break_off(&mut self) -> bool {
        let depth = match self.level {
            Level::Body | Level::Element | Level::Choices => 1,
            Level::MetaInfo | Level::Usage | Level::Choice => 2,
            Level::FinishReason | Level::PromptDetails => 3,
        };
        self.state = State::Broken(Nesting::within(b'{', b'}', depth));
        self.keep_nothing();
        false
    }

    fn leave_broken(&mut self) {
        self.level = Level::Element;
        self.leave();
    }

    fn keep_nothing(&mut self) {
        self.is_unread = true;
        (self.out, self.value) = (Vec::new(), 0);
    }
}

// === impl Level ===

impl Level {
    fn is_list(self) -> bool {
        matches!(self, Self::Body | Self::Choices)
    }
}

/// How much of a text stands here, its closing quote included; and whether it ends. `is_escaped` tells whether the first
/// byte stands behind a backslash, and then whether the next one does.
fn text_length(rest: &[u8], is_escaped: &mut bool) -> (usize, bool) {
    let mut passed = usize::from(std::mem::take(is_escaped));
    while let Some(distance) = memchr2(b'"', b'\\', &rest[passed..]) {
        passed += distance + 1;
        if rest[passed - 1] == b'"' {
            return (passed, true);
        }
        *is_escaped = passed == rest.len();
        passed = rest.len().min(passed + 1);
    }
    (rest.len(), false)
}
