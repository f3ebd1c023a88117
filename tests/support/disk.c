/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/disk.h"

#include <errno.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/vec.h"

#define SECTOR 512
#define SHM_REGION_MAX 64

struct bytes {
    unsigned char *data;
    size_t len, cap;
};

/* A write or, without data, a truncation to `offset`, that no sync has covered yet. */
struct pending {
    struct pending *next;
    uint64_t offset;
    size_t len;
    unsigned char data[];
};

struct file {
    struct file *next;
    char *name;
    int opens;
    bool linked;  /* its name is in the directory as it reads */
    bool durable; /* ... and on the platters */
    struct bytes cache, platter;
    struct pending *pending, **pending_tail;

    int shared; /* handles with a lock */
    void *reserved, *exclusive;
    void *regions[SHM_REGION_MAX];
    int shm_shared[SQLITE_SHM_NLOCK];
    void *shm_exclusive[SQLITE_SHM_NLOCK];
};

struct handle {
    sqlite3_file base;
    struct disk *disk;
    struct file *file;
    int lock;
    bool delete_on_close;
    bool sync_dir;       /* with its first sync, as SQLite does for journals and WALs it may have made */
    uint32_t shm_shared; /* bits: slots this handle holds shared */
};

struct disk {
    sqlite3_vfs vfs;
    sqlite3_vfs *real;
    char vfs_name[32];
    pthread_mutex_t lock;
    struct file *files;
    uint64_t rng;
    int last_errno;

    uint64_t capacity, counts[6], faults;
    struct {
        uint32_t ops;
        char name[32];
        uint64_t left;
        enum disk_fault kind;
        bool lasting;
    } fault;
    enum disk_failed_sync failed_sync;
    uint32_t watch_ops;
    void (*watch)(struct disk *d, void *data);
    void *watch_data;
};

