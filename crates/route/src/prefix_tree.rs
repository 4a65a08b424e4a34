//! Which beginnings of prompts each worker has been sent: a radix tree of bounded size.
//!
//! An engine keeps the KV cache of what it has computed, and what it has been sent is the best guess of what is in it.
//! Each node of the tree stands for the bytes from the root to it. A worker's *claim* at a node says that it has been
//! sent a prompt that begins with them. One tree holds the claims of all workers, so that a prompt is compared once
//! and not once a worker: the nodes at which a worker has a claim are its own tree.
//!
//! All claims are in one order of use. Claiming a path uses its claims from the leaf up to the root, so in that order
//! a worker's claim is never after its claims further up. Therefore the first claim of all, the one whose use is
//! longest ago, is always the end of some worker's tree: taking claims off the front until the tree is small
//! enough removes leaves only, and needs no search. Splitting a node keeps that: the claims at its upper half are put
//! right after those at the lower half.
//!
//! The size counts the bytes of the edges and a fixed charge for each node and claim; it is within the bound after
//! each call. A path is not joined again when its branches have been removed: what that would save is counted and goes
//! when its turn comes.

use crate::aged::{Aged, SlotId};

/// Claims of workers to beginnings of prompts. Workers are named by numbers.
#[derive(Debug)]
pub(crate) struct PrefixTree {
    nodes: Vec<Node>,
    /// Numbers of nodes that are free.
    free: Vec<NodeId>,
    claims: Aged<Claim>,
    size_bytes: usize,
    max_bytes: usize,
}

/// A prompt's way down the tree.
#[derive(Debug)]
pub(crate) struct Path {
    /// The nodes that it ends or goes through, from the top down.
    steps: Vec<Step>,
}

type NodeId = u32;

#[derive(Clone, Copy, Debug)]
struct Step {
    node: NodeId,
    /// Bytes of the node's edge that are alike; only for the last step maybe not all.
    matched: usize,
    /// Bytes of the prompt that are alike from its beginning to here.
    end: usize,
}

#[derive(Debug, Default)]
struct Node {
    /// The bytes from its parent to it.
    edge: Box<[u8]>,
    parent: NodeId,
    /// By the first byte of their edges.
    children: Vec<(u8, NodeId)>,
    /// Never none, but for the root, which has none.
    claims: Vec<(u64, SlotId)>,
}

#[derive(Debug)]
struct Claim {
    worker: u64,
    node: NodeId,
}

const ROOT: NodeId = 0;
/// Charge of a node: itself, its entry at its parent, and as much again for the room that a growing list keeps.
const NODE_BYTES: usize = 2 * (size_of::<Node>() + size_of::<(u8, NodeId)>());
/// Charge of a claim: its place in the order (two links and the claim) and at its node, and as much again.
const CLAIM_BYTES: usize = 2 * (size_of::<(Option<Claim>, [Option<u32>; 2])>() + size_of::<(u64, SlotId)>());

// === impl PrefixTree ===

impl PrefixTree {
    pub(crate) fn new(max_bytes: usize) -> Self {
        let nodes = vec![Node::default()];
        Self { nodes, free: Vec::new(), claims: Aged::new(), size_bytes: 0, max_bytes }
    }

    /// Finds the way of a prompt.
    pub(crate) fn locate(&self, prompt: &[u8]) -> Path {
        let (mut node, mut end, mut steps) = (ROOT, 0, Vec::new());
        while let Some(child) = prompt.get(end).and_then(|byte| self.node(node).child(*byte)) {
            let edge = &self.node(child).edge;
            let matched = common_prefix(edge, &prompt[end..]);
            end += matched;
            steps.push(Step { node: child, matched, end });
            if matched < edge.len() {
                break;
            }
            node = child;
        }
        Path { steps }
    }

    /// The workers with the longest claim on a path among those that are eligible, and its length in bytes.
    pub(crate) fn longest(&self, path: &Path, is_eligible: impl Fn(u64) -> bool) -> (Vec<u64>, usize) {
        for step in path.steps.iter().rev() {
            let workers = self.node(step.node).claims.iter().map(|(worker, _)| *worker);
            let eligible: Vec<u64> = workers.filter(|worker| is_eligible(*worker)).collect();
            if !eligible.is_empty() {
                return (eligible, step.end);
            }
        }
        (Vec::new(), 0)
    }

