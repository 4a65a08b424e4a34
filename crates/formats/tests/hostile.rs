//! Files that are made to do harm: each is refused, or read in bounded time and memory.

#![expect(clippy::unwrap_used, reason = "a helper that fails here fails its test")]

use std::io::Write as _;
use std::path::Path;

use rollscope_formats::{FormatError, ImportOptions, import};
use rollscope_trace::Record;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

fn imported(path: &Path) -> Result<Vec<Record>, FormatError> {
    let mut records = Vec::new();
    let none = |_: &[u8]| Err("no line of ours".into());
    import(path, &ImportOptions::default(), &none, &mut |record| {
        records.push(record);
        Ok(())
    })?;
    Ok(records)
}

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

/// `{"rollout_id": 1, "samples": [ … ]}` with the samples as they are pickled.
fn dump(samples: &[u8]) -> Vec<u8> {
    let parts = [b"\x80\x02}(", &text("rollout_id")[..], b"K\x01", &text("samples"), b"](", samples, b"eu."];
    parts.concat()
}

fn refused(file: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.pt");
    std::fs::write(&path, file).unwrap();
    imported(&path).unwrap_err().to_string()
}

#[test]
fn a_parameter_of_itself_is_no_reward() {
    // The function's arguments are a list that then gets the result.
    let reward = b"ctorch._utils\n_rebuild_parameter\n]q\x00Rq\x01h\x00h\x01a0";
    let sample = [b"}", &text("reward")[..], reward, b"s"].concat();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.pt");
    std::fs::write(&path, dump(&sample)).unwrap();
    let records = imported(&path).unwrap();
    let [Record::Sample(mark)] = &records[..] else { panic!("{records:?}") };
    assert_eq!(mark.reward, None);
}

#[test]
fn a_sample_that_is_shared_any_number_of_times_is_refused() {
    let mask = [&b"]("[..], &b"K\x01".repeat(2000), b"e"].concat();
    let first = [b"}q\x07", &text("loss_mask")[..], &mask, b"s"].concat();
    let samples = [&first[..], &b"h\x07".repeat(20_000)].concat();
    let told = refused(&dump(&samples));
    assert!(told.starts_with("its samples share more than the file can hold"), "{told}");
    // A few times is what a program may do.
    let samples = [&first[..], &b"h\x07".repeat(4)].concat();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.pt");
    std::fs::write(&path, dump(&samples)).unwrap();
    assert_eq!(imported(&path).unwrap().len(), 5);
}

#[test]
fn tensors_that_claim_one_storage_again_and_again_are_refused() {
    let tensor = |count: u32| {
        let storage =
            [b"(", &text("storage")[..], b"ctorch\nFloatStorage\n", &text("0"), &text("cpu"), b"K\x01tQ"]
                .concat();
        // Of a shape with a stride of 0: one element of the storage stands for all.
        let shape = [b"J", &count.to_le_bytes()[..], b"\x85K\x00\x85"].concat();
        [b"ctorch._utils\n_rebuild_tensor_v2\n(", &storage[..], b"K\x00", &shape, b"\x89NtR"].concat()
    };
    let sample = |count| [b"}", &text("loss_mask")[..], &tensor(count), b"s"].concat();
    let file = |samples: &[u8]| {
        let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        for (name, bytes) in [("a/data.pkl", &dump(samples)[..]), ("a/data/0", &1f32.to_le_bytes())] {
            zip.start_file(name, options).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap().into_inner()
    };
    let told = refused(&file(&sample(800_000).repeat(40)));
    assert!(told.starts_with("its tensors share more than the file can hold"), "{told}");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.pt");
    std::fs::write(&path, file(&sample(4096))).unwrap();
    let records = imported(&path).unwrap();
    let [Record::Sample(mark)] = &records[..] else { panic!("{records:?}") };
    assert_eq!(mark.effective_response_tokens, Some(4096));
}

#[test]
fn a_line_that_is_no_json_is_named_with_its_place_in_the_file() {
    let file = b"{\"samples\": [], \"rollout_id\": 1}\n{\"a\": 1, x}\n";
    let told = refused(file);
    assert!(told.starts_with("not JSON: key must be a string, in line 2 (byte 42) of"), "{told}");
    assert!(!told.contains("column"), "{told}");
}

#[test]
fn a_request_without_a_time_is_refused_and_not_of_1970() {
    let line =
        |members: &str| format!("{{\"request_parameters\": \"{{}}\", \"e2e_latency\": 1.5{members}}}\n");
    let told = refused(line("").as_bytes());
    assert!(told.starts_with("the request has neither `request_received_ts`"), "{told}");
    assert!(told.contains("in line 1 (byte 0)"), "{told}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.jsonl");
    std::fs::write(&path, line(", \"request_finished_ts\": 1790000001.5")).unwrap();
    let records = imported(&path).unwrap();
    let [Record::Profile(profile)] = &records[..] else { panic!("{records:?}") };
    assert_eq!(profile.arrival.0, 1_790_000_000_000_000_000);
}
