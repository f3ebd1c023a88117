# SPDX-License-Identifier: Apache-2.0
"""One attacker: sends ROUNDS mutated messages one way in and says how far it is, a JSON object a line.

    speak.py WAY CONTEXT SEED ROUNDS

WAY: client, nobody, agent, worker, peer, held. CONTEXT: a JSON file that the arena writes (arena.py), read again as it changes; so what is
said of jobs, epochs and workers is right but for what is mutated. Ends when it is through, or with its standard input."""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "support"))
import datagrams
import protocol
from mutate import Mutator
from protocol import Client, Datagrams, Frames, Page, Session, agent, worker
from titan import BIN, become_nobody, deadline, pause


class Context:
    def __init__(self, path):
        self.path, self.read_at, self.values = path, 0, {}
        self.look()

    def look(self):
        """Now and then; the arena replaces the file."""
        if time.monotonic() - self.read_at > 0.3:  # timing: now and then
            self.values, self.read_at = json.loads(self.path.read_text()), time.monotonic()
        return self.values


def kind(message, name):
    getattr(message, name)
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.message_type:
        getattr(message, name).SetInParent()
    else:
        setattr(message, name, True)
    return message


def kinds(type_):
    return [f.name for f in type_.DESCRIPTOR.oneofs_by_name["kind"].fields]


class Speaker:
    """Rounds of one way in. say() sends one message and returns what it was about."""

    def __init__(self, context, seed):
        self.context, self.random = context, random.Random(seed)
        self.mutator = Mutator(self.random, self.known)
        self.all = set()

    def cover(self, *types):
        for t in types:
            self.all |= self.mutator.fields(t.DESCRIPTOR)

    def job(self):
        """Mostly the attacker's own, often the run beside, at times one there never was."""
        c = self.context.look()
        return self.random.choice([c["mine"], c["mine"], c["beside"], 0, 99])

    def known(self, r, field, path):
        c, name = self.context.look(), path[-1]
        about = c["jobs"].get(str(c["beside"] if r.random() < 0.5 else c["mine"]), {"workers": [0], "epoch": 1, "step": 1})
        if name == "job_id":
            return self.job()
        if name in ("worker_id", "worker_ids", "state_holders", "alive"):
            return r.choice(about["workers"] or [0])
        if name in ("epoch", "seen_epoch", "source_epoch", "installed_epoch", "promised_epoch", "pending_epoch", "counts"):
            return max(about["epoch"] + r.choice([0, 0, 1, -1]), 0)
        if name in ("step", "last_step", "resume_step"):
            return about["step"]
        if name in ("term", "seen_term"):
            return c["term"]
        if name in ("node", "from", "leader"):
            return r.choice(["evil", "n1", "n2"])
        if name in ("address", "peer_address"):
            return r.choice(["127.0.0.1", f"127.0.0.1:{r.randrange(1024, 65536)}", *c["peers"]])
        if name in ("checkpoint_path", "older_checkpoints", "path", "expired_paths", "directory"):
            return r.choice([c["canary"] + "/step-00000002", c["folder"] + "/step-00000002", ""])
        if name in ("comm_id", "promised_id", "token"):
            return r.randbytes(16)
        if name == "version":
            return "0.1.0"
        if name in ("world_size", "world", "worlds"):
            return r.choice([1, 2, 4])
        if name in ("proof", "seen_proof", "term_proof"):
            return b""
        return None

    def close(self):
        pass


