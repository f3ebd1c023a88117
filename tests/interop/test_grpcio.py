#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The API from Python: grpcio and messages made by protoc from the published .proto files, nothing of ours in between."""
import importlib
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from titan import BUILD, SOURCE, Daemon, deadline, headers_text, tap  # noqa: E402

try:
    import grpc
    from google.protobuf import descriptor_pb2
except ImportError as missing:
    print(f"1..1\nok 1 - the API from Python # SKIP no {missing.name} (Debian: python3-grpcio, python3-protobuf)")
    sys.exit(0)
if not shutil.which("protoc"):
    print("1..1\nok 1 - the API from Python # SKIP no protoc (Debian: protobuf-compiler)")
    sys.exit(0)

WORK = Path(tempfile.mkdtemp(prefix="titan-test-"))
PROTOS = sorted((BUILD / "gen/proto/titan").glob("*/*.proto"))
subprocess.run(["protoc", f"--proto_path={BUILD / 'gen/proto'}", f"--python_out={WORK}",
                f"--descriptor_set_out={WORK / 'all.fds'}", *PROTOS], check=True)
# The messages' package has the name of the tests' module.
sys.modules.pop("titan")
sys.path[0] = str(WORK)
api = importlib.import_module("titan.v1.titan_pb2")
health = importlib.import_module("titan.wire.health_pb2")
reflection = importlib.import_module("titan.wire.reflection_pb2")

SERVICE = {m.name: m for m in api.DESCRIPTOR.services_by_name["Titan"].methods}
STREAMS = {"WatchEvents", "Logs", "Metrics", "Audit", "Backup"}
RAW = {"request_serializer": lambda b: b, "response_deserializer": lambda b: b}


class Client:
    """Methods of titan.v1.Titan by name, as any client makes them from the descriptor."""

    def __init__(self, target, **options):
        self.channel = grpc.insecure_channel(target, options=list(options.items()))
        for name, method in SERVICE.items():
            make = self.channel.unary_stream if name in STREAMS else self.channel.unary_unary
            setattr(self, name, make(f"/titan.v1.Titan/{name}",
                                     request_serializer=getattr(api, method.input_type.name).SerializeToString,
                                     response_deserializer=getattr(api, method.output_type.name).FromString))

    def job(self, number):
        return self.GetJob(api.GetJobRequest(job_id=number)).job


def fails(code, call, *words):
    """The call ends with this status; every word is in its message."""
    try:
        result = call()
        list(result) if hasattr(result, "__iter__") else None
    except grpc.RpcError as error:
        assert error.code() == code, f"{error.code()} instead of {code}: {error.details()}"
        for word in words:
            assert word in error.details(), f"'{word}' is missing in: {error.details()}"
        return error
    raise AssertionError(f"no error; expected {code}")


def recipe(text, steps=20):
    tiny = (SOURCE / "recipes/tiny.toml").read_text().replace("steps = 50", f"steps = {steps}")
    return tiny.replace("[training]", f'[training]\ndataset_path = "{text}"')


def state(number):
    return api.JobState.Value(number)


class World:
    daemon = None


