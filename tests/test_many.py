"""Many processes on one machine: pinned, queued, resumed, and each for itself when one fails."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file

from ibrl_jax import many
from ibrl_jax.config import from_dict, load, to_dict
from ibrl_jax.errors import UserError
from ibrl_jax.jobs import queue
from ibrl_jax.jobs.processes import Job
from ibrl_jax.jobs.queue import run_jobs, shares
from ibrl_jax.trainer.run import RunFolder, read_json, write_json
from ibrl_jax.trainer.weights import fingerprint

SMOKE = "configs/dond/smoke.py"
WRITES = "import json, os, sys; sys.stdout.write(json.dumps([sorted(os.sched_getaffinity(0)), {}]))"

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system has no pinning"
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_LOOKS", 0.005)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shares, also where there is one core (then both are that one)."""
    mine = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(queue, "shares", lambda n: [(mine[0],), (mine[-1],)][:n])


def make(folder: Path, name: str, code: str, *, total: int = 2, finished: bool = False) -> Job:
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(code)
    command = (sys.executable, "-S", "-E", str(file))
    return Job(name=name, command=command, folder=folder / name, total=total, finished=finished)


def run(made: list[Job], at_once: int) -> tuple[dict[str, str], str]:
    """The ending of each job by name, and what was printed."""
    out = io.StringIO()
    ended = run_jobs(made, at_once, Console(file=out, width=200))
    return {e.job.name: e.ending for e in ended}, out.getvalue()


def log_of(job: Job) -> str:
    return job.log.read_text().partition("\n")[2]


def test_each_process_is_pinned_to_a_share_and_told_how_many_threads_that_is(
    tmp_path: Path, two_cores: None
) -> None:
    told = "[os.environ[k] for k in ('JAX_NUM_CPU_DEVICES', 'OMP_NUM_THREADS')]"
    made = [make(tmp_path, n, WRITES.format(told)) for n in ("a", "b")]
    mine = sorted(os.sched_getaffinity(0))
    assert run(made, 2)[0] == {"a": "done", "b": "done"}
    assert [json.loads(log_of(job)) for job in made] == [
        [[mine[0]], ["1", "1"]],
        [[mine[-1]], ["1", "1"]],
    ]
    assert os.sched_getaffinity(0) == set(mine)


def test_shares_are_disjoint_and_hold_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_cores", lambda: {0, 1, 4, 5, 6})
    assert shares(1) == [(0, 1, 4, 5, 6)]
    assert sorted(core for share in shares(2) for core in share) == [0, 1, 4, 5, 6]
    assert [len(share) for share in shares(3)] == [2, 2, 1]
    for wrong in (0, 6):
        with pytest.raises(UserError, match=f"jobs is {wrong}; .* must be 1 to 5 here"):
            shares(wrong)


def test_no_more_run_than_are_asked_for_and_the_queue_is_served_in_order(
    tmp_path: Path, two_cores: None
) -> None:
    code = "import time; a = time.monotonic(); time.sleep(.05); print(a, time.monotonic())"
    made = [make(tmp_path, f"job{i}", code) for i in range(4)]
    assert set(run(made, 2)[0].values()) == {"done"}
    spans = [tuple(map(float, log_of(job).split())) for job in made]
    for began, _ in spans:
        assert sum(a <= began < b for a, b in spans) <= 2
    assert max(spans[0][0], spans[1][0]) < min(spans[2][0], spans[3][0])


def test_a_failure_is_quoted_and_the_others_go_on(tmp_path: Path, two_cores: None) -> None:
    made = [
        make(tmp_path, "bad", "import sys; print('so far so good'); sys.exit('no such thing')"),
        make(tmp_path, "good", "pass"),
        make(tmp_path, "later", "pass"),
    ]
    endings, said = run(made, 1)
    assert endings == {"bad": "failed", "good": "done", "later": "done"}
    assert "bad ended with exit code 1" in said
    assert "    so far so good" in said
    assert "    no such thing" in said


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    made = [make(tmp_path, "old", "pass", finished=True), make(tmp_path, "new", "pass")]
    assert run(made, 1)[0] == {"old": "finished before", "new": "done"}
    assert not made[0].log.exists()


