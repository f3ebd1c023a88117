/* SPDX-License-Identifier: Apache-2.0 */
/* membership.pml - what may decide an epoch (docs/membership.md): the coordinator with those it reaches, or a leader
 * among agents that hear no coordinator. Checked by spin: whatever is lost, late, cut or restarted, training is one
 * line of epochs, and no number is trained with two memberships.
 *
 * One member per agent. A dead agent is one that does nothing any more, and a coordinator that is away is one that all
 * are cut off from and that keeps its store, so neither has words of its own. Messages that were sent stay: each is
 * delivered at any time, in any order, or never. Time is abstract, and one order of events stands for the time limits:
 * the coordinator waits longer than the lease of any it cannot reach, which runs from their last contact. Which hears
 * which at which moment does not matter for safety: here an agent may leader although it hears the coordinator (the
 * code does not, so as not to disturb) and may be counted on although it does not hear.
 *
 * One that was not there when an epoch was decided is out of the coordinator's books: its worker is stopped when it comes
 * back. Here it keeps what it holds unless the run has gone on without that (the code starts another worker, which
 * holds nothing). */
#ifndef N
#define N 4
#endif
#ifndef IDS
#define IDS 5 /* epochs of a run of the model, the first included */
#endif
#ifndef CUTS
#define CUTS 3 /* how often links break */
#endif
#ifndef COARSE
#define COARSE 0 /* fewer orders of events, for larger clusters */
#endif
#ifndef LATER
/* The history begins: 1 = when epoch 2 is decided without the last agent, and the first has accepted it; 2 = when all but
 * the first have trained in a leader's epoch 2, which the coordinator has not heard of. */
#define LATER 0
#endif
/* Rules; each can be left out, which must be found. */
#ifndef QUORUM
#define QUORUM 1 /* the coordinator goes on at once only when it reaches enough */
#endif
#ifndef LEASE
#define LEASE 1 /* otherwise it waits for the leases of the others */
#endif
#ifndef PAUSE
#define PAUSE 1 /* a worker without a lease does not train */
#endif
#ifndef MAJORITY
#define MAJORITY 1 /* a leader has more than half */
#endif
#ifndef FENCE
#define FENCE 1 /* a number is accepted once, and never a lower one */
#endif
#ifndef REGISTRATION
#define REGISTRATION 1 /* a leader's epochs are adopted before their agent counts */
#endif
#ifndef VOID
#define VOID 1 /* epochs the run has gone on without are over, also for those that were in them */
#endif
#ifndef TOLD
#define TOLD 1 /* one that is out of the books counts as gone when its agent says so, not when it is back */
#endif
#ifndef DEPARTING
#define DEPARTING 1 /* one that holds the state and is not in the new epoch is heard for it as well */
#endif
#define ALL ((1 << N) - 1)
/* Numbers: one more for the coordinator, a multiple of these for acting leaders and for epochs that were waited for. */
#define LEADER_STEP 8
#define WAITED_STEP 64
#define NEXT(number, step) (((number) / (step) + 1) * (step))
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define HAS(mask, i) (((mask) >> (i)) & 1)

/* --- epochs ever proposed; id 0 is none --- */
byte next_id = 2;
byte number[IDS + 1];
byte mask[IDS + 1];
byte departing[IDS + 1];
bool by_leader[IDS + 1];
byte from[IDS + 1]; /* a leader's: the epoch it is shrunk from ... */
byte yes[IDS + 1];  /* ... and those that have promised it */
bool trained[IDS + 1];
byte tip = 1; /* the epoch that trained last, or that the run goes on from: one that waited for the leases may have to */

/* --- agents --- */
byte accepted[N];  /* id; kept on disk, as are the promise and its number */
byte promised[N];  /* id */
byte seen[N];      /* highest number accepted or promised */
byte least[N];     /* orders of lower numbers were in a stream that is over */
byte held[N];      /* id its worker's state is of */
int must[N];       /* bit m: a set of members m of which a decision needs more than half (its base, and what it accepted since) */
bool cut[N];       /* on the other side than the coordinator */
bool lease[N];     /* may train, and take part in forming epochs without a coordinator */

