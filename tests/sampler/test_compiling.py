"""Programs that are compiled in the background: who needs one waits for that one alone."""

import threading
from typing import Any

import pytest

from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.types import EngineSettings
from tests.sampler.conftest import STOPS

SETTINGS = EngineSettings(
    slots=4,
    max_length=16,
    rows=(1, 2, 4),
    new_tokens=(4, 8),
    lengths=(16,),
    max_new=4,
    block=4,
    stragglers=0.0,
)


class Slow(Programs):
    """Its compiler waits for `go` in the threads of the background, in no other."""

    def __init__(self, model):
        super().__init__(model, SETTINGS, STOPS)
        self.go, self.made = threading.Event(), []

    def _compile(self, kind) -> Any:
        if threading.current_thread().name.startswith("compile"):
            assert self.go.wait(20)
        self.made.append(kind)
        return f"the program of {kind}"


@pytest.fixture
def slow(model, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    programs = Slow(model)
    yield programs
    programs.go.set()


def test_a_program_whose_turn_has_not_come_is_compiled_by_who_needs_it(slow, caplog):
    slow.begin_warmup()
    last = slow.shapes()[-1]
    assert slow._program(last) == f"the program of {last}"
    assert slow.made == [last]  # all the others still wait
    slow.go.set()
    slow.warmup()
    assert sorted(map(str, slow.made)) == sorted(map(str, slow._compiled))  # none was made twice
    assert not caplog.records


def test_the_count_of_programs_does_not_rise_while_they_are_compiled(slow):
    assert slow.compilations == 0
    slow.begin_warmup()
    count = slow.compilations
    assert count == len(slow.shapes()) + 1
    slow.go.set()
    slow.warmup()
    slow.begin_warmup()
    assert slow.compilations == count == len(slow.made)


def test_a_program_that_nobody_expected_is_told_of(slow, caplog):
    slow.go.set()
    slow.warmup()
    slow.expect_opening(3)
    slow.begin_warmup()  # declared later, and made ready: no surprise
    assert not caplog.records
    odd = slow.shapes()[0]._replace(rows=3)
    slow._program(odd)
    assert "although it was warm" in caplog.text


def test_a_compiler_that_fails_fails_who_needs_the_program(slow, monkeypatch):
    def fail(kind):
        raise MemoryError(kind)

    monkeypatch.setattr(slow, "_compile", fail)
    with pytest.raises(MemoryError):
        slow.warmup()
