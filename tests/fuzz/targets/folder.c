/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint folder that another user can write to may hold beside checkpoints: the owner's file, one rank's
 * entry of a manifest, names. The first byte says which. */
#include "tests/fuzz/common.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/folder_owner.h"
#include "base/recipe.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/manifest.h"

static void owner(const struct fuzz_input *in)
{
    char path[160];
    struct titan_error err = {0};
    struct folder_found found = {0};
    (void)snprintf(path, sizeof(path), "%s/" FOLDER_OWNER_NAME, fuzz_folder());
    fuzz_file(path, in->data, in->len);
    _cleanup_fd_ int at = open(fuzz_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fuzz_assert(at >= 0);
    const titan_status status = folder_owner_read(at, &found, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    else
        fuzz_assert(memchr(found.id, 0, sizeof(found.id)) && memchr(found.name, 0, sizeof(found.name)));
    char text[FOLDER_USER_TEXT];
    struct folder_user again;
    folder_user_print(&found.user, text);
    if (status == TITAN_OK && text[0])
        fuzz_assert(!folder_user_parse(text, &again) || folder_user_same(&found.user, &again));
    folder_found_clear(&found);
    uint64_t step;
    bool any;
    (void)!folder_newest_step(fuzz_folder(), &step, &any, NULL);
    (void)!folder_newest_state(fuzz_folder(), 1, &step, &any, NULL);
    (void)unlink(path);
}

static void entry(struct fuzz_input *in)
{
    static const char whole[] =
        "{\"format\":\"titan-checkpoint\",\"version\":1,\"tensors\":[{\"name\":\"a\",\"shape\":[4,3]}],\"files\":[]";
    struct titan_error err = {0};
    struct manifest m = {0};
    struct manifest_file file = {0};
    (void)!manifest_parse(whole, sizeof(whole) - 1, &m, &err);
    err = (struct titan_error){0};
    _cleanup_free_ char *text = fuzz_text(in->data, in->len);
    const titan_status status = manifest_parse_file(text, in->len, &m, &file, &err);
    if (status != TITAN_OK) {
        fuzz_error(status, &err);
    } else {
        _cleanup_(buf_free) struct buf printed = BUF_INIT;
        manifest_print_file(&file, &printed);
        fuzz_assert(printed.len > 0);
        manifest_file_clear(&file);
    }
    manifest_clear(&m);
}

/* Folders with any names: the newest checkpoint by name is one of them. */
static void names(struct fuzz_input *in)
{
    char made[8][256], newest[4096];
    int n = 0;
    uint64_t step = 0;
    struct titan_error err = {0};
    while (in->len > 0 && n < 8) {
        struct fuzz_input piece = fuzz_piece(in);
        char name[64];
        const size_t len = MIN(piece.len, sizeof(name) - 1);
        memcpy(name, piece.data, len);
        name[len] = '\0';
        if (!*name || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, ".."))
            continue;
        (void)snprintf(made[n], sizeof(made[n]), "%s/%s", fuzz_folder(), name);
        n += mkdir(made[n], 0700) == 0;
    }
    (void)!checkpoint_latest(fuzz_folder(), NULL, newest, &step, &err);
    while (n > 0)
        (void)rmdir(made[--n]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    switch (fuzz_take(&in, 1) % 3) {
    case 0:
        owner(&in);
        break;
    case 1:
        entry(&in);
        break;
    default:
        names(&in);
    }
    return 0;
}
