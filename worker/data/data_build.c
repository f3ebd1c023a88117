/* SPDX-License-Identifier: Apache-2.0 */
/* data_build.c - see data_build.h. */
#include "worker/data/data_build.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/vec.h"
#include "worker/data/pieces.h"
#include "worker/data/shard.h"

#define STATE_FORMAT "titan-build"
#define STATE_BYTES_MAX (64 << 20)

/* --- inputs ------------------------------------------------------------------------------------------------------- */

struct inputs {
    struct data_files files;
    bool *lines;
};

static void inputs_clear(struct inputs *in)
{
    data_files_clear(&in->files);
    free(in->lines);
    *in = (struct inputs){0};
}

static bool is_lines(const struct build_options *o, const char *path)
{
    if (o->files != BUILD_AUTO)
        return o->files != BUILD_TEXT;
    return data_file_is(path, ".jsonl") || data_file_is(path, ".ndjson") || data_file_is(path, ".json");
}

bool data_build_reads_lines(const char *path)
{
    return is_lines(&(struct build_options){.files = BUILD_AUTO}, path);
}

static bool is_named_lines(const struct data_file *file, const void *with)
{
    (void)with;
    return data_build_reads_lines(file->path);
}

static bool has_split(const struct data_file *file, const void *split)
{
    const char *slash = strrchr(file->path, '/');
    return strstr(slash ? slash + 1 : file->path, split);
}

/* Lists the files of all inputs. It leaves out files that are not of the input's kind or split. */
static titan_status inputs_list(const struct build_options *o, struct inputs *in, struct titan_error *err)
{
    struct data_files *const f = &in->files;
    char split[64];
    (void)snprintf(split, sizeof(split), "c4-%s", o->c4_split ? o->c4_split : "");
    for (int i = 0; i < o->n_inputs; i++) {
        const size_t from = f->n;
        bool any_lines = o->files >= BUILD_JSONL, any_split = false;
        TRY(data_files_add(f, o->inputs[i], err));
        const bool named = f->n == from + 1 && !f->file[from].path[f->file[from].name];
        for (size_t k = from; k < f->n; k++) {
            const char *const path = f->file[k].path;
            if (data_file_is(path, ".parquet")) {
                (void)titan_fail(err, TITAN_EUNSUPPORTED, "'%s' is Parquet, which is not read", path);
                titan_error_hint(err, "make JSON lines of it: python3 -c \"import json,pyarrow.parquet as p;"
                                      "[print(json.dumps(r)) for r in p.read_table('F',columns=['text']).to_pylist()]"
                                      "\" >F.jsonl");
                return TITAN_EUNSUPPORTED;
            }
            any_lines = any_lines || (o->files == BUILD_AUTO && data_build_reads_lines(path));
            any_split = any_split || (o->c4_split && has_split(&f->file[k], split));
        }
        if (any_lines && !named)
            data_files_filter(f, from, OMITTED_KIND, is_named_lines, NULL);
        if (any_split)
            data_files_filter(f, from, strcmp(o->c4_split, "train") == 0 ? OMITTED_HELD_OUT : OMITTED_TRAINING,
                              has_split, split);
        data_files_select(f, from, o->inputs[i], any_split ? SPLIT_ALL : o->split);
    }
    if (f->n == 0 && o->files >= BUILD_JSONL && f->left_out.by[OMITTED_HELD_OUT].n == 0)
        return titan_fail(err, TITAN_EINVAL,
                          "there are no files of JSON lines (.jsonl, .ndjson, .json, also .gz or .zst) in '%s'%s",
                          o->inputs[0], o->n_inputs > 1 ? " and the others" : "");
    if (f->n == 0)
        return data_files_none(f, o->inputs[0], err);
    in->lines = calloc(f->n, sizeof(*in->lines));
    if (!in->lines)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a list of %zu files", f->n);
    for (size_t i = 0; i < f->n; i++)
        in->lines[i] = is_lines(o, f->file[i].path);
    return TITAN_OK;
}

static int32_t eos_of(const struct build_options *o)
{
    return o->eos ? *o->eos : tokenizer_eos(o->tokenizer);
}

