/* SPDX-License-Identifier: Apache-2.0 */
/* emulator.cpp - see emulator.h. */
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/emulated_hopper.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/fake_cuda.h"

#ifndef __x86_64__
#error "the coroutine switch is written for x86-64"
#endif

#define STACK_BYTES (256 * 1024)
#define SHARED_MAX (256 * 1024)

struct coroutine {
    struct emulated_thread self;
    void *sp;
    enum emulated_wait state;
    bool (*holds)(const void *of, uint64_t value); /* EMULATED_UNTIL */
    const void *of;
    uint64_t value;
    const char *what;
};

struct emulated_thread *emulated_self;
uint3 emulated_block_at;
dim3 emulated_block_dim, emulated_grid_dim;
int emulated_vote;

static std::mutex one_launch;
static struct coroutine threads[EMULATE_THREADS_MAX];
static char *stacks;
static void *scheduler_sp;
static uint64_t lanes[EMULATE_THREADS_MAX];
static const std::function<void()> *body;
static float *shared_memory;

/* Save the callee-saved registers and the stack pointer, go on at another one. System V x86-64. */
extern "C" void emulated_switch(void **save_sp, void *sp);
asm(R"(
.text
.globl emulated_switch
.hidden emulated_switch
.type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulated_switch, .-emulated_switch
)");

void emulated_fault(const char *what)
{
    fprintf(stderr, "emulator: %s (block %u %u %u, thread %u)\n", what, emulated_block_at.x, emulated_block_at.y,
            emulated_block_at.z, emulated_self ? emulated_self->linear : 0);
    abort();
}

static struct coroutine *current(void)
{
    return &threads[emulated_self->linear];
}

static void thread_main(void)
{
    (*body)();
    struct coroutine *me = current();
    me->state = EMULATED_DONE;
    emulated_switch(&me->sp, scheduler_sp);
    abort();
}

void emulated_wait_for(enum emulated_wait what)
{
    struct coroutine *me = current();
    me->state = what;
    emulated_switch(&me->sp, scheduler_sp);
}

void emulated_wait_until(bool (*holds)(const void *of, uint64_t value), const void *of, uint64_t value,
                         const char *what)
{
    struct coroutine *me = current();
    if (holds(of, value))
        return;
    me->holds = holds, me->of = of, me->value = value, me->what = what;
    emulated_wait_for(EMULATED_UNTIL);
}

void *emulated_lane(unsigned lane)
{
    return &lanes[emulated_self->linear / 32 * 32 + lane];
}

static void *guarded(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
    char *p = (char *)mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + size, page, PROT_NONE) != 0)
        emulated_fault("out of memory");
    return p + size; /* one past the last byte */
}

float *emulated_shared(void)
{
    return shared_memory;
}

static void prepare(unsigned i)
{
    struct coroutine *c = &threads[i];
    void **top = (void **)(stacks + (size_t)(i + 1) * STACK_BYTES);
    *--top = NULL; /* where thread_main would return to; also aligns its frame as a call would */
    *--top = (void *)thread_main;
    for (int registers = 0; registers < 6; registers++)
        *--top = NULL;
    c->sp = top;
    c->state = EMULATED_RUNS;
    c->self.linear = i;
    c->self.at.x = i % emulated_block_dim.x;
    c->self.at.y = i / emulated_block_dim.x % emulated_block_dim.y;
    c->self.at.z = i / emulated_block_dim.x / emulated_block_dim.y;
}

