//! Who has pages: they are taken, shared, and given back when there are not enough.
//!
//! A request that runs out of pages takes some that the prefix cache holds for nobody, and if there are none, those of the
//! youngest running request. That one keeps its tokens, all that it told its client and its seed, and is computed again from
//! them when there is room: it goes on as if nothing had been, to the bit. The oldest request always has its pages, as no
//! request is taken in that alone would not fit.

use rollscope_model::PageId;

use super::core::Core;
use super::prefix::Shared;
use crate::request::Request;

// === impl Core ===

impl Core {
    /// Sees to it that each running request has pages for its next token.
    pub(super) fn grow(&mut self) {
        let mut index = 0;
        while let Some(request) = self.running.get(index) {
            let missing = self.kv.pages_for(request.tokens.len()).saturating_sub(request.pages.len());
            if missing == 0 {
                index += 1;
            } else if let Some(pages) = self.take_pages(missing) {
                self.running[index].pages.extend(pages);
                index += 1;
            } else {
                self.retract_last();
            }
        }
    }

    /// Lets those that have given their pages back run again, in order of arrival, as pages are free. They are in the middle of
    /// their replies, so weights that are to be replaced wait for them too.
    pub(super) fn readmit(&mut self) {
        while self.running.len() < self.limits.max_running
            && let Some(mut request) = self.retracted.pop_front()
        {
            if !self.allocate(&mut request) {
                return self.retracted.push_front(request);
            }
            self.running.push_back(request);
        }
    }

    /// Takes the pages of all running requests.
    pub(super) fn retract_all(&mut self) {
        while !self.running.is_empty() {
            self.retract_last();
        }
    }

    /// Takes so many pages, at the cost of cached ones; or none.
    pub(super) fn take_pages(&mut self, count: usize) -> Option<Vec<PageId>> {
        let missing = count.saturating_sub(self.kv.free_pages());
        if missing > self.cache.idle_pages() {
            return None;
        }
        let evicted = self.cache.evict(missing);
        self.kv.free(&evicted);
        self.kv.alloc(count)
    }

    /// What the prefix cache has of a request's tokens. At least the last one is computed, for its logits, and with them all whose
    /// log-probabilities are asked for.
    pub(super) fn find_prefix(&mut self, request: &Request) -> (Vec<PageId>, Shared) {
        if !self.limits.prefix_cache {
            return (Vec::new(), Shared::default());
        }
        let told_from = request.spec.logprobs.filter(|_| request.generated() == 0).map(|asked| asked.start);
        let limit = (request.tokens.len() - 1).min(told_from.unwrap_or(usize::MAX));
        self.cache.find(request.spec.extra_key.as_ref(), &request.tokens, limit)
    }

    /// Lets others find the whole pages that a request has computed.
    pub(super) fn share(&mut self, request: &mut Request) {
        if self.limits.prefix_cache && !request.pages.is_empty() {
            let tokens = &request.tokens[..request.computed];
            let key = request.spec.extra_key.as_ref();
            let freed = self.cache.insert(key, tokens, &mut request.pages, &mut request.shared);
            self.kv.free(&freed);
        }
    }

    /// Gives a request's pages back: to the prefix cache what is of use to others.
    pub(super) fn give_back(&mut self, request: &mut Request) {
        self.share(request);
        let own = request.pages.split_off(request.shared.pages);
        self.kv.free(&own);
        request.pages.clear();
        let freed = self.cache.release(&mut request.shared);
        self.kv.free(&freed);
    }

    fn retract_last(&mut self) {
        let Some(mut request) = self.running.pop_back() else { return };
        self.give_back(&mut request);
        request.computed = 0;
        request.retractions += 1;
        let is_prompt = request.generated() == 0;
        request.output().update(|progress| {
            progress.retractions += 1;
            if is_prompt {
                // They are told again.
                progress.input_logprobs.clear();
                progress.input_top_logprobs.clear();
            }
        });
        self.retracted.push_front(request);
    }
}
