//! Tensors of torch and arrays of numpy, as numbers.

use std::rc::Rc;

use super::Tensors;
use crate::pickle::{Content, Value, number, numpy_dtype};
use crate::tree::Tree as _;

/// Elements of a tensor that are read; a view may claim any number of them.
const MAX_ELEMENTS: usize = 1 << 24;
/// Dimensions of a tensor; torch itself has no more.
const MAX_DIMENSIONS: usize = 64;

/// A tensor as its pickle describes it.
struct Tensor {
    storage: Rc<str>,
    kind: &'static str,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

/// An array of numpy.
struct Array {
    kind: Rc<str>,
    big_endian: bool,
    columns_first: bool,
    bytes: Rc<[u8]>,
}

/// The numbers of a tensor or an array in row-major order; nothing when it is none, or its data are not there.
pub(crate) fn numbers_of(value: &Value, tensors: &mut Tensors<'_>) -> Option<Vec<f64>> {
    // A parameter is a tensor with something about training; nothing is a parameter of a parameter.
    let parameter = args_of(value, &["_rebuild_parameter"]);
    let data = parameter.and_then(|args| args.with_items(|args| args.first().cloned())?);
    if let Some(tensor) = tensor(data.as_ref().unwrap_or(value)) {
        return tensor.numbers(tensors);
    }
    let array = array(value).filter(|array| !array.columns_first)?;
    let width = Some(width(&array.kind)).filter(|width| *width > 0)?;
    let elements = array.bytes.chunks_exact(width).take(MAX_ELEMENTS);
    tensors.spend(elements.len() as u64)?;
    elements.map(|element| number_at(&array.kind, element, array.big_endian)).collect()
}

fn number_at(kind: &str, element: &[u8], big_endian: bool) -> Option<f64> {
    if big_endian {
        let swapped: Vec<u8> = element.iter().rev().copied().collect();
        return number(kind, &swapped)?.number_or_truth();
    }
    number(kind, element)?.number_or_truth()
}

/// The arguments of one of torch's functions that rebuild something.
fn args_of(value: &Value, functions: &[&str]) -> Option<Value> {
    let (module, name, args) = value.made_by()?;
    (&*module == "torch._utils" && functions.contains(&&*name)).then_some(args)
}

/// What rebuilds a tensor.
fn tensor(value: &Value) -> Option<Tensor> {
    args_of(value, &["_rebuild_tensor_v2", "_rebuild_tensor"])?.with_items(|args| {
        let [storage, offset, shape, strides, ..] = args else {
            return None;
        };
        let Value::Node(node) = storage else {
            return None;
        };
        let Content::Persistent(place) = &*node.content() else {
            return None;
        };
        let (storage, kind) = storage_of(place)?;
        let offset = usize::try_from(offset.int()?).ok()?;
        Some(Tensor { storage, kind, offset, shape: sizes(shape)?, strides: sizes(strides)? })
    })?
}

fn sizes(value: &Value) -> Option<Vec<usize>> {
    value.with_items(|sizes| {
        let sizes = (sizes.len() <= MAX_DIMENSIONS).then_some(sizes)?;
        sizes.iter().map(|size| usize::try_from(size.int()?).ok()).collect()
    })?
}

/// Key and element type of `("storage", torch.FloatStorage, "0", "cpu", 64)`.
pub(super) fn storage_of(place: &Value) -> Option<(Rc<str>, &'static str)> {
    let (class, key) = place.with_items(|parts| Some((parts.get(1)?.clone(), parts.get(2)?.clone())))??;
    let (_, class) = class.global()?;
    let kind = match class.strip_suffix("Storage")? {
        "Double" => "f8",
        "Float" => "f4",
        "Half" => "f2",
        "BFloat16" => "bf16",
        "Long" => "i8",
        "Int" => "i4",
        "Short" => "i2",
        "Char" => "i1",
        "Byte" | "Untyped" => "u1",
        "Bool" => "b1",
        _ => return None,
    };
    Some((key.text()?.clone(), kind))
}

/// Bytes of an element.
pub(super) fn width(kind: &str) -> usize {
    match kind {
        "bf16" => 2,
        kind => kind.get(1..).and_then(|digits| digits.parse().ok()).unwrap_or(0),
    }
}

fn array(value: &Value) -> Option<Array> {
    let (_, name, _) = value.made_by()?;
    if &*name != "_reconstruct" {
        return None;
    }
    let Value::Node(node) = value else {
        return None;
    };
    let Content::Object(object) = &*node.content() else {
        return None;
    };
    object.state.as_ref()?.with_items(|state| {
        let [_version, _shape, dtype, fortran, Value::Bytes(bytes)] = state else {
            return None;
        };
        let (kind, big_endian) = numpy_dtype(dtype)?;
        let columns_first = matches!(fortran, Value::Bool(true));
        Some(Array { kind, big_endian, columns_first, bytes: bytes.clone() })
    })?
}

// === impl Tensor ===

impl Tensor {
    fn numbers(&self, tensors: &mut Tensors<'_>) -> Option<Vec<f64>> {
        let width = width(self.kind);
        let count = self.shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size))?;
        if count > MAX_ELEMENTS || width == 0 || self.strides.len() != self.shape.len() {
            return None;
        }
        tensors.spend(count as u64)?;
        let big_endian = tensors.big_endian;
        let bytes = tensors.storage(&self.storage)?;
        (0..count)
            .map(|index| {
                let start = self.place(index)?.checked_mul(width)?;
                number_at(self.kind, bytes.get(start..start.checked_add(width)?)?, big_endian)
            })
            .collect()
    }

    /// Where in the storage the element of this row-major index is.
    fn place(&self, index: usize) -> Option<usize> {
        let (mut rest, mut place) = (index, self.offset);
        for (size, stride) in self.shape.iter().zip(&self.strides).rev() {
            place = place.checked_add((rest % size).checked_mul(*stride)?)?;
            rest /= size;
        }
        Some(place)
    }
}