static const char *field_of(const struct build_options *o)
{
    return o->field ? o->field : "text";
}

static uint64_t inputs_hash(const struct build_options *o, const struct inputs *in)
{
    const char *field = field_of(o);
    uint64_t hash = hash_word(hash_word(HASH_INIT, SHARD_VERSION), tokenizer_hash(o->tokenizer));
    hash = hash_word(hash_word(hash, (uint64_t)o->shard_tokens), o->bos);
    if (o->encoding != TEXT_UTF8 || o->eos)
        hash = hash_word(hash_word(hash, o->encoding), (uint64_t)eos_of(o));
    hash = hash_bytes(hash, field, strlen(field) + 1);
    const char *const chat[] = {o->chat.template, o->chat.prompt, o->chat.completion};
    for (size_t i = 0; i < ARRAY_SIZE(chat) && o->files == BUILD_SFT; i++)
        hash = hash_text(hash_word(hash, i), chat[i] ? chat[i] : "");
    for (size_t i = 0; i < in->files.n; i++) {
        const struct data_file *file = &in->files.file[i];
        hash = hash_bytes(hash, file->path, strlen(file->path) + 1);
        hash = hash_word(hash_word(hash_word(hash, file->bytes), (uint64_t)file->changed_ns), in->lines[i]);
    }
    return hash;
}

titan_status data_build_inputs(const struct build_options *options, uint64_t *ret_hash, uint64_t *ret_bytes,
                               struct titan_error *err)
{
    _cleanup_(inputs_clear) struct inputs in = {0};
    TRY(inputs_list(options, &in, err));
    *ret_hash = inputs_hash(options, &in);
    *ret_bytes = 0;
    for (size_t i = 0; i < in.files.n; i++) /* packed files have about a quarter of their text's size */
        *ret_bytes += in.files.file[i].bytes * (*data_file_packing(in.files.file[i].path) ? 4 : 1);
    return TITAN_OK;
}

/* --- how far it is ------------------------------------------------------------------------------------------------ */

/* The point from which a build resumes, stored in titan-build.json. The whole shards hold all input up to `place`. */
struct state {
    uint64_t inputs_hash;
    struct input_place place;
    struct shard_set set;
    uint64_t bad_records, replaced;
    char notes[BUILD_NOTES][320];
    int n_notes;
};

