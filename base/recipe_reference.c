/* SPDX-License-Identifier: Apache-2.0 */
/* Writes docs/recipes.md from the tables. */
#include <string.h>

#include "base/cleanup.h"
#include "base/recipe.h"
#include "base/recipe_keys.h"

static void print_theirs(const char *section, const char *name, const char *theirs, struct buf *out)
{
    const char *quote = strcmp(theirs, "none") == 0 ? "" : "`";
    buf_printf(out, "| `%s.%s` | %s%s%s | ", section, name, quote, theirs, quote);
}

/* Writes how Titan treats TorchTitan's keys of a section. */
static void print_torchtitan_section(const char *section, struct buf *out)
{
    for (const struct setting *k = recipe_keys; k < recipe_keys + recipe_keys_count; k++) {
        if ((k->flags & KEY_TITAN) || strcmp(k->section, section) != 0)
            continue;
        print_theirs(section, k->name, k->theirs ? k->theirs : k->initial, out);
        if (k->support == KEY_OFF)
            buf_printf(out, "refused unless `%s`. %s |\n", k->initial, k->doc);
        else if (k->support == KEY_NOTE)
            buf_printf(out, "no effect; submit notes it. %s |\n", k->doc);
        else if (k->support == KEY_PART)
            buf_printf(out, "a detail of `%s` |\n", k->doc);
        else if (k->theirs)
            buf_printf(out, "default `%s` |\n", k->initial);
        else
            buf_puts(out, "the same |\n");
    }
    for (int i = 0; i < recipe_aliases_count; i++) {
        const struct recipe_alias *a = &recipe_aliases[i];
        const struct setting *k = &recipe_keys[recipe_key_resolve(a->section, a->name)];
        if (strcmp(a->section, section) != 0)
            continue;
        print_theirs(section, a->name, a->theirs, out);
        buf_printf(out, "read as `%s`, default `%s`", a->target, k->initial);
        if (k->other)
            buf_printf(out, "; what it lists of `%s.%s` as that", k->section, k->other);
        buf_puts(out, " |\n");
    }
}

void recipe_print_reference(struct buf *out)
{
    buf_puts(
        out,
        "# Run files: every key\n\n"
        "A run file is TOML with the section and key names of TorchTitan v0.2.2, its last version with run files; keys "
        "marked * are Titan's "
        "own.\nKeys left out have their default. An unknown key, a wrong type or a value out of range is "
        "refused with its line.\nAny key can be given on the command line: `--set training.steps=100`; what the file "
        "says of it is then not looked at.\nWhat is accepted without effect is said when a run is submitted.\n\n"
        "This file is written by `make docs` from the table the parser uses (`base/recipe_keys.c`).\n");
    const char *section = "";
    for (const struct setting *k = recipe_keys; k->support == KEY_SUPPORTED; k++) {
        if (strcmp(section, k->section) != 0)
            buf_printf(out, "\n## [%s]\n\n| Key | Type | Default | Values | Meaning |\n|---|---|---|---|---|\n",
                       k->section);
        section = k->section;
        setting_print_row(k, out);
    }
    buf_puts(out,
             "\n## Flavors\n\n`ffn` is the width of the feed-forward layer, with experts that of the first, dense "
             "layers. `experts`: routed, of these\nchosen, shared, and the width of one. `tied`: the output head is "
             "the embedding. Families with latent attention\nproject keys and values to 512 values and 64 rotated "
             "ones (`tiny`: 32 and 8).\n\n"
             "| `name` | `flavor` | dim | layers | heads | kv heads | head dim | ffn | experts | vocabulary | tied | "
             "parameters | |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < recipe_flavors_count; i++) {
        const struct recipe_flavor *f = &recipe_flavors[i];
        struct recipe r = {.model.dims = f->dims};
        struct model_dims *d = &r.model.dims;
        d->head_dim = d->head_dim ? d->head_dim : d->dim / d->n_heads;
        buf_printf(out, "| `%s` | `%s` | %lld | %lld | %lld | %lld | %lld | %lld | ", f->family, f->name,
                   (long long)d->dim, (long long)d->n_layers, (long long)d->n_heads, (long long)d->n_kv_heads,
                   (long long)d->head_dim, (long long)d->ffn_hidden);
        if (d->n_experts)
            buf_printf(out, "%lld, %lld, %lld, %lld", (long long)d->n_experts, (long long)d->top_k,
                       (long long)d->n_shared_experts, (long long)d->moe_hidden);
        buf_printf(out, " | %lld | %s | %lld | %s |\n", (long long)d->vocab_size, d->tied_embeddings ? "yes" : "",
                   (long long)recipe_params(&r), f->doc);
    }

    buf_puts(out, "\n## TorchTitan's keys\n\nTheir defaults at v0.2.2 and what they are here; older names, too, and at "
                  "the end newer ones. A key that is "
                  "the same has the meaning given above.\n\n| Key | TorchTitan's default | Here |\n|---|---|---|\n");
    for (int i = 0; i < recipe_keys_count; i++) {
        bool first = true;
        for (int j = 0; j < i && first; j++)
            first = strcmp(recipe_keys[j].section, recipe_keys[i].section) != 0;
        if (first)
            print_torchtitan_section(recipe_keys[i].section, out);
    }
    buf_puts(out, "\nTorchTitan has left run files for Python since. Its newer names are refused with what there is in "
                  "their place:\n\n| Key | Here |\n|---|---|\n");
    for (int i = 0; i < recipe_newer_count; i++) {
        const struct recipe_newer *n = &recipe_newer[i];
        buf_printf(out, "| `%s.%s` | %s |\n", n->section, n->name, n->instead);
    }
}