class AsClient(Speaker):
    """titan.v1 and Enrolment, over the Unix socket and TCP. What a user may do to the run beside it (cancel, resize, drain its
    nodes) is not done by it where the daemon takes it for that user; a stranger tries."""

    def __init__(self, *args):
        super().__init__(*args)
        c = self.context.look()
        self.recipe = Path(c["recipe"]).read_text()
        self.clients = [(Client(who["target"], who.get("tls"), who.get("token")), who) for who in self.who(c)]
        self.stranger = False
        self.cover(*[type(protocol.request_of(m)) for m in protocol.METHODS])

    def who(self, c):
        return c["clients"]

    READING = {"GetJob", "GetRecipe", "ListJobs", "WatchEvents", "Logs", "Metrics", "ListCheckpoints", "ListNodes", "Counters", "Version", "Submit"}

    def known(self, r, field, path):
        c, name = self.context.look(), path[-1]
        if name == "job_id" and self.method not in self.READING and not self.stranger:
            return r.choice([c["mine"], c["mine"], 0, 99])
        if name == "node":
            return r.choice(["n1", "n2"]) if (self.stranger and self.method != "Enroll") or self.method in self.READING else "evil"
        if name == "recipe":
            return self.recipe
        if name == "recipe_path":
            return c["recipe"]
        if name in ("name", "user", "reason"):
            return r.choice(["", "root", "x"])
        if name == "token":
            return r.choice([c.get("join", ""), "titan_" + "0" * 16 + "_" + "0" * 64])
        if name == "request":
            return c.get("csr", "").encode()
        if name == "grace_ms":
            return 1000
        if name == "follow":
            return False
        if name in ("after_event_id", "after_step", "page_size"):
            return r.choice([0, 5])
        if name == "idempotency_key":
            return r.choice(["", f"k{r.randrange(1000)}"])
        if name in ("page_token", "from_ms", "for_ms", "deadline_ms", "tail_lines"):
            return "" if name == "page_token" else 0
        return super().known(r, field, path)

    def harm(self, message):
        """It would do to the run beside what its owner may."""
        c = self.context.look()
        if self.stranger or self.method in self.READING:
            return False
        return getattr(message, "job_id", 0) == c["beside"] or {getattr(message, "node", ""), getattr(message, "name", "")} & {"n1", "n2"}

    def text(self, recipe):
        """The run file with some of it changed: words, numbers, bytes."""
        r = self.random
        lines = recipe.split("\n")
        for _ in range(r.choice([1, 1, 2, 4])):
            at = r.randrange(len(lines))
            if r.random() < 0.4:
                key = lines[at].split("=")[0]
                lines[at] = key + "= " + r.choice(["-1", "0", "9223372036854775807", "1e308", "nan", '"x"', "[]", "true", '"' + "a" * 5000 + '"'])
            elif r.random() < 0.3:
                lines.insert(at, r.choice(["[[", "]", "[model]", "a.b.c = 1", "\0", '"""', "x = {", "#" * 1000, "\ufffe"]))
            elif lines[at]:
                i = r.randrange(len(lines[at]))
                lines[at] = lines[at][:i] + chr(r.randrange(1, 256)) + lines[at][i + 1:]
        return "\n".join(lines)

    def say(self):
        r = self.random
        client, who = r.choice(self.clients)
        self.stranger = who["stranger"]
        self.method = r.choice([*protocol.METHODS])
        if self.method == "Backup" and r.random() < 0.95:
            self.method = "Version"
        message = protocol.request_of(self.method)
        while True:
            payload = self.mutator.bytes_of(message)
            try:
                read = type(message).FromString(payload)
            except Exception:  # no message at all
                break
            if self.method == "Submit" and read.recipe == self.recipe and r.random() < 0.95:
                read.recipe = self.text(read.recipe)
                payload = read.SerializeToString()
            if self.harm(read) or getattr(read, "follow", False):
                message.Clear()
                continue
            break
        status, _ = client.call(self.method, payload, timeout=5)  # timing: an answer that may not come
        return f"{who['name']} {self.method} {status}"

    def close(self):
        for c, _ in self.clients:
            c.close()


class AsNobody(AsClient):
    """Over the Unix socket, as a user who owns nothing."""

    def who(self, c):
        become_nobody()
        return c["nobody"]


