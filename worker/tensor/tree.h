/* SPDX-License-Identifier: Apache-2.0 */
/* tree.h - the one binary tree in which a step's logical microbatches are summed.
 *
 * Node (level, index) covers leaves [index << level, (index + 1) << level), cut at the number of leaves. A node with an
 * empty right half is its left half. The shape depends on the number of leaves only. So the sum is the same bit for bit
 * whichever ranks add its parts, as long as siblings are added as siblings. */
#ifndef TITAN_WORKER_TENSOR_TREE_H
#define TITAN_WORKER_TENSOR_TREE_H

#include <stdint.h>

#define TREE_DEPTH_MAX 64

struct tree_node {
    int level;
    int64_t index;
};

/* Finished subtrees, left to right. A subtree's sibling is never in the stack. Each has an id that the caller gave
 * it. */
struct tree_stack {
    int64_t leaves;
    int depth;
    struct tree_node node[TREE_DEPTH_MAX];
    int id[TREE_DEPTH_MAX];
};

/* Pushes the next subtree to the right. Calls merge for every pair of siblings: left += right, and the sum keeps left's
 * id. merge may be NULL. */
void tree_push(struct tree_stack *stack, struct tree_node node, int id, void (*merge)(void *arg, int left, int right),
               void *arg);
/* Sum of n values in the tree of n leaves. */
double tree_sum(const double *values, int64_t n);

/* Leaves [*from, *to) of rank's contiguous share: sizes differ by at most one. */
void tree_share(int64_t leaves, int world, int rank, int64_t *from, int64_t *to);

#endif
