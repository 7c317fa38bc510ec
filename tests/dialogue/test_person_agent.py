"""A person at the terminal: lines are read as they come, and Ctrl-C at the prompt ends at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

TALK = """
import asyncio
from types import SimpleNamespace
from ibrl_jax import entry
from ibrl_jax.dialogue.agents import PersonSpeaker
from ibrl_jax.dialogue.conductor import Conductor

async def talk():
    conductor = Conductor()
    agent = PersonSpeaker().sit(SimpleNamespace(role="agent1", prompt="rules"), conductor)
    with conductor.dialogue():
        while True:
            print(ascii((await agent.reply((), 0)).text), flush=True)

entry.run(lambda argv, console: asyncio.run(talk()))
"""


@pytest.fixture
def talk() -> Iterator[subprocess.Popen[bytes]]:
    """A process that repeats what it is told, at its first prompt."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", TALK], stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"rules\n"
        assert process.stdout.readline() == b"\n"
        assert b"Ctrl-D" in process.stdout.readline()
        assert process.stdout.readline() == b"\n"
        assert process.stdout.read(8) == b"agent1> "
        yield process
        process.kill()


def test_ctrl_c_at_the_prompt_ends_at_once(talk: subprocess.Popen[bytes]) -> None:
    talk.send_signal(signal.SIGINT)  # standard input stays open
    assert talk.wait(timeout=20) == 130
    assert talk.stderr is not None
    assert talk.stderr.read() == b"interrupted\n"


def test_lines_that_are_no_utf_8_are_heard_and_an_end_is_an_end(
    talk: subprocess.Popen[bytes],
) -> None:
    out, err = talk.communicate(b"one\nt\xffo\n", timeout=20)
    assert out == b"'one'\nagent1> 't\\ufffdo'\nagent1> "
    assert b"EOFError: the person left" in err
