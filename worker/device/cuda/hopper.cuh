/* SPDX-License-Identifier: Apache-2.0 */
/* hopper.cuh - the tensor-core features of compute capability 9.0: barriers in shared memory, copies of tiles by the
 * tensor memory accelerator, products of four warps (PTX ISA 8.0: mbarrier, cp.async.bulk.tensor, wgmma).
 *
 * A tile is 64 columns of bf16 wide, 128 bytes a row, and begins at a multiple of 1024. A wider matrix is several
 * tiles, one after the other. A copy permutes the 16-byte pieces of a row by the row's number (128-byte swizzle). A
 * product's descriptor names this swizzle. No other code depends on it.
 *
 * Copies and products run asynchronously. A copy has landed when its barrier's phase is over. A product reads its tiles
 * and writes its sums at any time until it has been waited for. Rules: mma_fence() comes before the first product of a
 * batch, mma_commit() after the last one. mma_wait() comes before the sums are read or the tiles are filled again. On
 * the host (tests/cuda/emulated_hopper.h) a violation of these rules ends the program.
 *
 * Only code for sm_90a has the instructions; for other architectures the kernels that use them are empty. */
#ifndef TITAN_WORKER_DEVICE_CUDA_HOPPER_CUH
#define TITAN_WORKER_DEVICE_CUDA_HOPPER_CUH

#include "worker/device/cuda/kernel.cuh"

#ifdef TITAN_EMULATE
#include "tests/cuda/emulated_hopper.h"
#else
#include <cuda.h>
#include <dlfcn.h>
#endif

/* Whether this code has the instructions. The bodies of kernels that use them are inside #if HOPPER_CODE. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_CODE 1
#else
#define HOPPER_CODE 0
#endif

#define TILE_COLUMNS 64
#define TILE_ROW_BYTES 128
#define TILE_ALIGN 1024
/* threads of a product: four consecutive warps, the first warp's number is a multiple of four */
#define MMA_THREADS 128
#define MMA_ROWS 64
#define MMA_DEPTH 16

/* --- tensors that are copied from --------------------------------------------------------------------------------- */

/* A bf16 tensor (sequences, heads, rows, columns); a kernel gets it by value, as __grid_constant__. */
#ifdef TITAN_EMULATE
typedef struct emulated_map tile_map;
#else
typedef CUtensorMap tile_map;
#endif
struct tile_tensor {
    const void *at; /* the address and all strides in bytes are multiples of 16 */
    int columns, rows, heads, sequences;
    int64_t row, head, sequence; /* strides, in elements */
};

/* Whether the driver can make maps of tensors; always true where the driver is not needed. */
static inline bool tile_maps_work(void);
/* Makes a map. A copy takes box_rows rows of TILE_COLUMNS columns, with zeros outside the tensor. False: the driver
 * refuses. */
static inline bool tile_map_make(tile_map *ret, const struct tile_tensor *x, int box_rows);