static uint64_t below(uint64_t *rng, uint64_t n)
{
    return n ? hash_draw(rng) % n : 0;
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

static void bytes_resize(struct bytes *b, uint64_t len)
{
    VEC_MUST_RESERVE(b->data, b->cap, len);
    if (len > b->len)
        memset(b->data + b->len, 0, len - b->len);
    b->len = len;
}

static void bytes_write(struct bytes *b, uint64_t offset, const void *data, size_t len)
{
    if (offset + len > b->len)
        bytes_resize(b, offset + len);
    if (len)
        memcpy(b->data + offset, data, len);
}

static void bytes_copy(struct bytes *to, const struct bytes *from)
{
    to->len = 0;
    bytes_write(to, 0, from->data, from->len);
}

static void bytes_apply(struct bytes *b, const struct pending *p)
{
    if (p->len)
        bytes_write(b, p->offset, p->data, p->len);
    else
        bytes_resize(b, p->offset);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static struct file *file_find(struct disk *d, const char *name)
{
    for (struct file *f = d->files; f; f = f->next)
        if (f->linked && strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

static struct file *file_add(struct disk *d, const char *name)
{
    struct file *f = calloc(1, sizeof(*f));
    titan_assert(f);
    f->name = strdup(name ? name : "");
    titan_assert(f->name);
    f->pending_tail = &f->pending;
    f->linked = name != NULL;
    f->next = d->files;
    d->files = f;
    return f;
}

static void pending_drop(struct file *f)
{
    for (struct pending *p = f->pending, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    f->pending = NULL;
    f->pending_tail = &f->pending;
}

static void pending_add(struct file *f, uint64_t offset, const void *data, size_t len)
{
    struct pending *p = malloc(sizeof(*p) + len);
    titan_assert(p);
    p->next = NULL;
    p->offset = offset;
    p->len = len;
    if (len)
        memcpy(p->data, data, len);
    *f->pending_tail = p;
    f->pending_tail = &p->next;
}

static void file_free_shm(struct file *f)
{
    for (int i = 0; i < SHM_REGION_MAX; i++) {
        free(f->regions[i]);
        f->regions[i] = NULL;
    }
}

static void file_remove(struct disk *d, struct file *f)
{
    struct file **at = &d->files;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    pending_drop(f);
    file_free_shm(f);
    free(f->cache.data);
    free(f->platter.data);
    free(f->name);
    free(f);
}

/* Names that were unlinked (name NULL: all) are gone from the platters, too. */
static void forget_ghosts(struct disk *d, const char *name)
{
    for (struct file *f = d->files, *next; f; f = next) {
        next = f->next;
        if (f->linked || !f->durable || (name && strcmp(f->name, name) != 0))
            continue;
        f->durable = false;
        if (f->opens == 0)
            file_remove(d, f);
    }
}

static void file_unlink(struct disk *d, struct file *f)
{
    f->linked = false;
    if (f->opens == 0 && !f->durable)
        file_remove(d, f);
}

/* --- faults ------------------------------------------------------------------------------------------------------- */

static int bit_index(uint32_t op)
{
    return __builtin_ctz(op);
}

/* Count the operation, let the watcher see it, and say whether it is to fail. */
static bool begin(struct disk *d, uint32_t op, const char *name)
{
    d->counts[bit_index(op)]++;
    if (d->watch && d->watch_ops & op)
        d->watch(d, d->watch_data);
    if (!(d->fault.ops & op) || (name && !strstr(name, d->fault.name)) || d->fault.left == 0 || --d->fault.left > 0)
        return false;
    d->fault.left = d->fault.lasting;
    d->faults++;
    d->last_errno = EIO;
    return true;
}

uint64_t disk_used(struct disk *d)
{
    uint64_t used = 0;
    pthread_mutex_lock(&d->lock);
    for (struct file *f = d->files; f; f = f->next)
        used += f->linked || f->opens ? f->cache.len : 0;
    pthread_mutex_unlock(&d->lock);
    return used;
}

/* --- the methods of an open file ---------------------------------------------------------------------------------- */

static struct handle *enter(sqlite3_file *file)
{
    struct handle *h = (struct handle *)file;
    pthread_mutex_lock(&h->disk->lock);
    return h;
}

static int leave(const struct handle *h, int rc)
{
    pthread_mutex_unlock(&h->disk->lock);
    return rc;
}

static int on_unlock(sqlite3_file *file, int level);
static int on_shm_unmap(sqlite3_file *file, int delete_it);

static int on_close(sqlite3_file *file)
{
    (void)on_unlock(file, SQLITE_LOCK_NONE);
    struct handle *h = enter(file);
    struct disk *d = h->disk;
    struct file *f = h->file;
    if (h->delete_on_close)
        f->linked = f->durable = false;
    if (--f->opens == 0)
        file_free_shm(f);
    if (f->opens == 0 && !f->linked && !f->durable)
        file_remove(d, f);
    pthread_mutex_unlock(&d->lock);
    return SQLITE_OK;
}

static int on_read(sqlite3_file *file, void *out, int n, sqlite3_int64 offset)
{
    struct handle *h = enter(file);
    const struct bytes *b = &h->file->cache;
    if (begin(h->disk, DISK_READ, h->file->name))
        return leave(h, SQLITE_IOERR_READ);
    size_t there = (uint64_t)offset < b->len ? MIN((size_t)n, b->len - (size_t)offset) : 0;
    if (there)
        memcpy(out, b->data + offset, there);
    memset((char *)out + there, 0, (size_t)n - there);
    return leave(h, there == (size_t)n ? SQLITE_OK : SQLITE_IOERR_SHORT_READ);
}

static void put(struct file *f, uint64_t offset, const void *data, size_t len)
{
    if (len == 0)
        return;
    bytes_write(&f->cache, offset, data, len);
    pending_add(f, offset, data, len);
}

static int on_write(sqlite3_file *file, const void *data, int n, sqlite3_int64 offset)
{
    struct handle *h = enter(file);
    struct disk *d = h->disk;
    struct file *f = h->file;
    size_t len = (size_t)n;
    uint64_t at = (uint64_t)offset;
    if (begin(d, DISK_WRITE, f->name)) {
        bool is_short = d->fault.kind == DISK_SHORT;
        put(f, at, data, is_short ? len / 2 : MIN(len, SECTOR * below(&d->rng, len / SECTOR + 1)));
        d->last_errno = is_short ? ENOSPC : EIO;
        return leave(h, is_short ? SQLITE_FULL : SQLITE_IOERR_WRITE);
    }
    uint64_t grows = at + len > f->cache.len ? at + len - f->cache.len : 0;
    if (d->capacity && grows && disk_used(d) + grows > d->capacity) {
        d->last_errno = ENOSPC;
        return leave(h, SQLITE_FULL);
    }
    put(f, at, data, len);
    return leave(h, SQLITE_OK);
}

static int on_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    struct handle *h = enter(file);
    if (begin(h->disk, DISK_TRUNCATE, h->file->name))
        return leave(h, SQLITE_IOERR_TRUNCATE);
    bytes_resize(&h->file->cache, (uint64_t)size);
    pending_add(h->file, (uint64_t)size, NULL, 0);
    return leave(h, SQLITE_OK);
}

static int on_sync(sqlite3_file *file, int flags)
{
    (void)flags;
    struct handle *h = enter(file);
    struct disk *d = h->disk;
    struct file *f = h->file;
    if (begin(d, DISK_SYNC, f->name)) {
        if (d->failed_sync == DISK_SYNC_DROPS)
            bytes_copy(&f->cache, &f->platter);
        if (d->failed_sync != DISK_SYNC_RETRIES)
            pending_drop(f);
        return leave(h, SQLITE_IOERR_FSYNC);
    }
    for (const struct pending *p = f->pending; p; p = p->next)
        bytes_apply(&f->platter, p);
    pending_drop(f);
    if (f->linked) {
        f->durable = true;
        forget_ghosts(d, h->sync_dir ? NULL : f->name);
        h->sync_dir = false;
    }
    return leave(h, SQLITE_OK);
}

static int on_file_size(sqlite3_file *file, sqlite3_int64 *ret)
{
    struct handle *h = enter(file);
    *ret = (sqlite3_int64)h->file->cache.len;
    return leave(h, SQLITE_OK);
}

/* The levels and their meaning: sqlite3_io_methods.xLock. */
static int on_lock(sqlite3_file *file, int level)
{
    struct handle *h = enter(file);
    struct file *f = h->file;
    if (level <= h->lock)
        return leave(h, SQLITE_OK);
    if ((f->exclusive && f->exclusive != h) || (level >= SQLITE_LOCK_RESERVED && f->reserved && f->reserved != h))
        return leave(h, SQLITE_BUSY);
    if (h->lock == SQLITE_LOCK_NONE)
        f->shared++;
    h->lock = SQLITE_LOCK_SHARED;
    if (level >= SQLITE_LOCK_RESERVED) {
        f->reserved = h;
        h->lock = SQLITE_LOCK_RESERVED;
    }
    if (level == SQLITE_LOCK_EXCLUSIVE) {
        f->exclusive = h; /* new readers wait from here on (pending) */
        h->lock = SQLITE_LOCK_PENDING;
        if (f->shared > 1)
            return leave(h, SQLITE_BUSY);
        h->lock = SQLITE_LOCK_EXCLUSIVE;
    }
    return leave(h, SQLITE_OK);
}

static int on_unlock(sqlite3_file *file, int level)
{
    struct handle *h = enter(file);
    struct file *f = h->file;
    if (level >= h->lock)
        return leave(h, SQLITE_OK);
    if (f->exclusive == h)
        f->exclusive = NULL;
    if (f->reserved == h)
        f->reserved = NULL;
    if (level == SQLITE_LOCK_NONE)
        f->shared--;
    h->lock = level;
    return leave(h, SQLITE_OK);
}

static int on_check_reserved(sqlite3_file *file, int *ret)
{
    struct handle *h = enter(file);
    *ret = h->file->reserved != NULL;
    return leave(h, SQLITE_OK);
}

static int on_control(sqlite3_file *file, int op, void *arg)
{
    (void)file;
    (void)op;
    (void)arg;
    return SQLITE_NOTFOUND;
}

static int on_sector_size(sqlite3_file *file)
{
    (void)file;
    return 4096; /* what SQLite takes a file system's to be; tearing is finer */
}

static int on_characteristics(sqlite3_file *file)
{
    (void)file;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE; /* as on Unix: a torn write does not reach beyond its own bytes */
}

static int on_shm_map(sqlite3_file *file, int i, int size, int extend, void volatile **ret)
{
    struct handle *h = enter(file);
    struct file *f = h->file;
    *ret = NULL;
    if (i >= SHM_REGION_MAX)
        return leave(h, SQLITE_IOERR_SHMSIZE);
    if (!f->regions[i] && extend) {
        f->regions[i] = calloc(1, (size_t)size);
        titan_assert(f->regions[i]);
    }
    *ret = f->regions[i];
    return leave(h, SQLITE_OK);
}

static void shm_unlock(struct handle *h, int slot)
{
    struct file *f = h->file;
    if (f->shm_exclusive[slot] == h)
        f->shm_exclusive[slot] = NULL;
    if (h->shm_shared >> slot & 1)
        f->shm_shared[slot]--;
    h->shm_shared &= ~(1u << slot);
}

static int on_shm_lock(sqlite3_file *file, int first, int n, int flags)
{
    struct handle *h = enter(file);
    struct file *f = h->file;
    for (int i = first; i < first + n && flags & SQLITE_SHM_LOCK; i++) {
        bool mine = h->shm_shared >> i & 1;
        if (f->shm_exclusive[i] && f->shm_exclusive[i] != h)
            return leave(h, SQLITE_BUSY);
        if (flags & SQLITE_SHM_EXCLUSIVE && f->shm_shared[i] > (int)mine)
            return leave(h, SQLITE_BUSY);
    }
    for (int i = first; i < first + n; i++) {
        if (flags & SQLITE_SHM_UNLOCK) {
            shm_unlock(h, i);
        } else if (flags & SQLITE_SHM_EXCLUSIVE) {
            f->shm_exclusive[i] = h;
        } else if (!(h->shm_shared >> i & 1)) {
            f->shm_shared[i]++;
            h->shm_shared |= 1u << i;
        }
    }
    return leave(h, SQLITE_OK);
}

static void on_shm_barrier(sqlite3_file *file)
{
    (void)leave(enter(file), 0);
}

static int on_shm_unmap(sqlite3_file *file, int delete_it)
{
    struct handle *h = enter(file);
    for (int i = 0; i < SQLITE_SHM_NLOCK; i++)
        shm_unlock(h, i);
    if (delete_it)
        file_free_shm(h->file);
    return leave(h, SQLITE_OK);
}

static const sqlite3_io_methods methods = {
    .iVersion = 2,
    .xClose = on_close,
    .xRead = on_read,
    .xWrite = on_write,
    .xTruncate = on_truncate,
    .xSync = on_sync,
    .xFileSize = on_file_size,
    .xLock = on_lock,
    .xUnlock = on_unlock,
    .xCheckReservedLock = on_check_reserved,
    .xFileControl = on_control,
    .xSectorSize = on_sector_size,
    .xDeviceCharacteristics = on_characteristics,
    .xShmMap = on_shm_map,
    .xShmLock = on_shm_lock,
    .xShmBarrier = on_shm_barrier,
    .xShmUnmap = on_shm_unmap,
};

/* --- the methods of the disk -------------------------------------------------------------------------------------- */

static int on_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *ret_flags)
{
    struct disk *d = vfs->pAppData;
    struct handle *h = (struct handle *)file;
    memset(h, 0, sizeof(*h));
    pthread_mutex_lock(&d->lock);
    struct file *f = name ? file_find(d, name) : NULL;
    bool fails = begin(d, DISK_OPEN, name);
    if (!fails && !f && flags & SQLITE_OPEN_CREATE)
        f = file_add(d, name);
    if (!fails && !f)
        d->last_errno = ENOENT;
    if (!fails && f) {
        f->opens++;
        h->base.pMethods = &methods;
        h->disk = d;
        h->file = f;
        h->sync_dir = flags & SQLITE_OPEN_CREATE && flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL);
        h->delete_on_close = flags & SQLITE_OPEN_DELETEONCLOSE;
        if (ret_flags)
            *ret_flags = flags;
    }
    pthread_mutex_unlock(&d->lock);
    return h->file ? SQLITE_OK : SQLITE_CANTOPEN;
}

static int on_delete(sqlite3_vfs *vfs, const char *name, int sync_dir)
{
    struct disk *d = vfs->pAppData;
    int rc = SQLITE_OK;
    pthread_mutex_lock(&d->lock);
    struct file *f = file_find(d, name);
    if (begin(d, DISK_DELETE, name))
        rc = SQLITE_IOERR_DELETE;
    else if (!f)
        rc = SQLITE_IOERR_DELETE_NOENT;
    if (rc == SQLITE_OK) {
        file_unlink(d, f);
        if (sync_dir)
            forget_ghosts(d, NULL);
    }
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static int on_access(sqlite3_vfs *vfs, const char *name, int flags, int *ret)
{
    struct disk *d = vfs->pAppData;
    pthread_mutex_lock(&d->lock);
    const struct file *f = file_find(d, name);
    *ret = f && (flags != SQLITE_ACCESS_EXISTS || f->cache.len > 0); /* as on Unix, where an empty one does not count */
    pthread_mutex_unlock(&d->lock);
    return SQLITE_OK;
}

static int on_full_path(sqlite3_vfs *vfs, const char *name, int size, char *out)
{
    (void)vfs;
    return snprintf(out, (size_t)size, "%s", name) < size ? SQLITE_OK : SQLITE_CANTOPEN;
}

static int on_randomness(sqlite3_vfs *vfs, int n, char *out)
{
    struct disk *d = vfs->pAppData;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < n; i++)
        out[i] = (char)hash_draw(&d->rng);
    pthread_mutex_unlock(&d->lock);
    return n;
}

static int on_sleep(sqlite3_vfs *vfs, int us)
{
    struct disk *d = vfs->pAppData;
    return d->real->xSleep(d->real, us);
}

static int on_time(sqlite3_vfs *vfs, double *ret)
{
    struct disk *d = vfs->pAppData;
    return d->real->xCurrentTime(d->real, ret);
}

static int on_last_error(sqlite3_vfs *vfs, int n, char *text)
{
    struct disk *d = vfs->pAppData;
    if (n > 0)
        text[0] = 0;
    return d->last_errno;
}

/* --- what the tests use ------------------------------------------------------------------------------------------- */

struct disk *disk_new(uint64_t seed)
{
    static int serial;
    struct disk *d = calloc(1, sizeof(*d));
    titan_assert(d);
    (void)snprintf(d->vfs_name, sizeof(d->vfs_name), "test-disk-%d", __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED));
    d->rng = seed;
    d->failed_sync = DISK_SYNC_FORGETS;
    pthread_mutexattr_t recursive; /* a watcher looks at the disk during an operation */
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&d->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    d->real = sqlite3_vfs_find("unix");
    d->vfs = (sqlite3_vfs){
        .iVersion = 1,
        .szOsFile = sizeof(struct handle),
        .mxPathname = 512,
        .zName = d->vfs_name,
        .pAppData = d,
        .xOpen = on_open,
        .xDelete = on_delete,
        .xAccess = on_access,
        .xFullPathname = on_full_path,
        .xRandomness = on_randomness,
        .xSleep = on_sleep,
        .xCurrentTime = on_time,
        .xGetLastError = on_last_error,
    };
    return d;
}

void disk_free(struct disk *d)
{
    if (!d)
        return;
    while (d->files) {
        titan_assert(d->files->opens == 0);
        file_remove(d, d->files);
    }
    pthread_mutex_destroy(&d->lock);
    free(d);
}

void disk_mount(struct disk *d)
{
    titan_assert(sqlite3_vfs_register(&d->vfs, 1) == SQLITE_OK);
}

void disk_unmount(struct disk *d)
{
    sqlite3_vfs_unregister(&d->vfs);
    titan_assert(sqlite3_vfs_register(d->real, 1) == SQLITE_OK);
}

void disk_fail(struct disk *d, uint32_t ops, const char *name, uint64_t n, enum disk_fault fault, bool lasting)
{
    pthread_mutex_lock(&d->lock);
    d->fault.ops = ops;
    (void)snprintf(d->fault.name, sizeof(d->fault.name), "%s", name ? name : "");
    d->fault.left = n;
    d->fault.kind = fault;
    d->fault.lasting = lasting;
    pthread_mutex_unlock(&d->lock);
}

void disk_on_failed_sync(struct disk *d, enum disk_failed_sync what)
{
    pthread_mutex_lock(&d->lock);
    d->failed_sync = what;
    pthread_mutex_unlock(&d->lock);
}

void disk_set_capacity(struct disk *d, uint64_t bytes)
{
    pthread_mutex_lock(&d->lock);
    d->capacity = bytes;
    pthread_mutex_unlock(&d->lock);
}

uint64_t disk_count(struct disk *d, uint32_t ops)
{
    uint64_t n = 0;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < (int)ARRAY_SIZE(d->counts); i++)
        n += ops >> i & 1 ? d->counts[i] : 0;
    pthread_mutex_unlock(&d->lock);
    return n;
}

