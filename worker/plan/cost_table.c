/* SPDX-License-Identifier: Apache-2.0 */
/* cost_table.c - see cost_table.h. */
#include "worker/plan/cost_table.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/vec.h"
#include "base/version.h"

#define FORMAT "2"
#define FORMAT_BEFORE "1" /* the earlier format, which has no spread */
#define FILE_MAX ((size_t)64 << 20)
#define SIZE_MOST 65536 /* threads, members */

/* --- the machine -------------------------------------------------------------------------------------------------- */

/* Copies the value of the first line "name : value" of /proc/cpuinfo: the first processor stands for all. */
static bool cpuinfo_field(const char *text, const char *name, char *out, size_t cap)
{
    const char *line = strstr(text, name);
    const char *colon = line ? strchr(line, ':') : NULL;

    if (!colon)
        return false;
    colon += 1 + strspn(colon + 1, " \t");
    (void)snprintf(out, cap, "%.*s", (int)strcspn(colon, "\n"), colon);
    return out[0] != 0;
}

void cost_host_of_cpu(struct cost_host *ret)
{
    static const char *const flags[] = {"avx2", "avx512f", "avx512_bf16", "amx_bf16"};
    char text[16384] = "", mhz[32] = "", all[4096] = " ", word[32];
    cpu_set_t set;
    FILE *f = fopen("/proc/cpuinfo", "re");

    if (f) {
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        (void)fclose(f);
    }
    *ret = (struct cost_host){.device = "cpu",
                              .cores = sched_getaffinity(0, sizeof set, &set) == 0 ? MAX(1, CPU_COUNT(&set)) : 1};
    if (!cpuinfo_field(text, "model name", ret->machine, sizeof ret->machine))
        (void)snprintf(ret->machine, sizeof ret->machine, "unknown");
    if (cpuinfo_field(text, "cpu MHz", mhz, sizeof mhz))
        ret->mhz = atoi(mhz);
    (void)cpuinfo_field(text, "flags", all + 1, sizeof all - 2);
    all[strlen(all)] = ' '; /* zeros follow */
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
        (void)snprintf(word, sizeof word, " %s ", flags[i]);
        const size_t at = strlen(ret->isa);
        if (strstr(all, word))
            (void)snprintf(ret->isa + at, sizeof ret->isa - at, "%s%s", at > 0 ? " " : "", flags[i]);
    }
    if (!ret->isa[0])
        (void)snprintf(ret->isa, sizeof ret->isa, "plain");
    (void)snprintf(ret->version, sizeof ret->version, "%s", titan_version);
}

titan_status cost_host_check(const struct cost_host *table, const struct cost_host *here, const char *path,
                             struct titan_error *err)
{
    if (strcmp(table->device, here->device) == 0 && strcmp(table->machine, here->machine) == 0 &&
        strcmp(table->isa, here->isa) == 0 && table->cores == here->cores)
        return TITAN_OK;
    const titan_status status = titan_fail(
        err, TITAN_EINVAL,
        "cost table '%s' is of another machine: %s \"%s\" (%s, %d cores), and this is %s \"%s\" (%s, %d cores)", path,
        table->device, table->machine, table->isa, table->cores, here->device, here->machine, here->isa, here->cores);
    titan_error_hint(err, "titan-worker measure makes one here; --costs none plans without");
    return status;
}

titan_status cost_table_place(const char *device, char *out, size_t cap, struct titan_error *err)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;

    titan_assert(device && *device);
    if (xdg && *xdg == '/')
        n = snprintf(out, cap, "%s/titan/costs-%s.tsv", xdg, device);
    else if (home && *home == '/')
        n = snprintf(out, cap, "%s/.cache/titan/costs-%s.tsv", home, device);
    else
        return titan_fail(err, TITAN_EINVAL, "no place for a cost table: neither $XDG_CACHE_HOME nor $HOME is set");
    return n < (int)cap ? TITAN_OK : titan_fail(err, TITAN_EINVAL, "the cache folder's path is too long");
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