static titan_status state_write(const char *dir, const struct state *s, struct titan_error *err)
{
    titan_assert(s->n_notes >= 0 && s->n_notes <= BUILD_NOTES);
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json_writer w = {.out = &text};
    char path[PATH_MAX], hash[20];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, SHARD_BUILD_NAME);
    (void)snprintf(hash, sizeof(hash), "%016" PRIx64, s->inputs_hash);
    json_begin_object(&w, NULL);
    json_put_string(&w, "format", STATE_FORMAT);
    json_put_int(&w, "version", SHARD_VERSION);
    json_put_string(&w, "inputs", hash);
    json_put_uint(&w, "file", s->place.file);
    json_put_uint(&w, "line", s->place.record);
    json_put_uint(&w, "text_bytes", s->set.text_bytes);
    json_put_uint(&w, "bad_records", s->bad_records);
    json_put_uint(&w, "replaced", s->replaced);
    json_put_int(&w, "id_max", s->set.id_max);
    json_begin_array(&w, "notes");
    for (int i = 0; i < s->n_notes; i++)
        json_put_string(&w, NULL, s->notes[i]);
    json_end_array(&w);
    json_begin_array(&w, "shards");
    for (size_t i = 0; i < s->set.n; i++) {
        const struct shard_info *info = &s->set.shards[i];
        json_begin_array(&w, NULL);
        json_put_uint(&w, NULL, info->tokens);
        json_put_uint(&w, NULL, info->documents);
        json_put_uint(&w, NULL, info->tokens_crc);
        json_put_uint(&w, NULL, info->index_crc);
        json_end_array(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
    if (buf_failed(&text))
        return titan_fail(err, TITAN_ENOMEM, "no memory to note how far the build is");
    return file_replace(path, text.data, text.len, err);
}

/* *ret_any false: the folder has no stored state. A damaged state is read as a state of other inputs, with hash 0. */
static titan_status state_read(const char *dir, struct state *s, bool *ret_any, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = {.limit = STATE_BYTES_MAX};
    char path[PATH_MAX];
    struct json *o = NULL;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, SHARD_BUILD_NAME);
    const titan_status status = file_read(path, STATE_BYTES_MAX - 1, &text, err);
    *ret_any = status == TITAN_OK;
    if (status == TITAN_ENOTFOUND)
        return TITAN_OK;
    TRY(status);

    bool good = json_parse(text.data, text.len, &o, NULL) == TITAN_OK;
    const int64_t file = json_int(o, "file", -1), record = json_int(o, "line", -1),
                  bytes = json_int(o, "text_bytes", -1), bad = json_int(o, "bad_records", -1),
                  replaced = json_int(o, "replaced", 0), id_max = json_int(o, "id_max", -1);
    const struct json *notes = json_get(o, "notes"), *shards = json_get(o, "shards");
    good = good && strcmp(json_string(o, "format", ""), STATE_FORMAT) == 0 &&
           json_int(o, "version", 0) == SHARD_VERSION && file >= 0 && record >= 0 && bytes >= 0 && bad >= 0 &&
           replaced >= 0 && id_max >= 0 && id_max <= INT32_MAX && shards;
    *s = (struct state){.inputs_hash = strtoull(json_string(o, "inputs", ""), NULL, 16),
                        .place = {(uint64_t)file, (uint64_t)record},
                        .bad_records = (uint64_t)bad,
                        .replaced = (uint64_t)replaced,
                        .set = {.text_bytes = (uint64_t)bytes, .id_max = (int32_t)id_max}};
    for (const struct json *e = notes && notes->type == JSON_ARRAY ? notes->first : NULL; e && s->n_notes < BUILD_NOTES;
         e = e->next)
        if (e->type == JSON_STRING)
            (void)snprintf(s->notes[s->n_notes++], sizeof(s->notes[0]), "%s", e->string);
    for (const struct json *e = good && shards->type == JSON_ARRAY ? shards->first : NULL; e && good; e = e->next) {
        int64_t v[4] = {-1, -1, -1, -1};
        int n = 0;
        for (const struct json *x = e->type == JSON_ARRAY ? e->first : NULL; x && n < 4; x = x->next)
            v[n++] = x->type == JSON_INT ? x->integer : -1;
        const struct shard_info info = {(uint64_t)v[0], (uint64_t)v[1], (uint32_t)v[2], (uint32_t)v[3]};
        good = v[0] >= 0 && v[1] >= 0 && v[2] >= 0 && v[3] >= 0 && VEC_PUSH(s->set.shards, s->set.n, s->set.cap, info);
        s->set.tokens += info.tokens;
        s->set.documents += info.documents;
    }
    if (!good) {
        shard_set_clear(&s->set);
        *s = (struct state){0};
    }
    json_free(o);
    return TITAN_OK;
}

/* --- pieces between the threads ----------------------------------------------------------------------------------- */

enum stage { STAGE_FREE, STAGE_CUT, STAGE_TAKEN, STAGE_ENCODED };

struct slot {
    enum stage stage;
    struct piece piece;
};

/* Piece number i is in slot i % n_slots from its cut until it is written. The reader fills slots, encoders take them in
 * order, and the writer empties them. */
struct pipeline {
    const struct build_options *opt;
    struct piece_reader *reader;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct slot *slots;
    uint64_t n_slots, cut, taken, written; /* cut, taken, written: numbers of pieces cut, taken and written */
    bool all_cut, stopped;
    struct titan_error fault; /* fault of the first thread that failed */
    uint32_t width;
    int32_t bos, eos;
    struct chat *chat; /* NULL: records are texts */
    pthread_t *threads;
    int n_threads;
};

static void pipeline_fail(struct pipeline *p, const struct titan_error *err)
{
    titan_assert(err->status != TITAN_OK);
    (void)pthread_mutex_lock(&p->lock);
    if (p->fault.status == TITAN_OK)
        p->fault = *err;
    p->stopped = true;
    (void)pthread_cond_broadcast(&p->changed);
    (void)pthread_mutex_unlock(&p->lock);
}

