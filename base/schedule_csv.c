/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules as text, in the notation of TorchTitan's custom schedules. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/schedule_family.h"

/* State of reading; line and cell count from 1. */
struct reader {
    const char *path;
    int line, cell;
    struct schedule *s;
    struct titan_error *err;
};

/* Reads digits into *ret; returns their end, or NULL for none or too many. */
static const char *read_number(const char *at, const char *end, int *ret)
{
    const char *start = at;
    int value = 0;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (at - start >= 8)
            return NULL;
        value = 10 * value + (*at - '0');
    }
    *ret = value;
    return at > start ? at : NULL;
}

static titan_status read_line(struct reader *in, const char *at, const char *end)
{
    titan_assert(at <= end);
    in->cell = 1;
    for (;; in->cell++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *from = at, *to = comma ? comma : end;
        while (from < to && (*from == ' ' || *from == '\t'))
            from++;
        while (from < to && (to[-1] == ' ' || to[-1] == '\t' || to[-1] == '\r'))
            to--;
        if (from < to) {
            /* Reads a non-empty cell without surrounding blanks. Messages do not quote it: the daemon may be able to
             * read a file that the submitting user may not. */
            static const char letters[] = "FIWB";
            struct schedule *s = in->s;
            int stage = 0, mb = 0;
            const char *letter = read_number(from, to, &stage);
            const char *kind = letter && letter < to && *letter ? strchr(letters, *letter) : NULL;
            if (!kind || read_number(letter + 1, to, &mb) != to) {
                titan_status status =
                    titan_fail(in->err, TITAN_EINVAL, "%s:%d: cell %d is not stage, action and microbatch", in->path,
                               in->line, in->cell);
                titan_error_hint(
                    in->err,
                    "like 0F3: actions are F forward, I input gradient, W weight gradient, B both; idle is empty");
                return status;
            }
            if (stage >= s->stages)
                return titan_fail(in->err, TITAN_EINVAL, "%s:%d: cell %d: there is no such stage, the last of %d is %d",
                                  in->path, in->line, in->cell, s->stages, s->stages - 1);
            if (mb >= s->microbatches)
                return titan_fail(in->err, TITAN_EINVAL,
                                  "%s:%d: cell %d: there is no such microbatch, the last of %d is %d", in->path,
                                  in->line, in->cell, s->microbatches, s->microbatches - 1);
            /* If a line has more cells than distinct cells exist, schedule_check() names the double cell. */
            int rank = in->line - 1;
            if (s->n_cells[rank] <= 3 * schedule_local(s) * s->microbatches)
                schedule_put(s, rank, (enum cell_kind)(kind - letters), stage, mb);
        }
        if (!comma)
            return TITAN_OK;
        at = comma + 1;
    }
}

/* Two stages per rank form a loop or a V; the first cell that fits only one of the two decides. */
static bool stands_in_v(const struct schedule *s)
{
    if (s->stages != 2 * s->ranks)
        return false;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->n_cells[r]; i++) {
            int stage = s->cells[r][i].stage;
            bool loop = stage % s->ranks == r, v = stage >= s->ranks && 2 * s->ranks - 1 - stage == r;
            if (stage >= s->ranks && loop != v)
                return v;
        }
    return false;
}

titan_status schedule_parse(const char *text, const char *path, const struct schedule_shape *shape,
                            struct schedule **ret, struct titan_error *err)
{
    _cleanup_(schedule_clear) struct schedule *s = NULL;
    if (strnlen(text, SCHEDULE_CSV_MAX + 1) > SCHEDULE_CSV_MAX)
        return titan_fail(err, TITAN_EINVAL, "%s: longer than %d bytes", path, SCHEDULE_CSV_MAX);
    titan_status status = schedule_new("CSV", shape, false, &s, err);
    if (status != TITAN_OK)
        return err ? titan_error_wrap(err, "%s", path) : status;
    struct reader in = {.path = path, .s = s, .err = err};
    const char *end = text + strlen(text);
    while (end > text && strchr(" \t\r\n", end[-1]))
        end--;
    for (const char *at = text, *stop; at < end; at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop)
            stop = end;
        if (in.line++ == in.s->ranks)
            return titan_fail(in.err, TITAN_EINVAL, "%s:%d: more lines than the %d ranks of the pipeline", in.path,
                              in.line, in.s->ranks);
        TRY(read_line(&in, at, stop));
    }
    if (in.line < in.s->ranks)
        return titan_fail(in.err, TITAN_EINVAL,
                          "%s: %d line%s, and the pipeline has %d ranks: it takes one line a rank", in.path, in.line,
                          in.line == 1 ? "" : "s", in.s->ranks);
    s->v_order = stands_in_v(s);
    status = schedule_check(s, err);
    if (status != TITAN_OK)
        return err ? titan_error_wrap(err, "%s", path) : status;
    *ret = TAKE(s);
    return TITAN_OK;
}

titan_status schedule_load(const char *path, int ranks, int stages, int microbatches, struct schedule **ret,
                           struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    TRY(file_read_named(path, SCHEDULE_CSV_MAX, &text, err));
    if (text.len && memchr(text.data, '\0', text.len))
        return titan_fail(err, TITAN_EINVAL, "%s: not a text: it has a zero byte", path);
    return schedule_parse(text.len ? text.data : "", path, &(struct schedule_shape){ranks, stages, microbatches}, ret,
                          err);
}

void schedule_print(const struct schedule *s, struct buf *out)
{
    titan_assert(s->ranks >= 1);
    char text[CELL_TEXT];
    for (int r = 0; r < s->ranks; r++) {
        for (int i = 0; i < s->n_cells[r]; i++) {
            if (i)
                buf_puts(out, ",");
            buf_puts(out, cell_text(s->cells[r][i], text));
        }
        buf_puts(out, "\n");
    }
}
