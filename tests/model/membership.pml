/* membership.pml - who may decide an epoch (docs/membership.md): the coordinator with those it reaches, or a delegate
 * among agents that hear no coordinator. Checked by spin: whatever is lost, late, cut or restarted, training is one
 * line of epochs, and no number is trained with two memberships.
 *
 * One member per agent. A dead agent is one that does nothing any more, and a coordinator that is away is one that all
 * are cut off from and that keeps its store, so neither has words of its own. Messages that were sent stay: each is
 * delivered at any time, in any order, or never. Time is abstract, and one order of events stands for the time limits:
 * the coordinator waits longer than the lease of anyone it cannot reach, which runs from their last contact. Who hears
 * whom at which moment does not matter for safety: here an agent may delegate although it hears the coordinator (the
 * code does not, so as not to disturb) and may be counted on although it does not hear. */
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
/* Rules; each can be left out, which must be found. */
#ifndef QUORUM
#define QUORUM 1 /* the coordinator goes on at once only when it reaches enough */
#endif
#ifndef LEASE
#define LEASE 1 /* otherwise it waits for the leases of the others */
#endif
#ifndef PAUSE
#define PAUSE 1 /* who has no lease does not train */
#endif
#ifndef MAJORITY
#define MAJORITY 1 /* a delegate has more than half */
#endif
#ifndef FENCE
#define FENCE 1 /* a number is accepted once, and never a lower one */
#endif
#ifndef HELLO
#define HELLO 1 /* a delegate's epochs are adopted before their agent counts */
#endif
#ifndef VOID
#define VOID 1 /* epochs the run has gone on without are over, also for who was in them */
#endif
#define ALL ((1 << N) - 1)
#define HAS(mask, i) (((mask) >> (i)) & 1)

/* --- epochs ever proposed; id 0 is none --- */
byte next_id = 2;
byte number[IDS + 1];
byte mask[IDS + 1];
bool delegated[IDS + 1];
byte root[IDS + 1];   /* number of the coordinator's epoch it stems from */
bool waited[IDS + 1]; /* formed after waiting for leases */
bool trained[IDS + 1];
byte tip = 1; /* the epoch that trained last */

/* --- agents --- */
byte accepted[N];  /* id; kept on disk: a promise and an acceptance are the same */
byte seen[N];      /* highest number accepted, kept on disk */
byte least[N];     /* lower numbers are over, a coordinator said */
byte held[N];      /* id its worker's state is of */
int must[N];       /* bit m: a set of members m of which a decision needs more than half (its base, and what it accepted since) */
bool cut[N];       /* on the other side than the coordinator */
bool lease[N];     /* may train, and take part in delegation */

/* --- the coordinator's store, and its view --- */
byte last_number = 1, last_id = 1;
byte void_below = 0; /* delegated epochs that stem from lower numbers are over: it went on without them */
byte base = 1;     /* newest id it knows to have made a step */
int needs = 0;     /* as must[] */
byte view = 0;     /* agents it counts on */
byte broken = 0;   /* links, so far */

inline count(m, n)
{
    n = 0;
    for (k : 0 .. N - 1) {
        n = n + HAS(m, k);
    }
}

/* --- training ---
 * All members have accepted it, can reach each other, and hold a lease where it is a delegate's. */
inline clear()
{
    i = 0; j = 0; k = 0; n = 0; total = 0; id = 0; m = 0; ready = false; carries = false; enough = false; cuts = 0
}

