/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h - the CUDA plug-in's own structures: device, stream, event, and how a failure travels.
 *
 * A GPU cannot skip what is already enqueued, so the rule "what fails later is sticky on its stream" is kept like this.
 * Each stream has three words, all 0 or a titan_status:
 *   raised  pinned host memory; set by any thread the moment something fails (a revoke, a failed call)
 *   seen    device memory; set only in stream order by a one-thread kernel (cuda_latch) enqueued behind every operation
 *           that can fail and behind every wait for another stream's event, or by a kernel that finds its data
 *           impossible
 *   told    pinned host memory; the latch's copy of seen for the host
 * AdamW, SGD and the balance of experts, which change data that outlives a step, do nothing when `seen` is set. So a
 * step with an aborted collective leaves the weights as they were, and no update is cut in half: a revoke in the middle
 * of an update is seen by the next latch, not by the running kernel. Other operations enqueued before the host learns
 * of the failure run on undefined data; operations enqueued later are skipped. */
#ifndef TITAN_WORKER_DEVICE_CUDA_CUDA_H
#define TITAN_WORKER_DEVICE_CUDA_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "worker/device/device.h"

#define CUDA_MATMUL_WORK_BYTES ((size_t)32 << 20)
#define CUDA_COMMS_MAX 64

struct product_plans;   /* product_plans.h */
struct cudnn_attention; /* cudnn_attention.h */

struct comm;
/* A communicator that works on this device's streams. */
struct comm_watch {
    void (*check)(struct comm *comm); /* the watcher calls it; it raises the communicator's failure, if any */
    void (*forget)(struct comm *comm, const struct stream *s); /* called when the stream is closing */
    struct comm *comm;
};

struct device {
    int index;
    char name[64];
    uint64_t memory_bytes, memory_free, memory_peak;
    double peak_flops_bf16, peak_flops_f32;
    uint64_t hardware;
    cublasLtHandle_t lt;
    struct product_plans *plans;
    struct product_plans *code_plans; /* products of codes */
    bool float8;
    bool mxfp8; /* the GPU has MXFP8, too */
    struct cudnn_attention *attention;
    bool hopper;                /* compute capability 9.0: attention_hopper.cu and matmul_grouped_hopper.cu are used */
    cudaStream_t clearing;      /* stream on which new memory is cleared */
    pthread_mutex_t lock;       /* every stream's error text */
    pthread_mutex_t watch_lock; /* held while communicators are checked, so that no communicator is closed meanwhile */
    pthread_cond_t watch_wake;  /* wakes the watcher thread, which checks the communicators: device.c */
    pthread_t watcher;
    bool has_watcher, closing;
    struct comm_watch watches[CUDA_COMMS_MAX];
    int n_watches; /* atomic: also read without the lock */
};

struct stream {
    struct device *dev;
    cudaStream_t native;
    int *raised, *told; /* pinned host memory that the device can access, too */
    int *fault; /* in the same memory as raised and told: the error that a kernel found (enum fault in kernels.h) */
    int *seen;  /* device memory */
    /* an operation that can fail later was enqueued here, or on a stream that this stream waited for */
    bool may_fail;
    /* workspace of libraries; a stream other than the compute stream gets it at its first product */
    void *work;
    struct titan_error error; /* the text of the first failure raised on this stream */
    bool keeps; /* between segment_begin and segment_end, where a failure is the segment's, not the stream's */
    struct titan_error kept; /* the first failure since segment_begin; its status is TITAN_OK if there was none */
};

struct event {
    struct device *dev;
    cudaEvent_t native;
    struct stream *from; /* last recorded on; NULL = never */
};

/* Text for a failed CUDA call. */
titan_status cuda_fail(struct titan_error *err, cudaError_t e, const char *what);
/* Makes dev the calling thread's device. */
titan_status cuda_enter(struct device *dev, struct titan_error *err) TITAN_MUST_USE;
/* Any thread: from the next latch on, the stream has failed with this status. The first failure stays. */
void stream_raise(struct stream *s, titan_status status, const char *text);
/* Returns the failure that the host knows of, with its text in err; TITAN_OK: none. */
titan_status stream_failure(struct stream *s, struct titan_error *err);
/* Enqueues a latch after the last operation and marks the stream as able to fail. */
titan_status stream_latch(struct stream *s, const struct stream *from);
/* True: the stream has failed, so the operation must not be enqueued. False: the stream's device is now the thread's
 * device. */
