/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h - the safetensors file format, version 0.x as huggingface/safetensors reads it: eight bytes of
 * little-endian header length, a JSON header that names dtype, shape and byte range of every tensor, then the data.
 *
 * The reader checks everything: header at most 100 MB, ranges in file order without gap or overlap up to the last byte,
 * shapes that fit their ranges, unique names. The writer pads the header with spaces so that data begins at a multiple
 * of 8, and computes the file's crc32c meanwhile. */
#ifndef TITAN_WORKER_CHECKPOINT_SAFETENSORS_H
#define TITAN_WORKER_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SAFETENSORS_HEADER_MAX (100u * 1000 * 1000)
#define SAFETENSORS_DIMS_MAX 8

struct safetensors_tensor {
    char *name;
    char dtype[8]; /* "F32", "BF16", "F64", "I64", ... */
    int64_t shape[SAFETENSORS_DIMS_MAX];
    int ndim;               /* 0 = a scalar */
    uint64_t offset, bytes; /* offset from the beginning of the file */
};

/* An open file; read-only after safetensors_open. */
struct safetensors {
    int fd;
    uint64_t file_bytes;
    struct safetensors_tensor *tensors; /* in file order */
    size_t ntensors;
    size_t *by_name; /* indices sorted by name */
};

/* Bytes of one element; 0 for an unknown dtype. */
size_t safetensors_dtype_bytes(const char *dtype);

/* TITAN_ECORRUPT: the file is at fault. Every message names path. */
titan_status safetensors_open(const char *path, struct safetensors **ret, struct titan_error *err) TITAN_MUST_USE;
/* Same as safetensors_open(), for a regular file that is already open. Takes ownership of fd, also on failure. name is
 * for messages. */
titan_status safetensors_open_fd(int fd, const char *name, struct safetensors **ret,
                                 struct titan_error *err) TITAN_MUST_USE;
void safetensors_close(struct safetensors *st); /* NULL is fine */
/* NULL = no tensor of that name. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name);
/* Reads bytes [start, start+len) of the tensor's data into out. */
titan_status safetensors_read(const struct safetensors *st, const struct safetensors_tensor *tensor, uint64_t start,
                              void *out, size_t len, struct titan_error *err) TITAN_MUST_USE;
/* Reads elements [first, first+n) of a tensor of "F32", "BF16" or "F16" as fp32, without loss; TITAN_EUNSUPPORTED names
 * another type. */
titan_status safetensors_read_floats(const struct safetensors *st, const struct safetensors_tensor *tensor,
                                     uint64_t first, float *out, size_t n, struct titan_error *err) TITAN_MUST_USE;

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* A tensor of the new file, in order. Borrowed during safetensors_create only. */
struct safetensors_entry {
    const char *name;
    const char *dtype;
    int64_t shape[SAFETENSORS_DIMS_MAX];
    int ndim;
};
struct safetensors_header {
    const struct safetensors_entry *entries;
    size_t n;
    const char *format; /* "format" of __metadata__ ("pt" for HF); NULL = none */
};
struct safetensors_writer;

/* Makes the file anew and writes the header; an existing file of that name is replaced, never written through. name:
 * below the open folder `at`, which must outlive the writer, or AT_FDCWD. */
titan_status safetensors_create(int at, const char *name, const struct safetensors_header *header,
                                struct safetensors_writer **ret, struct titan_error *err) TITAN_MUST_USE;
/* Appends the next bytes of the data, a portion of any size. The entries' data follow each other. */
titan_status safetensors_append(struct safetensors_writer *w, const void *data, size_t len,
                                struct titan_error *err) TITAN_MUST_USE;
/* Appends n numbers of the named tensor in the file's type, "F32", "BF16" or "F16": rounded to nearest even.
 * TITAN_EINVAL: a finite number is beyond F16. */
titan_status safetensors_append_floats(struct safetensors_writer *w, const char *tensor, const char *dtype,
                                       const float *data, size_t n, struct titan_error *err) TITAN_MUST_USE;
/* Appends n bf16 values in the same way. */
titan_status safetensors_append_halves(struct safetensors_writer *w, const char *tensor, const char *dtype,
                                       const uint16_t *data, size_t n, struct titan_error *err) TITAN_MUST_USE;
/* After all data: fsyncs and closes; frees w in any case. On failure the file is removed. */
titan_status safetensors_finish(struct safetensors_writer *w, uint64_t *ret_bytes, uint32_t *ret_crc,
                                struct titan_error *err) TITAN_MUST_USE;
/* Removes the file and frees w. NULL is fine. */
void safetensors_abandon(struct safetensors_writer *w);

#endif