static int row_order(const struct cost_row *a, const struct cost_row *b)
{
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    const int keys = strcmp(a->key, b->key);
    if (keys != 0)
        return keys;
    if (a->size != b->size)
        return a->size < b->size ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* Index of the first row that is not before `row`. */
static size_t place_of(const struct cost_table *t, const struct cost_row *row)
{
    size_t low = 0, high = t->n;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (row_order(&t->rows[middle], row) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    titan_assert(low <= t->n);
    return low;
}

titan_status cost_table_put(struct cost_table *t, const struct cost_row *row, struct titan_error *err)
{
    const size_t at = place_of(t, row);

    titan_assert(row->seconds > 0 && isfinite(row->seconds) && row->processor >= 0 && row->spread >= 0 &&
                 row->size > 0);
    if (at < t->n && row_order(&t->rows[at], row) == 0)
        t->rows[at] = *row;
    else if (!VEC_INSERT(t->rows, t->n, t->cap, at, *row))
        return titan_fail(err, TITAN_ENOMEM, "cost table: out of memory");
    return TITAN_OK;
}

void cost_table_clear(struct cost_table *t)
{
    free(t->rows);
    *t = (struct cost_table){0};
}

/* --- text --------------------------------------------------------------------------------------------------------- */

void cost_table_print(const struct cost_table *t, struct buf *out)
{
    const struct cost_host *h = &t->host;
    const size_t from = out->len;

    titan_assert(h->device[0] && h->cores > 0);
    buf_printf(out, "titan-costs\t" FORMAT "\ndevice\t%s\nmachine\t%s\nisa\t%s\ncores\t%d\nmhz\t%d\nversion\t%s\n",
               h->device, h->machine, h->isa, h->cores, h->mhz, h->version);
    for (size_t i = 0; i < t->n; i++) {
        const struct cost_row *r = &t->rows[i];
        if (r->kind == COST_OPERATION)
            buf_printf(out, "operation\t%d\t%.9e\t%.9e\t%s\n", r->size, r->seconds, r->spread, r->key);
        else
            buf_printf(out, "transfer\t%d\t%lu\t%.9e\t%.9e\t%s\n", r->size, (unsigned long)r->bytes, r->seconds,
                       r->processor, r->key);
    }
    if (!buf_failed(out))
        buf_printf(out, "end\t%zu\t%016lx\n", t->n,
                   (unsigned long)hash_bytes(HASH_INIT, out->data + from, out->len - from));
}

/* The text's lines, each cut at its tabs. */
struct reader {
    const char *name, *begin, *at, *end;
    int line, n;
    bool spreads;                  /* the table's format has spreads */
    char text[COST_KEY_MAX + 128]; /* the current line */
    const char *fields[6];
};

static titan_status damaged(const struct reader *r, const char *what, struct titan_error *err)
{
    const titan_status status =
        titan_fail(err, TITAN_EINVAL, "cost table '%s' is damaged: line %d: %s", r->name, r->line, what);
    titan_error_hint(err, "remove it and measure again; --costs none plans without");
    return status;
}

static titan_status next_line(struct reader *r, struct titan_error *err)
{
    r->line++;
    const char *stop = r->at < r->end ? memchr(r->at, '\n', (size_t)(r->end - r->at)) : NULL;
    if (!stop)
        return damaged(r, "the end is missing", err);
    const size_t length = (size_t)(stop - r->at);
    if (length >= sizeof r->text || memchr(r->at, 0, length))
        return damaged(r, "not a line of a table", err);
    memcpy(r->text, r->at, length);
    r->text[length] = 0;
    r->at = stop + 1;
    r->n = 0;
    for (char *field = r->text; field && r->n < (int)ARRAY_SIZE(r->fields); r->n++) {
        r->fields[r->n] = field;
        field = strchr(field, '\t');
        if (field)
            *field++ = 0;
    }
    return TITAN_OK;
}

static bool whole_number(const char *text, uint64_t most, uint64_t *ret)
{
    char *end = NULL;
    const size_t digits = strspn(text, "0123456789");

    if (digits == 0 || text[digits] || digits > 19)
        return false;
    *ret = strtoull(text, &end, 10);
    return *end == 0 && *ret <= most;
}

static bool seconds_of(const char *text, double least, double *ret)
{
    char *end = NULL;
    *ret = strtod(text, &end);
    return end != text && *end == 0 && isfinite(*ret) && *ret >= least && *ret < 1e6;
}

static titan_status head_field(struct reader *r, const char *name, char *out, size_t cap, struct titan_error *err)
{
    char what[64];

    TRY(next_line(r, err));
    (void)snprintf(what, sizeof what, "%s was expected", name);
    if (r->n != 2 || strcmp(r->fields[0], name) != 0 || strlen(r->fields[1]) >= cap || !*r->fields[1])
        return damaged(r, what, err);
    (void)snprintf(out, cap, "%s", r->fields[1]);
    return TITAN_OK;
}

static titan_status read_row(struct reader *r, struct cost_row *ret, struct titan_error *err)
{
    const bool transfer = strcmp(r->fields[0], "transfer") == 0;
    const int time = transfer ? 3 : 2, key_at = transfer ? 5 : r->spreads ? 4 : 3;
    uint64_t size = 0;

    *ret = (struct cost_row){.kind = transfer ? COST_TRANSFER : COST_OPERATION};
    if (!transfer && strcmp(r->fields[0], "operation") != 0)
        return damaged(r, "neither an operation nor a transfer", err);
    if (r->n != key_at + 1)
        return damaged(r, "fields are missing", err);
    if (!whole_number(r->fields[1], SIZE_MOST, &size) || size == 0 ||
        (transfer && !whole_number(r->fields[2], UINT64_MAX / 2, &ret->bytes)))
        return damaged(r, "not a whole number", err);
    ret->size = (int)size;
    double *const second = transfer ? &ret->processor : &ret->spread;
    if (!seconds_of(r->fields[time], 1e-12, &ret->seconds) ||
        (key_at > time + 1 && !seconds_of(r->fields[time + 1], 0, second)))
        return damaged(r, "not a time", err);
    const char *key = r->fields[key_at];
    if (!*key || strlen(key) >= sizeof ret->key || strchr(key, '\t'))
        return damaged(r, "not a key", err);
    (void)snprintf(ret->key, sizeof ret->key, "%s", key);
    return TITAN_OK;
}

static titan_status read_table(struct reader *r, struct cost_table *ret, struct titan_error *err)
{
    struct cost_host *host = &ret->host;
    const char *line;
    char expected[32], format[16], cores[16], mhz[16];
    uint64_t number, lines = 0;

    TRY(head_field(r, "titan-costs", format, sizeof format, err));
    r->spreads = strcmp(format, FORMAT) == 0;
    if (!r->spreads && strcmp(format, FORMAT_BEFORE) != 0)
        return titan_fail(err, TITAN_EINVAL,
                          "cost table '%s' has format %s, this version reads " FORMAT_BEFORE " and " FORMAT, r->name,
                          format);
    TRY(head_field(r, "device", host->device, sizeof host->device, err));
    TRY(head_field(r, "machine", host->machine, sizeof host->machine, err));
    TRY(head_field(r, "isa", host->isa, sizeof host->isa, err));
    TRY(head_field(r, "cores", cores, sizeof cores, err));
    if (!whole_number(cores, SIZE_MOST, &number) || number == 0)
        return damaged(r, "not a number of cores", err);
    host->cores = (int)number;
    TRY(head_field(r, "mhz", mhz, sizeof mhz, err));
    if (!whole_number(mhz, 1000000, &number))
        return damaged(r, "not a clock", err);
    host->mhz = (int)number;
    TRY(head_field(r, "version", host->version, sizeof host->version, err));

    for (;;) {
        struct cost_row row;
        line = r->at;
        TRY(next_line(r, err));
        if (strcmp(r->fields[0], "end") == 0)
            break;
        TRY(read_row(r, &row, err));
        if (ret->n > 0 && row_order(&ret->rows[ret->n - 1], &row) >= 0)
            return damaged(r, "not in order", err);
        TRY(cost_table_put(ret, &row, err));
    }

    (void)snprintf(expected, sizeof expected, "%016lx",
                   (unsigned long)hash_bytes(HASH_INIT, r->begin, (size_t)(line - r->begin)));
    if (r->n != 3 || !whole_number(r->fields[1], SIZE_MAX / 2, &lines) || lines != ret->n)
        return damaged(r, "not as many lines as were written", err);
    if (strcmp(r->fields[2], expected) != 0)
        return damaged(r, "the hash of what was written is another", err);
    return r->at == r->end ? TITAN_OK : damaged(r, "there is something behind the end", err);
}

titan_status cost_table_parse(const char *text, size_t len, const char *name, struct cost_table *ret,
                              struct titan_error *err)
{
    struct reader r = {.name = name, .begin = text, .at = text, .end = text + len};

    *ret = (struct cost_table){0};
    const titan_status status = read_table(&r, ret, err);
    if (status != TITAN_OK)
        cost_table_clear(ret);
    return status;
}

titan_status cost_table_load(const char *path, struct cost_table *ret, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;

    *ret = (struct cost_table){0};
    if (file_read(path, FILE_MAX, &text, err) != TITAN_OK)
        return titan_error_wrap(err, "cost table");
    return cost_table_parse(text.data ? text.data : "", text.len, path, ret, err);
}

/* --- looking up --------------------------------------------------------------------------------------------------- */

const struct cost_row *cost_table_operation(const struct cost_table *t, int threads, const char *key)
{
    struct cost_row wanted = {.kind = COST_OPERATION, .size = threads};

    (void)snprintf(wanted.key, sizeof wanted.key, "%s", key);
    const size_t at = place_of(t, &wanted);
    return at < t->n && row_order(&t->rows[at], &wanted) == 0 ? &t->rows[at] : NULL;
}

bool cost_table_transfer(const struct cost_table *t, int members, const char *key, uint64_t bytes, double *ret_seconds,
                         double *ret_processor)
{
    struct cost_row wanted = {.kind = COST_TRANSFER, .size = members, .bytes = bytes};

    (void)snprintf(wanted.key, sizeof wanted.key, "%s", key);
    const size_t at = place_of(t, &wanted);
    const struct cost_row *above = at < t->n ? &t->rows[at] : NULL;
    if (!above || above->kind != COST_TRANSFER || above->size != members || strcmp(above->key, key) != 0)
        return false;
    const struct cost_row *below = above->bytes == bytes ? above : at > 0 ? &t->rows[at - 1] : NULL;
    if (!below || below->kind != COST_TRANSFER || below->size != members || strcmp(below->key, key) != 0)
        return false;
    const double part = above == below ? 0 : (double)(bytes - below->bytes) / (double)(above->bytes - below->bytes);
    *ret_seconds = below->seconds + part * (above->seconds - below->seconds);
    *ret_processor = below->processor + part * (above->processor - below->processor);
    return true;
}
