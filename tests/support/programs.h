/* SPDX-License-Identifier: Apache-2.0 */
/* programs.h - step programs of a model on any mesh, without recipe or device. */
#ifndef TITAN_TESTS_SUPPORT_PROGRAMS_H
#define TITAN_TESTS_SUPPORT_PROGRAMS_H

#include "base/recipe.h"
#include "worker/plan/build.h"

extern const struct model_dims programs_experts; /* four small layers with experts, the first one dense */
extern const struct model_dims programs_heads;   /* four small layers, with as many key/value heads as heads: 4 */

struct programs_case {
    const struct model_dims *dims;              /* NULL: small */
    int pp, dp_replicate, dp_shard, cp, tp, ep; /* ep 0: 1 */
    const char *schedule;                       /* NULL: 1F1B where pp > 1 */
    int stages;                                 /* a rank; 0: the schedule's default */
    int layers;                                 /* of the small model; 0: 4 */
    bool tied;                                  /* head and embedding have one matrix */
    int modules;                                /* of multi-token prediction */
    int microbatches;                           /* of the global batch */
    int64_t b, t;                               /* 0: 2 and 32 */
    enum dtype dt;
    enum reshard reshard;
    enum reduce_when reduce;
    enum checkpointing checkpointing;
    int prefetch;
    int keep_products; /* as of build_options */
    bool canonical, masked, ring, offload, forward_only, fuse;
    bool rotate, in_place;      /* parts of layers go round dp_shard */
    bool tensor_sums;           /* with a direction section */
    const char *replicate;      /* parallelism.replicate_method; NULL: none */
    enum codec codec;           /* of gradients */
    enum codec replicate_codec; /* of sums over replicas */
    bool tensor_scales;         /* of its codes */
    const char *optimizer;      /* of matrices, whose owners keep the state; NULL: AdamW */
    enum weight_codec gather_codec;
    bool gather_learns; /* its levels */
};

struct programs {
    struct model *model;
    struct layout *layout;
    struct schedule *schedule;
    enum checkpointing *checkpointing;
    struct recipe recipe; /* of case.optimizer */
    struct build_options options;
    int n;
    struct program **classes; /* finished, not checked */
};

/* "pp2 dp1x2 cp1 tp2 1F1B ..." */
void programs_name(const struct programs_case *c, char *ret, size_t room);
titan_status programs_open(const struct programs_case *c, struct programs *ret, struct titan_error *err) TITAN_MUST_USE;
void programs_close(struct programs *p);

#endif
