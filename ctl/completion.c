/* SPDX-License-Identifier: Apache-2.0 */
/* completion.c - completion of commands, options and their values. `titanctl completion bash` prints the shell's part,
 * which calls `titanctl __complete WORD...` at every key. */
#include "ctl/completion.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "ctl/client.h"
#include "ctl/output.h"

static const char *const shells[] = {"bash", "zsh", "fish", NULL};

/* --- candidates --------------------------------------------------------------------------------------------------- */

struct completion {
    struct args args; /* parsed from the words before `word`: the command, options with their values */
    const char *word; /* the part typed so far */
};

static void offer(const struct completion *c, const char *candidate)
{
    if (strncmp(candidate, c->word, strlen(c->word)) == 0)
        (void)puts(candidate);
}

static void offer_all(const struct completion *c, const char *const *candidates)
{
    for (; *candidates; candidates++)
        offer(c, *candidates);
}

static void offer_commands(const struct completion *c)
{
    for (size_t i = 0; titanctl.commands[i]; i++)
        offer(c, titanctl.commands[i]->name);
}

static void offer_options(const struct completion *c, const struct option_spec *options)
{
    for (; options && options->name; options++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "--%s", options->name);
        offer(c, name);
        (void)snprintf(name, sizeof(name), "-%c", options->letter);
        if (options->letter)
            offer(c, name);
    }
}

/* Offers jobs or nodes of the line's server. An unanswered call offers nothing and shows no error. */
static void offer_known(const struct completion *c, bool jobs)
{
    struct ctl ctl = {.channel = NULL};
    struct titan_error unsaid = {0};
    Titan__V1__ListJobsRequest some_jobs = TITAN__V1__LIST_JOBS_REQUEST__INIT;
    Titan__V1__ListNodesRequest all_nodes = TITAN__V1__LIST_NODES_REQUEST__INIT;
    _cleanup_message_ Titan__V1__ListJobsResponse *page = NULL;
    _cleanup_message_ Titan__V1__ListNodesResponse *nodes = NULL;
    some_jobs.page_size = 50;
    if (ctl_set_up(&ctl, &c->args, &unsaid) == TITAN_OK && jobs)
        (void)!ctl_call(&ctl, TITAN_METHOD("ListJobs"), &some_jobs.base, &titan__v1__list_jobs_response__descriptor,
                        &page, &unsaid);
    else if (unsaid.status == TITAN_OK)
        (void)!ctl_call(&ctl, TITAN_METHOD("ListNodes"), &all_nodes.base, &titan__v1__list_nodes_response__descriptor,
                        &nodes, &unsaid);
    for (size_t i = 0; page && i < page->n_jobs; i++) {
        char id[24];
        (void)snprintf(id, sizeof(id), "%llu", (unsigned long long)page->jobs[i]->id);
        offer(c, id);
    }
    for (size_t i = 0; nodes && i < nodes->n_nodes; i++)
        offer(c, nodes->nodes[i]->name);
    rpc_channel_close(ctl.channel);
}

static void offer_words(const struct completion *c, enum word word)
{
    static const char *const formats[] = {"table", "json", NULL};
    switch (word) {
    case WORD_NONE:
        return;
    case WORD_FILE:
        (void)puts(":files"); /* the shell completes files itself */
        return;
    case WORD_JOB:
    case WORD_NODE:
        offer_known(c, word == WORD_JOB);
        return;
    case WORD_FORMAT:
        offer_all(c, formats);
        return;
    case WORD_STATE:
        for (int state = TITAN__V1__JOB_STATE__PENDING; state <= TITAN__V1__JOB_STATE__CANCELLED; state++)
            offer(c, ctl_state_name((Titan__V1__JobState)state));
        return;
    case WORD_COMMAND:
        offer_commands(c);
        return;
    case WORD_SHELL:
        offer_all(c, shells);
        return;
    }
}

/* --- the line so far ---------------------------------------------------------------------------------------------- */

static const struct option_spec *find_in(const struct option_spec *options, const char *word)
{
    titan_assert(word[0] == '-' && word[1]);
    const bool is_long = strncmp(word, "--", 2) == 0;
    const size_t len = strcspn(word + 2, "=");
    for (; options && options->name; options++)
        if (is_long ? strlen(options->name) == len && strncmp(options->name, word + 2, len) == 0
                    : options->letter && options->letter == word[1])
            return options;
    return NULL;
}

/* Is the word a mark at which bash has split a value, '=' or ':'? Bash passes "--state" "=" "RUN" and "unix" ":"
 * "/run/x". */
static bool is_break(const char *word)
{
    return strcmp(word, "=") == 0 || strcmp(word, ":") == 0;
}

