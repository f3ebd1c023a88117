/* SPDX-License-Identifier: Apache-2.0 */
/* tree.c - summation tree over logical microbatches. */
#include "worker/tensor/tree.h"

#include "base/error.h"

void tree_push(struct tree_stack *stack, struct tree_node node, int id, void (*merge)(void *arg, int left, int right),
               void *arg)
{
    titan_assert(node.level >= 0 && node.index >= 0);
    for (;;) {
        const int64_t next = (node.index + 1) << node.level; /* first leaf right of the node */
        if (node.index == 0 && next >= stack->leaves)
            break; /* the root */
        if (node.index % 2 == 0) {
            if (next < stack->leaves)
                break; /* the right sibling comes later */
        } else {
            const struct tree_node *left = stack->depth > 0 ? &stack->node[stack->depth - 1] : 0;
            if (!left || left->level != node.level || left->index != node.index - 1)
                break; /* another rank has the left sibling */
            stack->depth--;
            if (merge)
                merge(arg, stack->id[stack->depth], id);
            id = stack->id[stack->depth];
        }
        node.level++;
        node.index /= 2;
    }
    titan_assert(stack->depth < TREE_DEPTH_MAX);
    stack->node[stack->depth] = node;
    stack->id[stack->depth] = id;
    stack->depth++;
}

/* Returns the sum of a node with n leaves. Its left child covers the largest power of two below n. half: a power of two
 * that is not less than the left child's size. */
static double sum_node(const double *values, int64_t n, int64_t half)
{
    if (n == 1)
        return values[0];
    while (half >= n)
        half /= 2;
    return sum_node(values, half, half / 2) + sum_node(values + half, n - half, half / 2);
}

double tree_sum(const double *values, int64_t n)
{
    return n > 0 ? sum_node(values, n, INT64_C(1) << 62) : 0.0;
}

void tree_share(int64_t leaves, int world, int rank, int64_t *from, int64_t *to)
{
    titan_assert(leaves >= 0 && rank >= 0 && rank < world);
    *from = leaves * rank / world;
    *to = leaves * (rank + 1) / world;
}