uint64_t disk_faults(struct disk *d)
{
    pthread_mutex_lock(&d->lock);
    uint64_t n = d->faults;
    pthread_mutex_unlock(&d->lock);
    return n;
}

void disk_watch(struct disk *d, uint32_t ops, void (*before)(struct disk *d, void *data), void *data)
{
    pthread_mutex_lock(&d->lock);
    d->watch_ops = ops;
    d->watch = before;
    d->watch_data = data;
    pthread_mutex_unlock(&d->lock);
}

/* How a power cut treats what lies between cache and platters. */
struct cut {
    uint64_t rng;
    uint64_t per_mille; /* of the sectors that get through */
    uint64_t prefix;    /* operations after this many do not */
};

static void cut_write(struct cut *cut, struct bytes *b, const struct pending *p)
{
    for (size_t at = 0; at < p->len;) {
        size_t len = MIN(p->len - at, SECTOR - (size_t)((p->offset + at) % SECTOR));
        if (below(&cut->rng, 1000) < cut->per_mille)
            bytes_write(b, p->offset + at, p->data + at, len);
        at += len;
    }
}

static void cut_file(struct cut *cut, struct disk *to, const struct file *f)
{
    bool named = f->durable == f->linked ? f->linked : below(&cut->rng, 1000) < MAX(cut->per_mille, 100);
    if (!named || file_find(to, f->name))
        return;
    struct file *copy = file_add(to, f->name);
    copy->durable = true;
    bytes_copy(&copy->platter, &f->platter);
    uint64_t n = 0;
    for (const struct pending *p = f->pending; p && n < cut->prefix; p = p->next, n++) {
        if (p->len)
            cut_write(cut, &copy->platter, p);
        else if (below(&cut->rng, 1000) < cut->per_mille)
            bytes_apply(&copy->platter, p);
    }
    bytes_copy(&copy->cache, &copy->platter);
}

