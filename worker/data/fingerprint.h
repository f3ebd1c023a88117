/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprint.h - a number for the content of a source of training data: equal for the same tokens in the same order,
 * under any file names.
 *
 * It covers sizes, checksums in shards' headers, and bytes: all bytes if there are at most FINGERPRINT_WHOLE, otherwise
 * FINGERPRINT_BLOCKS evenly spread blocks. So it costs little in comparison with opening the source. The definition
 * must not change, because checkpoints store the number. */
#ifndef TITAN_WORKER_DATA_FINGERPRINT_H
#define TITAN_WORKER_DATA_FINGERPRINT_H

#include "worker/data/corpus.h"

#define FINGERPRINT_WHOLE (UINT64_C(64) << 20)
#define FINGERPRINT_BLOCKS 256
#define FINGERPRINT_BLOCK_BYTES (UINT64_C(16) << 10)

uint64_t fingerprint_of_corpus(const struct corpus *c);

#endif
