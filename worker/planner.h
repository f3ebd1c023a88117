/* planner.h - `titan-worker plan`: what a recipe costs on so many devices, before it runs. */
#ifndef TITAN_WORKER_PLANNER_H
#define TITAN_WORKER_PLANNER_H

#include "base/options.h"

extern const struct command plan_command;

#endif
