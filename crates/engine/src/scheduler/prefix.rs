//! The prefix cache: pages of sequences that were computed, found again by the tokens on them.
//!
//! A radix tree whose edges are whole pages: a node stands for one page of tokens behind those of its ancestors, and holds the
//! page with their keys and values. A request holds the path to its last shared node (each node counts its holders), so what it
//! reads stays; pages that nobody holds are given up from the leaves inwards, the longest unused first.
//!
//! The bits of keys and values depend on the tokens before them alone, so a page from here is the page that would have been
//! computed, and replies do not depend on the cache.
//!
//! After a change of the weights no page here is worth anything, and a new *epoch* begins. Pages that requests still hold are
//! *detached*: found by nobody, freed when the last of them lets go; and what those requests compute further stands on keys and
//! values of the old epoch, so none of it is taken in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollscope_model::PageId;

/// Pages by the tokens on them.
#[derive(Debug)]
pub(super) struct PrefixCache {
    page_tokens: usize,
    nodes: BTreeMap<NodeId, Node>,
    index: BTreeMap<Key, NodeId>,
    /// Leaves that nobody holds, by when they were last used.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Nodes that nobody holds.
    idle: usize,
    next: u64,
    /// Counts how often everything was forgotten.
    epoch: u64,
    /// Counts uses.
    turn: u64,
}

/// A node, as its holder keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(u64);

/// What a request shares with the cache: the first of its pages, up to a node that it holds.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(super) pages: usize,
    last: Option<NodeId>,
    /// In which all of its pages are computed.
    epoch: u64,
}

/// Where a node is found: behind which, by which tokens. Sequences of different namespaces share nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    parent: Option<NodeId>,
    /// On the first page alone.
    namespace: Option<Arc<str>>,
    tokens: Box<[u32]>,
}

#[derive(Debug)]
struct Node {
    key: Key,
    page: PageId,
    children: usize,
    holders: usize,
    used: u64,
    is_detached: bool,
}

// === impl PrefixCache ===

impl PrefixCache {
    pub(super) fn new(page_tokens: usize) -> Self {
        Self {
            page_tokens,
            nodes: BTreeMap::new(),
            index: BTreeMap::new(),
            leaves: BTreeSet::new(),
            idle: 0,
            next: 0,
            epoch: 0,
            turn: 0,
        }
    }

    /// The pages of the longest known beginning of a sequence that has at most `limit` tokens. The caller holds them, and computes
    /// the others in this epoch.
    pub(super) fn find(
        &mut self,
        namespace: Option<&Arc<str>>,
        tokens: &[u32],
        limit: usize,
    ) -> (Vec<PageId>, Shared) {
        let (mut pages, mut shared) = (Vec::new(), Shared { epoch: self.epoch, ..Shared::default() });
        for tokens in tokens[..limit.min(tokens.len())].chunks_exact(self.page_tokens) {
            let Some(id) = self.index.get(&key(shared.last, namespace, tokens)).copied() else { break };
            pages.push(self.hold(id));
            shared = Shared { pages: pages.len(), last: Some(id), ..shared };
        }
        (pages, shared)
    }

    /// Takes over the whole pages among the first `tokens` of a sequence; the caller holds them from now on. Where a page of the
    /// same tokens is here already, it takes the place of the caller's, which is returned: it is free.
    pub(super) fn insert(
        &mut self,
        namespace: Option<&Arc<str>>,
        tokens: &[u32],
        pages: &mut [PageId],
        shared: &mut Shared,
    ) -> Vec<PageId> {
        let mut freed = Vec::new();
        if shared.epoch != self.epoch {
            return freed;
        }
        let rest = tokens.chunks_exact(self.page_tokens).zip(pages).skip(shared.pages);
        for (tokens, page) in rest {
            let key = key(shared.last, namespace, tokens);
            let id = match self.index.get(&key).copied() {
                Some(id) => {
                    freed.push(*page);
                    *page = self.hold(id);
                    id
                }
                None => self.add(key, *page),
            };
            *shared = Shared { pages: shared.pages + 1, last: Some(id), ..*shared };
        }
        freed
    }

    /// Lets go of what a request has shared. Returns pages that are free now.
    pub(super) fn release(&mut self, shared: &mut Shared) -> Vec<PageId> {
        let mut freed = Vec::new();
        let mut next = std::mem::take(shared).last;
        while let Some(id) = next {
            let Some(node) = self.nodes.get_mut(&id) else { break };
            next = node.key.parent;
            node.holders -= 1;
            if node.holders > 0 {
                continue;
            }
            if node.is_detached {
                freed.push(node.page);
                self.nodes.remove(&id);
            } else {
                self.idle += 1;
                if node.children == 0 {
                    self.leaves.insert((node.used, id));
                }
            }
        }
        freed
    }

    /// Gives up so many pages, or all that nobody holds.
    pub(super) fn evict(&mut self, count: usize) -> Vec<PageId> {
        let mut freed = Vec::new();
        while freed.len() < count
            && let Some((_, id)) = self.leaves.pop_first()
            && let Some(node) = self.nodes.remove(&id)
        {
            self.index.remove(&node.key);
            self.idle -= 1;
            freed.push(node.page);
            if let Some(parent) = node.key.parent
                && let Some(node) = self.nodes.get_mut(&parent)
            {
                node.children -= 1;
                if node.children == 0 && node.holders == 0 {
                    self.leaves.insert((node.used, parent));
                }
            }
        }
        freed
    }