ROWS = """
import json, sys, time
for k in range(4):
    with open({file!r}, "a") as out:
        row = dict(iteration=k, seconds=dict(total=1), roles=dict(a=dict(reward=k / 10, kl=0.)))
        out.write(json.dumps(row) + chr(10))
    time.sleep(.03)
"""


def test_progress_is_read_from_the_metrics(tmp_path: Path) -> None:
    job = make(tmp_path, "run", ROWS.format(file=str(tmp_path / "run/metrics.jsonl")), total=4)
    _, said = run([job], 1)
    assert "run: 1/4  reward a +0.000" in said
    assert "run: 3/4  reward a +0.200" in said


@pytest.mark.parametrize("line", ["no JSON", "[]", "{}", "[" * 5000, '{"seconds": {"total": ""}}'])
def test_a_damaged_row_neither_ends_the_watch_nor_the_process(tmp_path: Path, line: str) -> None:
    """Also one that an earlier start has left."""
    file = tmp_path / "run" / "metrics.jsonl"
    file.parent.mkdir()
    file.write_text(f"{line}\n")
    code = f"with open({str(file)!r}, 'a') as out: out.write({line + chr(10)!r})\n"
    job = make(tmp_path, "run", code + ROWS.format(file=str(file)), total=8)
    endings, said = run([job], 1)
    assert endings == {"run": "done"}
    assert "run: 4/8  reward a +0.100" in said


def interrupt(when: Callable[[], bool], times: int = 1) -> threading.Thread:
    """Sends this process what Ctrl-C sends, as soon as something holds."""

    def send() -> None:
        until = time.monotonic() + 20
        while not when() and time.monotonic() < until:
            time.sleep(0.005)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


GENTLE = """
import signal, sys, time
def stop(*_):
    print("saved", flush=True)
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
time.sleep(20)
"""


def test_ctrl_c_lets_what_runs_end_gently_and_nothing_new_begins(
    tmp_path: Path, two_cores: None
) -> None:
    made = [make(tmp_path, n, GENTLE) for n in ("a", "b", "c")]
    thread = interrupt(lambda: all(j.log.exists() and "ready" in log_of(j) for j in made[:2]))
    endings, _ = run(made, 2)
    thread.join()
    assert endings == {"a": "stopped", "b": "stopped", "c": "not begun"}
    assert [log_of(job) for job in made[:2]] == ["ready\nsaved\n"] * 2
    with pytest.raises(KeyboardInterrupt):  # Ctrl-C ends this process again
        signal.raise_signal(signal.SIGINT)


