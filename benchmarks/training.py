"""Runs of the real trainer as the bench times them: processes, and a judge that is slow."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DOND, TELESALES = "configs/dond/mini.py", "configs/telesales/mini.py"
TINY = ("sft.steps=20", "sft.dialogues=200")
"""A start that learned next to nothing."""
PATIENCE = 0.005
"""Seconds between looks at a run."""


class Run:
    """A process of the train command, from its start to its end.

    Args:
        root: the folder of the run's folder.
        options: changes to the config, `key=value`.
    """

    def __init__(self, config: str, root: Path, options: Sequence[str]) -> None:
        settings = [f"--config.{option}" for option in (*options, f"run.root={root}")]
        self._log = root / "log.txt"
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self.began = time.time()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ibrl_jax.train", f"--config={config}", *settings],
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def folder(self) -> Path:
        """The run's folder; it is there once an iteration was recorded."""
        return next(self._root.glob("*/seed*"))

    def count(self) -> int:
        """Iterations recorded so far."""
        found = next(self._root.glob("*/seed*/metrics.jsonl"), None)
        return found.read_bytes().count(b"\n") if found else 0

    def rows(self) -> list[dict[str, Any]]:
        text = (self.folder / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def summary(self) -> dict[str, Any]:
        """What the run says of itself at its end."""
        return json.loads((self.folder / "summary.json").read_text())

    def watch(self) -> Iterator[int]:
        """The number of recorded iterations, again and again until the process ends.

        Raises:
            RuntimeError: it failed; with its last words.
        """
        try:
            while self._process.poll() is None:
                yield self.count()
                time.sleep(PATIENCE)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        if self._process.returncode:
            words = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            raise RuntimeError(f"a run ended with code {self._process.returncode}: {words}")

    def finish(self) -> list[dict[str, Any]]:
        """The rows of the whole run."""
        for _ in self.watch():
            pass
        return self.rows()


CALLS = ("rollout.draws=16", "roles.customer.update_every=1", "rewards.min_coverage=0.5")
"""Iterations of TeleSales whose judges are timed."""
SPEAKS = ("sft.steps=400", "sft.dialogues=800")
"""Their start: one that mostly follows the protocol, or there would be little to judge."""


def judged_by(url: str) -> tuple[str, ...]:
    """Settings by which a `slow_judge` pays both roles, 16 calls at once."""
    slow = (f"base_url={url}", "model=slow", "concurrency=16", "retries=0", "temperature=0")
    roles = (f"roles.{role}.judge=slow" for role in ("sales", "customer"))
    return (*(f"endpoints.slow.{setting}" for setting in slow), *roles)


@contextmanager
def slow_judge(seconds: float) -> Iterator[tuple[str, list[int]]]:
    """An OpenAI-compatible server that approves of every turn of a call after a while.

    Yields its address, and a list with one entry for each call so far.
    """
    calls: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            calls.append(len(calls))
            time.sleep(seconds)
            prompt = body["messages"][-1]["content"]
            answer = {
                "id": "judge",
                "object": "chat.completion",
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": json.dumps(_verdict(prompt))},
                    }
                ],
                "usage": {"prompt_tokens": len(prompt) // 4, "completion_tokens": 64},
            }
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is logged."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", calls
        finally:
            server.shutdown()
            thread.join()


def _verdict(prompt: str) -> dict[str, Any]:
    """A yes to every question about every turn that a TeleSales judge is asked about."""
    lines = [
        json.loads(line[line.index('{"turn"') :])
        for line in prompt.splitlines()
        if '{"turn": ' in line and '"text": ' in line
    ]
    of_sales = "informed_deferral" in prompt
    role = "sales" if of_sales else "customer"
    turns = [line["turn"] for line in lines if line["role"] == role and line["turn"] > 0]
    if of_sales:
        asked = ("answered", "grounded", "not_pushy", "spoken")
        more: dict[str, Any] = {
            "fabrication": {"hit": False, "claim": "", "reference": ""},
            "informed_deferral": False,
        }
    else:
        asked = ("fits_profile", "plausible_delta", "legal_behavior", "no_role_swap")
        more = {"decision": 1.0}
    each = [{"turn": turn, **dict.fromkeys(asked, True)} for turn in turns]
    return {"turns": each, **more, "instructs_judge": False, "reason": "all well"}
