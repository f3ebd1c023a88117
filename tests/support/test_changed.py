#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make test CHANGED=1` (tests/changed.py) names the tests that a change can touch, the nearest first."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import changed  # noqa: E402
from titan import BUILD, command, tap  # noqa: E402

TREE = changed.Tree(BUILD)
TEST = f"{BUILD}/tests/unit/"


def of(*paths):
    sources, notes = TREE.select(paths)
    return changed.as_run(TREE, sources), notes


def a_source_by_its_symbols():
    """base/toml.c: its own test first, then what parses by it, the corpora of its targets; and not what never calls it"""
    tests, notes = of("base/toml.c")
    assert tests[0] == TEST + "base/test_toml", tests
    assert TEST + "base/test_recipe" in tests and "tests/fuzz/test_corpora.sh" in tests, tests
    assert TEST + "base/test_utf8" not in tests and TEST + "state/test_token" not in tests, tests
    assert tests.index(TEST + "base/test_recipe") < tests.index(TEST + "daemon/test_config"), tests
    assert "scripts that start the programs" in notes[0], notes
    targets = TREE.targets(TREE.select(["base/toml.c"])[0])
    assert f"{BUILD}/tests/fuzz/replay/toml" in targets and f"{BUILD}/tests/fuzz/replay/sweep" not in targets, targets


def a_header_by_its_includers():
    """a header: all that its source has, and what only includes it"""
    source, header = of("ctl/top_screen.c")[0], of("ctl/top_screen.h")[0]
    assert header[0] == TEST + "ctl/test_top" and not set(source) - set(header), (source, header)


def a_command_has_its_script():
    """ctl/top.c: the test of its screen and the script of the command; ctl/rm.c, worker/planner.c: scripts that call their commands"""
    tests, _ = of("ctl/top.c")
    assert set(tests[:2]) == {TEST + "ctl/test_top", "tests/ctl/test_top.py"}, tests
    assert "tests/ctl/test_jobs.py" in of("ctl/rm.c")[0], of("ctl/rm.c")
    assert "tests/ctl/test_plan.py" in of("worker/planner.c")[0], of("worker/planner.c")


def a_method_has_the_scripts_of_its_command():
    """daemon/api: scripts that call the commands of the methods that a file handles, or of its callers'; of rights there is a list"""
    tests, _ = of("daemon/api/requests.c")  # CancelJob, ResizeJob, DrainNode and others
    assert {"tests/ctl/test_schedule.py", "tests/ctl/test_titanctl.py"} <= set(tests), tests
    assert len([t for t in tests if t.endswith(".py")]) == 4 and tests[-1] == changed.TRAINS, tests
    assert "tests/fault/test_node_check.py" in of("daemon/api/check.c")[0], "titanctl admin check, among others of admin"
    assert not TREE.methods("daemon/api/api.c") and TREE.methods("daemon/api/origin.c") == ["Submit"] and TREE.methods("daemon/api/logs.c") == ["Logs"]
    assert set(changed.OF_RIGHTS) <= set(of("daemon/auth/acl.c")[0]) & set(TREE.scripts), of("daemon/auth/acl.c")


def a_key_has_the_scripts_that_set_it():
    """worker/epoch/profile.c: a script that sets profiling.profile_freq, which few do; of titand's file, limits.user_disk_mb"""
    assert "tests/ctl/test_traces.py" in of("worker/epoch/profile.c")[0], of("worker/epoch/profile.c")
    usage = "daemon/coordinator/shell/disk_usage.c"
    assert "tests/ctl/test_quotas.py" in of(usage)[0], of(usage)


def what_is_loaded_is_reached():
    """a kernel of the plug-in: tests that open the plug-in by its name"""
    tests, _ = of("worker/device/cpu/norm.c")
    assert TEST + "worker/device/test_cpu_ops" in tests and TEST + "base/test_toml" not in tests, tests