def a_run():
    """submit a run, watch its events to the end, read its logs, metrics and checkpoints"""
    c, text = World.client, World.text
    asks = recipe(text) + "[compile]\nenable = true\n"
    submitted = c.Submit(api.SubmitRequest(recipe=asks, name="from python", user="not-the-caller"))
    assert submitted.job_id > 0 and not submitted.existed
    assert len(submitted.warnings) == 1 and submitted.warnings[0].startswith("compile.enable has no effect: "), submitted
    events = list(c.WatchEvents(api.WatchEventsRequest(job_id=submitted.job_id, follow=True), timeout=deadline()))
    ids = [e.id for e in events]
    assert ids == sorted(set(ids)), "events out of order"
    types = [e.type for e in events]
    assert types[0] == "job.submitted" and "epoch.formed" in types and types[-1] == "job.state", types
    assert json.loads(events[-1].detail)["to"] == "completed"
    assert all(isinstance(json.loads(e.detail), dict) for e in events)
    assert all(abs(e.at_ms / 1000 - time.time()) < 100 for e in events)  # timing: no bound, but the day and the unit

    job = c.job(submitted.job_id)
    assert job.state == state("COMPLETED") and job.step == job.steps == 20, job
    assert job.name == "from python" and job.user == "not-the-caller" and job.checkpoint and job.loss > 0
    assert 0 < job.submitted_at_ms <= job.started_at_ms <= job.finished_at_ms

    points = list(c.Metrics(api.MetricsRequest(job_id=job.id)))
    assert [p.step for p in points] == list(range(1, 21)), [p.step for p in points]
    assert points[-1].loss == job.loss and all(math.isfinite(p.grad_norm) for p in points)
    later = list(c.Metrics(api.MetricsRequest(job_id=job.id, after_step=15)))
    assert [p.step for p in later] == [16, 17, 18, 19, 20]
    again = list(c.WatchEvents(api.WatchEventsRequest(job_id=job.id, after_event_id=ids[2])))
    assert [e.id for e in again] == ids[3:]

    log = b"".join(chunk.data for chunk in c.Logs(api.LogsRequest(job_id=job.id, rank=0)))
    assert b"step=20" in log and log.endswith(b"\n"), log[-300:]
    last = b"".join(chunk.data for chunk in c.Logs(api.LogsRequest(job_id=job.id, rank=0, tail_lines=1)))
    assert last.count(b"\n") == 1 and log.endswith(last)
    checkpoints = c.ListCheckpoints(api.ListCheckpointsRequest(job_id=job.id)).checkpoints
    assert job.checkpoint in [k.path for k in checkpoints] and max(k.step for k in checkpoints) == 20
    counters = {k.name: k.value for k in c.Counters(api.CountersRequest()).counters}
    assert counters["state_init"] >= 1 and counters["recoveries"] == 0, counters
    World.done = job.id


def idempotency():
    """the same submit again gives the first answer; the same key with other content is refused"""
    c, text = World.client, World.text
    request = api.SubmitRequest(recipe=recipe(text), idempotency_key="k-1")
    first, second = c.Submit(request), c.Submit(request)
    assert not first.warnings, first
    assert second.job_id == first.job_id and second.existed and not first.existed
    other = api.SubmitRequest(recipe=recipe(text, 21), idempotency_key="k-1")
    fails(grpc.StatusCode.ALREADY_EXISTS, lambda: c.Submit(other), "k-1")
    list(c.WatchEvents(api.WatchEventsRequest(job_id=first.job_id, follow=True), timeout=deadline()))


def waiting_for_nodes():
    """the answer to a submit says why the job stays in the queue until nodes are added: no node has its device, all have too few slots"""
    c, text = World.client, World.text
    for key, overrides, why in (("k-2", ["device.name=cuda"], "waiting: no node has a cuda device (1 node: cpu)"),
                                ("k-3", ["elastic.min_workers=4", "elastic.max_workers=4"],
                                 "waiting for nodes: the run needs 4 workers, all nodes together have 2 slots")):
        request = api.SubmitRequest(recipe=recipe(text), overrides=["compile.enable=true", *overrides], idempotency_key=key)
        answers = [c.Submit(request) for _ in range(2)]
        for answer in answers:
            first, last = answer.warnings
            assert first.startswith("compile.enable has no effect: "), answer
            assert last == f"job {answer.job_id} stays in the queue until nodes are added: {why}", answer
        assert [a.existed for a in answers] == [False, True], answers
        c.CancelJob(api.CancelJobRequest(job_id=answers[0].job_id))
        assert len(c.Submit(request).warnings) == 1  # it waits no more


def cancelling():
    """cancel a run; its streams end; a second cancel says that it has ended"""
    c, text = World.client, World.text
    number = c.Submit(api.SubmitRequest(recipe=recipe(text, 1000000))).job_id
    metrics = c.Metrics(api.MetricsRequest(job_id=number, follow=True), timeout=deadline())
    logs = c.Logs(api.LogsRequest(job_id=number, rank=-1, follow=True), timeout=deadline())
    assert next(metrics).step == 1 and next(logs).data
    answer = c.CancelJob(api.CancelJobRequest(job_id=number, reason="enough"))
    assert answer.state in (state("CANCELLING"), state("CANCELLED"))
    events = list(c.WatchEvents(api.WatchEventsRequest(job_id=number, follow=True), timeout=deadline()))
    assert json.loads(events[-1].detail)["to"] == "cancelled"
    list(metrics), list(logs)
    job = c.job(number)
    assert job.state == state("CANCELLED") and job.reason == "enough", job
    newest = c.ListCheckpoints(api.ListCheckpointsRequest(job_id=number)).checkpoints[0]
    assert newest.path == job.checkpoint and newest.step <= job.step, job
    fails(grpc.StatusCode.FAILED_PRECONDITION, lambda: c.CancelJob(api.CancelJobRequest(job_id=number)), "cancelled")


