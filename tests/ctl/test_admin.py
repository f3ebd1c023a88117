#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""titanctl admin: backup of a running store, its return, and what is refused."""
import contextlib
import hashlib
import hmac
import json
import os
import random
import re
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BIN, SOURCE, Daemon, command, headers_text, store_copy, tap  # noqa: E402

CTL = BIN / "titanctl"


class World:
    """A daemon with one slot: jobs that need two wait, nothing trains."""


def submit(n=1):
    keys = {"training.dataset_path": World.text, "elastic.min_workers": 2, "elastic.max_workers": 2}
    return [int(World.daemon.submit("tiny", keys)) for _ in range(n)]


def admin(*args, code=0, key=True):
    """key: the daemon's, where a signature may be looked at."""
    if key and args[0] in ("verify", "restore") and "--key" not in args:
        args = (*args, "--key", key_file())
    done = command(CTL, "-s", World.daemon.server, "-o", "json", "admin", *args)
    assert done.code == code, f"exit {done.code} instead of {code}: {done.err}"
    return json.loads(done.out) if code == 0 else done.err


def key_file():
    return World.daemon.state / "pki/backup.key"


def jobs():
    listed = json.loads(World.daemon.ok("-o", "json", "list", "--limit", 1000))
    return {int(job["id"]) for job in listed["jobs"]}


def backup_while_submitting():
    """A backup holds what was acknowledged before it began, and is sound in itself."""
    before = submit(5)
    for role in ("user", "operator"):
        World.daemon.ok("token", "create", "ci", "--role", role)
    World.daemon.ok("token", "revoke", json.loads(World.daemon.ok("-o", "json", "token", "list"))["tokens"][0]["id"])
    over, acked = threading.Event(), []

    def flood():
        while not over.is_set():
            acked.extend(submit())

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        report = admin("backup", World.home / "one.db")
    finally:
        over.set()
        thread.join()
    assert report["jobs"] >= len(before) and report["events"] >= report["jobs"], report
    again = admin("verify", "--rederive", World.home / "one.db")
    assert again["jobs"] == report["jobs"] and again["replayed"] >= report["jobs"], again
    live = admin("verify", World.daemon.state)  # in use
    assert live["jobs"] >= 5 + len(acked), live
    assert sorted(p.name for p in World.home.glob("one.db*")) == ["one.db", "one.db.sig"], "a backup is one file, and its signature"
    assert report["head"] == again["head"] and report["head"].split(":")[0] == str(report["last_event"]), (report, again)
    assert report["signed_at"] == again["signed_at"], (report, again)
    assert not list(World.daemon.state.glob("backup-*")), "the server keeps nothing"


def backup_is_not_overwritten():
    error = admin("backup", World.home / "one.db", code=6)
    assert "is there already" in error, error
    error = admin("backup", "/nowhere/at/all.db", code=2)
    assert "/nowhere/at/all.db" in error, error


