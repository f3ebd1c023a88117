/* SPDX-License-Identifier: Apache-2.0 */
/* fake_driver.cpp - the few names of libcuda.so.1 that are looked up in it: events with times, and the size of a cache
 * that is small enough for tests to go beyond. */
#include <condition_variable>
#include <mutex>
#include <time.h>

#include "tests/cuda/fake_cuda.h"

struct timed_event {
    std::mutex lock;
    std::condition_variable changed;
    int pending = 0; /* records that the stream has not come to */
    double ms = 0;   /* of the last one */
};

extern "C" {
int cuDeviceGetAttribute(int *value, int, int)
{
    *value = 64 << 10;
    return 0;
}
int cuEventCreate(timed_event **e, unsigned)
{
    *e = new timed_event;
    return 0;
}
int cuEventRecord(timed_event *e, cudaStream_t stream)
{
    {
        std::lock_guard<std::mutex> held(e->lock);
        e->pending++;
    }
    fake_stream_enqueue(stream, [e] {
        struct timespec now;
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        std::lock_guard<std::mutex> held(e->lock);
        e->ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
        e->pending--;
        e->changed.notify_all();
    });
    return 0;
}
int cuEventSynchronize(timed_event *e)
{
    std::unique_lock<std::mutex> held(e->lock);
    e->changed.wait(held, [e] { return e->pending == 0; });
    return 0;
}
int cuEventElapsedTime(float *ms, timed_event *begin, timed_event *end)
{
    std::lock_guard<std::mutex> first(begin->lock), second(end->lock);
    *ms = (float)(end->ms - begin->ms);
    return 0;
}
}
