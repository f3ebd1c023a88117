/* SPDX-License-Identifier: Apache-2.0 */
/* records.c - see records.h. */
#include "daemon/agent/shell/records.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "daemon/common/epochs.h"
#include "proto/ranges.h"

#define RECORD_MAX ((size_t)64 << 20)
#define SUFFIX ".epoch"

titan_status record_write_term(const char *run_dir, const struct seen_term *seen, struct titan_error *err)
{
    char path[PATH_MAX], text[32 + 2 * MAC_BYTES];
    if (snprintf(path, sizeof(path), "%s/term", run_dir) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "state directory is too long");
    int len = snprintf(text, sizeof(text), "%" PRIu64 "%s", seen->term, seen->proved ? " " : "");
    for (size_t i = 0; i < MAC_BYTES && seen->proved; i++)
        len += snprintf(text + len, sizeof(text) - (size_t)len, "%02x", seen->proof[i]);
    titan_assert(len > 0 && (size_t)len < sizeof(text));
    text[len] = '\n';
    return file_replace_private(path, text, (size_t)len + 1, err);
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

titan_status record_read_term(const char *run_dir, struct seen_term *ret, struct titan_error *err)
{
    char path[PATH_MAX], *end;
    *ret = (struct seen_term){0};
    if (snprintf(path, sizeof(path), "%s/term", run_dir) >= PATH_MAX || access(path, F_OK) < 0)
        return TITAN_OK;
    struct buf text = BUF_INIT;
    titan_status status = file_read(path, 256, &text, err);
    if (status == TITAN_OK) {
        errno = 0;
        ret->term = strtoull(text.data ? text.data : "", &end, 10);
        bool legal = !errno && text.data && end != text.data && *text.data != '-' && ret->term <= RANGE_TERM_MAX &&
                     strlen(text.data) == text.len;
        /* The proof follows the term, if there is one. */
        ret->proved = legal && *end == ' ';
        end += ret->proved;
        for (size_t i = 0; i < MAC_BYTES && ret->proved && legal; i++, end += 2) {
            const int high = hex_digit(end[0]), low = high < 0 ? -1 : hex_digit(end[1]);
            legal = low >= 0;
            ret->proof[i] = legal ? (uint8_t)(high << 4 | low) : 0;
        }
        if (!legal || strcmp(end, "\n") != 0)
            status = titan_fail(err, TITAN_ECORRUPT, "'%s' is not a coordinator's term", path);
    }
    buf_free(&text);
    if (status != TITAN_OK)
        titan_error_hint(err, "write the coordinator's term into it (titanctl status says it) and start again");
    return status;
}

static titan_status job_path(const char *run_dir, uint64_t job_id, char out[PATH_MAX], struct titan_error *err)
{
    if (snprintf(out, PATH_MAX, "%s/jobs/%" PRIu64 SUFFIX, run_dir, job_id) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "state directory is too long");
    return TITAN_OK;
}

titan_status record_write_job(const char *run_dir, const Titan__Internal__AgentJobRecord *record,
                              struct titan_error *err)
{
    char path[PATH_MAX];
    TRY(job_path(run_dir, record->job_id, path, err));
    size_t len = titan__internal__agent_job_record__get_packed_size(record);
    _cleanup_free_ uint8_t *bytes = malloc(len + 4);
    if (!bytes)
        return titan_fail(err, TITAN_ENOMEM, "no memory for '%s'", path);
    const size_t packed = titan__internal__agent_job_record__pack(record, bytes + 4);
    titan_assert(packed == len);
    uint32_t crc = crc32c(0, bytes + 4, len);
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(crc >> (8 * i));
    return file_replace_private(path, bytes, len + 4, err); /* private, because the record contains a key */
}

static titan_status check_epoch(const Titan__Internal__FormEpoch *f, uint64_t job_id, struct titan_error *err)
{
    if (!f)
        return TITAN_OK;
    if (f->job_id != job_id)
        return titan_fail(err, TITAN_EINVAL, "an epoch of job %" PRIu64 " in it", f->job_id);
    if (!epoch_workers_distinct(f))
        return titan_fail(err, TITAN_EINVAL, "epoch %" PRIu64 " has a worker in two places", f->epoch);
    return TITAN_OK;
}

/* Checks the content as a message's content is checked, because the checksum shows only that the record is complete. */
static titan_status check_job(const Titan__Internal__AgentJobRecord *r, uint64_t job_id, struct titan_error *err)
{
    TRY(range_check(&r->base, err));
    if (r->job_id != job_id)
        return titan_fail(err, TITAN_EINVAL, "it is of job %" PRIu64, r->job_id);
    TRY(check_epoch(r->accepted, job_id, err));
    for (size_t i = 0; i < r->n_before; i++)
        TRY(check_epoch(r->before[i], job_id, err));
    for (size_t i = 0; i < r->n_leader_epochs; i++)
        TRY(check_epoch(r->leader_epochs[i]->epoch, job_id, err));
    return TITAN_OK;
}

static titan_status read_job(const char *path, uint64_t job_id, Titan__Internal__AgentJobRecord **ret,
                             struct titan_error *err)
{
    struct buf file = BUF_INIT;
    titan_status status = file_read(path, RECORD_MAX, &file, err);
    const uint8_t *b = (const uint8_t *)file.data;
    Titan__Internal__AgentJobRecord *record = NULL;
    if (status == TITAN_OK && file.len >= 4) {
        uint32_t crc = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
        if (crc == crc32c(0, b + 4, file.len - 4))
            record = titan__internal__agent_job_record__unpack(NULL, file.len - 4, b + 4);
    }
    if (status == TITAN_OK && !record)
        status = titan_fail(err, TITAN_ECORRUPT, "'%s' is damaged", path);
    struct titan_error why = {0};
    if (status == TITAN_OK && check_job(record, job_id, &why) != TITAN_OK) {
        status = titan_fail(err, TITAN_ECORRUPT, "'%s' is damaged: %s", path, why.msg);
        titan__internal__agent_job_record__free_unpacked(record, NULL);
        record = NULL;
    }
    buf_free(&file);
    *ret = record;
    return status;
}

titan_status record_read_jobs(const char *run_dir,
                              void (*each)(const Titan__Internal__AgentJobRecord *record, void *data), void *data,
                              struct titan_error *err)
{
    char folder[PATH_MAX], path[PATH_MAX];
    titan_status worst = TITAN_OK;
    if (snprintf(folder, sizeof(folder), "%s/jobs", run_dir) >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "state directory is too long");
    DIR *dir = opendir(folder);
    if (!dir)
        return errno == ENOENT ? TITAN_OK : titan_fail_errno(err, "cannot read '%s'", folder);
    for (struct dirent *e; (e = readdir(dir));) {
        size_t len = strlen(e->d_name);
        Titan__Internal__AgentJobRecord *record = NULL;
        if (len <= strlen(SUFFIX) || strcmp(e->d_name + len - strlen(SUFFIX), SUFFIX) != 0 ||
            snprintf(path, sizeof(path), "%s/%s", folder, e->d_name) >= PATH_MAX)
            continue;
        titan_status status = read_job(path, strtoull(e->d_name, NULL, 10), &record, err);
        if (status == TITAN_OK)
            each(record, data);
        else
            worst = status;
        if (record)
            titan__internal__agent_job_record__free_unpacked(record, NULL);
    }
    (void)closedir(dir);
    return worst;
}

void record_forget_job(const char *run_dir, uint64_t job_id)
{
    char path[PATH_MAX];
    if (job_path(run_dir, job_id, path, NULL) == TITAN_OK)
        (void)unlink(path);
}
