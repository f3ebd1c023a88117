/* SPDX-License-Identifier: Apache-2.0 */
/* chat.c - see chat.h. */
#include "worker/data/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/vec.h"

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLES };

/* A turn: open, the role's name, close, gap, content, end, tail. The conversation: begin, then turns. */
struct template
{
    const char *name, *begin, *open, *close, *gap, *end, *tail; /* begin, open, close, end: a token or "" */
    const char *roles[ROLES];                                   /* NULL: the template has none */
    bool trims;                                                 /* removes white space at both ends of contents */
};

static const struct template templates[] = {
    {"chatml", "", "<|im_start|>", "", "\n", "<|im_end|>", "\n", {"system", "user", "assistant"}, false},
    {"llama3",
     "<|begin_of_text|>",
     "<|start_header_id|>",
     "<|end_header_id|>",
     "\n\n",
     "<|eot_id|>",
     "",
     {"system", "user", "assistant"},
     true},
    {"gemma", "<bos>", "<start_of_turn>", "", "\n", "<end_of_turn>", "\n", {NULL, "user", "model"}, true},
};

struct chat {
    const struct template *template; /* NULL: none */
    int32_t begin, open, close, end; /* TOKEN_NONE: none */
    int32_t eos;
    char prompt[256], completion[256];
};

static titan_status find_token(const struct tokenizer *t, const char *template, const char *text, int32_t *ret,
                               struct titan_error *err)
{
    *ret = *text ? tokenizer_find(t, text, strlen(text)) : TOKEN_NONE;
    return !*text || *ret != TOKEN_NONE
               ? TITAN_OK
               : titan_fail(err, TITAN_EINVAL, "the chat template %s needs the token '%s', which the tokenizer lacks",
                            template, text);
}

titan_status chat_open(const struct chat_options *options, const struct tokenizer *tokenizer, struct chat **ret,
                       struct titan_error *err)
{
    const char *name = options->template ? options->template : "none";
    const struct template *found = NULL;
    struct chat c = {
        .begin = TOKEN_NONE, .open = TOKEN_NONE, .close = TOKEN_NONE, .end = TOKEN_NONE, .eos = options->eos};
    for (size_t i = 0; i < ARRAY_SIZE(templates); i++)
        if (strcmp(templates[i].name, name) == 0)
            found = &templates[i];
    if (!found && strcmp(name, "none") != 0)
        return titan_fail(err, TITAN_EINVAL, "the chat template is none, " CHAT_TEMPLATES ", not '%.64s'", name);
    c.template = found;
    if (found) {
        TRY(find_token(tokenizer, name, found->begin, &c.begin, err));
        TRY(find_token(tokenizer, name, found->open, &c.open, err));
        TRY(find_token(tokenizer, name, found->close, &c.close, err));
        TRY(find_token(tokenizer, name, found->end, &c.end, err));
    }
    if (options->bos && c.begin == TOKEN_NONE)
        c.begin = tokenizer_bos(tokenizer);
    (void)snprintf(c.prompt, sizeof(c.prompt), "%s", options->prompt ? options->prompt : "prompt");
    (void)snprintf(c.completion, sizeof(c.completion), "%s", options->completion ? options->completion : "completion");
    if (!(*ret = malloc(sizeof(c))))
        return titan_fail(err, TITAN_ENOMEM, "no memory for a chat template");
    **ret = c;
    return TITAN_OK;
}

void chat_close(struct chat *c)
{
    free(c);
}

void chat_tokens_free(struct chat_tokens *t)
{
    free(t->ids.ids);
    free(t->trained);
    *t = (struct chat_tokens){0};
}

/* --- a record ----------------------------------------------------------------------------------------------------- */

struct writing {
    const struct chat *chat;
    struct tokenizer_encoder *encoder;
    struct chat_tokens *out;
    struct buf text; /* text that is not tokenised yet; the run does not train on it */
    const char *why;
    bool answered;
};

static titan_status mark(struct chat_tokens *out, bool trained, struct titan_error *err)
{
    if (out->ids.n == out->n)
        return TITAN_OK;
    if (!VEC_RESERVE(out->trained, out->cap, out->ids.n))
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu tokens", out->ids.n);
    memset(out->trained + out->n, trained, out->ids.n - out->n);
    out->n = out->ids.n;
    return TITAN_OK;
}

static titan_status put_text(struct writing *w, const char *text, size_t n, bool trained, struct titan_error *err)
{
    w->out->text_bytes += n;
    if (n > 0)
        TRY(tokenizer_encode(w->encoder, text, n, &w->out->ids, err));
    return mark(w->out, trained, err);
}