def backup_is_signed():
    """The signature is the HMAC of its lines, under a key that is not in the backup; whatever is changed is refused."""
    backup, key = World.home / "one.db", key_file()
    sig = backup.with_name("one.db.sig")
    assert key.stat().st_mode & 0o777 == 0o600
    secret = bytes.fromhex(key.read_text())
    assert len(secret) == 32 and secret not in backup.read_bytes() and key.read_text().strip().encode() not in backup.read_bytes()
    text = sig.read_text()
    lines, last = text[:text.rindex("signature ")], text.split()[-1]
    assert hmac.new(secret, lines.encode(), hashlib.sha256).hexdigest() == last, text
    stated = dict(line.split(" ", 1) for line in lines.splitlines())
    assert stated["sha256"] == hashlib.sha256(backup.read_bytes()).hexdigest() and stated["size"] == str(backup.stat().st_size), stated
    place, copy = World.home / "empty", World.home / "copy.db"
    beside = copy.with_name("copy.db.sig")
    place.mkdir()

    def refused(code, words, *args):
        for command_ in (("verify", copy), ("restore", copy, "--state-dir", place)):
            error = admin(*command_, *args, code=code)
            assert words in error, (words, error)
        assert list(place.iterdir()) == [], "a refused restore leaves nothing"

    def put(bytes_, signature):
        copy.write_bytes(bytes_)
        beside.write_text(signature)

    whole = backup.read_bytes()
    seed = int(os.environ.get("TITAN_TEST_SEED", time.time_ns()))
    print(f"# TITAN_TEST_SEED={seed}")
    rng = random.Random(seed)
    for at in [rng.randrange(len(whole)) for _ in range(5)]:
        changed = bytearray(whole)
        changed[at] ^= 1 << rng.randrange(8)
        put(changed, text)
        refused(1, "it was changed since")
        refused(1, "it was changed since", "--unsigned")
    put(whole + b"\0", text)
    refused(1, "it was changed since")
    for field, other in (("at", "2026-01-01T00:00:00.000Z"), ("head", "7" + stated["head"]), ("signature", last[::-1])):
        put(whole, re.sub(f"(?m)^{field} .*$", f"{field} {other}", text))
        refused(1, "it was changed")
    changed = bytearray(whole)
    changed[100] ^= 1
    put(changed, text.replace(stated["sha256"], hashlib.sha256(changed).hexdigest()))
    refused(1, "it was changed")
    for junk in ("", "junk", text + "more", text.replace("key ", "key  ")):
        put(whole, junk)
        refused(1 if junk else 5, "is no signature" if junk else "is not signed")
    put(whole, text)
    other = World.home / "other.key"
    other.write_text("5a" * 32 + "\n")
    other.chmod(0o640)
    refused(5, "rights to it", "--key", other)
    other.chmod(0o600)
    refused(5, "the key here is", "--key", other)
    refused(5, "no.key", "--key", World.home / "no.key")
    done = command(CTL, "admin", "verify", copy, "--key", other, "--unsigned")
    assert done.code == 0 and "not signed" in done.out and "Not known" in done.err, done
    beside.unlink()
    refused(5, "is not signed")
    done = command(CTL, "admin", "restore", copy, "--state-dir", place, "--unsigned")
    assert done.code == 0 and "Not known" in done.err, done
    admin("verify", "--rederive", place, key=False)
    shutil.rmtree(place)
    # The state directory's own key is the default.
    assert admin("verify", backup, "--state-dir", World.daemon.state, key=False)["signed_at"] == stated["at"]


def key_that_cannot_be_read():
    """Without its key a server makes no backup, and runs on; with none it makes one."""
    key = key_file()
    was = key.read_text()
    key.write_text("no key\n")
    error = admin("backup", World.home / "none.db", code=2)
    assert str(key) in error and not list(World.home.glob("none.db*")), error
    key.unlink()
    admin("backup", World.home / "new.db")
    assert key.read_text() != was and admin("verify", World.home / "new.db")["jobs"] > 0
    assert "the key here is" in admin("verify", World.home / "one.db", code=5), "of the key before"
    key.write_text(was)


def backups_are_rotated():
    """--keep N: a folder with the newest N; what is not a backup is left alone."""
    folder = World.home / "kept"
    folder.mkdir()
    for name in ("titan-20200101T000000Z.db", "titan-20200101T000000Z.db.sig", "titan-20210101T000000Z.db", "titan-notes.txt", "other.db"):
        (folder / name).write_text("old")
    admin("backup", "--keep", 2, folder)
    left = sorted(p.name for p in folder.iterdir())
    assert len(left) == 5 and "titan-20210101T000000Z.db" in left and "titan-notes.txt" in left, left
    newest = [name for name in left if name.startswith("titan-202") and name != "titan-20210101T000000Z.db"]
    assert newest[1] == newest[0] + ".sig", left
    assert admin("verify", folder / newest[0])["jobs"] >= 0
    admin("backup", "--keep", 2, World.home / "nowhere", code=2)
    assert sorted(p.name for p in folder.iterdir()) == left, "nothing goes without a new one"


