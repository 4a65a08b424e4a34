"""What `rollscope export` writes, read by the receivers' own definitions: Perfetto's and OpenTelemetry's protobuf
messages as their packages ship them, and Python's json for slime's carrier."""

import json
import os
import pathlib
import subprocess
import sys

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

ROLLSCOPE, RUN = os.environ["ROLLSCOPE"], os.environ["RUN"]


def export(to: str) -> bytes:
    out = pathlib.Path(f"out.{to}")
    subprocess.run([ROLLSCOPE, "export", RUN, "--to", to, str(out)], check=True)
    return out.read_bytes()


def samples() -> int:
    told = subprocess.run([ROLLSCOPE, "report", RUN, "--json"], check=True, capture_output=True)
    return json.loads(told.stdout)["steps"][0]["samples"]


def perfetto() -> int:
    trace = Trace.FromString(export("perfetto"))
    tracks, names, open_slices, last = {}, {}, {}, {}
    begun = 0
    events = []
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        for name in packet.interned_data.event_names:
            names[packet.trusted_packet_sequence_id, name.iid] = name.name
        if packet.HasField("track_event"):
            events.append(packet)
    for packet in sorted(events, key=lambda packet: packet.timestamp):
        event = packet.track_event
        assert event.track_uuid in tracks, "a track that is described"
        stack = open_slices.setdefault(event.track_uuid, [])
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            stack.append(names[packet.trusted_packet_sequence_id, event.name_iid])
            begun += 1
        else:
            assert event.type == TrackEvent.TYPE_SLICE_END
            stack.pop()
    assert not any(open_slices.values()), "every slice ends"
    shown = {descriptor.name for descriptor in tracks.values()}
    assert {"sample", "request", "prefill", "decode", "user"} <= shown, shown
    processes = [descriptor for descriptor in tracks.values() if descriptor.HasField("process")]
    assert [descriptor.process.process_name for descriptor in processes] == ["step 1"], processes
    top = {d.name for d in tracks.values() if d.parent_uuid in {p.uuid for p in processes}}
    assert "rollout" in top, top
    ranks = {name for name in top if " rank " in name}
    assert bool(ranks) == ("forward pass" in names.values()), (ranks, top)
    assert len(top - ranks - {"rollout"}) == samples(), "a track for each sample"
    return begun


def otlp() -> int:
    request = ExportTraceServiceRequest.FromString(export("otlp"))
    spans = [span for of in request.resource_spans for scope in of.scope_spans for span in scope.spans]
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans) and all(len(span.trace_id) == 16 and len(span.span_id) == 8 for span in spans)
    for span in spans:
        parent = by_id.get(span.parent_span_id)
        assert (parent is None) == (span.name in ("sample", "rollout", "forward pass")), span
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if parent is not None and not span.name.startswith("reward"):
            assert parent.trace_id == span.trace_id
            assert parent.start_time_unix_nano <= span.start_time_unix_nano, (parent, span)
    calls = [span for span in spans if span.kind == span.SPAN_KIND_CLIENT]
    for span in calls:
        attributes = {attribute.key: attribute.value for attribute in span.attributes}
        assert attributes["gen_ai.usage.output_tokens"].int_value > 0
        assert attributes["gen_ai.response.finish_reasons"].array_value.values[0].string_value in ("stop", "length")
    of_samples = {span.trace_id for span in spans if span.name == "sample"}
    assert len(of_samples) == samples(), "a trace for each sample"
    [rollout] = [span for span in spans if span.name == "rollout"]
    assert rollout.end_time_unix_nano > rollout.start_time_unix_nano and rollout.trace_id not in of_samples
    assert {"bootstrap_queue", "transfer", "forward"} <= {span.name for span in spans}
    return len(spans)


def chrome() -> int:
    trace = json.loads(export("chrome"))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert all(event["dur"] >= 0 for event in slices)
    return len(slices)


def carrier() -> int:
    (line,) = export("slime-json").splitlines()
    dump = json.loads(line)
    assert dump["rollout_id"] == 1 and len(dump["samples"]) == samples()
    for sample in dump["samples"]:
        trace = sample["trace"]
        assert trace["version"] == 1
        open_spans = {}
        for event in trace["events"]:
            assert event["trace_id"] == trace["trace_id"] and event["sample_id"] == trace["sample_id"]
            if event["type"] == "span_start":
                open_spans[event["span_id"]] = event
            elif event["type"] == "span_end":
                start = open_spans.pop(event["span_id"])
                assert start["name"] == event["name"]
                if event["name"] == "sglang_generate":
                    assert event["attrs"]["completion_tokens"] > 0 and event["attrs"]["finish_reason"]
        assert not open_spans, open_spans
        names = {event["name"] for event in trace["events"]}
        assert {"sglang_pd_prefill", "sglang_pd_decode_forward", "sglang_pd_summary"} <= names, names
    # And back: the same numbers from the file as from the run.
    of = lambda what: json.loads(
        subprocess.run([ROLLSCOPE, "report", what, "--json"], check=True, capture_output=True).stdout
    )["steps"][0]["metrics"]
    run, file = of(RUN), of("out.slime-json")
    for name, value in file.items():
        if name.startswith(("perf/request/e2e", "perf/prefill/", "perf/decode/")) and "count" not in name:
            assert value == run[name], (name, value, run[name])
    return len(dump["samples"])


if __name__ == "__main__":
    slices, spans = perfetto(), otlp()
    assert slices == spans == chrome(), (slices, spans)
    print(f"{slices} spans alike in Perfetto, OpenTelemetry and Chrome, {carrier()} carriers")
    sys.exit(0)
