"""Several processes: everybody has everybody's data, and nobody outlives the run."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibrl_jax.domains.base import Scenario
from ibrl_jax.errors import UserError
from ibrl_jax.parallel.hosts import Hosts, HostSettings, _loads, start
from ibrl_jax.parallel.hub import Hub
from ibrl_jax.parallel.launch import Place, find_place, first_node
from ibrl_jax.parallel.line import Line, Relay
from ibrl_jax.rewards.types import Scored

ROOT = Path(__file__).resolve().parents[2]
NAME = socket.gethostname()


# ---------------------------------------------------------------------------- who does what


@given(sizes=st.lists(st.integers(1, 4), max_size=9), count=st.integers(1, 5))
def test_shares_are_whole_groups_and_in_turn_all_of_it(sizes: list[int], count: int) -> None:
    items = [(draw, rollout) for draw, size in enumerate(sizes) for rollout in range(size)]
    shares = [
        Hosts(index, count, None, None).share(items, key=lambda item: item[0])
        for index in range(count)
    ]
    assert [item for share in shares for item in share] == items
    holders = [{i for i, share in enumerate(shares) if d in dict(share)} for d in range(len(sizes))]
    assert all(len(holder) == 1 for holder in holders)
    draws = [len(dict(share)) for share in shares]
    assert max(draws) - min(draws) <= 1


def test_one_process_has_nobody_to_ask() -> None:
    settings = HostSettings(coordinator="", count=0, index=-1, start_seconds=1, silence_seconds=5)
    with start(settings, {}) as hosts:
        assert (hosts.count, hosts.index, hosts.is_first) == (1, 0, True)
        assert hosts.exchange("x", {"a": 1}) == [{"a": 1}]
        hosts.barrier("there is none")


def test_data_cross_over_and_nothing_else_does() -> None:
    scenario = Scenario(id="s", cluster="c", public={"n": [1]}, private={"a": {}, "b": {}})
    value = {
        "scenario": scenario,
        "reward": Scored(value=0.5, detail={}),
        "roles": frozenset({"a", "b"}),
        "ids": np.arange(3, dtype=np.int32),
        "mean": np.float32(0.25),
    }
    back = _loads(pickle.dumps(value))
    assert (back["scenario"], back["reward"]) == (scenario, value["reward"])
    assert back["roles"] == value["roles"]
    assert back["ids"].dtype == np.int32
    np.testing.assert_array_equal(back["ids"], value["ids"])
    assert back["mean"].dtype == np.float32


class _Bad:
    def __init__(self, what: Callable[..., Any], *args: Any) -> None:
        self.call = what, args

    def __reduce__(self) -> tuple[Callable[..., Any], Any]:
        return self.call


@pytest.mark.parametrize("what", [(os.system, "true"), (eval, "1"), (first_node, "a")])
def test_a_frame_that_would_call_something_is_refused(what: tuple[Any, str]) -> None:
    with pytest.raises(pickle.UnpicklingError, match="is no data of ours"):
        _loads(pickle.dumps(_Bad(*what)))
    by_another_name = b"cibrl_jax.parallel.hosts\nos.system\n(S'true'\ntR."
    with pytest.raises(pickle.UnpicklingError, match="is no data of ours"):
        _loads(b"\x80\x04" + by_another_name)


# ---------------------------------------------------------------------------- where everybody is


@pytest.mark.parametrize(
    "nodes, first",
    [
        ("node7", "node7"),
        ("a7,b2", "a7"),
        ("a[007-009,012],b2", "a007"),
        ("gpu-[3,5]", "gpu-3"),
        ("x[12]", "x12"),
    ],
)
def test_the_first_of_slurms_nodes(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_launchers_are_known_by_their_environment() -> None:
    slurm = {
        "SLURM_JOB_ID": "4097",
        "SLURM_PROCID": "3",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "n[01-04]",
    }
    assert find_place("", 0, -1, slurm) == Place(host="n01", port=61441, index=3, count=4)
    tpu = {"TPU_WORKER_HOSTNAMES": "t-0.svc,t-1.svc", "TPU_WORKER_ID": "1"}
    assert find_place("", 0, -1, tpu) == Place(host="t-0.svc", port=8476, index=1, count=2)
    assert find_place("h:99", 2, 0, slurm) == Place(host="h", port=99, index=0, count=2)
    assert find_place("", 1, -1, slurm).count == 1
    assert find_place("", 0, -1, {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}).count == 1


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (("", 2, 0), "give all three, such as node0:8476, 2 and 1"),
        (("n:1", 0, -1), "give all three"),
        (("n:1", 2, 2), "hosts.index is 2; with hosts.count 2 it is 0 to 1"),
        (("n", 2, 1), "hosts.coordinator is 'n'; it must be host:port"),
        (("n:port", 2, 1), "it must be host:port"),
    ],
)
def test_a_place_that_is_half_said_is_a_sentence(
    settings: tuple[str, int, int], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        find_place(*settings, {})


# ---------------------------------------------------------------------------- hub and lines


class Star:
    """A hub and its lines, all in this process; `ends[i]` is why the run is over for line i."""

    def __init__(self, count: int, silence: float = 60.0, start: float = 10.0) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.count, self.silence = count, silence
        self.ends: dict[int, str] = {}
        self.over = threading.Semaphore(0)
        self.hub = Hub(listener, count, {"port": 5}, start_seconds=start, silence_seconds=silence)

    def line(self, index: int, count: int | None = None, start: float = 10.0) -> Line:
        def end(sentence: str) -> None:
            self.ends[index] = sentence
            self.over.release()

        return Line(
            self.address,
            index,
            count or self.count,
            start_seconds=start,
            silence_seconds=self.silence,
            end=end,
        )

    def lines(self) -> list[Line]:
        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(self.line, range(self.count)))

    def await_ends(self, count: int) -> None:
        for _ in range(count):
            assert self.over.acquire(timeout=10)

    def leave(self, lines: list[Line]) -> None:
        for line in lines:
            line.close()
        self.hub.close()


def side_by_side(*calls: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [job.result(timeout=10) for job in [pool.submit(call) for call in calls]]


def test_everybody_has_everybodys_bytes_in_order() -> None:
    star = Star(3)
    lines = star.lines()
    assert lines[1].welcome == {"port": 5, "names": [NAME] * 3}
    for what, data in [("a", [b"x", b"", b"zzz"]), ("b", [b"1" * 3_000_000, b"2", b"3"])]:
        calls = [partial(line.exchange, what, own) for line, own in zip(lines, data, strict=True)]
        assert side_by_side(*calls) == [data] * 3
    star.leave(lines)
    assert star.ends == {}


def test_all_are_told_who_is_gone() -> None:
    star = Star(3)
    lines = star.lines()
    lines[1]._wire.close()  # as the kernel does for a process that is killed
    star.await_ends(3)
    for index in (0, 2):
        assert star.ends[index].startswith(f"process 1 of 3 ({NAME}) is gone since ")
        assert "goes on from the last checkpoint" in star.ends[index]
    with pytest.raises(UserError, match="is gone since"):  # nor does anybody wait for it
        lines[2].exchange("a", b"")


def test_the_first_being_gone_is_told_too() -> None:
    star = Star(2)
    lines = star.lines()
    for wire in list(star.hub._wires.values()):
        wire.close()
    star.await_ends(2)
    assert star.ends[1].startswith(f"process 0 of 2 ({NAME}) is gone since ")
    with pytest.raises(UserError):
        lines[1].exchange("a", b"")


def test_a_process_that_hangs_is_gone_after_a_silence() -> None:
    star = Star(2, silence=1.5)
    stuck = socket.create_connection(star.address)
    hello = json.dumps({"index": 1, "count": 2, "name": "far"}).encode()
    stuck.sendall(b"\x01" + len(hello).to_bytes(8, "big") + hello)
    began = time.monotonic()
    star.line(0)
    star.await_ends(1)
    assert star.ends[0].startswith(
        "process 1 of 2 (far) is gone: nothing was heard of it for 1.5 s"
    )
    assert 1.5 < time.monotonic() - began < 8
    stuck.close()


def test_a_process_that_stops_tells_the_others_why() -> None:
    star = Star(3)
    lines = star.lines()
    lines[2].fail("a file is not there")
    star.await_ends(2)
    said = f"process 2 of 3 ({NAME}) stopped: a file is not there"
    assert star.ends == {0: said, 1: said}


def test_processes_that_are_out_of_step_are_told_so() -> None:
    star = Star(2)
    lines = star.lines()
    calls = [lambda: lines[0].exchange("rows", b""), lambda: lines[1].exchange("stop", b"")]
    with pytest.raises(UserError, match="out of step: process 0 is at 'rows' and process 1 at"):
        side_by_side(*calls)


def refused(star: Star, index: int, count: int | None = None) -> str:
    with pytest.raises(UserError) as caught:
        star.line(index, count)
    return str(caught.value)


def test_who_does_not_come_is_named() -> None:
    star = Star(4, start=0.5)
    for sentence in side_by_side(*(partial(refused, star, i) for i in (0, 2))):
        assert "processes 1, 3 of 4 did not come within 0.5 s" in sentence


def test_processes_of_two_starts_do_not_mix() -> None:
    star = Star(2)
    for sentence in side_by_side(partial(refused, star, 1, 3), partial(refused, star, 0)):
        assert "started as one of 3 processes, process 0 as one of 2" in sentence


def test_a_place_is_taken_once() -> None:
    star = Star(2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(star.line, 0)
        while 0 not in star.hub._wires:
            time.sleep(0.01)
        assert f"process 0 of 2 is there already, on {NAME}" in refused(star, 0)
        lines = [star.line(1), waiting.result(timeout=10)]
    star.leave(lines)


def test_strangers_are_not_listened_to() -> None:
    star = Star(2)
    for words in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x01" + (1 << 40).to_bytes(8, "big")):
        stranger = socket.create_connection(star.address)
        stranger.sendall(words)
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
        stranger.close()
    star.leave(star.lines())


def test_no_hub_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    star = Star(1)
    star.address = address
    with pytest.raises(UserError, match=f"no process 0 at 127.0.0.1:{address[1]} within"):
        star.line(0, start=0.3)


def test_a_port_that_is_taken_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = HostSettings(
            coordinator=f"127.0.0.1:{port}", count=2, index=0, start_seconds=1, silence_seconds=5
        )
        with pytest.raises(UserError, match=f"127.0.0.1:{port} and process 0 cannot open"):
            start(settings, {})


def test_a_relay_is_silent_when_its_target_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target:
        near = socket.create_connection(
            ("127.0.0.1", Relay(target.getsockname(), start_seconds=1).port)
        )
        far, _ = target.accept()
        near.sendall(b"ping")
        assert far.recv(10) == b"ping"
        far.sendall(b"pong")
        assert near.recv(10) == b"pong"
        far.close()
    near.settimeout(0.3)
    with pytest.raises(TimeoutError):
        near.recv(10)
    near.close()


# ---------------------------------------------------------------------------- two real processes


def two(act: str) -> list[subprocess.CompletedProcess[str]]:
    """Both processes of a script run to their ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
        "PYTHONPATH": str(ROOT),
    }
    env.pop("XLA_FLAGS", None)
    script = str(Path(__file__).with_name("one_of_two.py"))

    def one(index: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, script, act, port, str(index)]
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=60, check=False
        )

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def last_words(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if not line.startswith("[Gloo]")]


