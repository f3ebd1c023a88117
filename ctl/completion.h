/* SPDX-License-Identifier: Apache-2.0 */
/* completion.h - shell completion for the word that is being typed. */
#ifndef TITAN_CTL_COMPLETION_H
#define TITAN_CTL_COMPLETION_H

#include "ctl/command.h"

/* `titanctl __complete WORD...`: prints candidates for the last word, one per line; ":files" alone leaves completion to
 * the shell. The words before it are the line's earlier words, without the program's name. */
void completion_print(int n, char **words);
/* Appends the completion script of the shell. */
void completion_bash(struct buf *out);
void completion_zsh(struct buf *out);
void completion_fish(struct buf *out);

#endif