    /// Lets a worker claim a prompt that has been located in the tree as it is.
    pub(crate) fn claim(&mut self, mut path: Path, prompt: &[u8], worker: u64) {
        if let Some(last) = path.steps.last().copied()
            && last.matched < self.node(last.node).edge.len()
        {
            let upper = self.split(last.node, last.matched);
            path.steps.pop();
            path.steps.push(Step { node: upper, ..last });
        }
        let end = path.steps.last().map_or(0, |step| step.end);
        if end < prompt.len() {
            let parent = path.steps.last().map_or(ROOT, |step| step.node);
            let leaf = self.grow(parent, &prompt[end..]);
            path.steps.push(Step { node: leaf, matched: prompt.len() - end, end: prompt.len() });
        }
        for step in path.steps.iter().rev() {
            self.use_claim(step.node, worker);
        }
        self.trim(self.max_bytes);
    }

    /// Gives up claims, the one used longest ago first, until the tree is no larger.
    pub(crate) fn trim(&mut self, max_bytes: usize) {
        while self.size_bytes > max_bytes
            && let Some((id, &Claim { worker, node })) = self.claims.oldest()
        {
            self.claims.remove(id);
            self.size_bytes -= CLAIM_BYTES;
            let claims = &mut self.nodes[node as usize].claims;
            claims.retain(|(other, _)| *other != worker);
            if claims.is_empty() {
                self.prune(node);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    /// Makes a worker's claim at a node the one used last.
    fn use_claim(&mut self, node: NodeId, worker: u64) {
        let claims = &mut self.nodes[node as usize].claims;
        if let Some((_, id)) = claims.iter().find(|(other, _)| *other == worker) {
            self.claims.touch(*id);
            return;
        }
        claims.push((worker, self.claims.insert(Claim { worker, node })));
        self.size_bytes += CLAIM_BYTES;
    }

    /// Splits a node's edge; gives the new node of the upper half. Who claims the lower half claims the upper too.
    fn split(&mut self, lower: NodeId, at: usize) -> NodeId {
        let Node { edge, parent, claims, .. } = &mut self.nodes[lower as usize];
        let (head, tail): (Box<[u8]>, Box<[u8]>) = (edge[..at].into(), edge[at..].into());
        let (parent, claims) = (*parent, claims.clone());
        self.nodes[lower as usize].edge = tail;
        self.size_bytes -= head.len();
        let upper = self.grow(parent, &head);
        for (worker, id) in claims {
            let above = self.claims.insert_after(id, Claim { worker, node: upper });
            self.nodes[upper as usize].claims.push((worker, above));
            self.size_bytes += CLAIM_BYTES;
        }
        let first = self.node(lower).edge.first().copied().unwrap_or_default();
        self.nodes[upper as usize].children.push((first, lower));
        self.nodes[lower as usize].parent = upper;
        upper
    }

    /// Adds a child, or replaces the one that begins alike.
    fn grow(&mut self, parent: NodeId, edge: &[u8]) -> NodeId {
        let node = Node { edge: edge.into(), parent, ..Node::default() };
        let id = if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = node;
            id
        } else {
            self.nodes.push(node);
            self.nodes.len() as NodeId - 1
        };
        self.size_bytes += NODE_BYTES + edge.len();
        let first = edge.first().copied().unwrap_or_default();
        let children = &mut self.nodes[parent as usize].children;
        children.retain(|(byte, _)| *byte != first);
        children.push((first, id));
        id
    }

    /// Removes a leaf.
    fn prune(&mut self, leaf: NodeId) {
        let Node { edge, parent, children, .. } = std::mem::take(&mut self.nodes[leaf as usize]);
        debug_assert!(children.is_empty(), "nobody claims more than what is above");
        self.nodes[parent as usize].children.retain(|(_, child)| *child != leaf);
        self.size_bytes -= NODE_BYTES + edge.len();
        self.free.push(leaf);
    }
}

// === impl Node ===

impl Node {
    fn child(&self, first: u8) -> Option<NodeId> {
        self.children.iter().find(|(byte, _)| *byte == first).map(|(_, child)| *child)
    }
}

/// How many bytes are alike at the beginning.
fn common_prefix(left: &[u8], right: &[u8]) -> usize {
    const BLOCK: usize = 64;
    // Whole blocks are compared by the fast routine for memory, the rest by bytes.
    let blocks = left.chunks_exact(BLOCK).zip(right.chunks_exact(BLOCK));
    let alike = BLOCK * blocks.take_while(|(left, right)| left == right).count();
    alike + left[alike..].iter().zip(&right[alike..]).take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests;
