//! Masks that a trainer keeps as tensors, as torch saves them.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

use std::io::Write as _;

use rollscope_formats::{ImportOptions, import};
use rollscope_trace::{Record, SampleMark};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The one sample of a dump whose mask is a tensor of four elements.
fn of_mask(storage: &str, elements: &[u8]) -> SampleMark {
    let class = format!("ctorch\n{storage}\n");
    let place = [b"(", &text("storage")[..], class.as_bytes(), &text("0"), &text("cpu"), b"K\x04tQ"].concat();
    let tensor =
        [b"ctorch._utils\n_rebuild_tensor_v2\n(", &place[..], b"K\x00K\x04\x85K\x01\x85\x89NtR"].concat();
    let sample = [b"}", &text("loss_mask")[..], &tensor, b"s"].concat();
    let dump =
        [b"\x80\x02}(", &text("rollout_id")[..], b"K\x01", &text("samples"), b"](", &sample, b"eu."].concat();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.pt");
    let mut zip = ZipWriter::new(std::fs::File::create(&path).unwrap());
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in [("a/data.pkl", &dump[..]), ("a/data/0", elements)] {
        zip.start_file(name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
    let mut marks = Vec::new();
    let none = |_: &[u8]| Err("no line of ours".into());
    import(&path, &ImportOptions::default(), &none, &mut |record| {
        let Record::Sample(mark) = record else { return Ok(()) };
        marks.push(mark);
        Ok(())
    })
    .unwrap();
    assert_eq!(marks.len(), 1);
    marks.remove(0)
}

#[test]
fn a_mask_of_truths_counts_those_that_hold() {
    let floats = [1.0f32, 0.0, 0.5, 0.5].map(f32::to_le_bytes).concat();
    for (storage, elements, trained) in [
        ("BoolStorage", vec![1, 0, 1, 1], 3),
        ("ByteStorage", vec![1, 0, 1, 1], 3),
        ("FloatStorage", floats, 2),
    ] {
        let mark = of_mask(storage, &elements);
        assert_eq!(mark.effective_response_tokens, Some(trained), "{storage}: {:?}", mark.left_out);
    }
}
