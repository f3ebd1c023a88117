/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda.h - the emulator's streams: a thread and a queue each. */
#ifndef TITAN_TESTS_CUDA_FAKE_CUDA_H
#define TITAN_TESTS_CUDA_FAKE_CUDA_H

#include <cuda_runtime_api.h>
#include <functional>

/* Run what on the stream's thread when its turn comes. Waits while the stream's queue is full. */
void fake_stream_enqueue(cudaStream_t stream, std::function<void()> what);

#endif
