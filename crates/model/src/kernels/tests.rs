//! Kernels against the chains that they promise, bit by bit, and against arithmetic in f64.

use proptest::prelude::*;

use super::elementwise::exp;
use super::packed::{Layout, Part};
use super::{Packed, attend, exp_shifted, matmul, rms_norm, rotate, silu_gate};
use crate::config::ModelConfig;
use crate::isa::Isa;
use crate::kv::{KvPool, PageId};
use crate::quants::{Matrix, Quants};
use crate::sampling::uniform;
use crate::tests::Shape;

/// Numbers between -1 and 1, a function of the seed.
fn noise(seed: u64, len: usize) -> Vec<f32> {
    (0..len as u64).map(|index| (2.0 * uniform(seed, index) - 1.0) as f32).collect()
}

/// A matrix of numbers of four or eight bits, some scales being zero or negative.
fn quants(seed: u64, (rows, columns): (usize, usize), block: usize, bits: u32) -> Matrix {
    let draw = |index: usize| uniform(seed, index as u64);
    let (span, least) = if bits == 4 { (16.0, 0.0) } else { (256.0, -128.0) };
    Matrix::Quants(Quants {
        block,
        numbers: (0..rows * columns).map(|index| (draw(index) * span + least).floor() as i8).collect(),
        scales: noise(seed ^ 1, rows * columns / block * 2)
            .as_chunks()
            .0
            .iter()
            .map(|[scale, offset]| [scale * 0.1, if *offset < 0.0 { -0.0 } else { *offset }])
            .collect(),
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn assert_close(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() <= tolerance, "{found} is not {expected}");
    }
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    for step in -87_000..=88_000_i32 {
        let x = step as f32 / 1e3;
        let exact = libm::exp(f64::from(x));
        let error = (f64::from(exp(x)) - exact).abs() / exact;
        assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}) is wrong by {error:e}");
    }
}

#[test]
fn exp_of_what_is_no_number_or_out_of_range() {
    assert!(exp(f32::NAN).is_nan());
    assert_eq!(exp(0.0).to_bits(), 1.0_f32.to_bits());
    assert_eq!(exp(f32::NEG_INFINITY).to_bits(), exp(-87.0).to_bits());
    assert_eq!(exp(f32::INFINITY).to_bits(), exp(88.0).to_bits());
}

#[test]
fn a_packed_row_comes_back() {
    let floats = |seed, rows: usize| Matrix::Floats(noise(seed, rows * 12));
    for (first, second) in [
        (floats(1, 5), floats(2, 70)),
        (quants(3, (5, 12), 4, 4), quants(4, (70, 12), 4, 4)),
        (quants(3, (5, 12), 4, 4), quants(4, (70, 12), 4, 8)),
        (quants(3, (5, 12), 4, 4), quants(4, (70, 12), 6, 4)),
        (quants(3, (5, 12), 3, 4), floats(4, 70)),
    ] {
        let packed = Packed::stack(12, &[&first, &second]).unwrap();
        assert_eq!(packed.outputs(), 75);
        let mut row = [0.0; 12];
        let expected = [first, second].map(Matrix::into_values).concat();
        for (output, expected) in expected.chunks(12).enumerate() {
            packed.copy_row(output, &mut row);
            assert_eq!(bits(&row), bits(expected));
        }
    }
}

#[test]
fn each_part_of_a_stack_stays_as_it_is_stored() {
    let floats = Matrix::Floats(noise(1, 3 * 32));
    let (four, five, eight) =
        (quants(2, (3, 32), 16, 4), quants(3, (70, 32), 16, 4), quants(4, (3, 32), 16, 8));
    let wide = quants(5, (3, 32), 32, 8);
    for (matrices, expected) in [
        (vec![&four, &five, &four], "nibbles of 16: 76"),
        (vec![&four, &eight, &wide], "nibbles of 16: 3, bytes of 16: 3, bytes of 32: 3"),
        (vec![&four, &five, &eight], "nibbles of 16: 73, bytes of 16: 3"),
        (vec![&four, &floats, &four], "nibbles of 16: 3, floats: 3, nibbles of 16: 3"),
        (vec![&floats, &floats], "floats: 6"),
    ] {
        let packed = Packed::stack(32, &matrices).unwrap();
        let parts = packed.parts.iter().map(|Part { outputs, layout }| match layout {
            Layout::Floats(_) => format!("floats: {}", outputs.len()),
            Layout::Bytes(blocks) => format!("bytes of {}: {}", blocks.block, outputs.len()),
            Layout::Nibbles(blocks) => format!("nibbles of {}: {}", blocks.block, outputs.len()),
        });
        assert_eq!(parts.collect::<Vec<_>>().join(", "), expected);
    }
}