/* Waits until piece `i` is in the stage, and returns its slot. NULL: the piece will never be in this stage. */
static struct slot *wait_for(struct pipeline *p, uint64_t i, enum stage stage)
{
    titan_assert(p->n_slots > 0);
    struct slot *slot = &p->slots[i % p->n_slots];
    (void)pthread_mutex_lock(&p->lock);
    while (!p->stopped && slot->stage != stage && !(p->all_cut && i >= p->cut))
        (void)pthread_cond_wait(&p->changed, &p->lock);
    const bool there = !p->stopped && slot->stage == stage && (stage == STAGE_FREE || i < p->cut);
    (void)pthread_mutex_unlock(&p->lock);
    return there ? slot : NULL;
}

static void move_on(struct pipeline *p, struct slot *slot, enum stage stage, uint64_t *count)
{
    (void)pthread_mutex_lock(&p->lock);
    titan_assert(slot->stage != stage);
    slot->stage = stage;
    if (count)
        ++*count;
    (void)pthread_cond_broadcast(&p->changed);
    (void)pthread_mutex_unlock(&p->lock);
}

static void *cut_main(void *arg)
{
    struct pipeline *p = arg;
    struct titan_error err = {0};
    struct slot *slot;
    for (uint64_t i = 0; (slot = wait_for(p, i, STAGE_FREE)); i++) {
        bool any = false;
        if (data_piece_reader_next(p->reader, &slot->piece, &any, &err) != TITAN_OK) {
            pipeline_fail(p, &err);
            break;
        }
        if (!any)
            break;
        move_on(p, slot, STAGE_CUT, &p->cut);
    }
    (void)pthread_mutex_lock(&p->lock);
    p->all_cut = true;
    (void)pthread_cond_broadcast(&p->changed);
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Takes the next piece that no encoder has taken. NULL: all pieces are taken. */
static struct slot *take(struct pipeline *p)
{
    struct slot *slot = NULL;
    (void)pthread_mutex_lock(&p->lock);
    while (!p->stopped && p->taken == p->cut && !p->all_cut)
        (void)pthread_cond_wait(&p->changed, &p->lock);
    if (!p->stopped && p->taken < p->cut) {
        slot = &p->slots[p->taken++ % p->n_slots];
        titan_assert(slot->stage == STAGE_CUT);
        slot->stage = STAGE_TAKEN;
    }
    (void)pthread_mutex_unlock(&p->lock);
    return slot;
}

static void *encode_main(void *arg)
{
    struct pipeline *p = arg;
    struct titan_error err = {0};
    struct piece_encoder e = {.field = field_of(p->opt),
                              .any_bytes = tokenizer_vocabulary(p->opt->tokenizer) == 256,
                              .chat = p->chat,
                              .bos = p->bos,
                              .eos = p->eos,
                              .width = p->width};
    struct slot *slot;
    titan_status status = tokenizer_encoder_open(p->opt->tokenizer, &e.encoder, &err);
    while (status == TITAN_OK && (slot = take(p))) {
        status = data_piece_encode(&e, &slot->piece, &err);
        if (status == TITAN_OK)
            move_on(p, slot, STAGE_ENCODED, NULL);
    }
    if (status != TITAN_OK)
        pipeline_fail(p, &err);
    tokenizer_encoder_close(e.encoder);
    free(e.ids.ids);
    chat_tokens_free(&e.turn);
    return NULL;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

struct build {
    const struct build_options *opt;
    struct inputs in;
    struct state now;    /* state after the last document that was written */
    struct state stored; /* state in titan-build.json */
    struct shard_writer *writer;
    bool made;        /* this build made the folder */
    bool counts;      /* only counts, writes nothing */
    uint64_t started; /* text bytes of the unfinished document */
    struct build_report *report;
};

static titan_status put_note(struct build *b, const struct piece *p, uint64_t line, const char *what,
                             struct titan_error *err)
{
    titan_assert(p->file < b->in.files.n);
    struct state *now = &b->now;
    char note[320], place[32] = "";
    if (line)
        (void)snprintf(place, sizeof(place), ":%" PRIu64, line);
    (void)snprintf(note, sizeof(note), "%.200s%s: %s", b->in.files.file[p->file].path, place, what);
    if (b->opt->strict)
        return titan_fail(err, TITAN_EINVAL, "%s", note);
    if (now->n_notes < BUILD_NOTES)
        memcpy(now->notes[now->n_notes++], note, sizeof(note));
    return TITAN_OK;
}

static titan_status write_bad(struct build *b, const struct piece *p, const struct bad_record *bad,
                              struct titan_error *err)
{
    titan_assert(bad->why);
    TRY(put_note(b, p, bad->line, bad->why, err));
    b->now.bad_records++;
    return TITAN_OK;
}

static titan_status finish_shard(struct build *b, struct titan_error *err)
{
    titan_assert(b->writer);
    struct state *now = &b->now;
    struct shard_info info;
    uint32_t id_max;
    TRY(shard_writer_finish(TAKE(b->writer), &info, &id_max, err));
    if (!VEC_PUSH(now->set.shards, now->set.n, now->set.cap, info))
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu shards", now->set.n + 1);
    now->set.tokens += info.tokens;
    now->set.documents += info.documents;
    now->set.id_max = MAX(now->set.id_max, (int32_t)id_max);
    TRY(failpoint("data.shard", err));
    TRY(state_write(b->opt->out, now, err));
    return failpoint("data.state", err);
}

/* Writes ids [from, end) of one piece. */
static titan_status write_ids(struct build *b, const struct piece *p, uint64_t from, uint64_t end,
                              struct titan_error *err)
{
    titan_assert(from <= end && end <= p->n_ids);
    const uint32_t width = b->now.set.width;
    if (b->counts) {
        b->now.set.tokens += end - from;
        return TITAN_OK;
    }
    if (!b->writer) {
        char path[PATH_MAX];
        shard_path(b->opt->out, b->now.set.n, path);
        TRY(shard_writer_open(path, width, b->now.set.tokenizer_hash, b->now.set.eos, &b->writer, err));
    }
    return shard_writer_add(b->writer, p->ids + from * width, p->trained ? p->trained + from : NULL, end - from,
                            (uint32_t)p->id_max, err);
}

static titan_status write_piece(struct build *b, const struct piece *p, struct titan_error *err)
{
    uint64_t from = 0, bytes = 0;
    size_t bad = 0;
    /* a build makes only one note about replaced bytes, at the first of these bytes */
    if (p->replaced > 0 && (b->now.replaced == 0 || b->opt->strict))
        TRY(put_note(b, p, p->replaced_line, "not UTF-8: U+FFFD is in its place (--encoding latin-1 reads it as that)",
                     err));
    b->now.replaced += p->replaced;
    for (size_t d = 0; d < p->n_documents; d++) {
        const struct piece_document *document = &p->documents[d];
        for (; bad < p->n_bads && p->bads[bad].record < document->after.record; bad++)
            TRY(write_bad(b, p, &p->bads[bad], err));
        TRY(write_ids(b, p, from, document->end, err));
        if (b->counts)
            b->now.set.documents++;
        else
            TRY(shard_writer_end_document(b->writer, err));
        b->now.set.text_bytes += b->started + document->text_bytes - bytes;
        b->started = 0;
        b->now.place = document->after;
        from = document->end;
        bytes = document->text_bytes;
        if (b->writer && shard_writer_tokens(b->writer) >= (uint64_t)b->opt->shard_tokens)
            TRY(finish_shard(b, err));
    }
    for (; bad < p->n_bads; bad++)
        TRY(write_bad(b, p, &p->bads[bad], err));
    b->started += p->text_bytes - bytes;
    titan_assert(bad == p->n_bads && from <= p->n_ids);
    return p->n_ids > from ? write_ids(b, p, from, p->n_ids, err) : TITAN_OK;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

/* Removes the unfinished files of a killed build: shard-N.bin.part, and notes with a temporary name. With `all` it also
 * removes the shards and notes. Other files stay. */
static titan_status clean_folder(const char *dir, bool all, struct titan_error *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return titan_fail_errno(err, "folder '%s'", dir);
    const struct dirent *e;
    titan_status status = TITAN_OK;
    while (status == TITAN_OK && (e = readdir(d))) {
        const char *const name = e->d_name;
        const size_t n = strlen(name);
        const bool shard = strncmp(name, "shard-", 6) == 0,
                   ours = strcmp(name, SHARD_SET_NAME) == 0 || strcmp(name, SHARD_BUILD_NAME) == 0 || shard,
                   leftover = strncmp(name, SHARD_SET_NAME ".", sizeof(SHARD_SET_NAME)) == 0 ||
                              strncmp(name, SHARD_BUILD_NAME ".", sizeof(SHARD_BUILD_NAME)) == 0 ||
                              (shard && strcmp(name + n - 5, ".part") == 0);
        if ((leftover || (all && ours)) && unlinkat(dirfd(d), name, 0) < 0 && errno != ENOENT)
            status = titan_fail_errno(err, "cannot remove '%s/%s'", dir, name);
    }
    (void)closedir(d);
    return status;
}

/* Finds out what the folder has: nothing, an unfinished build, all data, or something else. */
static titan_status look_around(struct build *b, struct titan_error *err)
{
    const char *dir = b->opt->out;
    const uint64_t hash = inputs_hash(b->opt, &b->in);
    char path[PATH_MAX];
    bool any = false;
    TRY(clean_folder(dir, b->opt->fresh, err));
    TRY(state_read(dir, &b->stored, &any, err));
    const bool same = any && b->stored.inputs_hash == hash;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, SHARD_SET_NAME);
    if (access(path, F_OK) == 0) {
        b->report->there = same;
        if (same)
            return TITAN_OK;
        (void)titan_fail(err, TITAN_EEXIST, "'%s' holds data that was built of other inputs", dir);
        titan_error_hint(err, "name another folder; --force builds anew in this one");
        return TITAN_EEXIST;
    }
    if (any && !same) {
        (void)titan_fail(err, TITAN_ECONFLICT, "'%s' holds an unfinished build of other inputs", dir);
        titan_error_hint(err, "name another folder; --force begins anew in this one");
        return TITAN_ECONFLICT;
    }
    DIR *d = any || b->opt->fresh ? NULL : opendir(dir);
    const struct dirent *e = NULL;
    while (d && (e = readdir(d)) && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0))
        ;
    if (d)
        (void)closedir(d);
    if (e) {
        (void)titan_fail(err, TITAN_EEXIST, "folder '%s' is not empty", dir);
        titan_error_hint(err, "name another one; --force builds beside what is there");
        return TITAN_EEXIST;
    }
    b->report->resumed = any && b->stored.set.n > 0;
    b->stored.inputs_hash = hash;
    if (!any)
        return state_write(dir, &b->stored, err);
    for (size_t i = 0; i < b->stored.set.n; i++) { /* checks that the shards are as the earlier build has noted */
        struct mapping m = {0};
        struct shard_header h = {0};
        shard_path(dir, i, path);
        titan_status status = corpus_map(path, &m, err);
        if (status == TITAN_OK)
            status = shard_header_read(path, m.at, m.bytes, &h, err);
        corpus_unmap(&m);
        if (status != TITAN_OK || h.tokens_crc != b->stored.set.shards[i].tokens_crc) {
            (void)titan_fail(err, TITAN_ECORRUPT, "'%s' is missing or damaged, and the build cannot go on", path);
            titan_error_hint(err, "--force builds anew in this folder");
            return TITAN_ECORRUPT;
        }
    }
    return TITAN_OK;
}

/* Other threads cut and encode the texts, and this thread writes them. */
static titan_status run_pipeline(struct build *b, struct titan_error *err)
{
    const struct piece_reader_options reader = {
        .files = &b->in.files, .lines = b->in.lines, .encoding = b->opt->encoding, .from = b->now.place};
    const int encoders = MAX(b->opt->threads, 1);
    struct pipeline p = {.opt = b->opt,
                         .n_slots = 2 * (uint64_t)encoders + 2,
                         .width = b->now.set.width,
                         .bos = b->opt->bos ? tokenizer_bos(b->opt->tokenizer) : TOKEN_NONE,
                         .eos = b->now.set.eos};
    struct chat_options chat = b->opt->chat;
    chat.eos = p.eos;
    TRY(data_piece_reader_open(&reader, &p.reader, err));
    titan_status status = b->opt->files == BUILD_SFT ? chat_open(&chat, b->opt->tokenizer, &p.chat, err) : TITAN_OK;
    p.slots = calloc(p.n_slots, sizeof(*p.slots));
    p.threads = calloc((size_t)encoders + 1, sizeof(*p.threads));
    if (status == TITAN_OK && (!p.slots || !p.threads))
        status = titan_fail(err, TITAN_ENOMEM, "no memory for %d threads", encoders);
    (void)pthread_mutex_init(&p.lock, NULL);
    (void)pthread_cond_init(&p.changed, NULL);
    while (status == TITAN_OK && p.n_threads <= encoders) {
        const int code = pthread_create(&p.threads[p.n_threads], NULL, p.n_threads == 0 ? cut_main : encode_main, &p);
        if (code == 0) {
            p.n_threads++;
            continue;
        }
        errno = code;
        status = titan_fail_errno(err, "cannot start %d threads", encoders + 1);
    }

    struct slot *slot;
    while (status == TITAN_OK && (slot = wait_for(&p, p.written, STAGE_ENCODED))) {
        const struct piece *const piece = &slot->piece;
        status = write_piece(b, piece, err);
        if (status != TITAN_OK)
            break;
        const struct build_progress now = {.bytes = piece->place,
                                           .bytes_all = b->in.files.bytes,
                                           .documents = b->now.set.documents,
                                           .tokens =
                                               b->now.set.tokens + (b->writer ? shard_writer_tokens(b->writer) : 0)};
        if (b->opt->progress)
            b->opt->progress(b->opt->progress_arg, &now);
        data_piece_clear(&slot->piece);
        move_on(&p, slot, STAGE_FREE, &p.written);
    }
    if (status == TITAN_OK && p.fault.status != TITAN_OK) {
        status = p.fault.status;
        *err = p.fault;
    }

    (void)pthread_mutex_lock(&p.lock);
    p.stopped = true;
    (void)pthread_cond_broadcast(&p.changed);
    (void)pthread_mutex_unlock(&p.lock);
    for (int i = 0; i < p.n_threads; i++)
        (void)pthread_join(p.threads[i], NULL);
    for (uint64_t i = 0; p.slots && i < p.n_slots; i++)
        data_piece_clear(&p.slots[i].piece);
    free(p.slots);
    free(p.threads);
    data_left_out_add(&b->report->left_out, data_piece_reader_left_out(p.reader));
    data_piece_reader_close(p.reader);
    chat_close(p.chat);
    return status;
}

static titan_status refuse_empty(const struct build *b, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf why = BUF_INIT;
    if (b->now.bad_records > 0)
        buf_printf(&why, ": %" PRIu64 " bad records, the first: %s", b->now.bad_records, b->now.notes[0]);
    if (data_left_out_count(&b->report->left_out) > 0) {
        buf_puts(&why, b->now.bad_records > 0 ? "; left out: " : ": left out are ");
        data_left_out_print(&b->report->left_out, &why);
    }
    return titan_fail(err, TITAN_EINVAL, "there is no text in '%.160s'%s%s", b->opt->inputs[0],
                      b->opt->n_inputs > 1 ? " and the others" : "", why.len ? why.data : "");
}

static void fill_report(const struct build *b, const struct state *s)
{
    struct build_report *r = b->report;
    r->files = b->in.files.n;
    r->bytes = b->in.files.bytes;
    for (size_t i = 0; i < b->in.files.n; i++)
        r->line_files += b->in.lines[i];
    r->documents = s->set.documents;
    r->tokens = s->set.tokens;
    r->text_bytes = s->set.text_bytes;
    r->bad_records = s->bad_records;
    r->replaced = s->replaced;
    r->shards = s->set.n;
    r->n_notes = s->n_notes;
    memcpy(r->notes, s->notes, sizeof(r->notes));
}

static titan_status build_all(struct build *b, struct titan_error *err)
{
    const struct tokenizer *const t = b->opt->tokenizer;
    const char *const out = b->opt->out;
    _cleanup_fd_ int folder = -1; /* locked */
    char path[PATH_MAX];
    struct stat st;
    if (eos_of(b->opt) == TOKEN_NONE) {
        (void)titan_fail(err, TITAN_EINVAL, "tokenizer '%s' has no end of text (eos_token), which separates documents",
                         b->opt->tokenizer_name);
        titan_error_hint(err, "name one of its tokens: titanctl data build --eos TOKEN");
        return TITAN_EINVAL;
    }
    TRY(inputs_list(b->opt, &b->in, err));
    b->report->left_out = b->in.files.left_out;
    if (!b->counts) {
        b->made = lstat(out, &st) < 0;
        if (snprintf(path, sizeof(path), "%s/shard-00000.bin.part", out) >= PATH_MAX)
            return titan_fail(err, TITAN_EINVAL, "'%.64s...': the path is too long", out);
        TRY(dir_make(out, err));
        folder = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (folder < 0)
            return titan_fail_errno(err, "folder '%s'", out);
        int code;
        do
            code = flock(folder, LOCK_EX | (b->opt->wait ? 0 : LOCK_NB));
        while (code < 0 && errno == EINTR);
        if (code < 0 && errno == EWOULDBLOCK)
            return titan_fail(err, TITAN_ECONFLICT, "another data build writes to '%s'", out);
        if (code < 0)
            return titan_fail_errno(err, "cannot lock '%s'", out);
        TRY(look_around(b, err));
        if (b->report->there) {
            fill_report(b, &b->stored);
            return TITAN_OK;
        }
    }

    struct shard_set *const set = &b->now.set;
    b->now = b->stored;
    b->stored.set = (struct shard_set){0}; /* moved to b->now */
    (void)snprintf(set->tokenizer, sizeof(set->tokenizer), "%s", b->opt->tokenizer_name);
    (void)snprintf(set->pattern, sizeof(set->pattern), "%s", tokenizer_pattern(t));
    set->tokenizer_hash = tokenizer_hash(t);
    set->vocab_size = tokenizer_vocabulary(t);
    set->eos = eos_of(b->opt);
    set->width = set->vocab_size <= 1 << 16 ? 2 : 4;
    titan_status status = run_pipeline(b, err);
    if (status == TITAN_OK && b->writer && shard_writer_tokens(b->writer) > 0)
        status = finish_shard(b, err);
    shard_writer_abandon(TAKE(b->writer));
    if (status == TITAN_OK && set->tokens == 0)
        status = refuse_empty(b, err);
    if (!b->counts) {
        set->bad_records = b->now.bad_records;
        if (status == TITAN_OK)
            status = state_write(out, &b->now, err); /* notes bad records after the last document */
        if (status == TITAN_OK)
            status = shard_set_write(out, set, err);
        /* A build that failed before its first whole shard has no state to resume from. So its files are removed. */
        if (status != TITAN_OK && set->n == 0 && !b->opt->wait && clean_folder(out, true, NULL) == TITAN_OK && b->made)
            (void)rmdir(out);
    }
    TRY(status);
    fill_report(b, &b->now);
    return TITAN_OK;
}

static titan_status run_build(struct build *b, struct titan_error *err)
{
    struct titan_error local = {0};
    titan_assert(b->opt->n_inputs > 0 && b->opt->tokenizer);
    *b->report = (struct build_report){0};
    const titan_status status = build_all(b, err ? err : &local);
    shard_writer_abandon(b->writer);
    shard_set_clear(&b->now.set);
    shard_set_clear(&b->stored.set);
    inputs_clear(&b->in);
    return status;
}

titan_status data_build(const struct build_options *options, struct build_report *ret, struct titan_error *err)
{
    titan_assert(options->shard_tokens > 0);
    return run_build(&(struct build){.opt = options, .report = ret}, err);
}

titan_status data_count(const struct build_options *options, struct build_report *ret, struct titan_error *err)
{
    return run_build(&(struct build){.opt = options, .report = ret, .counts = true}, err);
}
