/* SPDX-License-Identifier: Apache-2.0 */
/* Prints recipes, and compares them by their printed text. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/recipe.h"
#include "base/recipe_keys.h"
#include "base/units.h"

static void print_value(const struct recipe *r, const struct setting *k, struct buf *out)
{
    titan_assert(k->support == KEY_SUPPORTED);
    const void *field = (const char *)r + k->offset;
    char text[UNITS_TEXT];
    if (k->type != KEY_SOURCES) {
        setting_print(k, field, out);
        return;
    }
    const struct recipe_mixture *m = field;
    buf_puts(out, "[");
    for (int64_t i = 0; i < m->n; i++) {
        const struct recipe_source *source = &m->source[i];
        buf_puts(out, i ? ", {path = " : "{path = ");
        setting_print_text(out, source->path);
        if (source->weight > 0)
            buf_printf(out, ", weight = %s", format_real(source->weight, text));
        if (source->dataset[0]) {
            buf_puts(out, ", dataset = ");
            setting_print_text(out, source->dataset);
        }
        buf_puts(out, "}");
    }
    buf_puts(out, "]");
}

/* "key = default\n" of every key, made once: most keys of most recipes are defaults, and every submit prints a
 * recipe. */
static struct buf default_lines[RECIPE_KEYS_MAX];

static void print_line(const struct recipe *r, const struct setting *k, struct buf *out)
{
    buf_puts(out, k->name);
    buf_puts(out, " = ");
    print_value(r, k, out);
    buf_puts(out, "\n");
}

static void make_default_lines(void)
{
    titan_assert(recipe_keys_count <= RECIPE_KEYS_MAX);
    for (const struct setting *k = recipe_keys; k->support == KEY_SUPPORTED; k++)
        print_line(recipe_defaults(), k, &default_lines[k - recipe_keys]);
}

static bool is_default(const struct recipe *r, const struct setting *k)
{
    titan_assert(k->support == KEY_SUPPORTED);
    return memcmp((const char *)r + k->offset, (const char *)recipe_defaults() + k->offset, k->size) == 0;
}

#define PRINTED_BYTES 8000 /* size of most printed recipes; larger ones grow the buffer */

void recipe_print(const struct recipe *r, struct buf *out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *section = "";
    (void)pthread_once(&once, make_default_lines);
    (void)!buf_reserve(out, PRINTED_BYTES);
    for (const struct setting *k = recipe_keys; k->support == KEY_SUPPORTED; k++) {
        const struct buf *line = &default_lines[k - recipe_keys];
        if (strcmp(section, k->section) != 0) {
            buf_puts(out, *section ? "\n[" : "[");
            buf_puts(out, k->section);
            buf_puts(out, "]\n");
            section = k->section;
        }
        /* The flavor's dimensions are known only after recipe_resolve(). */
        if ((k->flags & KEY_FLAVOR) && !recipe_key_in(r->set_mask, (int)(k - recipe_keys)))
            continue;
        if (is_default(r, k) && line->len)
            buf_put(out, line->data, line->len);
        else
            print_line(r, k, out);
    }
}

uint64_t recipe_hash(const struct recipe *r)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    for (const struct setting *k = recipe_keys; k->support == KEY_SUPPORTED; k++) {
        if (!(k->flags & KEY_NUMBERS) ||
            is_default(r, k)) /* defaults are skipped, so new keys change no existing hash */
            continue;
        buf_printf(&text, "%s.%s=", k->section, k->name);
        print_value(r, k, &text);
        buf_puts(&text, "\n");
    }
    titan_assert(!buf_failed(&text));
    return hash_bytes(HASH_INIT, text.data, text.len);
}

/* --- two recipes -------------------------------------------------------------------------------------------------- */

static bool differ(const struct recipe *r, const struct recipe *other, const struct setting *k, struct buf *here,
                   struct buf *there)
{
    print_value(r, k, here);
    print_value(other, k, there);
    return here->len != there->len || (here->len > 0 && memcmp(here->data, there->data, here->len) != 0);
}

void recipe_changes(const struct recipe *r, const struct recipe *other, struct buf *out)
{
    static const char *const where[] = {"checkpoint.load_step", "checkpoint.folder", "checkpoint.folder_owner",
                                        "job.dump_folder",      "job.owner",         "job.as_user"};
    for (const struct setting *k = recipe_keys; k->support == KEY_SUPPORTED; k++) {
        _cleanup_(buf_free) struct buf here = BUF_INIT, there = BUF_INIT;
        char name[128];
        (void)snprintf(name, sizeof(name), "%s.%s", k->section, k->name);
        bool place = strncmp(name, "checkpoint.initial_load_", 24) == 0; /* is it a key for a location? */
        for (size_t i = 0; i < ARRAY_SIZE(where) && !place; i++)
            place = strcmp(name, where[i]) == 0;
        if (!place && differ(r, other, k, &here, &there))
            buf_printf(out, "%s = %s, there %s\n", name, here.len ? here.data : "", there.len ? there.data : "");
    }
}