#ifdef TITAN_EMULATE
static inline bool tile_maps_work(void)
{
    return true;
}
static inline bool tile_map_make(tile_map *ret, const struct tile_tensor *x, int box_rows)
{
    const tile_map map = {(const char *)x->at,
                          {x->columns, x->rows, x->heads, x->sequences},
                          {2, x->row * 2, x->head * 2, x->sequence * 2},
                          TILE_COLUMNS,
                          box_rows};
    *ret = map;
    return !getenv("TITAN_FAKE_NO_TILES");
}
#else
typedef CUresult (*tile_map_encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                     const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
/* Finds the driver's function; nothing here links to the driver. */
static inline tile_map_encoder find_tile_map_encoder(void)
{
    void *const driver = dlopen("libcuda.so.1", RTLD_LAZY); /* the library stays loaded */
    return driver ? (tile_map_encoder)dlsym(driver, "cuTensorMapEncodeTiled") : NULL;
}
static inline tile_map_encoder get_tile_map_encoder(void)
{
    static const tile_map_encoder encoder = find_tile_map_encoder();
    return encoder;
}
static inline bool tile_maps_work(void)
{
    return get_tile_map_encoder() != NULL;
}
static inline bool tile_map_make(tile_map *ret, const struct tile_tensor *x, int box_rows)
{
    const cuuint64_t size[4] = {(cuuint64_t)x->columns, (cuuint64_t)x->rows, (cuuint64_t)x->heads,
                                (cuuint64_t)x->sequences};
    const cuuint64_t stride[3] = {(cuuint64_t)x->row * 2, (cuuint64_t)x->head * 2, (cuuint64_t)x->sequence * 2};
    const cuuint32_t box[4] = {TILE_COLUMNS, (cuuint32_t)box_rows, 1, 1}, step[4] = {1, 1, 1, 1};
    const tile_map_encoder encode = get_tile_map_encoder();
    return encode && encode(ret, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)x->at, size, stride, box, step,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
#endif

/* --- barriers ----------------------------------------------------------------------------------------------------- */

/* A barrier in shared memory. A phase is over when `arrivals` threads have arrived and all announced bytes have landed.
 * The first phase is number 0. A wait for the parity of a phase before phase 0 returns at once. */
typedef uint64_t tile_barrier;

/* The dynamic shared memory from its first multiple of TILE_ALIGN on. The launch requests TILE_ALIGN more bytes than
 * are used. */
__device__ static inline char *tile_memory(void *shared);

__device__ static inline void barrier_init(tile_barrier *b, unsigned arrivals);
__device__ static inline void barrier_arrive(tile_barrier *b);
/* Arrives and extends the phase until this many bytes have landed. */
__device__ static inline void barrier_arrive_for(tile_barrier *b, unsigned bytes);
__device__ static inline void barrier_wait(tile_barrier *b, unsigned parity);
/* Copies and products after the fence see initialised barriers and plain stores. */
__device__ static inline void fence_async(void);
/* Makes this thread's plain stores visible to products and to add_sums(), in threads that wait at a barrier where this
 * thread arrives next. */
__device__ static inline void fence_stores(void);

/* --- copies and products ------------------------------------------------------------------------------------------ */

/* One thread copies the box of map at (column, row, head, sequence). All bytes of a box count at barrier b. */
__device__ static inline void copy_tile(void *to, const tile_map *map, tile_barrier *b, int column, int row, int head,
                                        int sequence);

/* A product's sums are a tile of 64 rows and N columns in registers. Thread t of the 128 has the row t / 32 * 16 + t %
 * 32 / 4 and the row 8 below. In each eight columns it has column 2 (t % 4) and the next. Of its N / 2 sums, sum i is
 * in its column 8 (i / 4) + i % 2, and in its second row when i & 2.
 *
 * Descriptor of 16 columns of a tile. Element (r, c) belongs to line r: sums run along columns. */
__device__ static inline uint32_t along_columns(uint32_t address);
/* Descriptor of 16 rows of a tile. The tile's columns are the lines: sums run along rows. Each 64 columns are a tile of
 * tile_bytes. */
__device__ static inline uint32_t along_rows(uint32_t address, uint32_t tile_bytes);
/* The descriptor of data this many bytes further. */
__device__ static inline uint32_t further(uint32_t descriptor, int bytes);
/* The descriptor in the hardware's form. The upper half is the same in all descriptors. */
__device__ static inline uint64_t whole(uint32_t descriptor)
{
    const uint64_t eight_rows = 8 * TILE_ROW_BYTES / 16; /* from eight rows to the next eight */
    return descriptor | eight_rows << 32 | (uint64_t)1 << 62;
}
__device__ static inline uint32_t tile_address(const void *tile);

/* All threads of four warps call these. They change the registers per thread to N: fewer (give) or more (take) than at
 * the launch. */
template <int N> __device__ static inline void give_registers(void);
template <int N> __device__ static inline void take_registers(void);

__device__ static inline void mma_fence(void);
__device__ static inline void mma_commit(void);
/* Completes writes to registers that a product takes, before mma_fence(). */
template <int H> __device__ static inline void mma_settle(float (&s)[H]);
template <int H> __device__ static inline void mma_settle(uint32_t (&a)[H]);
/* Makes the code compute x, which is not -inf, at this place, while products run. Otherwise the assembler would move
 * the computation behind the next wait. */
__device__ static inline void mma_meanwhile(float x);
/* Waits until at most LEFT batches are running. s: sums of a finished batch. Use the form without s if the remaining
 * batches add to the same sums. */
template <int LEFT, int H> __device__ static inline void mma_wait(float (&s)[H]);
template <int LEFT> __device__ static inline void mma_wait(void);
/* mma_tiles<A_ROWS, B_ROWS>(s, a, b, add): s = (add: s +) 64 lines of a by the lines of b. A true argument means that
 * the operand's sums run along its rows; by default both run along columns. mma_registers(s, a, b): s = s + the tile of
 * 64 x 16 in registers by b, along rows. a holds two pairs of bf16 of each row, in the register layout of the sums of
 * 16 columns. */

/* A warp stores 16 rows and columns into a tile, by plain stores. The first row and column are multiples of 16. x has
 * the register layout of mma_registers(). */
__device__ static inline void store_square(char *tile, int row, int column, const uint32_t *x);
/* One thread adds sums in shared memory to sums in device memory, in any order; both are at multiples of 16 bytes. The
 * sums in shared memory were stored before a fence_stores() and must stay until add_wait(). The sums in device memory
 * are complete when the kernel has ended. */
__device__ static inline void add_sums(float *to, const void *from, unsigned bytes);
__device__ static inline void add_wait(void);

/* Rounds two values; `low` goes to the lower half. */
__device__ static inline uint32_t two_bf16(float low, float high);
/* Exchanges values among four consecutive threads: x[i] becomes thread i's element with this thread's number. So values
 * across the four threads, like a row's sums, come to one thread. All threads of a warp call it. */
__device__ static inline void exchange_four(uint32_t (&x)[4]);

#ifdef TITAN_EMULATE
__device__ static inline char *tile_memory(void *shared)
{
    return (char *)shared + (TILE_ALIGN - emulated_address(shared) % TILE_ALIGN) % TILE_ALIGN;
}
__device__ static inline uint32_t tile_address(const void *tile)
{
    return emulated_address(tile);
}
__device__ static inline void barrier_init(tile_barrier *b, unsigned arrivals)
{
    emulated_barrier_init(b, arrivals);
}
__device__ static inline void barrier_arrive(tile_barrier *b)
{
    emulated_barrier_arrive(b, 0);
}
__device__ static inline void barrier_arrive_for(tile_barrier *b, unsigned bytes)
{
    emulated_barrier_arrive(b, bytes);
}
__device__ static inline void barrier_wait(tile_barrier *b, unsigned parity)
{
    emulated_barrier_wait(b, parity);
}
__device__ static inline void fence_async(void)
{
    emulated_fence_async();
}
__device__ static inline void fence_stores(void)
{
    emulated_fence_async();
}
__device__ static inline void store_square(char *tile, int row, int column, const uint32_t *x)
{
    for (int i = 0; i < 4; i++) {
        const int r = row + i % 2 * 8 + (int)threadIdx.x % WARP / 4;
        const int c = column + i / 2 * 8 + (int)threadIdx.x % 4 * 2;
        *(uint32_t *)(tile + r * TILE_ROW_BYTES + (c * 2 ^ r % 8 << 4)) = x[i];
    }
}
__device__ static inline void add_sums(float *to, const void *from, unsigned bytes)
{
    emulated_add(to, from, bytes);
}
__device__ static inline void add_wait(void)
{
    emulated_add_wait();
}
__device__ static inline void copy_tile(void *to, const tile_map *map, tile_barrier *b, int column, int row, int head,
                                        int sequence)
{
    emulated_copy(to, map, b, {column, row, head, sequence});
}
template <int N> __device__ static inline void give_registers(void)
{
}
template <int N> __device__ static inline void take_registers(void)
{
}
__device__ static inline void mma_fence(void)
{
    emulated_mma_fence();
}
__device__ static inline void mma_commit(void)
{
    emulated_mma_commit();
}
template <int H> __device__ static inline void mma_settle(float (&)[H])
{
}
template <int H> __device__ static inline void mma_settle(uint32_t (&)[H])
{
}
__device__ static inline void mma_meanwhile(float)
{
}
template <int LEFT, int H> __device__ static inline void mma_wait(float (&)[H])
{
    emulated_mma_wait(LEFT);
}
template <int LEFT> __device__ static inline void mma_wait(void)
{
    emulated_mma_wait(LEFT);
}
template <bool A_ROWS = false, bool B_ROWS = false, int H>
__device__ static inline void mma_tiles(float (&s)[H], uint32_t a, uint32_t b, int add)
{
    emulated_mma(s, 2 * H, NULL, whole(a), whole(b), A_ROWS, B_ROWS, add != 0);
}
template <int H> __device__ static inline void mma_registers(float (&s)[H], const uint32_t *a, uint32_t b)
{
    emulated_mma(s, 2 * H, a, 0, whole(b), false, true, true);
}
__device__ static inline float exp2_fast(float x)
{
    return exp2f(x);
}
#else
__device__ static inline uint32_t tile_address(const void *tile)
{
    return (uint32_t)__cvta_generic_to_shared(tile);
}
__device__ static inline char *tile_memory(void *shared)
{
    return (char *)shared + (TILE_ALIGN - tile_address(shared) % TILE_ALIGN) % TILE_ALIGN;
}
__device__ static inline void barrier_init(tile_barrier *b, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(tile_address(b)), "r"(arrivals) : "memory");
}
__device__ static inline void barrier_arrive(tile_barrier *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(tile_address(b)) : "memory");
}
__device__ static inline void barrier_arrive_for(tile_barrier *b, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(tile_address(b)), "r"(bytes)
                 : "memory");
}
__device__ static inline void barrier_wait(tile_barrier *b, unsigned parity)
{
    uint32_t over;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(tile_address(b)), "r"(parity)
                     : "memory");
    } while (!over);
}
__device__ static inline void fence_async(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ static inline void fence_stores(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ static inline void store_square(char *tile, int row, int column, const uint32_t *x)
{
    int lane = (int)threadIdx.x % WARP;
    asm volatile("" : "+r"(lane)); /* without this the compiler keeps addresses in registers, which are scarce */
    const int r = row + lane % 16, piece = column / 8 + lane / 16;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     tile_address(tile) + r * TILE_ROW_BYTES + ((piece ^ r % 8) << 4)),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}
__device__ static inline void add_sums(float *to, const void *from, unsigned bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(tile_address(from)), "r"(bytes)
                 : "memory");
}
__device__ static inline void add_wait(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ static inline void copy_tile(void *to, const tile_map *map, tile_barrier *b, int column, int row, int head,
                                        int sequence)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(tile_address(to)),
                 "l"(map), "r"(tile_address(b)), "r"(column), "r"(row), "r"(head), "r"(sequence)
                 : "memory");
}
template <int N> __device__ static inline void give_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ static inline void take_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
__device__ static inline void mma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ static inline void mma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* A value that passes through this asm is computed before it and used after it. */
template <int H> __device__ static inline void mma_settle(float (&s)[H])
{
#pragma unroll
    for (int i = 0; i < H; i++)
        asm volatile("" : "+f"(s[i])::"memory");
}
template <int H> __device__ static inline void mma_settle(uint32_t (&a)[H])
{
#pragma unroll
    for (int i = 0; i < H; i++)
        asm volatile("" : "+r"(a[i])::"memory");
}
/* An instruction that never runs, but the compiler cannot know that. */
__device__ static inline void mma_meanwhile(float x)
{
    asm volatile("{\n.reg .pred p;\nsetp.eq.f32 p, %0, 0fFF800000;\n@p nanosleep.u32 1;\n}" ::"f"(x) : "memory");
}
template <int LEFT, int H> __device__ static inline void mma_wait(float (&s)[H])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    mma_settle(s);
}
template <int LEFT> __device__ static inline void mma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
__device__ static inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#define SUMS_4(s, i) "+f"(s[i]), "+f"(s[(i) + 1]), "+f"(s[(i) + 2]), "+f"(s[(i) + 3])
#define SUMS_16(s, i) SUMS_4(s, i), SUMS_4(s, (i) + 4), SUMS_4(s, (i) + 8), SUMS_4(s, (i) + 12)
#define SUMS_32(s, i) SUMS_16(s, i), SUMS_16(s, (i) + 16)
/* clang-format off */
template <bool A_ROWS = false, bool B_ROWS = false>
__device__ static inline void mma_tiles(float (&s)[16], uint32_t a, uint32_t b, int add)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, p, 1, 1, %19, %20;\n}"
        : SUMS_16(s, 0)
        : "l"(whole(a)), "l"(whole(b)), "r"(add), "n"((int)A_ROWS), "n"((int)B_ROWS));
}
template <bool A_ROWS = false, bool B_ROWS = false>
__device__ static inline void mma_tiles(float (&s)[32], uint32_t a, uint32_t b, int add)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, %35, %36;\n}"
        : SUMS_32(s, 0)
        : "l"(whole(a)), "l"(whole(b)), "r"(add), "n"((int)A_ROWS), "n"((int)B_ROWS));
}
__device__ static inline void mma_registers(float (&s)[32], const uint32_t *a, uint32_t b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : SUMS_32(s, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(whole(b)));
}
template <bool A_ROWS = false, bool B_ROWS = false>
__device__ static inline void mma_tiles(float (&s)[64], uint32_t a, uint32_t b, int add)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, %67, %68;\n}"
        : SUMS_32(s, 0), SUMS_32(s, 32)
        : "l"(whole(a)), "l"(whole(b)), "r"(add), "n"((int)A_ROWS), "n"((int)B_ROWS));
}
__device__ static inline void mma_registers(float (&s)[64], const uint32_t *a, uint32_t b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : SUMS_32(s, 0), SUMS_32(s, 32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(whole(b)));
}
template <bool A_ROWS = false, bool B_ROWS = false>
__device__ static inline void mma_tiles(float (&s)[96], uint32_t a, uint32_t b, int add)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, p, 1, 1, %99, %100;\n}"
        : SUMS_32(s, 0), SUMS_32(s, 32), SUMS_32(s, 64)
        : "l"(whole(a)), "l"(whole(b)), "r"(add), "n"((int)A_ROWS), "n"((int)B_ROWS));
}
__device__ static inline void mma_registers(float (&s)[96], const uint32_t *a, uint32_t b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "{%96, %97, %98, %99}, %100, 1, 1, 1, 1;"
        : SUMS_32(s, 0), SUMS_32(s, 32), SUMS_32(s, 64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(whole(b)));
}
template <bool A_ROWS = false, bool B_ROWS = false>
__device__ static inline void mma_tiles(float (&s)[128], uint32_t a, uint32_t b, int add)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, %131, %132;\n}"
        : SUMS_32(s, 0), SUMS_32(s, 32), SUMS_32(s, 64), SUMS_32(s, 96)
        : "l"(whole(a)), "l"(whole(b)), "r"(add), "n"((int)A_ROWS), "n"((int)B_ROWS));
}
/* clang-format on */
#undef SUMS_4
#undef SUMS_16
#undef SUMS_32
#endif