#[test]
fn norm_rotation_and_gate_are_their_formulas() {
    let isa = Isa::detect();
    let (x, weight) = (noise(1, 3 * 37), noise(2, 37));
    let mut y = vec![0.0; x.len()];
    rms_norm(isa, &x, &weight, 1e-5, &mut y);
    let expected: Vec<f64> = x
        .chunks(37)
        .flat_map(|x| {
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 37.0;
            let weight = weight.clone();
            x.iter().zip(weight).map(move |(x, w)| f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(w))
        })
        .collect();
    assert_close(&y, &expected, 1e-6);

    let mut heads = noise(3, 2 * 10);
    let before = heads.clone();
    let angles: Vec<f64> = (0..5).map(|index| 0.7 * f64::from(index)).collect();
    let cos: Vec<f32> = angles.iter().map(|angle| angle.cos() as f32).collect();
    let sin: Vec<f32> = angles.iter().map(|angle| angle.sin() as f32).collect();
    rotate(isa, &mut heads, &cos, &sin);
    for (before, after) in before.chunks(10).zip(heads.chunks(10)) {
        for (index, angle) in angles.iter().enumerate() {
            let (a, b) = (f64::from(before[index]), f64::from(before[index + 5]));
            let turned = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()];
            assert_close(&[after[index], after[index + 5]], &turned, 1e-6);
        }
    }

    let gate_up = noise(4, 2 * 2 * 19);
    let mut gated = vec![0.0; 2 * 19];
    silu_gate(isa, &gate_up, 19, &mut gated);
    let expected: Vec<f64> = gate_up
        .chunks(2 * 19)
        .flat_map(|row| row[..19].iter().zip(&row[19..]))
        .map(|(gate, up)| f64::from(*gate) / (1.0 + (-f64::from(*gate)).exp()) * f64::from(*up))
        .collect();
    assert_close(&gated, &expected, 1e-6);
}

#[test]
fn attention_is_the_softmax_of_scores_over_values() {
    let (kv_heads, group, head_dim, context) = (2, 3, 10, 29);
    let shape =
        Shape { vocab: 4, hidden: 8, intermediate: 8, layers: 2, kv_heads, group, head_dim, tied: true };
    let config: ModelConfig = shape.model(0).config().clone();
    let keys = noise(1, context * kv_heads * head_dim);
    let values = noise(2, context * kv_heads * head_dim);
    let query = noise(3, kv_heads * group * head_dim);
    let expected: Vec<f64> = (0..kv_heads * group)
        .flat_map(|head| attend_in_f64(&query, (&keys, &values), head, &config))
        .collect();
    for page_tokens in [1, 7, 16, 24, 40] {
        let mut kv = KvPool::new(&config, context.div_ceil(page_tokens), page_tokens).unwrap();
        let mut pages: Vec<PageId> = kv.alloc(kv.total_pages()).unwrap();
        pages.reverse();
        let width = kv_heads * head_dim;
        for (position, kv_pair) in keys.chunks(width).zip(values.chunks(width)).enumerate() {
            kv.write(1, &pages, position, kv_pair);
        }
        let (mut scores, mut out) = (vec![0.0; context], vec![0.0; query.len()]);
        attend(Isa::detect(), &query, &kv.layer(1, &pages, group), &mut scores, &mut out);
        assert_close(&out, &expected, 1e-6);
    }
}

