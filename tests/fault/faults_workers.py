"""Faults of workers: they die, hang, run out of memory, crash again and again."""
import signal
import time

from kit import Cluster, alive, finish, keys, kill, now_ms, scenario, steady, until, zero_lost


@scenario(1, "SIGKILL of a worker in mid step", "I1-I4, I7", detected_ms=20, resumed_ms=1000, steps_lost=0)
def worker_killed(rounds, rng, r):
    k = keys()
    with Cluster(nodes=2, slots=2) as c:
        run = c.submit(k)
        for _ in range(rounds):
            since, epoch = steady(run, 4, rng)
            worker, (pid, _) = rng.choice(sorted(run.workers().items()))
            at = kill(pid)
            seen = run.await_event(since, "worker.exited", when=lambda e: e["detail"]["worker"] == worker)
            back = run.await_step_after(at, epoch=epoch)
            assert seen["detail"]["signal"] == 9, seen
            r.round(detected_ms=seen["at_ms"] - at, resumed_ms=back["time_ms"] - at, steps_lost=zero_lost(run, epoch, back),
                    epochs=back["epoch"] - epoch)
        run.await_training(4, run.step())
        finish(r, run, k)


@scenario(2, "SIGKILL of two workers 5 ms apart, the second during recovery", "I1, I2, I9", resumed_ms=2000, epochs=2,
          steps_lost=0)
def two_workers_killed(rounds, rng, r):
    k = keys()
    with Cluster(nodes=2, slots=2) as c:
        run = c.submit(k)
        for _ in range(rounds):
            _, epoch = steady(run, 4, rng)
            # Ranks that keep each other's part cannot both be restored from memory; those two steps apart can.
            members, live = run.members(), run.workers()
            first = rng.randrange(4)
            pids = [live[members[(first + i) % 4]][0] for i in (0, 2)]
            at = kill(pids[0])
            time.sleep(0.005)
            kill(pids[1])
            back = run.await_step_after(at, epoch=epoch)
            until("both ends are counted", lambda: not any(map(alive, pids)), 5)
            r.round(resumed_ms=back["time_ms"] - at, epochs=back["epoch"] - epoch, steps_lost=zero_lost(run, epoch, back))
        run.await_training(4, run.step())
        finish(r, run, k)


@scenario(4, "a worker ends by itself: segmentation fault, abort, illegal instruction", "I7, I10", shrunk_ms=1000,
          steps_lost=0)
def worker_crashes(rounds, rng, r):
    k = keys()
    with Cluster(nodes=2, slots=2) as c:
        run = c.submit(k)
        for n in range(rounds):
            since, epoch = steady(run, 4, rng)
            what = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGBUS)[n % 4]
            worker, (pid, _) = rng.choice(sorted(run.workers().items()))
            at = kill(pid, what)
            end = run.await_event(since, "worker.exited", when=lambda e: e["detail"]["worker"] == worker)
            back = run.await_step_after(at, epoch=epoch)
            cause = c.rows("SELECT signal, exit_code, counted, reason FROM workers WHERE id = ?", worker)[0]
            assert cause["signal"] == what == end["detail"]["signal"] and cause["counted"] == 1, cause
            run.await_training(4, back["step"])
            r.round(shrunk_ms=back["time_ms"] - at, replaced_ms=now_ms() - at, steps_lost=zero_lost(run, epoch, back))
        assert run.status()["restarts"] == rounds, "the budget is not counted exactly"
        finish(r, run, k)
