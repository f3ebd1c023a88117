/* SPDX-License-Identifier: Apache-2.0 */
/* cost_table.h - measured costs: `titan-worker measure` writes them. A plan uses a measured cost where there is one,
 * and the model's cost elsewhere.
 *
 * A table is a text file of lines with tabs. The head names the machine. A line for each operation and transfer
 * follows. The end has the number of lines and a hash of all before it, so that a cut or changed table is refused.
 *
 *   titan-costs  2
 *   device       cpu
 *   machine      Intel(R) Xeon(R) Processor
 *   isa          avx2 avx512
 *   cores        2
 *   mhz          2100
 *   version      0.4.0
 *   operation    THREADS  SECONDS  SPREAD  KEY
 *   transfer     MEMBERS  BYTES  SECONDS  PROCESSOR_SECONDS  KEY
 *   end          LINES  HASH
 *
 * SPREAD is the standard deviation of SECONDS over repeated runs of the operation. Format 1 has no SPREAD; it is read
 * as 0.
 *
 * A table holds for one machine: its device, model, instructions and cores must be the same. Clock and version are for
 * people to read. */
#ifndef TITAN_WORKER_PLAN_COST_TABLE_H
#define TITAN_WORKER_PLAN_COST_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define COST_KEY_MAX 512 /* with the terminator */
#define COST_FIELD_MAX 128

struct cost_host {
    char device[16]; /* "cpu", "cuda" */
    char machine[COST_FIELD_MAX], isa[COST_FIELD_MAX], version[COST_FIELD_MAX];
    int cores; /* processors that its workers share */
    int mhz;   /* 0 = unknown */
};

enum cost_kind { COST_OPERATION, COST_TRANSFER };

struct cost_row {
    enum cost_kind kind;
    int size;         /* of an operation: threads (1 on a GPU); of a transfer: members */
    uint64_t bytes;   /* of a transfer: action_sent_bytes; of an operation: 0 */
    double seconds;   /* from its begin to its end */
    double processor; /* of a transfer: s of processor time of one member */
    double spread;    /* of an operation: standard deviation of its seconds */
    char key[COST_KEY_MAX];
};

struct cost_table {
    struct cost_host host;
    struct cost_row *rows; /* sorted, each key once */
    size_t n, cap;
};

/* Describes this machine. cores counts the processors of the affinity mask, which are the processors that workers
 * use. */
void cost_host_of_cpu(struct cost_host *ret);
/* TITAN_EINVAL: the machines are not the same; the error names both. */
titan_status cost_host_check(const struct cost_host *table, const struct cost_host *here, const char *path,
                             struct titan_error *err) TITAN_MUST_USE;

/* Adds a row, or replaces the row with its key. */
titan_status cost_table_put(struct cost_table *t, const struct cost_row *row, struct titan_error *err) TITAN_MUST_USE;
void cost_table_print(const struct cost_table *t, struct buf *out);
/* name: name of the text in error messages. *ret is owned (cost_table_clear), and empty after a failure. TITAN_EINVAL:
 * the text is not a table, or is a table that was cut off. */
titan_status cost_table_parse(const char *text, size_t len, const char *name, struct cost_table *ret,
                              struct titan_error *err) TITAN_MUST_USE;
titan_status cost_table_load(const char *path, struct cost_table *ret, struct titan_error *err) TITAN_MUST_USE;
void cost_table_clear(struct cost_table *t);
/* Where `measure` puts the table of a device, in the user's cache folder. TITAN_EINVAL: there is no such folder. */
titan_status cost_table_place(const char *device, char *out, size_t cap, struct titan_error *err) TITAN_MUST_USE;

/* Returns the row of an operation; NULL: the operation was not measured. */
const struct cost_row *cost_table_operation(const struct cost_table *t, int threads, const char *key);
/* Interpolates between two measured sizes on a straight line. false: bytes are beyond the measured sizes. */
bool cost_table_transfer(const struct cost_table *t, int members, const char *key, uint64_t bytes, double *ret_seconds,
                         double *ret_processor);

#endif
