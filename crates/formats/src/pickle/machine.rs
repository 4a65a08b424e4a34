//! The stack machine.

use std::rc::Rc;

use super::known::Copies;
use super::memo::{Memo, memo_index};
use super::opcode::{MARK, MEMOIZE, Op, Ops, STOP, little_endian};
use super::value::{Content, Object, deepest};
use super::{Node, PickleError, PickleFault, Value, known};

/// Elements of one list, handed out as soon as they are complete, so that not all of them are held at once.
pub(crate) struct Elements<'a, E> {
    /// The list is the value of this key of the outermost dictionary.
    pub(crate) key: &'a str,
    pub(crate) take: &'a mut TakeElement<'a, E>,
}

/// Gets what the dictionary holds so far, keys and values in turn, and an element.
pub(crate) type TakeElement<'a, E> = dyn FnMut(&[Value], &Value) -> Result<(), E> + 'a;

/// A pickle's object. While it lives, no container that is shared within the pickle goes.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) root: Value,
    _shared: Shared,
}

/// Containers that something may refer to again. Emptied one by one at the end, which breaks their cycles and
/// keeps a chain of them from being dropped by recursion.
#[derive(Debug, Default)]
struct Shared(Vec<Rc<Node>>);

struct Machine<'a> {
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: Memo,
    memoised: usize,
    shared: Shared,
    key: Option<&'a str>,
    /// What calls may still copy.
    copies: Copies,
}

/// Reads the pickle that begins at `start`.
pub(crate) fn load(bytes: &[u8], start: usize) -> Result<Loaded, PickleError> {
    run::<PickleError>(bytes, start, None)
}

/// Reads a pickle whose outermost object is a dictionary with a long list; the list is left empty.
pub(crate) fn load_elements<E: From<PickleError>>(
    bytes: &[u8],
    start: usize,
    elements: Elements<'_, E>,
) -> Result<Loaded, E> {
    run(bytes, start, Some(elements))
}

fn run<E: From<PickleError>>(
    bytes: &[u8],
    start: usize,
    mut elements: Option<Elements<'_, E>>,
) -> Result<Loaded, E> {
    // Also tells whether it is whole before anything is made of it.
    let (end, memo) = Memo::of(bytes, start)?;
    let mut machine = Machine {
        stack: Vec::new(),
        marks: Vec::new(),
        memo,
        memoised: 0,
        shared: Shared::default(),
        key: elements.as_ref().map(|elements| elements.key),
        copies: Copies(end - start),
    };
    let mut ops = Ops::new(bytes, start);
    loop {
        let op = ops.next()?;
        if op.code == STOP {
            let root = machine.pop().map_err(|fault| PickleError { offset: op.at, fault })?;
            return Ok(Loaded { root, _shared: machine.shared });
        }
        if let Some(elements) = &mut elements
            && let Some(list) = machine.list_of_elements()
        {
            machine.hand_out(op.code, list, elements)?;
        }
        machine.step(op).map_err(|fault| PickleError { offset: op.at, fault })?;
    }
}

// === impl Machine ===

