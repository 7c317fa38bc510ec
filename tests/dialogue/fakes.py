"""A domain that lets anything be said; engines and speakers that say what a test wants."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from ibrl_jax.dialogue.agents import SeatContext, Utterance
from ibrl_jax.dialogue.chat import ChatML
from ibrl_jax.dialogue.conductor import Conductor
from ibrl_jax.dialogue.tokenizers import load_tokenizer
from ibrl_jax.dialogue.views import RoleView
from ibrl_jax.domains.base import Measure, Outcome, Role, Scenario, Turn, TurnEnd
from ibrl_jax.rewards.types import Case, Failed, Scored
from ibrl_jax.sampler.types import Completion, Request

LEFT, RIGHT = "left", "right"
BAD = "BAD"
"""A turn that holds this word is malformed."""

TOKENIZER = load_tokenizer("embedded")
CHAT = ChatML(TOKENIZER)


def scenario(number: int) -> Scenario:
    """A scenario whose private parts are markers that stand nowhere else."""
    return Scenario(
        id=f"s{number}",
        cluster=f"c{number}",
        public={"topic": f"topic{number}."},
        private={LEFT: f"secretleft{number}.", RIGHT: f"secretright{number}."},
    )


class ChatterReferee:
    """Turns alternate; the dialogue ends after `horizon` of them, or at a malformed one."""

    def __init__(self, scenario: Scenario, first: Role, horizon: int, cuts_are_legal: bool) -> None:
        self.scenario: Scenario = scenario
        self._turns: list[Turn] = []
        self.turns: Sequence[Turn] = self._turns
        self._outcome: Outcome | None = None
        self._first, self._horizon, self._cuts_are_legal = first, horizon, cuts_are_legal

    @property
    def outcome(self) -> Outcome | None:
        return self._outcome

    @property
    def to_move(self) -> Role | None:
        if self._outcome:
            return None
        second = RIGHT if self._first == LEFT else LEFT
        return second if len(self._turns) % 2 else self._first

    def check(self, role: Role, text: str, end: TurnEnd) -> Turn:
        cut = end != "stop" and not self._cuts_are_legal
        valid = not cut and BAD not in text
        return Turn(
            role=role,
            text=text.rpartition("</think>")[2],
            end=end,
            action="talk" if valid else "malformed",
            valid=valid,
            error_code=None if valid else "truncated" if cut else "bad",
        )

    def play(self, turn: Turn) -> None:
        assert turn.role == self.to_move
        self._turns.append(turn)
        if not turn.valid:
            self._outcome = Outcome(end_reason="malformed", success=False, offender=turn.role)
        elif len(self._turns) == self._horizon:
            facts = {"sum": "".join(self.scenario.private.values())}
            self._outcome = Outcome(end_reason="done", success=True, facts=facts, joint=("sum",))

    def abort(self, reason: str) -> None:
        self._outcome = Outcome(end_reason="aborted", success=False, facts={"abort": reason})


@dataclass(kw_only=True)
class Chatter:
    """The domain: `horizon` turns of free talk. `cuts_are_legal`: so is a turn cut by length."""

    horizon: int
    cuts_are_legal: bool = False
    name: str = "chatter"
    roles: tuple[Role, ...] = (LEFT, RIGHT)
    families: Mapping[Role, Sequence[str]] = field(default_factory=dict)
    interchangeable: bool = True
    measured: Sequence[Measure] = ()
    deed: tuple[str, str] = ("ends", "end")
    remark: str = ""

    def scenarios(self, split: str) -> Sequence[Scenario]:
        raise NotImplementedError(split)

    def prompt(self, scenario: Scenario, role: Role) -> str:
        return f"{role}, {scenario.public['topic']} {scenario.private[role]}"

    def referee(self, scenario: Scenario, first: Role) -> ChatterReferee:
        return ChatterReferee(scenario, first, self.horizon, self.cuts_are_legal)

    def scripted(self, family: str, scenario: Scenario, role: Role, rng: Any) -> Any:
        said = f"{family} {rng.integers(10**6)} for {scenario.id}"
        return SimpleNamespace(reply=lambda turns: f"{said}, turn {len(turns)}")

    def adapter(self, name: str, role: Role) -> Any:
        raise NotImplementedError(name)

    def beside(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> str:
        return ""

    def brief(self, scenario: Scenario, role: Role) -> str:
        return f"you are {role}"

    def exact(self, turn: Turn) -> bool:
        return False

    def told(self, outcome: Outcome) -> str:
        return outcome.end_reason

    def refusal(self, turn: Turn) -> str:
        return f"{turn.error_code}; leave it out"

    def reward(self, outcome: Outcome, role: Role) -> float:
        return float(outcome.success)

    def measures(self, scenario: Scenario, outcome: Outcome, role: Role) -> None:
        return None

    def tabulate(self, results: Sequence[Any], planned: int) -> Mapping[str, Any]:
        return {"planned": planned}


class NosyJudge:
    """Keeps every case it is shown; pays 1 for a success."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    async def score(self, case: Case) -> Scored | Failed:
        self.cases.append(case)
        if case.outcome.end_reason == "aborted":
            return Failed(reason="aborted")
        return Scored(value=float(case.outcome.success))


