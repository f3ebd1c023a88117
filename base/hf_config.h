/* SPDX-License-Identifier: Apache-2.0 */
/* hf_config.h - config.json of transformers: which model a folder of weights is, and the same written for one of ours.
 */
#ifndef TITAN_BASE_HF_CONFIG_H
#define TITAN_BASE_HF_CONFIG_H

#include "base/buf.h"
#include "base/hf_families.h"
#include "base/json.h"
#include "base/recipe.h"

#define HF_CONFIG_NAME "config.json"

struct hf_config {
    bool there; /* false: the folder has none, and nothing below is set but the defaults */
    const struct hf_family *family;
    struct model_dims dims;  /* of a complete model */
    int64_t positions;       /* longest sequence it says it takes */
    bool halves;             /* latent attention with rotated rows in halves, not pairs */
    const char *balance_key; /* of a balance loss with a coefficient above 0, which is not taken; NULL: none */
    double balance_loss;
    int64_t more_layers; /* behind the model's own, for predicting further tokens: not loaded */
};

/* at: the open folder, path for messages. A folder without one is no failure. TITAN_ECORRUPT: it is damaged;
 * TITAN_EUNSUPPORTED: of a model that is none of ours; both name the key. */
titan_status hf_config_read(int at, const char *path, struct hf_config *ret, struct titan_error *err) TITAN_MUST_USE;
titan_status hf_config_parse(const char *text, size_t len, struct hf_config *ret,
                             struct titan_error *err) TITAN_MUST_USE;
/* Is it the model of the dims? TITAN_ECONFLICT names all keys with other values, as in a recipe. Keys
 * that change no tensor (rope_theta, norm_eps, ...) are the caller's to judge: *ret_note, appended to, names them. */
titan_status hf_config_compare(const struct hf_config *c, const struct model_dims *dims, struct buf *ret_note,
                               struct titan_error *err) TITAN_MUST_USE;
/* A recipe with model.flavor = "hf" gets model.name and the dimensions that no key gives from config.json of its
 * checkpoint.initial_load_path, a relative one below base (NULL: the current folder); *ret_changed says whether it did.
 * Other recipes, and recipes with dimensions, stay as they are. TITAN_ECONFLICT names all keys with other values. */
titan_status hf_config_fill(struct recipe *r, const char *base, bool *ret_changed,
                            struct titan_error *err) TITAN_MUST_USE;
/* The members of config.json that follow from the dims, of a family that can have them (hf_family_of). */
void hf_config_put(struct json_writer *w, const struct hf_family *family, const struct model_dims *dims,
                   int64_t positions);

#endif
