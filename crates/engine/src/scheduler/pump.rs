//! Pages and row of a prefill request, on their way to the decode server as they are computed.

use std::collections::BTreeMap;

use bytes::BytesMut;
use rollscope_model::KvPool;

use crate::clock::Clock;
use crate::disagg::frame::Frame;
use crate::disagg::{Link, LinkId, MetadataBuffers, pages_per_frame};
use crate::request::{KvPoll, Pair, Request};

/// Sends what is complete and was not sent, as far as the connection takes it.
pub(super) fn pump(
    links: &mut BTreeMap<LinkId, Link>,
    (kv, slots): (&KvPool, &MetadataBuffers),
    request: &mut Request,
    clock: &Clock,
) {
    let is_computed = request.is_prompt_computed();
    let complete =
        if is_computed { kv.pages_for(request.prompt_len()) } else { request.computed / kv.page_tokens() };
    let room = request.room();
    let Pair::Prefill(outgoing) = &mut request.pair else { return };
    let Some(link) = outgoing.link.and_then(|link| links.get_mut(&link)) else { return };
    while outgoing.sent_pages < complete {
        let first = outgoing.sent_pages;
        let count = pages_per_frame(kv.page_bytes()).min(complete - first);
        let start = clock.now();
        let offered = link.offer(|| {
            let mut data = BytesMut::with_capacity(count * kv.page_bytes());
            for page in &request.pages[first..first + count] {
                data.extend_from_slice(kv.page(*page));
            }
            Frame::Pages { room, first: first as u32, data: data.freeze() }
        });
        if !offered {
            return;
        }
        outgoing.meter.sent(count * kv.page_bytes(), start);
        outgoing.sent_pages += count;
        request.poll = request.poll.max(Some(KvPoll::Transferring));
    }
    if is_computed
        && !outgoing.row_sent
        && let Some(slot) = &outgoing.slot
    {
        let row = slots.copy(slot);
        let (bytes, start) = (row.len(), clock.now());
        outgoing.row_sent = link.offer(|| Frame::Row { room, data: row });
        if outgoing.row_sent {
            outgoing.meter.sent(bytes, start);
        }
    }
}