Reply = Callable[[SeatContext, Sequence[Turn], int], str | Utterance]


@dataclass(frozen=True, kw_only=True)
class Puppet:
    """Says what a function of (seat, turns, attempt) gives, or raises what it raises."""

    replies: Reply
    name: str = "puppet"

    def sit(self, seat: SeatContext, conductor: Conductor) -> _PuppetAgent:
        return _PuppetAgent(self.replies, seat)


class _PuppetAgent:
    def __init__(self, replies: Reply, seat: SeatContext) -> None:
        self._replies, self._seat = replies, seat

    async def reply(self, turns: Sequence[Turn], attempt: int) -> Utterance:
        said = self._replies(self._seat, turns, attempt)
        return said if isinstance(said, Utterance) else Utterance(text=said, end="stop")

    def close(self) -> None:
        return None


class _Slots:
    """The slots of an engine, and which are taken."""

    def __init__(self, slots: int) -> None:
        self.count = slots
        self.free = set(range(slots))

    def acquire(self) -> int:
        slot = min(self.free)
        self.free.remove(slot)
        return slot

    def release(self, slot: int) -> None:
        assert slot not in self.free
        self.free.add(slot)


class InLine:
    """Requests in line; a step answers all of them by `run`, but those whose slot is free again."""

    free: set[int] = set()  # noqa: RUF012

    def __init__(self) -> None:
        self._line: list[tuple[int, Request]] = []
        self._tickets = 0

    @property
    def busy(self) -> bool:
        self._line = [(t, r) for t, r in self._line if r.slot not in self.free]
        return bool(self._line)

    def submit(self, request: Request) -> int:
        self._tickets += 1
        self._line.append((self._tickets, request))
        return self._tickets

    def step(self) -> list[tuple[int, Completion]]:
        line, self._line = self._line, []
        done = self.run([request for _, request in line])
        return [(ticket, answer) for (ticket, _), answer in zip(line, done, strict=True)]

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        raise NotImplementedError


class TalkingEngine(_Slots, InLine):
    """Answers each request with a function of all the text in its view; cut off after `max_new`."""

    def __init__(self, says: Callable[[str, tuple[int, int]], str], slots: int = 64) -> None:
        _Slots.__init__(self, slots)
        InLine.__init__(self)
        self._says = says
        self.requests: list[Request] = []
        self.loaded: list[str] = []
        self.settings = SimpleNamespace(slots=slots, max_length=100_000)
        self.compilations = 0

    def load(self, name: str, params: Any) -> None:
        self.loaded.append(name)

    def share(self, ids: Sequence[int]) -> None:
        pass

    def warmup(self) -> None:
        pass

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        assert not self.free & {r.slot for r in requests}
        self.requests += requests
        return [self._answer(r) for r in requests]

    def _answer(self, request: Request) -> Completion:
        words = self._says(TOKENIZER.decode(request.ids), request.key)
        ids = [*TOKENIZER.encode(words), CHAT.stop_ids[0]]
        cut = len(ids) > request.max_new
        ids = ids[: request.max_new]
        return Completion(ids, [-0.5] * len(ids), "length" if cut else "stop")


@dataclass
class Recorder:
    """A real engine, and everything that was asked of it and answered, in order."""

    engine: Any
    log: list[tuple[Request, Completion]] = field(default_factory=list)
    _asked: dict[int, Request] = field(default_factory=dict)

    @property
    def settings(self) -> Any:
        return self.engine.settings

    def acquire(self) -> int:
        return self.engine.acquire()

    def release(self, slot: int) -> None:
        self.engine.release(slot)

    @property
    def busy(self) -> bool:
        return self.engine.busy

    def submit(self, request: Request) -> int:
        r = request
        kept = Request(r.params, r.slot, list(r.ids), r.key, r.temperature, r.max_new)
        ticket = self.engine.submit(kept)
        self._asked[ticket] = kept
        return ticket

    def step(self) -> list[tuple[int, Completion]]:
        done = self.engine.step()
        self.log += [(self._asked.pop(ticket), answer) for ticket, answer in done]
        return done


def whole(view: RoleView) -> str:
    return TOKENIZER.decode(view.ids.tolist())


def polite(text: str, key: tuple[int, int]) -> str:
    """Names the topic of its prompt, and how many messages it has heard."""
    found = re.search(r"topic\d+\.", text)
    assert found
    return f"about {found[0]} {text.count('user')}"


def quiet(seat: Any, turns: Sequence[Any], attempt: int) -> str:
    return f"turn {len(turns)}"


def same(one: RoleView, other: RoleView) -> None:
    for name in ("ids", "segment", "turn_index", "loss_mask"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_allclose(one.behaviour_logp, other.behaviour_logp, atol=1e-5)