class AsAgent(Speaker):
    """The node "evil": its hello is mostly right, what follows is mutated. It takes the workers it is given for its own."""

    def __init__(self, *args):
        super().__init__(*args)
        self.cover(agent.AgentMessage)
        self.kinds = kinds(agent.AgentMessage)
        self.session, self.incarnation, self.orders = None, self.random.randrange(1 << 62), 0
        self.lock = threading.Lock()

    def known(self, r, field, path):
        name = path[-1]
        if name in ("node", "leader") and "registration" in path:
            return "evil"
        if name == "slots":
            return 2
        if name == "device":
            return "cpu"
        if name == "incarnation":
            return self.incarnation
        if name in ("exit_code", "signal", "pid", "rank", "state", "phase"):
            return r.choice([0, 0, 1])
        return super().known(r, field, path)

    def open(self):
        if self.session:
            self.session.close()
        c = self.context.look()
        self.session = Session(self.random.choice([c["tcp"], *c.get("agents", [])]), c.get("evil"))
        self.incarnation += 1
        self.session.send(protocol.hello("evil", self.incarnation))

    def orders_come(self):
        while not self.session.heard.empty():
            self.session.heard.get()
            self.orders += 1

    def say(self):
        if not self.session or self.session.ended:
            self.open()
        message = kind(agent.AgentMessage(), self.random.choice(self.kinds))
        what = message.WhichOneof("kind")
        payload = self.mutator.bytes_of(message)
        try:
            read = agent.AgentMessage.FromString(payload)
            # What takes a name is a scene of its own (scenes.py).
            if what == "registration" and read.registration.node in ("n1", "n2"):
                return "skipped"
        except Exception:
            pass
        ok = self.session.send(payload)
        self.orders_come()
        return f"{what} {'sent' if ok else 'ended ' + str(self.session.ended[0])}"

    def close(self):
        if self.session:
            self.session.close()


class AsWorker(Speaker):
    """With the token of a worker of the attacker's own job (a job may speak for itself), or with none that is right."""

    def __init__(self, *args):
        super().__init__(*args)
        self.cover(worker.WorkerToAgent)
        self.kinds, self.frames = kinds(worker.WorkerToAgent), None

    def pages(self):
        c = self.context.look()
        found = []
        for sock in c["sockets"]:
            for path in Path(sock).parent.glob("pages/w*.page"):
                try:
                    page = Page(path)
                except (OSError, Exception):
                    continue
                if page.job != c["beside"]:
                    found.append((sock, page))
        return found

    def open(self):
        if self.frames:
            self.frames.close()
            self.frames = None
        c, pages = self.context.look(), self.pages()
        sock, page = self.random.choice(pages) if pages else (self.random.choice(c["sockets"]), None)
        try:
            self.frames = Frames(sock)
        except OSError:
            return False
        if page and self.random.random() < 0.9:
            m = worker.WorkerToAgent(registration=worker.WorkerRegistration(job_id=page.job, worker_id=page.worker, token=page.token, pid=page.pid,
                                                              phase=self.random.randrange(5), address="127.0.0.1:1"))
            return self.frames.send(m.SerializeToString())
        return True

    def say(self):
        if not self.frames and not self.open():
            pause(0.01, "an agent opens it")
            return "no socket"
        message = kind(worker.WorkerToAgent(), self.random.choice(self.kinds))
        payload = self.mutator.bytes_of(message)
        if not self.frames.send(payload) or not self.frames.drain():
            self.frames.close()
            self.frames = None
            return f"{message.WhichOneof('kind')} closed"
        return f"{message.WhichOneof('kind')} sent"

    def close(self):
        if self.frames:
            self.frames.close()


class AsPeer(Speaker):
    """Datagrams to agents' peer sockets and to the coordinator's; half of them are proved with the key of the attacker's own job,
    in the name of an agent that has it."""

    def __init__(self, *args):
        super().__init__(*args)
        self.cover(agent.PeerMessage)
        self.kinds, self.out = kinds(agent.PeerMessage), Datagrams()

    def known(self, r, field, path):
        if path[-1] == "from":
            return r.choice(["evil", "n1", "n2", "zz"])
        if path[-1] == "source":
            return r.randrange(3)
        return super().known(r, field, path)

    def say(self):
        c = self.context.look()
        message = kind(agent.PeerMessage(), self.random.choice([k for k in self.kinds if k not in c["skip"]]))
        payload = self.mutator.bytes_of(message)
        if c["keys"] and self.random.random() < 0.5:
            payload = self.proved(payload, c)
        self.out.send(self.random.choice(c["ports"]), payload)
        while self.out.hear(0.0001):
            pass
        return message.WhichOneof("kind")

    def proved(self, payload, c):
        """About the attacker's job, between agents of it."""
        try:
            message = agent.PeerMessage.FromString(payload)
        except Exception:
            return payload
        message.job_id = c["mine"]
        if self.random.random() < 0.9:
            setattr(message, "from", self.random.choice(["n1", "n2"]))
            message.to = self.random.choice(["n1", "n2"])
        return datagrams.prove(message, *[bytes.fromhex(k) for k in c["keys"]])

    def close(self):
        self.out.close()