bool stream_skips(struct stream *s);
/* Records a call that failed while it was enqueued, so the host knows at once. Returns status. */
titan_status stream_fail_now(struct stream *s, titan_status status, const char *text);
/* Outcome of enqueueing `what`: raises and returns TITAN_EDEVICE when error is not cudaSuccess. */
titan_status stream_enqueued(struct stream *s, const char *what, int error);
/* Clears new memory and waits until it is cleared; other work is not waited for. */
cudaError_t cuda_clear(struct device *dev, void *ptr, size_t bytes);
/* Adds a communicator to the watcher thread. NCCL waits forever for a lost peer, and meanwhile the host may be
 * anywhere, for example blocked in a launch. */
titan_status cuda_device_watch(struct device *dev, const struct comm_watch *watch, struct titan_error *err);
void cuda_device_unwatch(struct device *dev, const struct comm *comm);

/* Operations: cuda_ops_NAME, with the type of its slot. */
#define X(name) __typeof__(*((struct device_ops *)0)->name) cuda_ops_##name;
DEVICE_OPS(X)
#undef X
extern const struct device_ops cuda_ops; /* ops.c */

/* worker/comm/nccl/nccl.c */
extern const struct comm_ops comm_nccl;
/* Waits until closed communicators have given their memory back, at most 1 s. */
void cuda_nccl_settle(struct device *dev);
const char *cuda_nccl_unusable(void); /* NULL, or why the loaded NCCL cannot be used; valid until the next call */

/* device.c */
titan_status cuda_open(const struct device_options *options, struct device **ret, struct titan_error *err);
void cuda_close(struct device *dev);
void cuda_info(struct device *dev, struct device_info *ret);
uint64_t cuda_memory_peak(struct device *dev, bool begin);
titan_status cuda_alloc(struct device *dev, size_t bytes, void **ret, struct titan_error *err);
void cuda_release(struct device *dev, void *ptr);
titan_status cuda_alloc_host(struct device *dev, size_t bytes, void **ret, struct titan_error *err);
void cuda_release_host(struct device *dev, void *ptr);
titan_status cuda_pin_host(struct device *dev, void *ptr, size_t bytes, struct titan_error *err);
void cuda_unpin_host(struct device *dev, void *ptr);
const char *cuda_unusable(void);

/* stream.c */
titan_status cuda_stream_open(struct device *dev, const char *name, bool compute, struct stream **ret,
                              struct titan_error *err);
void cuda_stream_close(struct stream *s);
titan_status cuda_stream_sync(struct stream *s, struct titan_error *err);
void cuda_stream_clear(struct stream *s);
titan_status cuda_stream_call(struct stream *s, titan_status (*fn)(void *arg, struct titan_error *err), void *arg,
                              struct titan_error *err);
void *cuda_stream_native(struct stream *s);
titan_status cuda_event_open(struct device *dev, struct event **ret, struct titan_error *err);
void cuda_event_close(struct event *e);
titan_status cuda_event_record(struct event *e, struct stream *s, struct titan_error *err);
titan_status cuda_event_wait(struct event *e, struct stream *s, struct titan_error *err);
titan_status cuda_event_sync(struct event *e, struct titan_error *err);

/* timestamps.c */
titan_status cuda_timestamps_open(struct device *dev, int n, struct timestamps **ret, struct titan_error *err);
void cuda_timestamps_close(struct timestamps *p);
titan_status cuda_timestamps_begin(struct timestamps *p, struct titan_error *err);
titan_status cuda_timestamp(struct timestamps *p, int i, struct stream *s, struct titan_error *err);
titan_status cuda_timestamps_read(struct timestamps *p, int64_t *ret, struct titan_error *err);

/* segment.c */
titan_status cuda_segment_begin(struct stream *s, struct titan_error *err);
titan_status cuda_segment_end(struct stream *s, struct segment **ret, struct titan_error *err);
titan_status cuda_segment_launch(struct segment *g, struct stream *s);
void cuda_segment_close(struct segment *g);
/* False: s is recording a segment, and this call makes the segment fail. */
bool cuda_segment_allows(struct stream *s, const char *what);

#endif