/// One head's result; keys and values are context × heads × dimensions.
fn attend_in_f64(query: &[f32], kv: (&[f32], &[f32]), head: usize, config: &ModelConfig) -> Vec<f64> {
    let (dim, width) = (config.head_dim, config.kv_size());
    let kv_head = head / (config.num_attention_heads / config.num_key_value_heads);
    let query = &query[head * dim..][..dim];
    let of_head = |row: &[f32]| row[kv_head * dim..][..dim].to_vec();
    let weights: Vec<f64> =
        kv.0.chunks(width)
            .map(|row| query.iter().zip(of_head(row)).map(|(q, k)| f64::from(*q) * f64::from(k)).sum::<f64>())
            .map(|score| (score / (dim as f64).sqrt()).exp())
            .collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; dim];
    for (weight, row) in weights.iter().zip(kv.1.chunks(width)) {
        for (out, value) in out.iter_mut().zip(of_head(row)) {
            *out += weight / total * f64::from(value);
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_output_is_one_chain_of_fused_multiply_adds(
        seed in any::<u64>(),
        rows in 0..120_usize,
        inputs in 1..50_usize,
        outputs in 1..150_usize,
    ) {
        let inputs = inputs * 2;
        let x = noise(seed, rows * inputs);
        let (block, shape) = (if inputs % 4 == 0 { 4 } else { 2 }, (outputs, inputs));
        let floats = Matrix::Floats(noise(seed ^ 1, outputs * inputs));
        let (four, eight) = (quants(seed, shape, block, 4), quants(seed, shape, block, 8));
        for matrices in [vec![&floats], vec![&four], vec![&eight], vec![&eight, &four, &floats, &four]] {
            let packed = Packed::stack(inputs, &matrices).unwrap();
            let w: Vec<f32> = matrices.iter().flat_map(|matrix| (*matrix).clone().into_values()).collect();
            let expected: Vec<f32> = x
                .chunks(inputs)
                .flat_map(|x| w.chunks(inputs).map(|w| x.iter().zip(w).fold(0.0, |sum, (x, w)| x.mul_add(*w, sum))))
                .collect();
            for isa in Isa::all() {
                let (mut y, mut unpacked) = (vec![f32::NAN; expected.len()], Vec::new());
                matmul(isa, &x, &packed, &mut unpacked, &mut y);
                prop_assert_eq!(bits(&y), bits(&expected));
            }
        }
    }

    #[test]
    fn exponentials_side_by_side_are_those_one_by_one(seed in any::<u64>(), len in 0..70_usize, scale in 0.01..60_f32) {
        let x = noise(seed, len);
        let expected: Vec<u32> = x.iter().map(|x| exp((x - 0.5) * scale).to_bits()).collect();
        for isa in Isa::all() {
            let mut y = vec![0.0; len];
            exp_shifted(isa, &x, 0.5, scale, &mut y);
            prop_assert_eq!(bits(&y), expected.clone());
        }
    }

    #[test]
    fn a_row_is_normed_rotated_and_gated_alike_whatever_is_beside_it(
        seed in any::<u64>(),
        rows in 1..9_usize,
        half in 1..70_usize,
    ) {
        let width = 2 * half;
        let (x, weight) = (noise(seed, rows * width), noise(seed ^ 1, width));
        let (cos, sin) = (noise(seed ^ 2, half), noise(seed ^ 3, half));
        // Each row by itself, by instructions that any processor has.
        let (mut normed, mut rotated, mut gated) = (vec![0.0; x.len()], x.clone(), vec![0.0; x.len() / 2]);
        for row in 0..rows {
            let of_row = row * width..(row + 1) * width;
            rms_norm(Isa::PORTABLE, &x[of_row.clone()], &weight, 1e-5, &mut normed[of_row.clone()]);
            rotate(Isa::PORTABLE, &mut rotated[of_row.clone()], &cos, &sin);
            silu_gate(Isa::PORTABLE, &x[of_row], half, &mut gated[row * half..(row + 1) * half]);
        }
        for isa in Isa::all() {
            let (mut y, mut heads, mut gate) = (vec![f32::NAN; x.len()], x.clone(), vec![f32::NAN; x.len() / 2]);
            rms_norm(isa, &x, &weight, 1e-5, &mut y);
            rotate(isa, &mut heads, &cos, &sin);
            silu_gate(isa, &x, half, &mut gate);
            prop_assert_eq!(bits(&y), bits(&normed));
            prop_assert_eq!(bits(&heads), bits(&rotated));
            prop_assert_eq!(bits(&gate), bits(&gated));
        }
    }

    #[test]
    fn attention_does_not_depend_on_pages_or_instructions(
        seed in any::<u64>(),
        (kv_heads, group, half) in (1..3_usize, 1..4_usize, 1..40_usize),
        context in 1..70_usize,
        page_tokens in 1..40_usize,
    ) {
        let head_dim = 2 * half;
        let shape = Shape { vocab: 4, hidden: 8, intermediate: 8, layers: 1, kv_heads, group, head_dim, tied: true };
        let config = shape.model(0).config().clone();
        let width = kv_heads * head_dim;
        let (keys, values) = (noise(seed, context * width), noise(seed ^ 1, context * width));
        let query = noise(seed ^ 2, group * width);
        let attended = |isa, page_tokens| {
            let mut kv = KvPool::new(&config, context.div_ceil(page_tokens) + 1, page_tokens).unwrap();
            let mut pages: Vec<PageId> = kv.alloc(kv.total_pages()).unwrap();
            pages.rotate_left(1);
            for (position, kv_pair) in keys.chunks(width).zip(values.chunks(width)).enumerate() {
                kv.write(0, &pages, position, kv_pair);
            }
            let (mut scores, mut out) = (vec![0.0; context], vec![f32::NAN; query.len()]);
            attend(isa, &query, &kv.layer(0, &pages, group), &mut scores, &mut out);
            bits(&out)
        };
        let expected = attended(Isa::PORTABLE, 1);
        for isa in Isa::all() {
            prop_assert_eq!(attended(isa, page_tokens), expected.clone());
        }
    }
}
