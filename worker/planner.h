/* planner.h - `titan-worker plan`: what a recipe costs on so many devices, before it runs. */
#ifndef TITAN_WORKER_PLANNER_H
#define TITAN_WORKER_PLANNER_H

#include "base/buf.h"
#include "base/recipe.h"

/* `titan-worker plan FILE --world N [--device NAME] [--timeline FILE] [--picture FILE] [--search] [--memory GIB]
 * [--json] [--print] [--set KEY=VALUE]...`; argv[0] is "plan". Exit code. */
int planner_main(int argc, char **argv);

/* Build and check the step programs of every kind of rank without a device or data; print them to out where it is not
 * NULL. recipe: resolved. */
titan_status planner_check(const struct recipe *recipe, int world, struct buf *out,
                           struct titan_error *err) TITAN_MUST_USE;

#endif