void completion_print(int n, char **words)
{
    titan_assert(n >= 0);
    struct completion c = {.word = n > 0 ? words[n - 1] : ""};
    const struct option_spec *open = NULL; /* an option whose value comes next */
    bool literal = false;                  /* after "--" */
    for (int i = 0; i < n - 1; i++) {
        char *word = words[i];
        if (is_break(word)) {
            if (word[0] == ':' && i + 1 < n - 1)
                i++; /* the rest of a split value */
        } else if (open) {
            if (c.args.n_given < OPTIONS_GIVEN_MAX)
                c.args.given[c.args.n_given++] = (struct given){open, word};
            open = NULL;
        } else if (word[0] == '-' && word[1] && !literal) {
            literal = strcmp(word, "--") == 0;
            const struct option_spec *spec = literal || !c.args.command ? NULL : find_in(c.args.command->options, word);
            if (!literal && !spec)
                spec = find_in(titanctl.options, word);
            const bool attached = word[1] == '-' ? strchr(word, '=') != NULL : word[2] != '\0';
            open = spec && spec->value && !attached ? spec : NULL;
        } else if (!c.args.command && !(c.args.command = command_find(&titanctl, word))) {
            return; /* no such command */
        }
    }
    if (n > 0 && is_break(c.word))
        c.word = "";
    const struct command *command = c.args.command;
    if (open) {
        offer_words(&c, open->word);
    } else if (c.word[0] == '-' && !literal) {
        offer_options(&c, command ? command->options : NULL);
        offer_options(&c, titanctl.options);
    } else if (command) {
        offer_words(&c, command->word);
    } else {
        offer_commands(&c);
    }
}

/* --- titanctl completion ------------------------------------------------------------------------------------------ */

void completion_bash(struct buf *out)
{
    buf_puts(out, "# bash completion for titanctl; written by `titanctl completion bash`.\n"
                  "# Load it with: source <(titanctl completion bash)\n"
                  "_titanctl() {\n"
                  "    local cur=${COMP_WORDS[COMP_CWORD]}\n"
                  "    mapfile -t COMPREPLY < <(titanctl __complete \"${COMP_WORDS[@]:1:COMP_CWORD}\" 2>/dev/null)\n"
                  "    if [ \"${COMPREPLY[0]}\" = :files ]; then\n"
                  "        compopt -o filenames 2>/dev/null\n"
                  "        mapfile -t COMPREPLY < <(compgen -f -- \"${cur#[=:]}\")\n"
                  "    fi\n"
                  "}\n"
                  "complete -F _titanctl titanctl\n");
}

void completion_zsh(struct buf *out)
{
    buf_puts(out, "#compdef titanctl\n"
                  "# zsh completion for titanctl; written by `titanctl completion zsh`.\n"
                  "# Load it with: source <(titanctl completion zsh)\n"
                  "_titanctl() {\n"
                  "    local -a found\n"
                  "    found=(${(f)\"$(titanctl __complete \"${(@)words[2,CURRENT]}\" 2>/dev/null)\"})\n"
                  "    if [[ $found[1] == :files ]]; then\n"
                  "        _files\n"
                  "    else\n"
                  "        compadd -- $found\n"
                  "    fi\n"
                  "}\n"
                  "if [[ $funcstack[1] == _titanctl ]]; then _titanctl; else compdef _titanctl titanctl; fi\n");
}

void completion_fish(struct buf *out)
{
    buf_puts(out, "# fish completion for titanctl; written by `titanctl completion fish`.\n"
                  "# Load it with: titanctl completion fish | source\n"
                  "function __titanctl_complete\n"
                  "    set -l words (commandline -opc) (commandline -ct)\n"
                  "    set -l found (titanctl __complete $words[2..-1] 2>/dev/null)\n"
                  "    if test \"$found[1]\" = :files\n"
                  "        __fish_complete_path (commandline -ct)\n"
                  "    else if test -n \"$found[1]\"\n"
                  "        printf '%s\\n' $found\n"
                  "    end\n"
                  "end\n"
                  "complete -c titanctl -f -a '(__titanctl_complete)'\n");
}

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    (void)with;
    static void (*const print[])(struct buf *) = {completion_bash, completion_zsh, completion_fish};
    _Static_assert(ARRAY_SIZE(print) + 1 == ARRAY_SIZE(shells), "one for each");
    size_t i = 0;
    while (shells[i] && strcmp(shells[i], args->words[0]) != 0)
        i++;
    if (!shells[i])
        return titan_fail(err, TITAN_EINVAL, "completion: there is none for '%.32s', only for bash, zsh and fish",
                          args->words[0]);
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    print[i](&text);
    (void)output_line(&text);
    return TITAN_OK;
}

const struct command command_completion = {
    .name = "completion",
    .summary = "print the completion of commands, options and jobs for a shell",
    .arguments = "bash|zsh|fish",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_SHELL,
    .examples = (const struct example[]){{"source <(titanctl completion bash)", "for this shell; so with zsh"},
                                         {"titanctl completion fish | source", "for fish"},
                                         {NULL}},
    .run = run,
};
