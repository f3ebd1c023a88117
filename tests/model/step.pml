/* SPDX-License-Identifier: Apache-2.0 */
/* step.pml - the steps of one epoch (docs/membership.md, "What a worker holds"): gradients, AGREE, with DIRECTED a
 * direction section and COMMIT, the update. Checked by spin: a rank is killed at any moment, and the others leave the
 * epoch at any moment after that. Then each shard is still there, as its rank has it or in the copy at the buddy: at the
 * step of the furthest survivor, or ready to be brought there. No step that was told of is lost.
 *
 * A collective of all ranks ends at a rank when all have come to it. It may end at one rank, and not at another that
 * leaves. Rank i's buddy is rank i + 1. Contents of a shard are not here, only whether an update was made of it that
 * is not committed. */
#ifndef N
#define N 3
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef DIRECTED
#define DIRECTED 1 /* 0: the program has neither direction section nor COMMIT, and AGREE is the commit point */
#endif
/* Rules; each can be left out, which must be found. */
#ifndef LAST
#define LAST 1 /* the last collective commits the step, not AGREE */
#endif
#ifndef AFTER
#define AFTER 1 /* the state is written behind the commit point */
#endif
#ifndef COPY_AFTER
#define COPY_AFTER 1 /* so is the copy at the buddy */
#endif
#ifndef SETTLED
#define SETTLED 1 /* a rank comes to AGREE when it has its owner's gradients */
#endif
#ifndef ALL_SUMS
#define ALL_SUMS 1 /* a rank that is behind gets the sums of both collectives */
#endif
#ifndef TOLD
#define TOLD 1 /* a step is told of when AGREE of the next one has ended, not when it is committed */
#endif
#define OWNER(i) ((i) == 0 -> N - 1 : (i) - 1)
#define BUDDY(i) ((i) == N - 1 -> 0 : (i) + 1)
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define COMPUTES 0
#define REDUCED 1
#define AGREES 2
#define DECIDED 3
#define COMMITS 4
#define OUT 5

byte at[N];
byte own[N];       /* step of a rank's shard */
byte copied[N];    /* step of the copy that it has of its owner's */
bool written[N];   /* the shard has an update that is not committed */
bool rewritten[N]; /* the copy has */
bool prepared[N];
byte reduced[N];    /* the newest step whose gradients it has */
byte got[N];        /* the newest step whose gradients it has of its owner; it takes them in its own step */
byte came[N];       /* the newest collective that it has come to: of step s AGREE is 2 s - 1, COMMIT 2 s */
bool dead[N];
bool broken; /* a rank is dead */
byte told;   /* the newest step that was told of */

inline all_in(collective)
{
    ready = true;
    for (k : 0 .. N - 1) {
        ready = ready && came[k] >= collective
    }
    k = 0
}

inline commit()
{
    own[i] = own[i] + 1;
    copied[i] = (got[i] == own[i] -> own[i] : copied[i]);
    written[i] = false;
    rewritten[i] = false;
    prepared[i] = false;
    told = (TOLD -> told : MAX(told, own[i]));
    at[i] = COMPUTES
}

/* The survivors come together. */
inline recover()
{
    newest = 0;
    for (k : 0 .. N - 1) {
        newest = MAX(newest, (dead[k] -> 0 : own[k]))
    }
    assert(told <= newest);
    for (k : 0 .. N - 1) {
        if
        :: !dead[k] ->
            assert(own[k] == newest || (own[k] + 1 == newest && prepared[k] && (ALL_SUMS || !DIRECTED)));
            assert(!written[k])
        :: else ->
            i = BUDDY(k);
            assert(copied[i] == own[i]);
            assert(own[i] == newest || (prepared[i] && got[i] == newest));
            assert(!rewritten[i])
        fi
    }
}

active proctype epoch()
{
    byte i, k, newest;
    bool ready;

end:
    do
    :: atomic { select(i : 0 .. N - 1);
        if
        :: dead[i] || at[i] == OUT
        :: !dead[i] && at[i] == COMPUTES && own[i] < STEPS -> reduced[i] = own[i] + 1; at[i] = REDUCED
        :: !dead[i] && at[i] == COMPUTES && own[i] == STEPS -> at[i] = OUT
        :: !dead[i] && at[i] == REDUCED && (!SETTLED || got[i] > own[i]) ->
            came[i] = 2 * own[i] + 1; prepared[i] = !DIRECTED; at[i] = AGREES
        :: !dead[i] && at[i] == AGREES ->
            all_in(2 * own[i] + 1);
            if
            :: ready ->
                told = (TOLD -> MAX(told, own[i]) : told);
                if
                :: !DIRECTED || !LAST -> commit()
                :: else -> written[i] = !AFTER; rewritten[i] = !COPY_AFTER; at[i] = DECIDED
                fi
            :: else
            fi
        :: !dead[i] && at[i] == DECIDED -> came[i] = 2 * own[i] + 2; prepared[i] = true; at[i] = COMMITS
        :: !dead[i] && at[i] == COMMITS ->
            all_in(2 * own[i] + 2);
            if
            :: ready -> commit()
            :: else
            fi
        :: !dead[i] && got[i] <= own[i] && reduced[OWNER(i)] > own[i] && !dead[OWNER(i)] -> got[i] = own[i] + 1
        :: broken && !dead[i] -> at[i] = OUT
        :: else
        fi;
        i = 0; ready = false }
    :: atomic { !broken -> select(i : 0 .. N - 1); dead[i] = true; broken = true; i = 0 }
    :: d_step { broken ->
        ready = true;
        for (k : 0 .. N - 1) {
            ready = ready && (dead[k] || at[k] == OUT)
        }
        k = 0;
        if
        :: ready -> recover()
        :: else
        fi;
        i = 0; k = 0; newest = 0; ready = false }
    od
}