def a_program_has_its_scripts():
    """a main.c, which no test program has: the scripts that have the program's name"""
    tests, _ = of("daemon/main.c")
    assert tests[:-1] == ["tests/fault/test_titand_kill.py", "tests/fault/test_titand_life.py"] and tests[-1] == changed.TRAINS, tests
    assert "all" in TREE.targets(tests) and "tests/fault/test_worker_exit.py" in of("worker/main.c")[0], of("worker/main.c")


def a_failpoint_is_a_name():
    """a source with a failpoint: the script that arms it"""
    with_points = [f for f in changed.git("grep", "-l", 'failpoint("', "--", "daemon", "worker").split() if TREE.about(f)]
    assert with_points, "no script arms a failpoint"


def modules_by_imports():
    """a module of the scripts: what imports it, and what imports that; a script: itself"""
    tests, _ = of("tests/support/cluster.py")
    assert "tests/fault/test_scenarios.py" in tests and "tests/ctl/test_top.py" not in tests, tests
    assert "tests/fault/test_scenarios.py" in of("tests/fault/kit.py")[0]
    assert "tests/cuda/test_hopper.sh" in of("tests/cuda/begin.sh")[0]
    assert of("tests/ctl/test_top.py")[0] == ["tests/ctl/test_top.py"]
    assert of("tests/unit/base/test_toml.c")[0] == [TEST + "base/test_toml"]


def data_by_its_readers():
    """data, documents, run files and corpora: the tests that read them"""
    assert of("tests/unit/base/toml_cases.json")[0] == [TEST + "base/test_toml"]
    tests, _ = of("docs/api.md")
    assert {"tests/docs/test_names.py", "tests/docs/test_terms.py"} <= set(tests), tests
    assert TEST + "base/test_recipe" in of("recipes/llama3_8b.toml")[0]
    assert TEST + "ctl/test_report" in of("ctl/report.css")[0]
    sources, _ = TREE.select(["tests/fuzz/corpus/json.tar.xz"])
    assert sources == ["tests/fuzz/targets/json.c"] and changed.as_run(TREE, sources) == ["tests/fuzz/test_corpora.sh"], sources
    assert "tests/docs/test_names.py" in of("README.md")[0]


def gpus_have_their_scripts():
    """CUDA sources: tests/cuda, and no script of other devices"""
    tests, _ = of("worker/device/cuda/device.c")
    assert "tests/cuda/test_cuda_build.sh" in tests and all(t.startswith(("tests/cuda/", str(BUILD))) for t in tests), tests


def doubts_are_told():
    """what cannot be judged is said, and nothing is chosen for what no test reads"""
    assert "can touch every test" in of("mk/cuda.mk")[1][0]
    assert of("LICENSE") == ([], ["LICENSE: no test reads it or is compiled from it"])
    assert of() == ([], [])


def from_the_command_line():
    """the command line prints what the functions return; a commit that is missing is refused in one line"""
    done = command("tests/changed.py", "--build", BUILD, "base/utf8.c")
    assert done.code == 0 and done.out.split()[0] == TEST + "base/test_utf8", done
    if subprocess.run(["git", "rev-parse"], cwd=changed.ROOT, capture_output=True, check=False).returncode == 0:
        with tempfile.TemporaryDirectory() as folder:
            done = command(sys.executable, "tests/run.py", env={**os.environ, "BUILD": folder, "CHANGED": "no-such-commit", "T": ""})
            assert done.code == 1 and done.err == "make test: CHANGED=no-such-commit is no commit of this tree\n" and not done.out, done


tap(a_source_by_its_symbols, a_header_by_its_includers, a_command_has_its_script, a_method_has_the_scripts_of_its_command,
    a_key_has_the_scripts_that_set_it, what_is_loaded_is_reached, a_program_has_its_scripts, a_failpoint_is_a_name, modules_by_imports,
    data_by_its_readers, gpus_have_their_scripts, doubts_are_told, from_the_command_line)