static titan_status put_token(struct writing *w, int32_t id, bool trained, struct titan_error *err)
{
    if (buf_failed(&w->text))
        return titan_fail(err, TITAN_ENOMEM, "no memory for a conversation");
    if (w->text.len > 0)
        TRY(put_text(w, w->text.data, w->text.len, false, err));
    w->text.len = 0;
    if (id == TOKEN_NONE)
        return TITAN_OK;
    if (!VEC_PUSH(w->out->ids.ids, w->out->ids.n, w->out->ids.cap, id))
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu tokens", w->out->ids.n);
    return mark(w->out, trained, err);
}

static titan_status put_turn(struct writing *w, enum role role, const char *content, struct titan_error *err)
{
    static const char spaces[] = " \t\n\v\f\r";
    const struct chat *c = w->chat;
    const struct template *t = c->template;
    const bool answer = role == ROLE_ASSISTANT;
    size_t n;
    titan_assert(t && t->roles[role]);
    content += t->trims ? strspn(content, spaces) : 0;
    for (n = strlen(content); t->trims && n > 0 && strchr(spaces, content[n - 1]);)
        n--;
    TRY(put_token(w, c->open, false, err));
    buf_puts(&w->text, t->roles[role]);
    if (c->close != TOKEN_NONE)
        TRY(put_token(w, c->close, false, err));
    buf_puts(&w->text, t->gap);
    if (!answer)
        (void)!buf_append(&w->text, content, n); /* put_token() reports a failure */
    TRY(put_token(w, TOKEN_NONE, false, err));
    if (answer)
        TRY(put_text(w, content, n, true, err));
    w->answered = w->answered || answer;
    TRY(put_token(w, c->end, answer, err));
    buf_puts(&w->text, t->tail);
    return TITAN_OK;
}

static titan_status put_record(struct writing *w, const struct json *record, struct titan_error *err)
{
    static const char *const names[ROLES] = {"system", "user", "assistant"};
    const struct chat *c = w->chat;
    const struct json *messages = json_get(record, "messages");
    const char *prompt = json_string(record, c->prompt, NULL), *completion = json_string(record, c->completion, NULL);
    TRY(put_token(w, c->begin, false, err));
    if (messages && messages->type == JSON_ARRAY) {
        if (!c->template)
            w->why = "messages need a chat template (" CHAT_TEMPLATES ")";
        for (const struct json *m = messages->first; m && !w->why; m = m->next) {
            const char *content = json_string(m, "content", NULL), *name = json_string(m, "role", "");
            int role = 0;
            while (role < ROLES && strcmp(name, names[role]) != 0)
                role++;
            if (role == ROLES || !c->template->roles[role])
                w->why = "a message has a role that the template does not know";
            else if (!content)
                w->why = "the content of a message is no string";
            else
                TRY(put_turn(w, (enum role)role, content, err));
        }
    } else if (!prompt || !completion) {
        w->why =
            record->type == JSON_OBJECT ? "no array of messages, and no prompt with a completion" : "not a JSON object";
    } else if (c->template) {
        TRY(put_turn(w, ROLE_USER, prompt, err));
        TRY(put_turn(w, ROLE_ASSISTANT, completion, err));
    } else {
        TRY(put_text(w, prompt, strlen(prompt), false, err));
        TRY(put_text(w, completion, strlen(completion), true, err));
        w->answered = true;
    }
    if (!w->why && !w->answered)
        w->why = "no answer to train on";
    TRY(put_token(w, TOKEN_NONE, false, err));
    const struct tokens *ids = &w->out->ids;
    const bool ended = ids->n > 0 && c->template && ids->ids[ids->n - 1] == c->eos;
    return ended ? TITAN_OK : put_token(w, c->eos, !c->template, err);
}

bool chat_encode(const struct chat *c, struct tokenizer_encoder *encoder, const char *record, size_t n,
                 struct chat_tokens *out, struct titan_error *err)
{
    struct writing w = {.chat = c, .encoder = encoder, .out = out};
    struct json *root = NULL;
    out->ids.n = out->n = 0;
    out->text_bytes = 0;
    titan_status status = TITAN_OK;
    if (json_parse(record, n, &root, NULL) != TITAN_OK)
        w.why = "not JSON, or with a NUL";
    else
        status = put_record(&w, root, err);
    json_free(root);
    buf_free(&w.text);
    out->why = status == TITAN_OK ? w.why : NULL;
    return status == TITAN_OK && !w.why;
}
