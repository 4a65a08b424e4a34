//! The tree against lists of what each worker has been sent.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn claim(tree: &mut PrefixTree, worker: u64, prompt: &[u8]) {
    let path = tree.locate(prompt);
    tree.claim(path, prompt, worker);
}

/// The longest beginning of a prompt that a worker is known to have been sent.
fn known(tree: &PrefixTree, worker: u64, prompt: &[u8]) -> usize {
    tree.longest(&tree.locate(prompt), |other| other == worker).1
}

/// Counts everything anew, and checks what must hold between neighbours.
fn assert_sound(tree: &PrefixTree) {
    let order: Vec<(u64, NodeId)> = tree.claims.iter().map(|claim| (claim.worker, claim.node)).collect();
    let age: BTreeMap<(u64, NodeId), usize> =
        order.iter().enumerate().map(|(at, claim)| (*claim, at)).collect();
    let (mut size, mut nodes, mut claims, mut stack) = (0, 0, 0, vec![ROOT]);
    while let Some(id) = stack.pop() {
        let node = tree.node(id);
        for (first, child) in &node.children {
            assert_eq!((tree.node(*child).parent, tree.node(*child).edge[0]), (id, *first));
            stack.push(*child);
        }
        if id == ROOT {
            continue;
        }
        nodes += 1;
        claims += node.claims.len();
        size += NODE_BYTES + node.edge.len() + CLAIM_BYTES * node.claims.len();
        assert!(!node.claims.is_empty());
        for (worker, _) in &node.claims {
            assert!(node.parent == ROOT || age[&(*worker, node.parent)] > age[&(*worker, id)]);
        }
    }
    assert_eq!((size, claims, nodes + 1 + tree.free.len()), (tree.size_bytes, order.len(), tree.nodes.len()));
    assert!(tree.size_bytes <= tree.max_bytes);
}

#[test]
fn claims_are_told_apart_at_every_branch() {
    let mut tree = PrefixTree::new(1 << 20);
    for (worker, prompt) in [(1, "abcdef"), (2, "abcxyz"), (1, "abc"), (3, "q"), (2, "abcdefgh")] {
        claim(&mut tree, worker, prompt.as_bytes());
        assert_sound(&tree);
    }
    for (prompt, expected) in [
        ("abcdef", (vec![1, 2], 6)),
        ("abcdefg", (vec![2], 7)),
        ("abcdXX", (vec![1, 2], 4)),
        ("abcxyz!", (vec![2], 6)),
        ("ab", (vec![1, 2], 2)),
        ("qq", (vec![3], 1)),
        ("z", (vec![], 0)),
        ("", (vec![], 0)),
    ] {
        let (mut workers, length) = tree.longest(&tree.locate(prompt.as_bytes()), |_| true);
        workers.sort_unstable();
        assert_eq!((workers, length), expected, "{prompt}");
    }
}

#[test]
fn the_leaf_used_longest_ago_goes_first() {
    let mut tree = PrefixTree::new(1 << 20);
    for (worker, prompt) in [(1, "common-a"), (2, "common-b"), (1, "common-c")] {
        claim(&mut tree, worker, prompt.as_bytes());
    }
    claim(&mut tree, 1, b"common-a");
    let known = |tree: &PrefixTree| {
        [(2, "common-b"), (1, "common-c"), (1, "common-a")]
            .map(|(worker, prompt)| known(tree, worker, prompt.as_bytes()))
    };
    assert_eq!(known(&tree), [8, 8, 8]);
    let mut seen = Vec::new();
    while tree.size_bytes > 0 {
        tree.trim(tree.size_bytes - 1);
        assert_sound(&tree);
        seen.push(known(&tree));
    }
    assert_eq!(seen, [[7, 8, 8], [0, 8, 8], [0, 7, 8], [0, 7, 7], [0, 0, 0]]);
    assert!(tree.node(ROOT).children.is_empty());
    claim(&mut tree, 1, b"again");
    assert_eq!(tree.locate(b"again").steps.len(), 1);
}

#[test]
fn a_prompt_that_does_not_fit_is_forgotten_at_once() {
    let mut tree = PrefixTree::new(0);
    claim(&mut tree, 1, b"prompt");
    assert_eq!((tree.size_bytes(), known(&tree, 1, b"prompt")), (0, 0));
}

#[test]
fn prefixes_are_compared_to_the_byte() {
    for alike in [0, 1, 63, 64, 65, 127, 128, 200] {
        let left = vec![7; 200];
        let mut right = left.clone();
        if alike < 200 {
            right[alike] = 8;
        }
        assert_eq!(common_prefix(&left, &right), alike);
        assert_eq!(common_prefix(&left, &right[..alike]), alike);
    }
}

/// Few letters and repeated ones, so that prompts share beginnings and differ late.
fn prompt() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec((0_u8..3, 1_usize..40), 1..6)
        .prop_map(|runs| runs.into_iter().flat_map(|(letter, length)| vec![letter; length]).collect())
}

proptest! {
    #[test]
    fn it_knows_what_lists_know(claims in prop::collection::vec((0_u64..4, prompt()), 0..60), asked in prompt()) {
        let (mut tree, mut lists) = (PrefixTree::new(1 << 20), BTreeMap::<u64, Vec<Vec<u8>>>::new());
        for (worker, prompt) in claims {
            claim(&mut tree, worker, &prompt);
            lists.entry(worker).or_default().push(prompt);
        }
        assert_sound(&tree);
        let in_list = |worker: u64| {
            let lengths = lists.get(&worker).into_iter().flatten().map(|sent| common_prefix(sent, &asked));
            lengths.max().unwrap_or(0)
        };
        for worker in 0..4 {
            prop_assert_eq!(known(&tree, worker, &asked), in_list(worker));
        }
        let (workers, longest) = tree.longest(&tree.locate(&asked), |_| true);
        prop_assert_eq!(longest, (0..4).map(in_list).max().unwrap_or(0));
        prop_assert!(workers.iter().all(|worker| in_list(*worker) == longest));
    }

    /// Within its bound after each claim, it knows nothing that was not sent, and what was sent last it knows whole
    /// if that fits.
    #[test]
    fn a_small_tree_forgets_and_invents_nothing(
        claims in prop::collection::vec((0_u64..3, prompt()), 1..80),
        max_bytes in 1000_usize..5000,
    ) {
        let (mut tree, mut sent) = (PrefixTree::new(max_bytes), Vec::<(u64, Vec<u8>)>::new());
        for (worker, prompt) in claims {
            claim(&mut tree, worker, &prompt);
            assert_sound(&tree);
            sent.push((worker, prompt.clone()));
            for worker in 0..3 {
                let of_worker = sent.iter().filter(|(other, _)| *other == worker);
                let longest = of_worker.map(|(_, sent)| common_prefix(sent, &prompt)).max().unwrap_or(0);
                prop_assert!(known(&tree, worker, &prompt) <= longest);
            }
            let depth = tree.locate(&prompt).steps.len();
            if depth * (NODE_BYTES + CLAIM_BYTES) + prompt.len() <= max_bytes / 4 {
                prop_assert_eq!(known(&tree, worker, &prompt), prompt.len());
            }
        }
    }
}
