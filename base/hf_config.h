/* SPDX-License-Identifier: Apache-2.0 */
/* hf_config.h - config.json of transformers: identifies the model of a folder of weights; Titan also writes one for its
 * own models. */
#ifndef TITAN_BASE_HF_CONFIG_H
#define TITAN_BASE_HF_CONFIG_H

#include "base/buf.h"
#include "base/hf_families.h"
#include "base/json.h"
#include "base/recipe.h"

#define HF_CONFIG_NAME "config.json"

struct hf_config {
    bool there; /* false: the folder has no config.json, and only the defaults are set below */
    const struct hf_family *family;
    struct model_dims dims;  /* dimensions of a complete model */
    int64_t positions;       /* longest sequence the configuration declares */
    bool halves;             /* latent attention: rotated rows are in halves, not in pairs */
    const char *balance_key; /* key of an ignored balance loss: its coefficient is above 0; NULL: none */
    double balance_loss;
    int64_t more_layers; /* layers for multi-token prediction, behind the model's own; model.mtp_layers loads them */
};

/* at: the open folder; path for messages. A folder without config.json is no error. TITAN_ECORRUPT: the file is
 * damaged. TITAN_EUNSUPPORTED: Titan has no such model. Both messages name the key. */
titan_status hf_config_read(int at, const char *path, struct hf_config *ret, struct titan_error *err) TITAN_MUST_USE;
titan_status hf_config_parse(const char *text, size_t len, struct hf_config *ret,
                             struct titan_error *err) TITAN_MUST_USE;
/* Does the configuration describe the model of dims? TITAN_ECONFLICT names all keys with other values, as in a recipe.
 * The caller judges keys that change no tensor (rope_theta, norm_eps, ...): their names are appended to *ret_note. */
titan_status hf_config_compare(const struct hf_config *c, const struct model_dims *dims, struct buf *ret_note,
                               struct titan_error *err) TITAN_MUST_USE;
/* In a recipe with model.flavor = "hf", fills model.name and all dimensions that no key sets. The source is config.json
 * in checkpoint.initial_load_path, resolved below base (NULL: the current folder). *ret_changed: the recipe changed.
 * Other recipes, and recipes with dimensions, stay unchanged. TITAN_ECONFLICT names all keys with other values. */
titan_status hf_config_fill(struct recipe *r, const char *base, bool *ret_changed,
                            struct titan_error *err) TITAN_MUST_USE;
/* Writes the members of config.json that follow from dims, for a family that supports dims (hf_family_of). */
void hf_config_put(struct json_writer *w, const struct hf_family *family, const struct model_dims *dims,
                   int64_t positions);

#endif
