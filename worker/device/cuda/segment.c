/* SPDX-License-Identifier: Apache-2.0 */
/* segment.c - operations that are launched as one: a CUDA graph that is captured from a stream. */
#include <stdlib.h>

#include "worker/device/cuda/cuda.h"

struct segment {
    struct device *dev;
    cudaGraphExec_t native;
};

bool cuda_segment_allows(struct stream *s, const char *what)
{
    if (s->keeps && s->kept.status == TITAN_OK)
        (void)titan_fail(&s->kept, TITAN_EINVAL, "%s cannot be part of a segment", what);
    return !s->keeps;
}

static titan_status refuse(struct titan_error *err, const char *what, const char *why)
{
    (void)cudaGetLastError();
    return titan_fail(err, TITAN_EUNSUPPORTED, "%s: %s", what, why);
}

/* Relaxed: libraries' own threads, and NCCL's, go on meanwhile. */
titan_status cuda_segment_begin(struct stream *s, struct titan_error *err)
{
    titan_assert(!s->keeps);
    TRY(cuda_enter(s->dev, err));
    TRY(stream_failure(s, err));
    const cudaError_t e = cudaStreamBeginCapture(s->native, cudaStreamCaptureModeRelaxed);
    if (e != cudaSuccess)
        return refuse(err, "capturing a stream", cudaGetErrorString(e));
    s->keeps = true;
    s->kept = (struct titan_error){0};
    return TITAN_OK;
}

static titan_status instantiate(struct stream *s, cudaGraph_t graph, struct segment **ret, struct titan_error *err)
{
    struct segment *const g = calloc(1, sizeof *g);

    if (!g)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a segment");
    g->dev = s->dev;
    const cudaError_t e = cudaGraphInstantiate(&g->native, graph, 0);
    if (e != cudaSuccess) {
        free(g);
        return refuse(err, "making a graph of what was captured", cudaGetErrorString(e));
    }
    *ret = g;
    return TITAN_OK;
}

titan_status cuda_segment_end(struct stream *s, struct segment **ret, struct titan_error *err)
{
    cudaGraph_t graph = NULL;

    titan_assert(s->keeps);
    const cudaError_t e = cudaStreamEndCapture(s->native, &graph);
    s->keeps = false;
    titan_status st = stream_failure(s, err); /* learnt meanwhile: what came then was skipped */
    if (st == TITAN_OK && s->kept.status != TITAN_OK)
        st = refuse(err, "capturing a stream", s->kept.msg);
    else if (st == TITAN_OK && (e != cudaSuccess || !graph))
        st = refuse(err, "capturing a stream", cudaGetErrorString(e));
    else if (st == TITAN_OK)
        st = instantiate(s, graph, ret, err);
    if (graph)
        (void)cudaGraphDestroy(graph);
    return st;
}

titan_status cuda_segment_launch(struct segment *g, struct stream *s)
{
    titan_assert(g->dev == s->dev && !s->keeps);
    return stream_skips(s) ? TITAN_OK : stream_enqueued(s, "a segment", (int)cudaGraphLaunch(g->native, s->native));
}

void cuda_segment_close(struct segment *g)
{
    if (g && cuda_enter(g->dev, NULL) == TITAN_OK)
        (void)cudaGraphExecDestroy(g->native);
    free(g);
}