__device__ static inline uint32_t two_bf16(float low, float high)
{
    uint32_t bits;
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
#else
    bf16 pair[2];
    num_store(pair, low);
    num_store(pair + 1, high);
    memcpy(&bits, pair, sizeof bits);
#endif
    return bits;
}
__device__ static inline void exchange_four(uint32_t (&x)[4])
{
    const int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t other = __shfl_xor_sync(FULL_WARP, lane & 1 ? x[i] : x[i + 1], 1);
        x[i] = lane & 1 ? other : x[i];
        x[i + 1] = lane & 1 ? x[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t other = __shfl_xor_sync(FULL_WARP, lane & 2 ? x[i] : x[i + 2], 2);
        x[i] = lane & 2 ? other : x[i];
        x[i + 2] = lane & 2 ? x[i + 2] : other;
    }
}

/* Returns x, which is the same in all threads of a warp, in a form that the compiler knows to be uniform. */
__device__ static inline int one_of_warp(int x)
{
#ifdef TITAN_EMULATE
    return x;
#else
    return __shfl_sync(FULL_WARP, x, 0);
#endif
}

/* A warp has finished with a stage. */
__device__ static inline void release(tile_barrier *b)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        barrier_arrive(b);
}

/* This thread's first row of the sums of all groups; its second row is 8 further. */
__device__ static inline int own_row(void)
{
    return (int)threadIdx.x / WARP * 16 + (int)threadIdx.x % WARP / 4;
}

__device__ static inline uint32_t along_columns(uint32_t address)
{
    return address / 16 | 1 << 16;
}
__device__ static inline uint32_t along_rows(uint32_t address, uint32_t tile_bytes)
{
    return address / 16 | tile_bytes / 16 << 16;
}
__device__ static inline uint32_t further(uint32_t descriptor, int bytes)
{
    return descriptor + (unsigned)bytes / 16;
}

#endif
