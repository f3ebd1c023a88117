/* SPDX-License-Identifier: Apache-2.0 */
/* owed.h - what codes of gradients owe to the masters (base/codecs.h), moved from one mesh to another.
 *
 * A step's gradient is a sum over tokens: the sum over ranks of what each has of its own. With rank r's error e_r,
 * which began at zero, and decay a, sum of all that was decoded = sum of all gradients - E / (1-a),    E = sum over
 * ranks of e_r So E is owed, value by value. It is a sum, not a mean, and has the same weight for any number of ranks.
 * New errors owe the same if their sum is E, whoever has them. A mean over ranks, kept as it is, would owe R'/R of it.
 *
 * Here the rank that owns a range takes all of E there, as its error of the piece that it codes for itself. Its other
 * errors are zero. An equal share E/R' for each of R' ranks would be gathered by all of them, a byte for each value of
 * the model, and would be rounded no better. An error is at most an eighth of its bucket's largest value. So the
 * owner's scale is up to 1 + R/8 times as large for the first step; what that loses, is kept as its error again.
 * Of K' new replicas, which add up their gradients or directions, each takes the errors of 1/K' of the old ranks: those
 * of its own number, if there are as many replicas as before. Errors of a copied table (layout_copies_table) go to the
 * table's owner.
 *
 * An old rank sends its codes, 1 byte a value and a scale for each bucket, once in all. The owner adds them up in fp32,
 * in the order of old ranks (decode_sum), and codes the sum as "int8": a value loses at most 1/128 of its bucket's
 * largest. The result depends on meshes and errors alone, not on the processes that have the ranks. */
#ifndef TITAN_WORKER_ELASTIC_OWED_H
#define TITAN_WORKER_ELASTIC_OWED_H

#include "worker/elastic/transfer.h"

/* Collective over the ranks of the holdings, which have all errors (holdings.settled). Fills the errors of what->to,
 * which are zero before; waits for the stream. Both meshes cut tensors alike. A unit whose group has one rank in the
 * new mesh has no codes, and what is owed to it is lost. *sent grows by the bytes that this rank sent. */
titan_status owed_transfer(const struct resharding *what, const struct peer_ranks *ranks, uint64_t *sent,
                           struct titan_error *err) TITAN_MUST_USE;

#endif