class AsHeld(Speaker):
    """An admin by token or certificate, or a node, with calls that are open: a right is taken away, then their messages come. None
    of them may be served behind that; what it would do to the run beside shows there, too."""

    def __init__(self, *args):
        super().__init__(*args)
        c = self.context.look()
        self.owner = Client(next(who for who in c["clients"] if who["name"] == "owner")["target"])
        self.folder, self.n = Path(tempfile.mkdtemp(prefix="titan-held-")), 0
        self.tcp, self.ca = c["tcp"], c["evil"]["ca"]
        self.methods = [m for m in protocol.METHODS if m not in ("Enroll", "Renew")]

    def by_token(self):
        made = self.owner.ask("CreateToken", name=f"held{self.n}", role="admin", ttl_s=600)
        return {"ca": self.ca}, [("authorization", f"Bearer {made.token}")], lambda: self.owner.ask("RevokeToken", id=made.id), self.methods

    def by_certificate(self, kind="user"):
        out = self.folder / f"{self.n}"
        subprocess.run([BIN / "titanctl", "pki", kind, f"held{self.n}", "--pki-dir", self.context.look()["pki"], "--out", out], check=True,
                       stdout=subprocess.DEVNULL)
        pair = {k: out / f"{k}.pem" for k in ("ca", "cert", "key")}
        methods = self.methods if kind == "user" else ["Renew", "Session", "Version"]
        return pair, None, lambda: self.owner.ask("RevokeCertificate", name=f"{kind}/held{self.n}"), methods

    def say(self):
        self.n += 1
        r = self.random
        how = r.choice(["token", "token", "token", "user", "node"])
        tls, metadata, take_away, methods = self.by_token() if how == "token" else self.by_certificate(how)
        # What such a user may not do anyway is refused at once, and holds nothing.
        may = methods if how != "user" else ["Submit", "ListJobs", "ListNodes", "Counters", "Version", "WatchEvents"]
        early = r.random() < 0.5  # some messages are on their way when the right is taken away
        if early and how != "node":  # those that come before are served: an admin's would do to the run beside what an admin may
            may = [m for m in may if m in AsClient.READING]
        chosen = [r.choice(may) for _ in range(r.randrange(1, 9))]
        payloads = [self.mutator.bytes_of(protocol.request_of(m)) if m in protocol.METHODS else
                    protocol.hello(f"held{self.n}", r.randrange(1 << 62)).SerializeToString() for m in chosen]
        with protocol.channel(self.tcp, tls) as channel:
            calls = [protocol.HeldCall(channel, m, metadata) for m in chosen]
            assert protocol.version(channel, metadata) == "OK", (how, chosen)
            taking = threading.Thread(target=take_away)
            if early:
                taking.start()
            else:
                take_away()
            for call, payload in zip(calls, payloads):
                call.send(payload)
            if early:
                taking.join()
            for call in calls:
                assert call.ended.wait(deadline()), f"held {call.method} by {how} goes on"
                assert early or call.result[0] == "PERMISSION_DENIED", f"held {call.method} by {how}: {call.result}"
        return f"{how} {'meanwhile' if early else 'after'}"

    def close(self):
        self.owner.close()
        shutil.rmtree(self.folder, ignore_errors=True)


WAYS = {"client": AsClient, "nobody": AsNobody, "agent": AsAgent, "worker": AsWorker, "peer": AsPeer, "held": AsHeld}


def main(way, context, seed, rounds):
    def orphan():
        sys.stdin.read()
        os._exit(3)

    threading.Thread(target=orphan, daemon=True).start()
    speaker = WAYS[way](Context(Path(context)), f"{seed}/{way}")
    seen, said = Counter(), time.monotonic()
    for n in range(1, int(rounds) + 1):
        seen[speaker.say()] += 1
        if time.monotonic() - said > 0.5:  # timing: now and then
            said = time.monotonic()
            print(json.dumps({"done": n}), flush=True)
    speaker.close()
    print(json.dumps({"done": int(rounds), "seen": seen.most_common(), "fields": len(speaker.all),
                      "untried": sorted(speaker.all - speaker.mutator.tried.keys())}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