/* Run a warp until each of its lanes is done or waits for others than the warp's. True: something ran. */
static bool run_warp(unsigned first, unsigned count, bool down)
{
    for (bool ran = false;;) {
        unsigned at_warp = 0, at_block = 0, done = 0, runs = 0;
        for (unsigned k = 0; k < count; k++) {
            struct coroutine *c = &threads[first + (down ? count - 1 - k : k)];
            if (c->state == EMULATED_UNTIL && c->holds(c->of, c->value))
                c->state = EMULATED_RUNS;
            if (c->state == EMULATED_RUNS) {
                runs++;
                emulated_self = &c->self;
                emulated_switch(&scheduler_sp, c->sp);
            }
            at_warp += c->state == EMULATED_AT_WARP;
            at_block += c->state == EMULATED_AT_BLOCK;
            done += c->state == EMULATED_DONE;
        }
        if (at_warp == count) {
            for (unsigned k = 0; k < count; k++)
                threads[first + k].state = EMULATED_RUNS;
        } else if (at_warp > 0 && at_warp + at_block + done == count) {
            emulated_fault(done > 0 ? "a warp operation after some lanes have left"
                                    : "not all lanes reach a warp operation");
        } else if (runs == 0) {
            return ran;
        }
        ran = true;
    }
}

/* Nothing runs, and nothing is under way. */
[[noreturn]] static void stuck(unsigned count, unsigned at_block, unsigned done)
{
    if (at_block > 0 && at_block + done == count)
        emulated_fault("a barrier after some threads have left");
    for (unsigned i = 0; i < count; i++) {
        emulated_self = &threads[i].self;
        if (threads[i].state == EMULATED_UNTIL)
            emulated_fault(threads[i].what);
    }
    emulated_fault("not all lanes reach a warp operation");
}

static void run_block(unsigned count, bool down)
{
    const unsigned warps = (count + 31) / 32;
    for (unsigned i = 0; i < count; i++)
        prepare(i);
    for (;;) {
        bool ran = false;
        for (unsigned k = 0; k < warps; k++) {
            const unsigned w = down ? warps - 1 - k : k;
            ran = run_warp(w * 32, count - w * 32 < 32 ? count - w * 32 : 32, down) || ran;
            ran = emulated_copies_at_random() || ran;
        }
        unsigned at_block = 0, done = 0;
        for (unsigned i = 0; i < count; i++) {
            at_block += threads[i].state == EMULATED_AT_BLOCK;
            done += threads[i].state == EMULATED_DONE;
        }
        if (done == count)
            return;
        if (at_block == count) {
            for (unsigned i = 0; i < count; i++)
                threads[i].state = EMULATED_RUNS;
        } else if (!ran && !emulated_copy_lands()) {
            stuck(count, at_block, done);
        }
    }
}

static void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &kernel)
{
    std::lock_guard<std::mutex> alone(one_launch);
    static char *shared_end;
    if (!stacks) {
        stacks = (char *)guarded((size_t)EMULATE_THREADS_MAX * STACK_BYTES) - (size_t)EMULATE_THREADS_MAX * STACK_BYTES;
        shared_end = (char *)guarded(SHARED_MAX);
    }
    const char *order = getenv("TITAN_EMULATE_ORDER");
    const bool down = order && strcmp(order, "down") == 0;
    emulated_grid_dim = grid;
    emulated_block_dim = block;
    body = &kernel;
    shared_memory = (float *)(shared_end - shared_bytes);
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                emulated_block_at.x = x, emulated_block_at.y = y, emulated_block_at.z = z;
                memset(shared_end - shared_bytes, 0xff, shared_bytes);
                emulated_hopper_begin(shared_end - shared_bytes, shared_bytes);
                run_block(block.x * block.y * block.z, down);
                emulated_hopper_end();
            }
    emulated_self = NULL;
}

int emulated_launch(void *stream, dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> kernel)
{
    const unsigned count = block.x * block.y * block.z;
    if (count == 0 || count > EMULATE_THREADS_MAX || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 ||
        grid.z > 65535 || grid.x > 0x7fffffffu || shared_bytes > SHARED_MAX)
        return (int)cudaErrorInvalidConfiguration;
    fake_stream_enqueue((cudaStream_t)stream, [=]() { run_grid(grid, block, shared_bytes, kernel); });
    return 0;
}