struct disk *disk_after_power_cut(struct disk *d, uint64_t seed)
{
    static const uint64_t shares[] = {0, 100, 500, 900, 1000, 1000};
    struct cut cut = {.rng = seed};
    cut.per_mille = shares[below(&cut.rng, ARRAY_SIZE(shares))];
    struct disk *to = disk_new(hash_draw(&cut.rng));
    pthread_mutex_lock(&d->lock);
    for (const struct file *f = d->files; f; f = f->next) {
        cut.prefix = below(&cut.rng, 2) ? UINT64_MAX : below(&cut.rng, 64);
        cut_file(&cut, to, f);
    }
    pthread_mutex_unlock(&d->lock);
    return to;
}

struct disk *disk_after_kill(struct disk *d, uint64_t seed)
{
    struct disk *to = disk_new(seed);
    pthread_mutex_lock(&d->lock);
    for (const struct file *f = d->files; f; f = f->next) {
        if (!f->linked && !f->durable)
            continue;
        struct file *copy = file_add(to, f->name);
        copy->linked = f->linked;
        copy->durable = f->durable;
        bytes_copy(&copy->cache, &f->cache);
        bytes_copy(&copy->platter, &f->platter);
        for (const struct pending *p = f->pending; p; p = p->next)
            pending_add(copy, p->offset, p->data, p->len);
    }
    to->failed_sync = d->failed_sync;
    to->capacity = d->capacity;
    pthread_mutex_unlock(&d->lock);
    return to;
}

bool disk_damage(struct disk *d, const char *name, uint64_t offset, size_t bytes)
{
    pthread_mutex_lock(&d->lock);
    struct file *f = file_find(d, name);
    bool there = f && offset + bytes <= f->cache.len && offset + bytes <= f->platter.len;
    for (size_t i = 0; i < bytes && there; i++) {
        unsigned char flip = (unsigned char)(1 + below(&d->rng, 255));
        f->cache.data[offset + i] ^= flip;
        f->platter.data[offset + i] = f->cache.data[offset + i];
    }
    pthread_mutex_unlock(&d->lock);
    return there;
}