    /// Forgets everything, and begins a new epoch. Returns the pages that nobody holds.
    pub(super) fn forget(&mut self) -> Vec<PageId> {
        self.epoch += 1;
        self.index.clear();
        self.leaves.clear();
        self.idle = 0;
        let mut freed = Vec::new();
        self.nodes.retain(|_, node| {
            node.is_detached = true;
            if node.holders == 0 {
                freed.push(node.page);
            }
            node.holders > 0
        });
        freed
    }

    /// Pages that nobody holds: they can be had.
    pub(super) fn idle_pages(&self) -> usize {
        self.idle
    }

    /// All pages.
    pub(super) fn pages(&self) -> impl Iterator<Item = PageId> {
        self.nodes.values().map(|node| node.page)
    }

    fn hold(&mut self, id: NodeId) -> PageId {
        self.turn += 1;
        let turn = self.turn;
        let Some(node) = self.nodes.get_mut(&id) else { return PageId(u32::MAX) };
        if node.holders == 0 {
            self.idle -= 1;
            self.leaves.remove(&(node.used, id));
        }
        node.holders += 1;
        node.used = turn;
        node.page
    }

    fn add(&mut self, key: Key, page: PageId) -> NodeId {
        let id = NodeId(self.next);
        self.next += 1;
        self.turn += 1;
        // The parent is held by whoever adds a child, so it is no idle leaf.
        if let Some(parent) = key.parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            parent.children += 1;
        }
        self.index.insert(key.clone(), id);
        let node = Node { key, page, children: 0, holders: 1, used: self.turn, is_detached: false };
        self.nodes.insert(id, node);
        id
    }
}

fn key(parent: Option<NodeId>, namespace: Option<&Arc<str>>, tokens: &[u32]) -> Key {
    let namespace = if parent.is_none() { namespace.cloned() } else { None };
    Key { parent, namespace, tokens: tokens.into() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A sequence that holds its pages.
    struct Live {
        tokens: Vec<u32>,
        pages: Vec<PageId>,
        shared: Shared,
    }

    const PAGES: u32 = 40;

    /// Every page is free, in the cache, or one sequence's own.
    fn audit(cache: &PrefixCache, live: &[Live], free: &[PageId]) {
        let own = live.iter().flat_map(|live| &live.pages[live.shared.pages..]).copied();
        let mut all: Vec<_> = own.chain(cache.pages()).chain(free.iter().copied()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..PAGES).map(PageId).collect::<Vec<_>>());
        assert_eq!(
            cache.idle_pages(),
            cache.nodes.values().filter(|n| n.holders == 0 && !n.is_detached).count()
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Sequences over two tokens come, are computed and go; what is found is what was inserted under the same tokens.
        #[test]
        fn pages_are_found_by_their_tokens_and_lost_by_none(
            acts in prop::collection::vec((0..5_u8, prop::collection::vec(0..2_u32, 0..14), any::<prop::sample::Index>()), 1..80),
        ) {
            let mut cache = PrefixCache::new(2);
            let mut free: Vec<PageId> = (0..PAGES).map(PageId).collect();
            let mut live: Vec<Live> = Vec::new();
            // What is on each page, with all that is before it, and under which weights it was begun.
            let mut content: BTreeMap<PageId, (u64, Vec<u32>)> = BTreeMap::new();
            let mut weights = 0;
            for (act, tokens, which) in acts {
                match act {
                    0 | 1 => {
                        let (mut pages, shared) = cache.find(None, &tokens, tokens.len());
                        for (index, page) in pages.iter().enumerate() {
                            prop_assert_eq!(&content[page], &(weights, tokens[..(index + 1) * 2].to_vec()));
                        }
                        let missing = tokens.len().div_ceil(2) - pages.len();
                        if free.len() < missing {
                            free.extend(cache.evict(missing - free.len()));
                        }
                        let mut live_one = Live { tokens, pages: Vec::new(), shared };
                        if free.len() < missing {
                            free.extend(cache.release(&mut live_one.shared));
                        } else {
                            pages.extend(free.drain(free.len() - missing..));
                            live_one.pages = pages;
                            for (index, page) in live_one.pages.iter().enumerate().skip(live_one.shared.pages) {
                                let end = live_one.tokens.len().min((index + 1) * 2);
                                content.insert(*page, (weights, live_one.tokens[..end].to_vec()));
                            }
                            live.push(live_one);
                        }
                    }
                    2 | 3 if !live.is_empty() => {
                        let index = which.index(live.len());
                        let Live { tokens, pages, shared } = &mut live[index];
                        free.extend(cache.insert(None, tokens, pages, shared));
                        if act == 3 {
                            let mut gone = live.swap_remove(index);
                            free.extend(gone.pages.drain(gone.shared.pages..));
                            free.extend(cache.release(&mut gone.shared));
                        }
                    }
                    4 if which.index(4) == 0 => {
                        free.extend(cache.forget());
                        weights += 1;
                    }
                    _ => {}
                }
                audit(&cache, &live, &free);
            }
        }
    }

    #[test]
    fn the_longest_unused_goes_first_and_from_the_end() {
        let mut cache = PrefixCache::new(1);
        for (tokens, page) in [([1, 2], 10), ([3, 4], 20)] {
            let mut shared = Shared::default();
            cache.insert(None, &tokens, &mut [PageId(page), PageId(page + 1)], &mut shared);
            assert_eq!(cache.release(&mut shared), []);
        }
        let (_, mut shared) = cache.find(None, &[1, 2], 2);
        cache.release(&mut shared);
        assert_eq!(cache.evict(3), [21, 20, 11].map(PageId));
        let other: Arc<str> = "tenant".into();
        assert!(cache.find(Some(&other), &[1], 1).0.is_empty());
        assert_eq!(cache.find(None, &[1], 1).0, [PageId(10)]);
    }
}