/* --- the coordinator's store, and its view --- */
byte last_number = 1, last_id = 1;
byte void_below = 0; /* epochs of lower numbers are over: it went on without them */
byte base = 1;     /* newest id it knows to have made a step */
int needs = 0;     /* as must[] */
byte view = 0;     /* agents it hears */
byte said = 0;     /* those it has heard a registration of that it has not answered yet */
byte gone = 0;     /* those it has decided without: out of its books, and perhaps alive */
byte broken = 0;   /* links, so far */

inline count(m, n)
{
    n = 0;
    for (k : 0 .. N - 1) {
        n = n + HAS(m, k);
    }
}

/* enough = m_ is more than half of each of the sets */
inline majority_of(sets, m_)
{
    enough = true;
    for (k : 1 .. ALL) {
        if
        :: ((sets) >> k) & 1 ->
            n = 0; total = 0;
            for (j : 0 .. N - 1) {
                n = n + HAS((m_) & k, j); total = total + HAS(k, j)
            }
            enough = enough && 2 * n > total
        :: else
        fi
    }
    n = 0
}

/* --- training ---
 * All members have accepted it, can reach each other, and hold a lease where it is a leader's. */
inline clear()
{
    i = 0; j = 0; k = 0; n = 0; total = 0; id = 0; m = 0; ready = false; carries = false; enough = false; cuts = 0
}

inline train(id)
{
    ready = id > 0 && id < next_id;
    carries = false; /* one in it holds what trained last */
    cuts = 0;
    for (i : 0 .. N - 1) {
        if
        :: ready && HAS(mask[id] | departing[id], i) ->
            ready = accepted[i] == id && (lease[i] || !PAUSE);
            carries = carries || held[i] == tip;
            cuts = cuts | (1 << cut[i])
        :: else
        fi
    }
    ready = ready && mask[id] != 0 && cuts != 3 && !(trained[id] && tip == id);
    if
    :: ready ->
        /* one line of epochs: none goes on from a state that another has left behind */
        assert(carries);
        assert(!trained[id]);
        for (i : 1 .. IDS) {
            assert(i == id || !trained[i] || number[i] != number[id])
        }
        trained[id] = true;
        tip = id;
        for (i : 0 .. N - 1) {
            if
            :: HAS(mask[id], i) -> held[i] = id; must[i] = 1 << mask[id]
            :: HAS(departing[id], i) -> held[i] = 0; accepted[i] = 0; must[i] = 1 << mask[id]
            :: else
            fi
        }
    :: else
    fi
}

