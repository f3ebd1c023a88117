/* SPDX-License-Identifier: Apache-2.0 */
/* segment.c - segments: operations that are captured from a stream as a CUDA graph and launched as one. */
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

/* Relaxed capture: the threads of NCCL and other libraries continue during the capture. */
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

titan_status cuda_segment_end(struct stream *s, struct segment **ret, struct titan_error *err)
{
    cudaGraph_t graph = NULL;
    struct segment *g = NULL;

    titan_assert(s->keeps);
    cudaError_t e = cudaStreamEndCapture(s->native, &graph);
    s->keeps = false;
    /* the host learned of this failure during the capture; later operations were skipped */
    titan_status st = stream_failure(s, err);
    if (st == TITAN_OK && s->kept.status != TITAN_OK)
        st = refuse(err, "capturing a stream", s->kept.msg);
    else if (st == TITAN_OK && (e != cudaSuccess || !graph))
        st = refuse(err, "capturing a stream", cudaGetErrorString(e));
    if (st == TITAN_OK) {
        g = calloc(1, sizeof *g);
        if (!g)
            st = titan_fail(err, TITAN_ENOMEM, "no memory for a segment");
    }
    if (st == TITAN_OK) {
        g->dev = s->dev;
        e = cudaGraphInstantiate(&g->native, graph, 0);
        if (e != cudaSuccess)
            st = refuse(err, "making a graph of what was captured", cudaGetErrorString(e));
    }
    if (st == TITAN_OK)
        *ret = g;
    else
        free(g);
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