impl Machine<'_> {
    fn step(&mut self, op: Op<'_>) -> Result<(), PickleFault> {
        match op.code {
            MARK => self.marks.push(self.stack.len()),
            // Protocol and frames; a buffer that is read-only stays what it is.
            0x80 if op.argument[0] > 5 => return Err(PickleFault::NewProtocol(op.argument[0])),
            0x80 | 0x95 | 0x98 => {}
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            b'2' => {
                let top = self.stack.last().cloned().ok_or(PickleFault::BadStack(op.code))?;
                self.share(&top);
                self.stack.push(top);
            }
            b'g' | b'h' | b'j' => self.recall(op)?,
            b'p' | b'q' | b'r' | MEMOIZE => self.memoise(op)?,
            b't' | b'l' | b'd' | 0x91 | b']' | b'}' | b')' | 0x8f | 0x85..=0x87 => self.collect(op.code)?,
            b'a' | b'e' | b's' | b'u' | 0x90 => self.put_in(op.code)?,
            b'c' | b'i' | b'o' | b'R' | b'b' | b'P' | b'Q' | 0x81 | 0x92 | 0x93 | 0x82..=0x84 | 0x97 => {
                self.make(op)?;
            }
            _ => self.stack.push(known::literal(op).ok_or(PickleFault::BadArgument(op.code))?),
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, PickleFault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(PickleFault::BadStack(STOP));
        }
        self.stack.pop().ok_or(PickleFault::BadStack(STOP))
    }

    /// Everything above the last mark.
    fn pop_mark(&mut self) -> Result<Vec<Value>, PickleFault> {
        let mark = self.marks.pop().ok_or(PickleFault::BadStack(MARK))?;
        Ok(self.stack.split_off(mark))
    }

    fn push_node(&mut self, content: Content) -> Result<(), PickleFault> {
        self.stack.push(Value::node(content).ok_or(PickleFault::TooDeep)?);
        Ok(())
    }

    fn share(&mut self, value: &Value) {
        if let Value::Node(node) = value {
            self.shared.0.push(node.clone());
        }
    }

    fn recall(&mut self, op: Op<'_>) -> Result<(), PickleFault> {
        let value = memo_index(op).and_then(|index| self.memo.recall(index));
        self.stack.push(value.ok_or(PickleFault::NoSuchMemo)?);
        Ok(())
    }

    fn memoise(&mut self, op: Op<'_>) -> Result<(), PickleFault> {
        let named = if op.code == MEMOIZE { Some(self.memoised) } else { memo_index(op) };
        let index = named.ok_or(PickleFault::BadArgument(op.code))?;
        self.memoised += 1;
        if let Some(slot) = self.memo.slot(index).filter(|slot| slot.uses > 0) {
            let top = self.stack.last().cloned().ok_or(PickleFault::BadStack(op.code))?;
            slot.value = Some(top.clone());
            self.share(&top);
        }
        Ok(())
    }

    /// Makes a container of what is on the stack.
    fn collect(&mut self, code: u8) -> Result<(), PickleFault> {
        let content = match code {
            b')' => Content::Tuple(Vec::new()),
            b']' => Content::List(Vec::new()),
            b'}' => Content::Dict(Vec::new()),
            0x8f => Content::Set(Vec::new()),
            b't' => Content::Tuple(self.pop_mark()?),
            b'l' => Content::List(self.pop_mark()?),
            b'd' => {
                let items = self.pop_mark()?;
                if !items.len().is_multiple_of(2) {
                    return Err(PickleFault::BadStack(code));
                }
                Content::Dict(items)
            }
            0x91 => Content::Set(self.pop_mark()?),
            _ => {
                let count = usize::from(code - 0x84);
                let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
                items.reverse();
                Content::Tuple(items)
            }
        };
        self.push_node(content)
    }

    /// Puts what is on the stack into the container below it.
    fn put_in(&mut self, code: u8) -> Result<(), PickleFault> {
        let mut items = match code {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_mark()?,
        };
        let Some(Value::Node(node)) = self.stack.last() else {
            return Err(PickleFault::BadStack(code));
        };
        let is_pairs = matches!(code, b's' | b'u');
        let mut fits = true;
        let shallow = node.change(deepest(items.iter()), |content| match content {
            Content::Dict(held) if is_pairs && items.len().is_multiple_of(2) => fill(held, &mut items),
            Content::List(held) | Content::Set(held) if !is_pairs => fill(held, &mut items),
            // A class of its own that is filled like a list or a dictionary keeps what it was made of.
            Content::Object(_) => {}
            _ => fits = false,
        });
        match (fits, shallow) {
            (false, _) => Err(PickleFault::BadStack(code)),
            (_, false) => Err(PickleFault::TooDeep),
            _ => Ok(()),
        }
    }

    /// Classes, functions, and what they would make.
    fn make(&mut self, op: Op<'_>) -> Result<(), PickleFault> {
        let bad = PickleFault::BadArgument(op.code);
        match op.code {
            b'c' => {
                let global = known::global_of(op.argument).ok_or(bad)?;
                self.push_node(global)
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (module, name) {
                    (Value::Text(module), Value::Text(name)) => {
                        self.push_node(Content::Global { module, name })
                    }
                    _ => Err(PickleFault::BadStack(op.code)),
                }
            }
            b'P' => {
                let name = Value::Text(known::lossy(op.argument));
                self.push_node(Content::Persistent(name))
            }
            b'Q' => {
                let name = self.pop()?;
                self.push_node(Content::Persistent(name))
            }
            b'i' => {
                let args = self.pop_mark()?;
                let class = known::global_of(op.argument).and_then(Value::node).ok_or(bad)?;
                self.push_object(class, args)
            }
            b'o' => {
                let mut args = self.pop_mark()?;
                if args.is_empty() {
                    return Err(PickleFault::BadStack(op.code));
                }
                let class = args.remove(0);
                self.push_object(class, args)
            }
            b'R' | 0x81 => {
                let (args, class) = (self.pop()?, self.pop()?);
                match known::made(&class, &args, &mut self.copies)? {
                    Some(value) => self.stack.push(value),
                    None => self.push_node(object(class, args))?,
                }
                Ok(())
            }
            0x92 => {
                let (_keywords, args, class) = (self.pop()?, self.pop()?, self.pop()?);
                self.push_node(object(class, args))
            }
            b'b' => self.build(),
            // Extension registries and buffers lie outside of the file.
            _ => {
                let number = Value::Int(little_endian(op.argument) as i64);
                self.push_node(Content::Persistent(number))
            }
        }
    }

    fn push_object(&mut self, class: Value, args: Vec<Value>) -> Result<(), PickleFault> {
        let args = Value::node(Content::Tuple(args)).ok_or(PickleFault::TooDeep)?;
        self.push_node(object(class, args))
    }

    /// Sets the state of an object; what is no object has none that would matter.
    fn build(&mut self) -> Result<(), PickleFault> {
        let state = self.pop()?;
        let Some(top) = self.stack.last() else {
            return Err(PickleFault::BadStack(b'b'));
        };
        let Value::Node(node) = top else {
            return Ok(());
        };
        let shallow = node.change(deepest([&state].into_iter()), |content| {
            if let Content::Object(object) = content {
                object.state = Some(state);
            }
        });
        if shallow { Ok(()) } else { Err(PickleFault::TooDeep) }
    }

    /// Where on the stack the list stands whose elements are handed out, if the machine is filling it:
    /// `{ ( key value … key [ ( element …`.
    #[inline]
    fn list_of_elements(&self) -> Option<usize> {
        let (key, &[outer, inner]) = (self.key?, &*self.marks) else {
            return None;
        };
        if outer == 0 || inner < outer + 2 || self.stack.len() <= inner {
            return None;
        }
        let is_key = self.stack[inner - 2].text().is_some_and(|text| **text == *key);
        (is_key && (inner - outer).is_multiple_of(2)).then_some(inner - 1)
    }

    /// Hands out the elements that are complete before the next opcode is carried out.
    fn hand_out<E>(&mut self, next: u8, list: usize, elements: &mut Elements<'_, E>) -> Result<(), E> {
        let first = list + 1;
        let complete = match next {
            b'e' => self.stack.len() - first,
            // Only a further element begins with one of these while the last is a dictionary, or an object with
            // its state.
            b'}' | b'c' | b'h' | b'j' | b'g' if is_whole(&self.stack[self.stack.len() - 1], next) => {
                self.stack.len() - first
            }
            _ => return Ok(()),
        };
        let outer = self.marks[0];
        for index in first..first + complete {
            (elements.take)(&self.stack[outer..list], &self.stack[index])?;
        }
        self.stack.truncate(first);
        Ok(())
    }
}

/// Whether an element is complete, given what comes next.
fn is_whole(last: &Value, next: u8) -> bool {
    let Value::Node(node) = last else {
        return false;
    };
    match &*node.content() {
        Content::Dict(items) => next == b'}' && !items.is_empty(),
        Content::Object(object) => next != b'}' && object.state.is_some(),
        _ => false,
    }
}

fn object(class: Value, args: Value) -> Content {
    Content::Object(Box::new(Object { class, args, state: None }))
}

/// Appends items; without a copy where there were none.
fn fill(held: &mut Vec<Value>, items: &mut Vec<Value>) {
    if held.is_empty() {
        std::mem::swap(held, items);
    } else {
        held.append(items);
    }
}

// === impl Shared ===

impl Drop for Shared {
    fn drop(&mut self) {
        self.0.iter().for_each(|node| node.clear());
    }
}