def test_what_does_not_heed_ctrl_c_is_killed_at_the_third(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
    job = make(tmp_path, "deaf", deaf + "print('ready', flush=True); time.sleep(20)")
    thread = interrupt(lambda: job.log.exists() and "ready" in log_of(job), times=3)
    endings, _ = run([job], 1)
    thread.join()
    assert endings == {"deaf": "stopped"}


def test_a_python_that_ctrl_c_met_before_it_was_up_did_not_fail(tmp_path: Path) -> None:
    rises = "import signal, sys, time; signal.signal(signal.SIGINT, lambda *_: sys.exit(1));"
    job = make(tmp_path, "early", rises + "print('ready', flush=True); time.sleep(20)")
    thread = interrupt(lambda: job.log.exists() and "ready" in log_of(job))
    endings, _ = run([job], 1)
    thread.join()
    assert endings == {"early": "stopped"}


def test_what_another_kills_has_failed(tmp_path: Path) -> None:
    job = make(tmp_path, "shot", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    endings, said = run([job], 1)
    assert endings == {"shot": "failed"}
    assert "exit code -9" in said


# The seeds of a config


def finished_run(root: Path, seed: int) -> RunFolder:
    config = load(SMOKE, [f"--config.run.root={root}", f"--config.seed={seed}"])
    folder = RunFolder.of(config)
    write_json(folder.path / "config.json", to_dict(config))
    write_json(folder.path / "summary.json", {"iterations": config.iterations})
    for role in config.roles:
        write_json(folder.policy(role) / "policy.json", {})
    return folder


def test_a_seed_is_a_run_of_the_train_command(tmp_path: Path) -> None:
    overrides = [f"--config.run.root={tmp_path}", "--config.iterations=7"]
    job = many.job(SMOKE, overrides, 3, evaluate=False)
    assert job.command[1:] == (
        *("-m", "ibrl_jax.train", f"--config={SMOKE}"),
        *(*overrides, "--config.seed=3"),
    )
    assert (job.folder, job.total, job.finished) == (tmp_path / "smoke" / "seed3", 7, False)
    assert many.job(SMOKE, overrides, 3, evaluate=True).command[-1] == "--quickstart"


def test_a_run_is_finished_when_it_left_all_that_is_asked_for(tmp_path: Path) -> None:
    folder = finished_run(tmp_path, 0)
    root = f"--config.run.root={tmp_path}"
    assert many.job(SMOKE, [root], 0, evaluate=False).finished
    assert not many.job(SMOKE, [root], 0, evaluate=True).finished
    assert not many.job(SMOKE, [root, "--config.iterations=9"], 0, evaluate=False).finished
    leave_evaluation(folder)
    assert many.job(SMOKE, [root], 0, evaluate=True).finished
    leave_evaluation(folder, unfinished={"dialogues": 4, "broken_off": 1})
    assert not many.job(SMOKE, [root], 0, evaluate=True).finished
    (folder.policy("agent1") / "policy.json").unlink()
    assert not many.job(SMOKE, [root], 0, evaluate=False).finished


def leave_evaluation(folder: RunFolder, **more: object) -> None:
    """What an evaluation of a run's policies by its own config leaves."""
    config = folder.config()
    config.evaluation.policies = ("agent0=frozen:agent0",)
    write_json(folder.path / "evaluation.json", {"config": to_dict(config), **more})


def test_an_evaluation_by_other_settings_is_not_the_one_that_is_asked_for(tmp_path: Path) -> None:
    leave_evaluation(finished_run(tmp_path, 0))
    root = f"--config.run.root={tmp_path}"

    def finished(*options: str) -> bool:
        return many.job(SMOKE, [root, *options], 0, evaluate=True).finished

    assert finished()
    for option in (
        "evaluation.scenarios=3",
        "evaluation.counterparts=greedy",
        "evaluation.reference=agent0",
        "statistics.resamples=150",
    ):
        assert not finished(f"--config.{option}")
    assert finished("--config.run.text_every=9")


def test_an_evaluation_of_policies_that_are_others_now_is_none(tmp_path: Path) -> None:
    folder = finished_run(tmp_path, 0)
    policy = folder.policy("agent0")
    save_file({"w": np.zeros(3, np.float32)}, policy / "params.safetensors")
    about = {"label": "agent0", "folder": str(policy), "fingerprint": fingerprint(policy)}
    met = {"frozen:agent0": {"kind": "frozen", "fingerprint": fingerprint(policy)}}

    def finished() -> bool:
        root = f"--config.run.root={tmp_path}"
        return many.job(SMOKE, [root], 0, evaluate=True).finished

    for said in ({"policies": [about]}, {"counterparts": met}):
        leave_evaluation(folder, **said)
        assert finished()
        save_file({"w": np.ones(3, np.float32)}, policy / "params.safetensors")
        assert not finished()
        save_file({"w": np.zeros(3, np.float32)}, policy / "params.safetensors")
    (folder.path / "evaluation.json").write_text('{"config": ')
    assert not finished()


def test_a_run_does_not_go_back_to_fewer_iterations(tmp_path: Path) -> None:
    folder = finished_run(tmp_path, 0)
    (folder.path / "checkpoints" / "9").mkdir(parents=True)
    (folder.path / "checkpoints" / "12.orbax-checkpoint-tmp").mkdir()
    options = [f"--config.run.root={tmp_path}", "--config.iterations=9"]
    folder.check(load(SMOKE, options))
    options[-1] = "--config.iterations=8"
    with pytest.raises(UserError, match="has run 9 iterations by now, and config.iterations is 8"):
        many.job(SMOKE, options, 0, evaluate=False)


def test_a_folder_that_cannot_be_made_is_one_sentence() -> None:
    with pytest.raises(UserError, match="choose another --config.run.root"):
        with RunFolder(Path("/proc/nothing/mini/seed0")).lock():
            pass


def test_what_was_measured_goes_with_the_policies_it_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = finished_run(tmp_path, 0).path
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(there.relative_to(tmp_path))
    (folder.path / "crossplay.csv").write_text("first,second\n")
    assert folder.forget_end(["agent0", "agent1"])
    assert not {"crossplay.csv", "evaluation.json"} & set(os.listdir(folder.path))
    assert not folder.forget_end(["agent0", "agent1"])


def test_what_others_put_into_a_runs_policies_stays(tmp_path: Path) -> None:
    folder = finished_run(tmp_path, 0)
    for name in ("mine/model.safetensors", "agent0/exported/model.safetensors", "agent0@old.txt"):
        file = folder.path / "policies" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    folder.forget_end(["agent0", "agent1"])
    there = {str(p.relative_to(folder.path)) for p in (folder.path / "policies").rglob("*")}
    theirs = {"policies/mine", "policies/agent0", "policies/agent0/exported"}
    theirs |= {f"policies/{name}/model.safetensors" for name in ("mine", "agent0/exported")}
    assert there == theirs | {"policies/agent0@old.txt"}
    write_json(folder.policy("start") / "policy.json", {})
    folder.claim(load(SMOKE, [f"--config.run.root={tmp_path}", "--config.rollout.group=2"]))
    left = {str(p.relative_to(folder.path)) for p in (folder.path / "policies").rglob("*")}
    assert left == there


def test_the_folder_of_another_config_stops_before_anything_begins(tmp_path: Path) -> None:
    folder = finished_run(tmp_path, 0)
    folder.metrics.write_text('{"iteration": 0}\n')
    with pytest.raises(UserError, match="holds a run with config.rollout.group"):
        many.job(
            SMOKE,
            [f"--config.run.root={tmp_path}", "--config.rollout.group=2"],
            0,
            evaluate=False,
        )


def test_how_often_a_run_is_saved_may_change_unless_it_runs_ahead(tmp_path: Path) -> None:
    folder = finished_run(tmp_path, 0)
    folder.metrics.write_text('{"iteration": 0}\n')
    options = [f"--config.run.root={tmp_path}", "--config.run.checkpoint_every=3"]
    folder.check(load(SMOKE, options))
    ahead = [*options, "--config.pipeline.max_staleness=1"]
    write_json(folder.path / "config.json", to_dict(load(SMOKE, ahead)))
    folder.check(load(SMOKE, ahead))
    with pytest.raises(UserError, match="with config.run.checkpoint_every = 3, not 4"):
        folder.check(load(SMOKE, [*ahead, "--config.run.checkpoint_every=4"]))


def test_a_run_outlives_a_domain_that_came_or_went(tmp_path: Path) -> None:
    folder = finished_run(tmp_path, 0)
    folder.metrics.write_text('{"iteration": 0}\n')
    options = [f"--config.run.root={tmp_path}"]
    kept = to_dict(load(SMOKE, options))
    write_json(folder.path / "config.json", {k: v for k, v in kept.items() if k != "telesales"})
    folder.check(load(SMOKE, options))
    assert from_dict(json.loads((folder.path / "config.json").read_text())).domain == "dond"
    with pytest.raises(UserError, match="config.dond is missing"):
        from_dict({key: value for key, value in kept.items() if key != "dond"})
    write_json(folder.path / "config.json", kept | {"dond": {**kept["dond"], "max_turn_tokens": 9}})
    with pytest.raises(UserError, match="holds a run with config.dond"):
        folder.check(load(SMOKE, options))


@pytest.mark.parametrize("text", ["", "a", "0,", "0 1", "1,1", "-1", "0-3"])
def test_seeds_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="different whole numbers"):
        many.seeds_of(text)
    assert many.seeds_of("3,0") == [3, 0]


def test_the_command_counts_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished_run(tmp_path, 0)
    monkeypatch.setattr(sys, "executable", "false")
    options = [
        f"--config={SMOKE}",
        "--seeds=0,1",
        "--jobs=1",
        "--",
        f"--config.run.root={tmp_path}",
    ]
    with pytest.raises(UserError, match="1 of 2 runs failed: smoke/seed1;"):
        many.main(options, Console(file=io.StringIO()))


@pytest.mark.parametrize(
    "content", [b"\x80\x81", b"[" * 100_000, b'{"a": ', b"[]", b"null", b'"x"']
)
def test_a_damaged_json_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match="config.json is n"):
        read_json(file)
