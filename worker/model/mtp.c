/* SPDX-License-Identifier: Apache-2.0 */
/* mtp.c - modules of multi-token prediction (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2) around their layers.
 *
 * A module's input is the output of the previous module, or of the model, normed by the last norm of the model or
 * module. The head reads the same normed output. */
#include "base/cleanup.h"
#include "worker/model/parts.h"

static struct tensor normed(struct block *k, const char *name, struct tensor x, struct tensor gain,
                            struct norm_saved *saved)
{
    const struct tensor out = block_new(k, BUF_ACTIVATION, name, x.rows, x.cols);

    *saved = (struct norm_saved){.x = x, .rstd = block_new_f32(k, BUF_ACTIVATION, "rstd", 1, x.rows)};
    EMIT(k->e, rmsnorm, out, saved->rstd, x, gain, .eps = k->layout->model->dims.norm_eps,
         .flags = block_norm_flags(k));
    return out;
}

static struct tensor normed_dgrad(struct block *k, const char *name, const struct norm_saved *saved, struct tensor gain,
                                  struct tensor dout)
{
    const struct tensor dx = block_new(k, BUF_DACTIVATION, name, dout.rows, dout.cols);

    EMIT(k->e, rmsnorm_dgrad, dx, dout, saved->x, gain, saved->rstd, .flags = block_norm_flags(k));
    return dx;
}

static void normed_wgrad(struct block *k, const struct unit_buffers *u, enum tensor_role role,
                         const struct norm_saved *saved, struct tensor dout)
{
    EMIT(k->e, rmsnorm_dgain, block_grad(k, u, role, 1), dout, saved->x, saved->rstd);
}

struct tensor mtp_norm_forward(struct block *k, const struct unit_buffers *u, struct tensor x, struct tensor statistics,
                               struct norm_saved *saved)
{
    const struct tensor h = normed(k, "h", x, block_param(k, u, ROLE_NORM, 1), saved);

    if (tensor_exists(statistics))
        EMIT(k->e, check, statistics, saved->rstd);
    return h;
}

struct tensor mtp_norm_dgrad(struct block *k, const struct unit_buffers *u, const struct norm_saved *saved,
                             struct tensor dh)
{
    return normed_dgrad(k, "dx", saved, block_param(k, u, ROLE_NORM, 1), dh);
}

void mtp_norm_wgrad(struct block *k, const struct unit_buffers *u, const struct norm_saved *saved, struct tensor dh)
{
    block_begin_grads(k, u);
    normed_wgrad(k, u, ROLE_NORM, saved, dh);
}

struct tensor mtp_join(struct block *k, const struct unit_buffers *u, const struct unit_buffers *table,
                       const struct block_tokens *tokens, struct tensor h, struct mtp_saved *saved)
{
    const int64_t n = h.rows, c = h.cols;
    const struct tensor embedding = embedding_forward(k, table, tokens);
    const struct tensor x = block_new(k, BUF_ACTIVATION, "x", n, c);

    saved->both = block_new(k, BUF_ACTIVATION, "both", n, 2 * c);
    emit_copy(k->e, tensor_cols(saved->both, 0, c),
              normed(k, "enorm", embedding, block_param(k, u, ROLE_EMBEDDING_NORM, 1), &saved->embedding));
    emit_copy(k->e, tensor_cols(saved->both, c, c),
              normed(k, "hnorm", h, block_param(k, u, ROLE_HIDDEN_NORM, 1), &saved->hidden));
    block_linear(k, u, ROLE_JOIN, 1, x, saved->both);
    return x;
}

void mtp_out(struct block *k, const struct unit_buffers *u, struct tensor y, struct mtp_saved *saved)
{
    saved->h = normed(k, "h", y, block_param(k, u, ROLE_NORM, 1), &saved->out);
}

struct tensor mtp_out_dgrad(struct block *k, const struct unit_buffers *u, const struct mtp_saved *saved,
                            struct tensor dh, struct mtp_back *back)
{
    back->dh = dh;
    return normed_dgrad(k, "dy", &saved->out, block_param(k, u, ROLE_NORM, 1), dh);
}

struct tensor mtp_join_dgrad(struct block *k, const struct unit_buffers *u, const struct mtp_saved *saved,
                             struct tensor dx, struct tensor residual, struct mtp_back *back)
{
    const int64_t n = dx.rows, c = dx.cols;
    const struct tensor dboth = block_new(k, BUF_DACTIVATION, "dboth", n, 2 * c);

    back->dx = dx;
    block_linear_dgrad(k, u, ROLE_JOIN, 1, dboth, dx);
    back->dembedding = block_new(k, BUF_DACTIVATION, "denorm", n, c);
    back->dhidden = block_new(k, BUF_DACTIVATION, "dhnorm", n, c);
    emit_copy(k->e, back->dembedding, tensor_cols(dboth, 0, c));
    emit_copy(k->e, back->dhidden, tensor_cols(dboth, c, c));
    back->dtable =
        normed_dgrad(k, "dx", &saved->embedding, block_param(k, u, ROLE_EMBEDDING_NORM, 1), back->dembedding);
    return block_norm_dgrad(k, "dh", residual, back->dhidden, &saved->hidden, block_param(k, u, ROLE_HIDDEN_NORM, 1));
}

void mtp_wgrad(struct block *k, const struct unit_buffers *u, const struct unit_buffers *table,
               const struct block_tokens *tokens, const struct mtp_saved *saved, const struct mtp_back *back)
{
    block_linear_wgrad(k, u, ROLE_JOIN, 1, back->dx, saved->both);
    normed_wgrad(k, u, ROLE_EMBEDDING_NORM, &saved->embedding, back->dembedding);
    normed_wgrad(k, u, ROLE_HIDDEN_NORM, &saved->hidden, back->dhidden);
    normed_wgrad(k, u, ROLE_NORM, &saved->out, back->dh);
    embedding_wgrad(k, table, tokens, back->dtable);
}
