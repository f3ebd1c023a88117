/* SPDX-License-Identifier: Apache-2.0 */
/* disk.h - a disk for tests: an SQLite VFS over memory; its faults are chosen and its power can be cut.
 *
 * While a disk is mounted it is SQLite's default VFS, so everything in state/ runs on it unchanged. What a file holds
 * is kept twice: as it reads (the page cache) and as it is on the platters; writes lie between the two until a sync. A
 * power cut keeps what is on the platters and an arbitrary part of what lies between, torn at sectors of 512 bytes. All
 * choices are drawn from the disk's seed. Any thread; callbacks run on the thread that does the operation. */
#ifndef TITAN_TESTS_SUPPORT_DISK_H
#define TITAN_TESTS_SUPPORT_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct disk;

/* Operations, as bits. */
enum { DISK_OPEN = 1, DISK_READ = 2, DISK_WRITE = 4, DISK_SYNC = 8, DISK_TRUNCATE = 16, DISK_DELETE = 32 };
#define DISK_CHANGES (DISK_WRITE | DISK_SYNC | DISK_TRUNCATE | DISK_DELETE)
#define DISK_ALL (DISK_OPEN | DISK_READ | DISK_CHANGES)

enum disk_fault {
    DISK_EIO,   /* it fails; of a write some leading sectors may have got through */
    DISK_SHORT, /* a write gets half its bytes through and then finds no space; anything else: as DISK_EIO */
};
/* What a failed sync does to what was written and not synced yet. */
enum disk_failed_sync {
    DISK_SYNC_RETRIES, /* it stays dirty; the next sync writes it */
    DISK_SYNC_FORGETS, /* it stays readable and counts as clean: never written, unless it is written anew (Linux) */
    DISK_SYNC_DROPS,   /* reads see what is on the platters again */
};

struct disk *disk_new(uint64_t seed);
void disk_free(struct disk *d); /* unmounted, and every file closed; NULL is fine */
void disk_mount(struct disk *d);
void disk_unmount(struct disk *d); /* SQLite's own default is back */

/* Of the operations in `ops` on files with `name` in their name (NULL = all), the n-th from now (1 = the next) has the
 * fault, and with `lasting` all after it, too. Replaces the fault set before; ops 0 takes it away. */
void disk_fail(struct disk *d, uint32_t ops, const char *name, uint64_t n, enum disk_fault fault, bool lasting);
void disk_on_failed_sync(struct disk *d, enum disk_failed_sync what); /* at first DISK_SYNC_FORGETS */
/* Writes that make the files larger than this together find no space. 0 = no limit. */
void disk_set_capacity(struct disk *d, uint64_t bytes);
uint64_t disk_used(struct disk *d);
uint64_t disk_count(struct disk *d, uint32_t ops); /* done or failed since disk_new */
uint64_t disk_faults(struct disk *d);              /* failed because of disk_fail */
/* Called before every operation in `ops`; may take disk_after_*() and use the result. NULL = no more. */
void disk_watch(struct disk *d, uint32_t ops, void (*before)(struct disk *d, void *data), void *data);

/* What the next boot finds if the power goes now; another draw for every seed. */
struct disk *disk_after_power_cut(struct disk *d, uint64_t seed);
/* What the next process finds if this one is killed now: the page cache lives on, with what it owes the platters. */
struct disk *disk_after_kill(struct disk *d, uint64_t seed);
/* Turn `bytes` bytes of a file at offset, on the platters and in the cache, into others. False: it is shorter. */
bool disk_damage(struct disk *d, const char *name, uint64_t offset, size_t bytes);

#endif