def test_two_processes_compute_as_one() -> None:
    done = two("together")
    assert [one.returncode for one in done] == [0, 0], [one.stderr[-2000:] for one in done]
    for index, one in enumerate(done):
        assert json.loads(one.stdout.splitlines()[-1]) == {
            "devices": [8, 4],
            "own": [[0, 1, 2, 3], [4, 5, 6, 7]][index],
            "all": [[0, 1, 2, 3], [4, 5, 6, 7]],
            "arrays": [[0], [0, 1]],
            "sum": 6.0,
            "copy_is_here": True,
            "cut_as_before": True,
        }


@pytest.mark.parametrize("act, killed", [("kill-first-in-collective", 0), ("kill-second", 1)])
def test_a_process_that_is_killed_ends_the_other_with_a_sentence(act: str, killed: int) -> None:
    began = time.monotonic()
    done = two(act)
    assert time.monotonic() - began < 60
    assert done[killed].returncode == -signal.SIGKILL
    left = done[1 - killed]
    assert left.returncode == 2
    (sentence,) = last_words(left)  # and no stack of the runtime
    assert sentence.startswith(f"process {killed} of 2 ({NAME}) is gone since ")
    assert sentence.endswith("goes on from the last checkpoint")


def test_a_mistake_in_one_process_ends_both_with_its_sentence() -> None:
    done = two("mistake")
    assert [one.returncode for one in done] == [2, 2]
    assert last_words(done[1]) == ["the data of this host are not there"]
    assert last_words(done[0]) == [
        f"process 1 of 2 ({NAME}) stopped: the data of this host are not there"
    ]