def paging():
    """list: newest first, by pages that stay put while jobs are added, filtered by state and user"""
    c, text = World.client, World.text
    everything = [j.id for j in c.ListJobs(api.ListJobsRequest()).jobs]
    assert everything == sorted(everything, reverse=True) and len(everything) >= 3
    pages, token = [], ""
    while True:
        page = c.ListJobs(api.ListJobsRequest(page_size=1, page_token=token))
        pages += [j.id for j in page.jobs]
        if not token:
            c.Submit(api.SubmitRequest(recipe=recipe(text), name="late"))
        token = page.next_page_token
        if not token:
            break
    assert pages == everything, f"{pages} instead of {everything}"
    cancelled = c.ListJobs(api.ListJobsRequest(states=[state("CANCELLED")])).jobs
    assert len(cancelled) == 1
    assert [j.id for j in c.ListJobs(api.ListJobsRequest(user="not-the-caller")).jobs] == [World.done]
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: c.ListJobs(api.ListJobsRequest(page_token="x")), "page_token")
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: c.ListJobs(api.ListJobsRequest(page_size=100000)), "page_size")


def healthy():
    """grpc.health.v1: Check and Watch"""
    make = {"request_serializer": health.HealthCheckRequest.SerializeToString,
            "response_deserializer": health.HealthCheckResponse.FromString}
    check = World.client.channel.unary_unary("/grpc.health.v1.Health/Check", **make)
    for service in ("", "titan.v1.Titan"):
        assert check(health.HealthCheckRequest(service=service)).status == health.HealthCheckResponse.SERVING
    fails(grpc.StatusCode.NOT_FOUND, lambda: check(health.HealthCheckRequest(service="nothing")))
    watch = World.client.channel.unary_stream("/grpc.health.v1.Health/Watch", **make)
    assert next(watch(health.HealthCheckRequest())).status == health.HealthCheckResponse.SERVING
    unknown = next(watch(health.HealthCheckRequest(service="nothing")))
    assert unknown.status == health.HealthCheckResponse.SERVICE_UNKNOWN


def reflecting():
    """grpc.reflection.v1 and v1alpha: services, files by name and symbol, byte for byte what protoc makes"""
    for version in ("v1alpha", "v1"):
        reflecting_of(version)


def reflecting_of(version):
    ask = World.client.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection.ServerReflectionResponse.FromString)
    Request = reflection.ServerReflectionRequest
    answers = list(ask(iter([Request(list_services=""), Request(file_containing_symbol="titan.v1.Titan.Submit"),
                             Request(file_by_filename="titan/wire/health.proto"), Request(file_by_filename="none"),
                             Request(host="h", file_containing_symbol="titan.v1.JobState")]), timeout=deadline()))
    assert len(answers) == 5
    services = {s.name for s in answers[0].list_services_response.service}
    assert services >= {"titan.v1.Titan", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection",
                         "grpc.reflection.v1.ServerReflection"}, services
    ours = descriptor_pb2.FileDescriptorSet.FromString((WORK / "all.fds").read_bytes())
    by_name = {f.name: f for f in ours.file}
    for answer, name in ((answers[1], "titan/v1/titan.proto"), (answers[2], "titan/wire/health.proto")):
        (raw,) = answer.file_descriptor_response.file_descriptor_proto
        assert descriptor_pb2.FileDescriptorProto.FromString(raw) == by_name[name]
    assert answers[3].error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert answers[4].original_request.host == "h" and answers[4].file_descriptor_response.file_descriptor_proto


