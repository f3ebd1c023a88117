/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprint.h - what a source of training data holds, as a number: equal where the same tokens lie in the same order,
 * whatever the files are called.
 *
 * It is made of sizes, of the checksums that shards have in their headers, and of bytes: all of them up to
 * FINGERPRINT_WHOLE, of more FINGERPRINT_BLOCKS blocks that are evenly spread. No more is read, so that it costs little
 * beside opening the source. The number stands in checkpoints: how it is made does not change. */
#ifndef TITAN_WORKER_DATA_FINGERPRINT_H
#define TITAN_WORKER_DATA_FINGERPRINT_H

#include "worker/data/corpus.h"

#define FINGERPRINT_WHOLE (UINT64_C(64) << 20)
#define FINGERPRINT_BLOCKS 256
#define FINGERPRINT_BLOCK_BYTES (UINT64_C(16) << 10)

uint64_t fingerprint_of_corpus(const struct corpus *c);

#endif
