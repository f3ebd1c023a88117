/* SPDX-License-Identifier: Apache-2.0 */
/* bench_fingerprint.c - what a fingerprint costs beside opening the data.
 *
 *   bench_fingerprint FOLDER
 *
 * Writes 1 TiB of shards into FOLDER, all holes but for headers, and removes them again. Prints JSON: shards, bytes,
 * and the shortest of ROUNDS times to open the folder and to take its fingerprint, in seconds of the wall clock. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/param.h>
#include <time.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "worker/data/fingerprint.h"
#include "worker/data/shard.h"

#define SHARDS 1024
#define TOKENS (UINT64_C(1) << 29) /* of 2 bytes each: 1 GiB a shard */
#define ROUNDS 10

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* One document of zeros; the checksum of the tokens is never checked in a set of this size. */
static bool write_shard(const char *path, struct shard_header *h)
{
    const uint64_t index[] = {0, TOKENS};
    *h = (struct shard_header){.version = SHARD_VERSION, .width = 2, .tokens = TOKENS, .documents = 1};
    memcpy(h->magic, SHARD_MAGIC, sizeof(h->magic));
    h->index_crc = crc32c(0, index, sizeof(index));
    h->header_crc = crc32c(0, h, SHARD_HEADER_BYTES - 4);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const bool written = fd >= 0 && pwrite(fd, h, sizeof(*h), 0) == sizeof(*h) &&
                         pwrite(fd, index, sizeof(index), (off_t)shard_index_at(h)) == sizeof(index);
    return (fd < 0 || close(fd) == 0) && written;
}

static bool write_set(const char *dir, struct titan_error *err)
{
    static struct shard_info infos[SHARDS];
    struct shard_set set = {.tokenizer = "bytes", .vocab_size = 256, .width = 2, .shards = infos, .n = SHARDS};
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard_header h;
        char path[PATH_MAX];
        shard_path(dir, i, path);
        if (!write_shard(path, &h)) {
            (void)titan_fail(err, TITAN_EIO, "%s: cannot be written", path);
            return false;
        }
        infos[i] = (struct shard_info){h.tokens, h.documents, h.tokens_crc, h.index_crc};
        set.tokens += h.tokens;
        set.documents += h.documents;
    }
    return shard_set_write(dir, &set, err) == TITAN_OK;
}

static void remove_set(const char *dir)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < SHARDS; i++) {
        shard_path(dir, i, path);
        (void)unlink(path);
    }
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)unlinkat(fd, SHARD_SET_NAME, 0);
        (void)close(fd);
    }
}

static bool measure(const char *dir, double *opens, double *takes, struct titan_error *err)
{
    for (int i = 0; i < ROUNDS; i++) {
        struct corpus c = {0};
        struct shard_set set = {0};
        const double begin = seconds();
        const titan_status st = corpus_open_shards(&c, dir, &set, err);
        const double opened = seconds();
        const volatile uint64_t fingerprint = fingerprint_of_corpus(&c);
        (void)fingerprint;
        const double taken = seconds();
        shard_set_clear(&set);
        corpus_close(&c);
        if (st != TITAN_OK)
            return false;
        *opens = i == 0 ? opened - begin : MIN(*opens, opened - begin);
        *takes = i == 0 ? taken - opened : MIN(*takes, taken - opened);
    }
    return true;
}

int main(int argc, char **argv)
{
    struct titan_error err = {0};
    double opens = 0, takes = 0;
    if (argc != 2) {
        (void)fprintf(stderr, "bench_fingerprint FOLDER\n");
        return 2;
    }
    const bool measured = write_set(argv[1], &err) && measure(argv[1], &opens, &takes, &err);
    remove_set(argv[1]);
    if (!measured) {
        (void)fprintf(stderr, "bench_fingerprint: %s\n", err.msg);
        return 1;
    }
    (void)printf("{\"shards\": %d, \"bytes\": %llu, \"open\": %.9f, \"fingerprint\": %.9f, \"share\": %.6f, "
                 "\"target_share\": 0.01}\n",
                 SHARDS, (unsigned long long)SHARDS * TOKENS * 2, opens, takes, takes / opens);
    return 0;
}