inline train(id)
{
    ready = id > 0 && id < next_id;
    carries = false; /* a member holds what trained last */
    cuts = 0;
    for (i : 0 .. N - 1) {
        if
        :: ready && HAS(mask[id], i) ->
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
        assert(carries || waited[id]);
        assert(!trained[id]);
        for (i : 1 .. IDS) {
            assert(i == id || !trained[i] || number[i] != number[id])
        }
        trained[id] = true;
        tip = id;
        for (i : 0 .. N - 1) {
            if
            :: HAS(mask[id], i) -> held[i] = id; must[i] = 1 << mask[id]
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
        number[1] = 1; root[1] = 1; mask[1] = ALL; trained[1] = true;
        needs = 1 << ALL;
        view = ALL;
        for (i : 0 .. N - 1) {
            accepted[i] = 1; seen[i] = 1; held[i] = 1; must[i] = 1 << ALL;
            lease[i] = true;
        }
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
        clear() }
    :: atomic { !COARSE; select(i : 0 .. N - 1); view = view & ~(cut[i] << i); clear() }
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
            if
            :: VOID && root[id] < void_below ->
                last_number = (number[id] > last_number -> number[id] : last_number);
                accepted[i] = 0
            :: else ->
            if
            :: HELLO && delegated[id] && number[id] >= number[base] && id != base ->
                needs = needs | (1 << mask[id]);
                last_number = (number[id] > last_number -> number[id] : last_number);
                if
                :: held[i] == id -> base = id
                :: else
                fi
            :: else
            fi
            fi;
            least[i] = last_number;
            view = view | (1 << i); lease[i] = true
        :: else
        fi; clear() }

    /* --- the coordinator hears of a step: that epoch is the base, earlier ones do not matter any more --- */
    :: atomic { select(i : 0 .. N - 1);
        if
        :: HAS(view, i) && held[i] != base && number[held[i]] > number[base] && trained[held[i]] ->
            base = held[i];
            needs = 1 << mask[base];
            for (k : 1 .. IDS) {
                if
                :: k < next_id && !delegated[k] && number[k] > number[base] -> needs = needs | (1 << mask[k])
                :: else
                fi
            }
        :: else
        fi; clear() }

    /* --- the coordinator forms an epoch --- */
    :: atomic { view != 0 && next_id <= IDS ->
        enough = true;
        ready = true; /* leases of all it cannot reach are over */
        for (m : 1 .. ALL) {
            if
            :: (needs >> m) & 1 ->
                count(m & ~view, n);
                count(m, total);
                enough = enough && 2 * n <= total
            :: else
            fi
        }
        for (i : 0 .. N - 1) {
            ready = ready && (HAS(view, i) || !lease[i])
        }
        if
        :: enough || (ready || !LEASE) || !QUORUM ->
            if
            :: m = view                       /* some of them may join again */
            :: m = view & mask[base]
            fi;
            if
            :: m != 0 && m != mask[last_id] ->
                last_number = last_number + (enough -> 1 : 1 + IDS); /* room for what delegates may have used */
                number[next_id] = last_number; mask[next_id] = m; waited[next_id] = !enough && ready;
                delegated[next_id] = false; root[next_id] = last_number;
                void_below = (enough -> void_below : last_number);
                needs = needs | (1 << m);
                last_id = next_id; next_id++
            :: else
            fi
        :: else
        fi; clear() }

    /* --- FormEpoch arrives, late or not --- */
    :: atomic { select(id : 1 .. IDS); select(i : 0 .. N - 1);
        if
        :: id < next_id && !delegated[id] && HAS(mask[id], i) && number[id] > seen[i] && number[id] >= least[i] ->
            accepted[i] = id; seen[i] = number[id];
            must[i] = must[i] | (1 << mask[id])
        :: else
        fi; clear() }

    /* --- a delegate proposes, and promises itself --- */
    :: atomic { next_id <= IDS ->
        select(i : 0 .. N - 1); select(m : 1 .. ALL);
        if
        :: accepted[i] != 0 && lease[i] && HAS(m, i) && (m & ~mask[held[i]]) == 0 && m != mask[accepted[i]] ->
            enough = true;
            for (k : 1 .. ALL) {
                if
                :: (must[i] >> k) & 1 ->
                    n = 0; total = 0;
                    for (j : 0 .. N - 1) {
                        enough = enough && (!HAS(m, j) || cut[j] == cut[i]);
                        n = n + HAS(m & k, j); total = total + HAS(k, j)
                    }
                    enough = enough && 2 * n > total
                :: else
                fi
            }
            if
            :: enough || (!MAJORITY && m == (1 << i)) ->
                number[next_id] = (least[i] > seen[i] -> least[i] : seen[i]) + 1; mask[next_id] = m; delegated[next_id] = true;
                root[next_id] = root[accepted[i]];
                accepted[i] = next_id; seen[i] = number[next_id]; must[i] = must[i] | (1 << m);
                next_id++
            :: else
            fi
        :: else
        fi; clear() }
    /* another promises */
    :: atomic { select(id : 1 .. IDS); select(i : 0 .. N - 1);
        if
        :: id < next_id && delegated[id] && accepted[i] != 0 && lease[i] && HAS(mask[id], i) &&
           ((number[id] > seen[i] && number[id] > least[i]) || (!FENCE && accepted[i] != id)) ->
            accepted[i] = id; seen[i] = number[id]; must[i] = must[i] | (1 << mask[id])
        :: else
        fi; clear() }

    /* --- training --- */
    :: atomic { select(id : 1 .. IDS); train(id); clear() }
    od
}