def backup_into_a_hostile_folder():
    """Root's backup into a folder of another user follows no link there; until it is whole its name is random."""
    if os.geteuid() != 0:
        return "needs root for a folder of another user"
    folder, victim = World.home / "hostile", World.home / "victim"
    folder.mkdir()
    victim.write_text("root's")
    for name in ("b.db", "b.db.part", "b.db.tmp", "b.db.sig", "b.db-journal"):
        (folder / name).symlink_to(victim)
    for path in folder.iterdir():
        os.chown(path, 64999, 64999, follow_symlinks=False)
    os.chown(folder, 64999, 64999)
    assert "is there already" in admin("backup", folder / "b.db", code=6)
    (folder / "b.db").unlink()
    admin("backup", folder / "b.db")
    (folder / "c.db").symlink_to(World.home / "made")
    assert "is there already" in admin("backup", folder / "c.db", code=6), "a link to nowhere is there, too"
    assert victim.read_text() == "root's" and not (World.home / "made").exists()
    assert sorted(p.name for p in folder.iterdir()) == ["b.db", "b.db-journal", "b.db.part", "b.db.sig", "b.db.tmp", "c.db"]
    assert (folder / "b.db").lstat().st_mode == 0o100600 and not (folder / "b.db.sig").is_symlink()
    report = folder / "report.html"
    report.symlink_to(victim)
    os.chown(report, 64999, 64999, follow_symlinks=False)
    done = World.daemon.ctl("report", submit()[0], "--out", report)
    assert done.code == 5 and "is a link of another user" in done.err, done
    assert victim.read_text() == "root's"


