/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checkpoint_line.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/folder_owner.h"
#include "base/vec.h"

#define HEAD_BYTES 4096 /* bytes at a manifest's beginning that contain its line */
#define HEAD_END ",\"recipe_hash\""

/* --- a line ------------------------------------------------------------------------------------------------------- */

titan_status checkpoint_line_parse(const struct json *manifest, struct checkpoint_line *ret, struct titan_error *err)
{
    const struct json *list = json_get(manifest, "line");
    *ret = (struct checkpoint_line){0};
    if (list && list->type != JSON_ARRAY)
        return titan_fail(err, TITAN_ECORRUPT, "'line' is no list");
    for (const struct json *b = list ? list->first : NULL; b; b = b->next) {
        const struct json *number = b->type == JSON_ARRAY ? b->first : NULL, *from = number ? number->next : NULL;
        const int64_t after = ret->n > 0 ? (int64_t)ret->branch[ret->n - 1].number : 0;
        if (!from || number->type != JSON_INT || from->type != JSON_INT || number->integer <= after ||
            number->integer > (int64_t)CHECKPOINT_STEP_MAX || from->integer < 0 ||
            from->integer > (int64_t)CHECKPOINT_STEP_MAX || ret->n == CHECKPOINT_BRANCHES_MAX)
            return titan_fail(err, TITAN_ECORRUPT, "'line' is no list of branches");
        ret->branch[ret->n++] = (struct checkpoint_branch){(uint64_t)number->integer, (uint64_t)from->integer};
    }
    return TITAN_OK;
}

void checkpoint_line_print(const struct checkpoint_line *line, struct json_writer *w)
{
    json_begin_array(w, "line");
    for (int i = 0; i < line->n; i++) {
        json_begin_array(w, NULL);
        json_put_uint(w, NULL, line->branch[i].number);
        json_put_uint(w, NULL, line->branch[i].from);
        json_end_array(w);
    }
    json_end_array(w);
}

static uint64_t number_of(const struct checkpoint_line *line)
{
    return line->n > 0 ? line->branch[line->n - 1].number : 0;
}

void checkpoint_line_go_back(struct checkpoint_line *line, uint64_t number, uint64_t step)
{
    titan_assert(number > number_of(line));
    if (line->n == CHECKPOINT_BRANCHES_MAX)
        memmove(line->branch, line->branch + 1, (size_t)--line->n * sizeof(line->branch[0]));
    line->branch[line->n++] = (struct checkpoint_branch){number, step};
}

/* Did the run with the history `line` pass this step of the branch? */
static bool passes(const struct checkpoint_line *line, uint64_t branch, uint64_t step)
{
    int next = 0;
    if (branch > 0) {
        while (next < line->n && line->branch[next].number != branch)
            next++;
        if (next++ == line->n)
            return false;
    }
    return next == line->n || step <= line->branch[next].from;
}

/* --- a folder ----------------------------------------------------------------------------------------------------- */

struct found {
    uint64_t step;
    bool known; /* the manifest names this step */
    struct checkpoint_line line;
};

static void close_dir(DIR **dir)
{
    if (*dir)
        (void)closedir(*dir);
}

static int compare_found_down(const void *a, const void *b)
{
    const uint64_t x = ((const struct found *)a)->step, y = ((const struct found *)b)->step;
    return x < y ? 1 : x > y ? -1 : 0;
}

titan_status checkpoint_line_list(int at, struct checkpoint_line_list *ret, struct titan_error *err)
{
    _cleanup_free_ struct found *all = NULL;
    const struct found *newest = NULL;
    size_t n = 0, cap = 0;
    titan_assert(at >= 0);
    *ret = (struct checkpoint_line_list){0};
    const int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_(close_dir) DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        const titan_status status = titan_fail_errno(err, "cannot list a folder of checkpoints");
        if (fd >= 0)
            (void)close(fd);
        return status;
    }
    for (struct dirent *e; (errno = 0, e = readdir(d));) {
        char *end = NULL;
        const bool is_step = strncmp(e->d_name, "step-", 5) == 0 && e->d_name[5] >= '0' && e->d_name[5] <= '9';
        struct found f = {.step = is_step ? strtoull(e->d_name + 5, &end, 10) : 0};
        if (!is_step || *end || f.step > CHECKPOINT_STEP_MAX)
            continue;

        /* An error of an unresponsive disk is not ignored: the disk may answer later, and this manifest decides the
         * run's line. */
        char name[64], text[HEAD_BYTES + 1];
        _cleanup_(json_clear) struct json *head = NULL;
        _cleanup_fd_ int inside = -1, file = -1;
        titan_status status;
        (void)snprintf(name, sizeof(name), CHECKPOINT_NAME, f.step);
        status = dir_open_at(at, name, false, &inside, err);
        if (status == TITAN_OK)
            status = file_open_regular(inside, "manifest.json", O_NOFOLLOW, &file, err);
        const ssize_t got = file >= 0 ? pread(file, text, HEAD_BYTES, 0) : 0;
        if (got < 0)
            status = titan_fail_errno(err, "cannot read the manifest in '%s'", name);
        text[MAX(got, 0)] = '\0';

        /* Cuts the text off before the recipe. The members before the recipe form an object of their own. */
        char *cut = status == TITAN_OK ? strstr(text, HEAD_END) : NULL;
        if (cut)
            *cut = '}';
        f.known = cut && json_parse(text, (size_t)(cut + 1 - text), &head, NULL) == TITAN_OK &&
                  json_int(head, "step", -1) == (int64_t)f.step &&
                  checkpoint_line_parse(head, &f.line, NULL) == TITAN_OK;
        if (!f.known)
            f.line = (struct checkpoint_line){0};
        TRY(status == TITAN_EIO || status == TITAN_ELIMIT || status == TITAN_ENOMEM ? status : TITAN_OK);

        if (!VEC_PUSH(all, n, cap, f))
            return titan_fail(err, TITAN_ENOMEM, "no memory to list a folder of checkpoints");
    }
    if (errno != 0) /* the listing is incomplete */
        return titan_fail_errno(err, "cannot list a folder of checkpoints");
    if (n > 0)
        qsort(all, n, sizeof(*all), compare_found_down);

    for (size_t i = 0; i < n; i++) {
        ret->branches = MAX(ret->branches, number_of(&all[i].line));
        if (all[i].known && (!newest || number_of(&all[i].line) > number_of(&newest->line)))
            newest = &all[i];
    }
    if (newest)
        ret->line = newest->line;
    ret->steps = calloc(n + 1, sizeof(*ret->steps));
    ret->left = calloc(n + 1, sizeof(*ret->left));
    if (!ret->steps || !ret->left) {
        checkpoint_line_list_clear(ret);
        return titan_fail(err, TITAN_ENOMEM, "no memory to list a folder of checkpoints");
    }
    for (size_t i = 0; i < n; i++)
        if (!all[i].known || passes(&ret->line, number_of(&all[i].line), all[i].step))
            ret->steps[ret->n++] = all[i].step;
        else
            ret->left[ret->n_left++] = all[i].step;
    return TITAN_OK;
}

void checkpoint_line_list_clear(struct checkpoint_line_list *list)
{
    free(list->steps);
    free(list->left);
    *list = (struct checkpoint_line_list){0};
}