def misuse():
    """garbage, oversize, unknown methods, wrong text, compression, privileged methods: a status each"""
    c = World.client
    submit = c.channel.unary_unary("/titan.v1.Titan/Submit", **RAW)
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: submit(b"\xff" * 100))
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: submit(b"\x0a\x02\xff\xfe"), "recipe")  # not UTF-8
    fails(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: submit(b"\x0a\x80\x80\x80\x04" + b"x" * (8 << 20)))
    fails(grpc.StatusCode.UNIMPLEMENTED, lambda: c.channel.unary_unary("/titan.v1.Titan/Nothing", **RAW)(b""))
    fails(grpc.StatusCode.UNIMPLEMENTED, lambda: c.channel.unary_unary("/nothing/at/all", **RAW)(b""))
    fails(grpc.StatusCode.UNIMPLEMENTED, lambda: c.Version(api.VersionRequest(), compression=grpc.Compression.Gzip),
          "ompression")
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: c.Submit(api.SubmitRequest(recipe="x" * (300 << 10))))
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: c.Submit(api.SubmitRequest(recipe="[training]\nstepz = 1\n")),
          "stepz", "steps")
    session = World.tcp.channel.stream_stream("/titan.internal.Coordinator/Session", **RAW)
    fails(grpc.StatusCode.PERMISSION_DENIED, lambda: session(iter([b""]), timeout=deadline()))
    of_jobs = [name for name, method in SERVICE.items() if "job_id" in method.input_type.fields_by_name]
    assert {"GetJob", "RemoveJob", "Logs"} <= set(of_jobs), of_jobs
    for name in of_jobs:
        request = getattr(api, SERVICE[name].input_type.name)(job_id=4711)
        fails(grpc.StatusCode.NOT_FOUND, lambda: getattr(c, name)(request), "4711")
    assert c.Version(api.VersionRequest()).api == "titan.v1"  # and it goes on


def deadlines():
    """a deadline ends a stream that has nothing to say, and a cancelled call leaves nothing behind"""
    c = World.client
    fails(grpc.StatusCode.DEADLINE_EXCEEDED,
          lambda: c.WatchEvents(api.WatchEventsRequest(after_event_id=1 << 60, follow=True), timeout=0.3))  # timing: the deadline is what is tested
    for _ in range(50):
        stream = c.WatchEvents(api.WatchEventsRequest(follow=True))
        next(stream)
        stream.cancel()
    assert c.ListNodes(api.ListNodesRequest()).nodes[0].state == "ready"


def both_listeners():
    """the same over loopback TCP: version, nodes, a thousand calls at once"""
    c = World.tcp
    version = c.Version(api.VersionRequest())
    assert version.api == "titan.v1" and version.version and version.schema >= 1
    (node,) = c.ListNodes(api.ListNodesRequest()).nodes
    assert node.slots == 2 and node.device == "cpu"
    calls = [c.GetJob.future(api.GetJobRequest(job_id=World.done)) for _ in range(1000)]
    assert all(call.result(timeout=deadline()).job.id == World.done for call in calls)


def documented():
    """docs/api.md: its Python example without stubs runs as it stands, and its table of events has what really came"""
    page = (SOURCE / "docs/api.md").read_text()
    _, code = re.findall(r"```python\n(.*?)```", page, re.S)  # the first one: test_python_stubs.py
    (WORK / "example.py").write_text(code)
    (WORK / "run.toml").write_text(recipe(World.text))
    done = subprocess.run([sys.executable, WORK / "example.py", World.daemon.server, WORK / "run.toml"], timeout=deadline(),
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and "COMPLETED at step 20" in done.stdout, done.stdout
    table = {}
    for types, fields in re.findall(r"^\| ((?:`[a-z]+\.[a-z]+`(?:, )?)+) \|[^|]*\|([^|]*)\|$", page, re.M):
        fields = re.sub(r"\(.*?\)", "", fields)
        for kind in re.findall(r"`([a-z.]+)`", types):
            table[kind] = (set(re.findall(r"`(\w+)`", fields)), set(re.findall(r"\[`(\w+)`\]", fields)))
    assert len(table) >= 22, sorted(table)
    for event in World.client.WatchEvents(api.WatchEventsRequest()):
        known, optional = table[event.type]
        fields = set(json.loads(event.detail))
        assert known - optional <= fields <= known, f"{event.type} has {sorted(fields)}, documented: {sorted(known)}"


def main():
    World.text = headers_text(WORK / "text", 1 << 18)
    with Daemon(None, "--slots", 2) as daemon:
        addresses = (daemon.state / "run/listen").read_text().split()
        World.daemon = daemon
        World.client = Client(daemon.server)
        World.tcp = Client(next(a for a in addresses if not a.startswith("unix:")))
        try:
            tap(a_run, idempotency, cancelling, paging, waiting_for_nodes, healthy, reflecting, misuse, deadlines, both_listeners,
                documented)
        except SystemExit as end:
            if end.code:
                raise  # the daemon's log is shown


try:
    main()
finally:
    shutil.rmtree(WORK, ignore_errors=True)
