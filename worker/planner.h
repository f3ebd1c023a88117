/* planner.h - `titan-worker plan`: what a recipe costs on so many devices, before it runs. */
#ifndef TITAN_WORKER_PLANNER_H
#define TITAN_WORKER_PLANNER_H

/* `titan-worker plan FILE --world N [--device NAME] [--timeline FILE] [--picture FILE] [--search] [--memory GIB]
 * [--json] [--print]
 * [--set KEY=VALUE]...`; argv[0] is "plan". Exit code. */
int planner_main(int argc, char **argv);

#endif