/* Name of the key's part in checkpoint.accept_changed; "": none. */
static const char *part_of(const struct setting *k)
{
    static const struct {
        const char *name, *part;
    } parts[] = {{"dataset", "data"},           {"dataset_path", "data"},       {"mixture", "data"},
                 {"local_batch_size", "batch"}, {"global_batch_size", "batch"}, {"seq_len", "batch"},
                 {"max_norm", "optimizer"}};
    if (strcmp(k->section, "model") == 0)
        return strcmp(k->name, "tokenizer") == 0 ? "tokenizer" : k->flags & KEY_FLAVOR ? "model" : "";
    if (strncmp(k->section, "optimizer", strlen("optimizer")) == 0 || strcmp(k->section, "lr_scheduler") == 0)
        return "optimizer";
    for (size_t i = 0; i < ARRAY_SIZE(parts) && strcmp(k->section, "training") == 0; i++)
        if (strcmp(k->name, parts[i].name) == 0)
            return parts[i].part;
    return "";
}

/* Paths may differ, because data is compared by content. A batch size that follows from the mesh may differ with the
 * mesh. */
static bool may_differ(const struct recipe *r, const struct recipe *other, const struct setting *k)
{
    const struct recipe_mixture *a = &r->training.mixture, *b = &other->training.mixture;
    const char *part = part_of(k);
    if (*part && recipe_accepts(r, part))
        return true;
    if (strcmp(part, "batch") == 0)
        return r->checkpoint.exclude_from_loading[0] && strcmp(k->name, "seq_len") != 0;
    if (strcmp(k->name, "mixture") != 0)
        return strcmp(k->name, "dataset_path") == 0 || strcmp(part, "tokenizer") == 0;
    bool alike = a->n == b->n; /* alike apart from the sources' locations */
    for (int64_t i = 0; alike && i < a->n; i++)
        alike = a->source[i].weight == b->source[i].weight && strcmp(a->source[i].dataset, b->source[i].dataset) == 0;
    return alike;
}

/* Training keys and the balancing of experts do not affect the model's output. */
static bool is_of_training(const struct recipe *r, const struct recipe *other, const struct setting *k)
{
    (void)r;
    (void)other;
    return strcmp(k->section, "model") != 0 || strcmp(k->name, "balance_rate") == 0 ||
           strcmp(k->name, "balance_loss") == 0 || strcmp(k->name, "mtp_loss_scale") == 0;
}

#define DIFFERENCES_NAMED 3

/* Prints differing keys with one of the flags, except keys that may differ. */
static void put_differences(const struct recipe *r, const struct recipe *other, unsigned flags,
                            bool (*may)(const struct recipe *r, const struct recipe *other, const struct setting *k),
                            struct buf *out)
{
    titan_assert(flags != 0);
    int found = 0;
    for (const struct setting *k = recipe_keys; k->support == KEY_SUPPORTED; k++) {
        _cleanup_(buf_free) struct buf here = BUF_INIT, there = BUF_INIT;
        if (!(k->flags & flags) || may(r, other, k) || !differ(r, other, k, &here, &there))
            continue;
        if (++found <= DIFFERENCES_NAMED)
            buf_printf(out, "%s%s.%s = %.64s, there %.64s", found > 1 ? "; " : "", k->section, k->name,
                       here.len ? here.data : "", there.len ? there.data : "");
    }
    if (found > DIFFERENCES_NAMED)
        buf_printf(out, "; and %d more", found - DIFFERENCES_NAMED);
}

bool recipe_continues(const struct recipe *r, uint64_t hash, const char *text, struct buf *keys)
{
    _cleanup_(buf_free) struct buf differing = BUF_INIT;
    _cleanup_free_ struct recipe *other = NULL;
    if (hash == recipe_hash(r))
        return true;
    if (!(other = malloc(sizeof(*other))))
        return false;
    recipe_init(other);
    if (recipe_parse(other, text, "recipe", NULL) != TITAN_OK || recipe_resolve(other, NULL) != TITAN_OK)
        return false;
    if (recipe_hash(other) != hash) /* the text does not match the hash */
        return false;
    put_differences(r, other, KEY_NUMBERS, may_differ, &differing);
    if (keys)
        buf_puts(keys, differing.len ? differing.data : "");
    return differing.len == 0 && !buf_failed(&differing);
}

void recipe_model_differences(const struct recipe *r, const struct recipe *other, struct buf *out)
{
    put_differences(r, other, KEY_FLAVOR, is_of_training, out);
}