def backup_of_a_full_disk():
    """Where the state directory has no room for a copy, it is made in $TMPDIR; where neither has, that is said."""
    if os.geteuid() != 0:
        return "needs root for small file systems"
    with tempfile.TemporaryDirectory(prefix="titan-full-") as home, contextlib.ExitStack() as ends:
        small, temporary = Path(home) / "small", Path(home) / "tmp"
        for path, size in ((small, "4m"), (temporary, "2m")):
            path.mkdir()
            if command("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path).code:
                return "tmpfs cannot be mounted here"
            ends.callback(command, "umount", path)
        with Daemon(small / "state", "--slots", "1", env={"TMPDIR": str(temporary)}) as d:
            d.ok("admin", "backup", Path(home) / "zero.db")
            size, free = (Path(home) / "zero.db").stat().st_size, os.statvfs(small)
            (small / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize - size // 2))
            d.ok("admin", "backup", Path(home) / "one.db")
            d.ok("admin", "verify", Path(home) / "one.db", "--state-dir", d.state)
            assert not list(temporary.iterdir()) and not list(d.state.glob("backup-*")), "nothing is left"
            (temporary / "ballast").write_bytes(bytes((2 << 20) - size // 2))
            done = d.ctl("admin", "backup", Path(home) / "two.db")
            assert done.code == 1 and "TMPDIR" in done.err and "copying the store" in done.err, done
            assert not list(Path(home).glob("two.db*")) and not list(d.state.glob("backup-*"))
            (small / "ballast").unlink()
            d.ok("admin", "backup", Path(home) / "two.db")


def backup_over_tcp_is_refused():
    port = (World.daemon.state / "run/listen").read_text().split("127.0.0.1:")[1].split()[0]
    done = command(CTL, "-s", f"127.0.0.1:{port}", "admin", "backup", World.home / "tcp.db")
    assert done.code == 5, done.err
    assert not list(World.home.glob("tcp.db*"))


def restore_of_a_running_store_is_refused():
    error = admin("restore", World.home / "one.db", "--state-dir", World.daemon.state, code=6)
    assert "in use by process" in error, error


def stored(sql):
    with store_copy(World.daemon.state / "titan.db") as db:
        return db.execute(sql).fetchone()[0]


def term():
    return stored("SELECT value FROM meta WHERE key = 'term'")


def damaged_backup_is_refused():
    World.daemon.stop()
    before = (World.daemon.state / "titan.db").read_bytes()
    bad = World.home / "bad.db"
    shutil.copy(World.home / "one.db", bad)
    with sqlite3.connect(bad) as db:
        db.execute("UPDATE events SET message = 'nothing happened' WHERE id = 3")
    db.close()
    assert "event 3 " in admin("verify", bad, "--unsigned", code=1)
    assert "event 3 " in admin("restore", bad, "--state-dir", World.daemon.state, "--unsigned", code=1)
    shutil.copy(World.home / "one.db", bad)
    with sqlite3.connect(bad) as db:
        db.execute("UPDATE jobs SET state = 7 WHERE id = 2")
    db.close()
    admin("verify", bad, "--unsigned")
    assert "do not follow" in admin("verify", "--rederive", bad, "--unsigned", code=1)
    assert "do not follow" in admin("restore", bad, "--state-dir", World.daemon.state, "--unsigned", code=1)
    for change, words in (("jobs SET user = 'mallory' WHERE id = 2", "job 2: its owner is mallory, event"),
                          ("jobs SET uid = 64999 WHERE id = 2", "job 2: its uid is 64999, event"),
                          ("recipes SET text = text || ' ' WHERE job_id = 2", "job 2: its recipe is"),
                          ("tokens SET role = 3 WHERE role = 1", "its role is 3, event"),
                          ("tokens SET revoked_at_ms = 0", "its revoked_at_ms is 0, event"),
                          ("tokens SET expires_at_ms = expires_at_ms + 1 WHERE role = 2", "its expires_at_ms is")):
        shutil.copy(World.home / "one.db", bad)
        with sqlite3.connect(bad) as db:
            db.execute(f"UPDATE {change}")
        db.close()
        for how in (("verify", "--rederive", bad), ("restore", bad, "--state-dir", World.daemon.state)):
            error = admin(*how, "--unsigned", code=1)
            assert "do not follow" in error and (how[0] == "restore" or words in error), error
    bad.write_bytes(b"no database at all " * 1000)
    admin("restore", bad, "--state-dir", World.daemon.state, "--unsigned", code=1)
    admin("restore", World.home / "missing.db", "--state-dir", World.daemon.state, code=2)
    assert (World.daemon.state / "titan.db").read_bytes() == before, "a refused restore touches nothing"


def restore():
    """The jobs of the backup are back, later ones are not; numbers go on; the term is above every one seen."""
    World.daemon.start()
    in_backup = {job for job in jobs() if job <= admin("verify", World.home / "one.db")["jobs"]}
    later = submit(3)
    World.daemon.stop()
    old = term()
    report = admin("restore", World.home / "one.db", "--state-dir", World.daemon.state, "--above", old + 5)
    assert report["term"] > old + 5 and report["next_job"] == max(later) + 1, (report, old, later)
    assert Path(report["aside"]).exists()
    World.daemon.start()
    assert jobs() == in_backup, (jobs() ^ in_backup)
    assert term() == report["term"] + 1
    assert submit() == [max(later) + 1]
    detail = json.loads(stored("SELECT detail FROM events WHERE type = 'store.restored'"))
    assert detail["term"] == report["term"] + 1, detail
    World.daemon.stop()
    admin("verify", "--rederive", World.daemon.state)
    admin("verify", "--rederive", report["aside"], "--unsigned")  # what was moved aside still opens


def restore_without_a_store():
    fresh = World.home / "fresh"
    fresh.mkdir()
    report = admin("restore", World.home / "one.db", "--state-dir", fresh)
    assert not report["aside"], report
    admin("verify", "--rederive", fresh)


def restore_as_root_for_another():
    """Root's restore is the owner's work: on an empty machine, with modes of the daemon's, nothing left when it fails, and no name of the
    owner's is followed as root."""
    if os.geteuid() != 0:
        return "needs root"
    OWNER = 64996
    backup = World.home / "one.db"
    os.chmod(World.home, 0o755)
    backup.chmod(0o600)  # root alone reads it
    place = World.home / "of another"
    place.mkdir(mode=0o700)
    os.chown(place, OWNER, OWNER)
    bad = World.home / "bad.db"
    bad.write_bytes(backup.read_bytes()[:5000])
    admin("restore", bad, "--state-dir", place, "--unsigned", code=1)
    assert list(place.iterdir()) == [], list(place.iterdir())
    # What the owner has put there leads nowhere.
    mine = World.home / "root's"
    mine.write_text("root's")
    (place / "titan.db.restored").symlink_to(mine)
    command(CTL, "admin", "restore", backup, "--state-dir", place, "--key", key_file())
    assert mine.read_text() == "root's" and mine.stat().st_uid == 0, mine.stat()
    for path in place.iterdir():
        path.unlink()
    admin("restore", backup, "--state-dir", place)
    found = {p.name: (p.stat().st_uid, p.stat().st_mode & 0o777) for p in place.iterdir()}
    assert found["titan.db"] == (OWNER, 0o600) and found["lock"][0] == OWNER and set(found) == {"titan.db", "lock"}, found


def check():
    """Every node's findings; exit code 7 when one is wrong, as a node that does not answer is."""
    World.daemon.start()
    done = command(CTL, "-s", World.daemon.server, "-o", "json", "admin", "check")
    assert done.code in (0, 7), done.err
    (node,) = json.loads(done.out)["nodes"]
    found = {f["what"]: f["wrong"] for f in node["findings"]}
    assert {"folders", "clock", "version", "worker", "cgroup", "files", "memlock", "peers", "address"} <= set(found), found
    assert not any(found[what] for what in ("folders", "clock", "version", "worker")), node
    assert done.code == (7 if any(found.values()) else 0), (done.code, found)
    version = next(f["text"] for f in node["findings"] if f["what"] == "version")
    commit = command("git", "-C", SOURCE, "rev-parse", "--short=12", "HEAD").out.strip() if (SOURCE / ".git").exists() else ""
    assert commit in version, (commit, version)
    (World.daemon.state / "jobs/.titan-jobs").write_text("0123456789abcdef\n")
    done = command(CTL, "-s", World.daemon.server, "admin", "check")
    assert done.code == 7 and "another folder" in done.out, done.out


FIX = r"""
set -eu
mount --make-rprivate / && mkdir "$1/etc" && cp -a /etc/passwd /etc/group /etc/nsswitch.conf /etc/ld.so.cache "$1/etc"
sed -i '/^titan:/d' "$1/etc/passwd" "$1/etc/group"
echo "titan:x:$3:$3::/nonexistent:/bin/sh" >>"$1/etc/passwd" && echo "titan:x:$3:" >>"$1/etc/group"
mkdir "$1/etc/titan" && cp "$1"/*.toml "$1/etc/titan" && mount --bind "$1/etc" /etc
"$2" admin check --fix
"""


def fix():
    """admin check --fix makes what the configuration names, for titan and for the users of jobs where these open it, gives away nothing else,
    and lets the units write there"""
    OWNER = 64996
    if os.geteuid() != 0 or command("unshare", "-m", "true").code != 0:
        return "needs root and a mount namespace"
    for users in (True, False):
        with tempfile.TemporaryDirectory(prefix="titan-fix-") as name:
            home = Path(name)
            home.chmod(0o755)
            (home / "coordinator.toml").write_text("[coordinator]\n" + f"jobs_as_users = {str(users).lower()}\n" + f"""[storage]
jobs_dir = "{home}/jobs"
checkpoint_roots = ["{home}/there", "{home}/roots"]
""")
            (home / "there").mkdir(mode=0o700)
            done = command("unshare", "-m", "bash", "-c", FIX, "fix", home, CTL, OWNER)
            made = {p: (p.stat().st_uid, p.stat().st_mode & 0o7777) for p in (home / "jobs", home / "there", home / "roots")}
            assert done.code == 0 and list(made.values()) == [
                (OWNER, 0o711 if users else 0o750), (0, 0o700), (OWNER, 0o1777 if users else 0o750)], (done, made)
            unit = (home / "etc/systemd/system/titan-coordinator.service.d/titan-paths.conf").read_text()
            assert all(f"ReadWritePaths=-{home}/{n}\n" in unit for n in ("jobs", "there", "roots")), unit
            # A name that leads elsewhere makes nothing there.
            shutil.rmtree(home / "etc")
            (home / "roots").rmdir()
            (home / "roots").symlink_to(home / "elsewhere")
            done = command("unshare", "-m", "bash", "-c", FIX, "fix", home, CTL, OWNER)
            assert done.code != 0 and f"cannot make '{home}/roots'" in done.err and not (home / "elsewhere").exists(), done


def usage():
    assert "state-dir" in admin("restore", World.home / "one.db", code=2)
    assert "backup, restore, verify, check, members and hand-over" in admin("destroy", World.home / "one.db", code=2)


World.home = Path(tempfile.mkdtemp(prefix="titan-admin-"))
World.text = headers_text(World.home / "text", 1 << 20)
World.daemon = Daemon(World.home / "state", "--slots", "1").start()
try:
    tap(backup_while_submitting, backup_is_not_overwritten, backup_is_signed, key_that_cannot_be_read, backups_are_rotated, backup_into_a_hostile_folder, backup_of_a_full_disk, backup_over_tcp_is_refused,
        restore_of_a_running_store_is_refused, damaged_backup_is_refused, restore, restore_without_a_store, restore_as_root_for_another, check, fix,
        usage)
finally:
    World.daemon.stop()
    shutil.rmtree(World.home, ignore_errors=True)
