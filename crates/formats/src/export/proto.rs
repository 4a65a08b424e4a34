//! The messages that are written, as far as they are: of Perfetto's `trace.proto` and of OpenTelemetry's
//! `trace_service.proto`. Numbers and types are those of the published files.

pub(super) mod perfetto {
    //! `perfetto/protos/trace`.

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Trace {
        #[prost(message, repeated, tag = "1")]
        pub(crate) packet: Vec<TracePacket>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct TracePacket {
        #[prost(uint64, optional, tag = "8")]
        pub(crate) timestamp: Option<u64>,
        #[prost(uint32, optional, tag = "10")]
        pub(crate) trusted_packet_sequence_id: Option<u32>,
        #[prost(message, optional, tag = "11")]
        pub(crate) track_event: Option<TrackEvent>,
        #[prost(message, optional, tag = "12")]
        pub(crate) interned_data: Option<InternedData>,
        #[prost(uint32, optional, tag = "13")]
        pub(crate) sequence_flags: Option<u32>,
        #[prost(message, optional, tag = "60")]
        pub(crate) track_descriptor: Option<TrackDescriptor>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct TrackDescriptor {
        #[prost(uint64, optional, tag = "1")]
        pub(crate) uuid: Option<u64>,
        #[prost(string, optional, tag = "2")]
        pub(crate) name: Option<String>,
        #[prost(message, optional, tag = "3")]
        pub(crate) process: Option<ProcessDescriptor>,
        #[prost(uint64, optional, tag = "5")]
        pub(crate) parent_uuid: Option<u64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ProcessDescriptor {
        #[prost(int32, optional, tag = "1")]
        pub(crate) pid: Option<i32>,
        #[prost(string, optional, tag = "6")]
        pub(crate) process_name: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct TrackEvent {
        #[prost(uint64, repeated, tag = "3")]
        pub(crate) category_iids: Vec<u64>,
        #[prost(message, repeated, tag = "4")]
        pub(crate) debug_annotations: Vec<DebugAnnotation>,
        #[prost(int32, optional, tag = "9")]
        pub(crate) r#type: Option<i32>,
        #[prost(uint64, optional, tag = "10")]
        pub(crate) name_iid: Option<u64>,
        #[prost(uint64, optional, tag = "11")]
        pub(crate) track_uuid: Option<u64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct DebugAnnotation {
        #[prost(uint64, optional, tag = "1")]
        pub(crate) name_iid: Option<u64>,
        #[prost(bool, optional, tag = "2")]
        pub(crate) bool_value: Option<bool>,
        #[prost(int64, optional, tag = "4")]
        pub(crate) int_value: Option<i64>,
        #[prost(double, optional, tag = "5")]
        pub(crate) double_value: Option<f64>,
        #[prost(string, optional, tag = "6")]
        pub(crate) string_value: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct InternedData {
        #[prost(message, repeated, tag = "2")]
        pub(crate) event_names: Vec<Name>,
        #[prost(message, repeated, tag = "3")]
        pub(crate) debug_annotation_names: Vec<Name>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Name {
        #[prost(uint64, optional, tag = "1")]
        pub(crate) iid: Option<u64>,
        #[prost(string, optional, tag = "2")]
        pub(crate) name: Option<String>,
    }
}

pub(super) mod otlp {
    //! `opentelemetry/proto`.

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ExportTraceServiceRequest {
        #[prost(message, repeated, tag = "1")]
        pub(crate) resource_spans: Vec<ResourceSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ResourceSpans {
        #[prost(message, optional, tag = "1")]
        pub(crate) resource: Option<Resource>,
        #[prost(message, repeated, tag = "2")]
        pub(crate) scope_spans: Vec<ScopeSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Resource {
        #[prost(message, repeated, tag = "1")]
        pub(crate) attributes: Vec<KeyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ScopeSpans {
        #[prost(message, optional, tag = "1")]
        pub(crate) scope: Option<Scope>,
        #[prost(message, repeated, tag = "2")]
        pub(crate) spans: Vec<Span>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Scope {
        #[prost(string, tag = "1")]
        pub(crate) name: String,
        #[prost(string, tag = "2")]
        pub(crate) version: String,
    }

    #[expect(clippy::struct_field_names, reason = "as published")]
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub(crate) trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub(crate) span_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "4")]
        pub(crate) parent_span_id: Vec<u8>,
        #[prost(string, tag = "5")]
        pub(crate) name: String,
        #[prost(int32, tag = "6")]
        pub(crate) kind: i32,
        #[prost(fixed64, tag = "7")]
        pub(crate) start_time_unix_nano: u64,
        #[prost(fixed64, tag = "8")]
        pub(crate) end_time_unix_nano: u64,
        #[prost(message, repeated, tag = "9")]
        pub(crate) attributes: Vec<KeyValue>,
        #[prost(message, repeated, tag = "13")]
        pub(crate) links: Vec<Link>,
        #[prost(message, optional, tag = "15")]
        pub(crate) status: Option<Status>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Link {
        #[prost(bytes = "vec", tag = "1")]
        pub(crate) trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub(crate) span_id: Vec<u8>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Status {
        #[prost(string, tag = "2")]
        pub(crate) message: String,
        #[prost(int32, tag = "3")]
        pub(crate) code: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct KeyValue {
        #[prost(string, tag = "1")]
        pub(crate) key: String,
        #[prost(message, optional, tag = "2")]
        pub(crate) value: Option<AnyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct AnyValue {
        #[prost(oneof = "Value", tags = "1, 2, 3, 4, 5")]
        pub(crate) value: Option<Value>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Value {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(bool, tag = "2")]
        Bool(bool),
        #[prost(int64, tag = "3")]
        Int(i64),
        #[prost(double, tag = "4")]
        Double(f64),
        #[prost(message, tag = "5")]
        List(List),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct List {
        #[prost(message, repeated, tag = "1")]
        pub(crate) values: Vec<AnyValue>,
    }
}