active proctype cluster()
{
    byte i, j, k, n, total, id, m;
    bool ready, carries, enough;
    byte cuts;

    d_step {
        number[1] = 1; mask[1] = ALL; trained[1] = true;
        needs = 1 << ALL;
        view = ALL;
        for (i : 0 .. N - 1) {
            accepted[i] = 1; seen[i] = 1; held[i] = 1; must[i] = 1 << ALL;
            lease[i] = true;
        }
        if
        :: LATER == 2 ->
            broken = 1;
            number[2] = LEADER_STEP; mask[2] = ALL & ~1; by_leader[2] = true;
            from[2] = 1; yes[2] = mask[2]; trained[2] = true; tip = 2;
            next_id = 3; view = 1;
            for (i : 1 .. N - 1) {
                accepted[i] = 2; promised[i] = 2; seen[i] = number[2]; held[i] = 2; must[i] = 1 << mask[2];
                cut[i] = true
            }
        :: LATER == 1 ->
            broken = 1;
            number[2] = 2; mask[2] = ALL & ~(1 << (N - 1));
            next_id = 3; last_id = 2; last_number = 2;
            needs = needs | (1 << mask[2]);
            view = mask[2]; gone = ALL & ~mask[2];
            accepted[0] = 2; seen[0] = 2; must[0] = must[0] | (1 << mask[2])
        :: else
        fi;
        clear()
    }
end:
    do
    /* --- the world --- */
    :: atomic { broken < CUTS -> broken++; select(m : 1 .. ALL);
        for (i : 0 .. N - 1) {
            cut[i] = HAS(m, i)
        }
        clear() }
    :: d_step { broken > 0 ->
        for (i : 0 .. N - 1) {
            cut[i] = false
        }
        clear() }

    /* --- silence is noticed, of all at once or of one after the other --- */
    :: atomic { COARSE;
        for (i : 0 .. N - 1) {
            view = view & ~(cut[i] << i)
        }
        said = said & view; clear() }
    :: atomic { !COARSE; select(i : 0 .. N - 1); view = view & ~(cut[i] << i); said = said & view; clear() }
    :: atomic { COARSE;
        for (i : 0 .. N - 1) {
            lease[i] = lease[i] && !cut[i]
        }
        clear() }
    :: atomic { !COARSE; select(i : 0 .. N - 1); lease[i] = lease[i] && !cut[i]; clear() }

    /* --- an agent is back: what it has accepted is known before it counts --- */
    :: atomic { select(i : 0 .. N - 1);
        if
        :: !cut[i] && !HAS(view, i) ->
            id = accepted[i];
            last_number = MAX(last_number, seen[i]);
            if
            :: REGISTRATION && by_leader[id] && number[id] > number[last_id] ->
                needs = needs | (1 << mask[id]);
                last_id = id;
                if
                :: held[i] == id -> base = id
                :: else
                fi
            :: else
            fi;
            view = view | (1 << i);
            if
            :: COARSE && !HAS(gone, i) -> least[i] = last_number; lease[i] = true
            :: else -> said = said | (1 << i)
            fi
        :: else
        fi; clear() }
    /* ... and is answered: one with a worker out of the books stops it */
    :: atomic { select(i : 0 .. N - 1);
        if
        :: !cut[i] && HAS(view & said, i) ->
            if
            :: VOID && HAS(gone, i) -> accepted[i] = 0; held[i] = (number[held[i]] < void_below -> 0 : held[i])
            :: else
            fi;
            gone = gone & ~(1 << i); said = said & ~(1 << i);
            least[i] = last_number;
            lease[i] = true
        :: else
        fi; clear() }

    /* --- the coordinator hears of a step: that epoch is the base, earlier ones do not matter any more.
     * Not so of one that it has gone on without, or of a leader's that it was not told of --- */
    :: atomic { select(i : 0 .. N - 1);
        if
        :: HAS(view, i) && number[held[i]] > number[base] && trained[held[i]] &&
           (!VOID || number[held[i]] >= void_below) && (REGISTRATION || !by_leader[held[i]]) ->
            base = held[i];
            needs = 1 << mask[base];
            for (k : 1 .. IDS) {
                if
                :: k < next_id && !by_leader[k] && number[k] > number[base] -> needs = needs | (1 << mask[k])
                :: else
                fi
            }
        :: else
        fi; clear() }

    /* --- the coordinator forms an epoch --- */
    :: atomic { view != 0 && next_id <= IDS ->
        enough = true;
        ready = true; /* leases of all it cannot reach are over */
        cuts = (TOLD -> view & ~gone : view); /* of those it knows */
        for (m : 1 .. ALL) {
            if
            :: (needs >> m) & 1 ->
                count(m & ~cuts, n);
                count(m, total);
                enough = enough && 2 * n <= total
            :: else
            fi
        }
        for (i : 0 .. N - 1) {
            ready = ready && (HAS(cuts, i) || !lease[i]);
            if /* what it goes on from: the newest that any holds that it counts on */
            :: HAS(view & ~gone, i) && number[held[i]] > number[id] -> id = held[i]
            :: else
            fi
        }
        if
        :: enough || (ready || !LEASE) || !QUORUM ->
            if
            :: m = view & ~gone               /* some of them may join again */
            :: m = view & ~gone & mask[last_id]
            :: m = view & ~gone & mask[base]
            fi;
            if
            :: m != 0 && m != mask[last_id] ->
                last_number = (enough -> last_number + 1 : NEXT(last_number, WAITED_STEP));
                number[next_id] = last_number; mask[next_id] = m; by_leader[next_id] = false;
                for (i : 0 .. N - 1) {
                    if
                    :: DEPARTING && HAS(view & ~gone & ~m, i) && held[i] == id ->
                        departing[next_id] = departing[next_id] | (1 << i)
                    :: else
                    fi
                }
                if
                :: !enough && ready -> void_below = last_number; tip = id
                :: else
                fi;
                needs = needs | (1 << m);
                gone = gone | (ALL & ~view);
                last_id = next_id; next_id++
            :: else
            fi
        :: else
        fi; clear() }

    /* --- FormEpoch arrives, late or not --- */
    :: atomic { select(id : 1 .. IDS); select(i : 0 .. N - 1);
        if
        :: id < next_id && !by_leader[id] && HAS(mask[id] | departing[id], i) && number[id] > seen[i] &&
           number[id] >= least[i] ->
            accepted[i] = id; seen[i] = number[id];
            must[i] = must[i] | (1 << mask[id])
        :: else
        fi; clear() }

    /* --- a leader proposes, and promises itself --- */
    :: atomic { next_id <= IDS ->
        select(i : 0 .. N - 1); select(m : 1 .. ALL);
        id = accepted[i];
        if
        :: id != 0 && held[i] != 0 && lease[i] && HAS(m, i) && (m & ~mask[id]) == 0 && m != mask[id] ->
            majority_of(must[i], m);
            for (j : 0 .. N - 1) {
                enough = enough && (!HAS(m, j) || cut[j] == cut[i]);
                n = MAX(n, (HAS(m, j) -> seen[j] : 0))
            }
            if
            :: enough || (!MAJORITY && m == (1 << i)) ->
                if
                :: n > seen[i]          /* they have told it */
                :: true -> n = seen[i]
                fi;
                number[next_id] = NEXT(n, LEADER_STEP); mask[next_id] = m; by_leader[next_id] = true;
                from[next_id] = id; yes[next_id] = 1 << i;
                promised[i] = next_id; seen[i] = number[next_id];
                next_id++
            :: else
            fi
        :: else
        fi; clear() }
    /* another promises: it is shrunk from nothing older, and more than half of what counts for this one, too */
    :: atomic { select(id : 1 .. IDS); select(i : 0 .. N - 1);
        if
        :: id < next_id && by_leader[id] && HAS(mask[id] & ~yes[id], i) && accepted[i] != 0 && lease[i] &&
           number[from[id]] >= number[accepted[i]] && (mask[id] & ~mask[accepted[i]]) == 0 &&
           (number[id] > seen[i] || !FENCE) ->
            majority_of(must[i], mask[id]);
            if
            :: enough -> promised[i] = id; seen[i] = number[id]; yes[id] = yes[id] | (1 << i)
            :: else
            fi
        :: else
        fi; clear() }
    /* all have, and one is told so; it may have promised a higher one since */
    :: atomic { select(id : 1 .. IDS); select(i : 0 .. N - 1);
        if
        :: id < next_id && by_leader[id] && yes[id] == mask[id] && HAS(mask[id], i) && accepted[i] != id &&
           accepted[i] != 0 &&
           ((promised[i] == id && seen[i] == number[id]) || !FENCE) ->
            accepted[i] = id; must[i] = must[i] | (1 << mask[id])
        :: else
        fi; clear() }

    /* --- training --- */
    :: atomic { select(id : 1 .. IDS); train(id); clear() }
    od
}
