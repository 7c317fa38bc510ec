"""Who can take a turn, behind one interface; a person is in `dialogue.person`.

A `Speaker` can hold a seat in any dialogue (a live policy, a past one, a scripted family, an
endpoint, a person); `sit` gives the `Agent` that holds one seat of one dialogue. The dialogue loop
knows of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ibrl_jax.dialogue.conductor import Conductor
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.dialogue.views import PolicyRef, RoleView, Segment, ViewBuilder
from ibrl_jax.domains.base import Adapter, Domain, Role, Scenario, Turn, TurnEnd
from ibrl_jax.endpoints.client import Endpoint
from ibrl_jax.endpoints.faults import CUT_OFF
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import Request

KeyOf = Callable[[int, int], tuple[int, int]]
"""From (turn, attempt) to the two words of a sampling key."""

Beside = Callable[[Sequence[Turn]], str]
"""From the dialogue so far to what its role is told beside the counterpart's last utterance."""


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """What an agent says, as it says it: the referee decides what of it is shown."""

    text: str
    end: TurnEnd


@dataclass(frozen=True, kw_only=True)
class SeatContext:
    """What the holder of one seat of one dialogue knows of it.

    `scenario` is the role's own side, and all that `prompt` and `beside` come from; `whole` is for
    players by rule alone, who may have to check what they hear. `check` gives the turn that a line
    would be now, and records nothing; `refusal` says why a malformed one is none. `key_of` and
    `rng` derive from the dialogue's identity and nothing else.
    """

    role: Role
    scenario: Scenario
    whole: Scenario
    prompt: str
    beside: Beside
    check: Callable[[str], Turn]
    refusal: Callable[[Turn], str]
    key_of: KeyOf
    rng: np.random.Generator


class ViewFull(Exception):
    """What a local policy was told is longer than its view may be: the dialogue cannot go on."""


class Agent(Protocol):
    """Holds one seat of one dialogue."""

    async def reply(self, turns: Sequence[Turn], attempt: int) -> Utterance:
        """The next utterance, given the public record so far.

        A repeated call replaces the last reply.
        """
        ...

    def close(self) -> RoleView | None:
        """End of the dialogue: the role's view, if a local policy held the seat."""
        ...


class Speaker(Protocol):
    """Can hold a seat in any dialogue. `name` says who it is, in every record."""

    @property
    def name(self) -> str: ...

    def sit(self, seat: SeatContext, conductor: Conductor) -> Agent: ...


@dataclass(frozen=True, kw_only=True)
class LocalSpeaker:
    """A policy on this machine's engine. `params` names its parameters there.

    It speaks in the form of training, and its system prompt is that of training too.
    """

    engine: Engine
    speech: Speech
    params: str
    ref: PolicyRef
    temperature: float
    max_new: int

    @property
    def name(self) -> str:
        return f"{self.ref.seat}:{self.ref.id}@{self.ref.version}"

    def sit(self, seat: SeatContext, conductor: Conductor) -> Agent:
        return _LocalAgent(self, seat, conductor)


class _LocalAgent:
    def __init__(self, speaker: LocalSpeaker, seat: SeatContext, conductor: Conductor) -> None:
        self._speaker = speaker
        self._seat = seat
        self._conductor = conductor
        self._slot = speaker.engine.acquire()
        self._view = ViewBuilder(role=seat.role, policy=speaker.ref)
        self._heard = 0
        self._own: tuple[int, int, bool] | None = None
        self._read(speaker.speech.chat.system(), seat.prompt, -1, Segment.TEMPLATE)

    async def reply(self, turns: Sequence[Turn], attempt: int) -> Utterance:
        speaker, chat, view = self._speaker, self._speaker.speech.chat, self._view
        sampled = -1
        if self._own is not None:
            start, turn, stopped = self._own
            if turn == len(turns):  # refused: as if it had never been said
                view.retract(start)
            else:
                view.read(chat.close(stopped), turn, Segment.TEMPLATE)
                sampled = turn
            self._own = None
        for index in range(self._heard, len(turns)):
            if turns[index].role != self._seat.role:
                told = self._seat.beside(turns[: index + 1])
                self._read(chat.heard(), turns[index].text, index, Segment.COUNTERPART, told)
            elif index != sampled:
                self._scripted(turns[index], index)
        self._heard = turn = len(turns)
        start, longest = len(view), speaker.engine.settings.max_length
        if start + len(chat.header()) >= longest:
            if start > longest or not any(view.loss_mask):
                raise ViewFull(
                    f"{self._seat.role}'s view of {start} tokens leaves no room in the {longest} "
                    "of config.rollout.max_view_tokens"
                )
            return Utterance(text="", end="length")  # it has talked its own view full
        view.read(chat.header(), turn, Segment.TEMPLATE)
        completion = await self._conductor.sample(
            speaker.engine,
            Request(
                params=speaker.params,
                slot=self._slot,
                ids=view.ids,
                key=self._seat.key_of(turn, attempt),
                temperature=speaker.temperature,
                max_new=speaker.max_new,
            ),
        )
        view.sampled(completion.ids, completion.logps, turn)
        self._own = (start, turn, completion.ids[-1:] == [chat.stop_ids[0]])
        said = chat.opening + speaker.speech.tokenizer.decode(completion.ids)
        return Utterance(text=said, end=completion.end)

    def close(self) -> RoleView:
        self._speaker.engine.release(self._slot)
        return self._view.finish()

    def _scripted(self, turn: Turn, index: int) -> None:
        """A line that the domain spoke for the role: in its view as its own words, mask 0."""
        chat, tokenizer = self._speaker.speech.chat, self._speaker.speech.tokenizer
        before = chat.header()
        if chat.opening:  # the header opens a thought, and the line has none
            blank = tokenizer.encode("\n\n")
            before = [*before, *tokenizer.encode("\n"), tokenizer.control("</think>"), *blank]
        self._read((before, chat.close(False)), turn.said, index, Segment.TEMPLATE)

    def _read(
        self,
        around: tuple[list[int], list[int]],
        text: str,
        turn: int,
        kind: Segment,
        beside: str = "",
    ) -> None:
        (before, after), encode = around, self._speaker.speech.tokenizer.encode
        self._view.read(before, turn, Segment.TEMPLATE)
        self._view.read(encode(text), turn, kind)
        self._view.read([*encode(beside), *after], turn, Segment.TEMPLATE)


@dataclass(frozen=True, kw_only=True)
class ScriptedSpeaker:
    """A rule-based family of the domain."""

    domain: Domain
    family: str

    @property
    def name(self) -> str:
        return f"scripted:{self.family}"

    def sit(self, seat: SeatContext, conductor: Conductor) -> Agent:
        del conductor
        return _ScriptedAgent(self, seat)


class _ScriptedAgent:
    def __init__(self, speaker: ScriptedSpeaker, seat: SeatContext) -> None:
        self._player = speaker.domain.scripted(speaker.family, seat.whole, seat.role, seat.rng)
        self._role = seat.role

    async def reply(self, turns: Sequence[Turn], attempt: int) -> Utterance:
        del attempt
        own_side = [turn.seen_by(self._role) for turn in turns]
        return Utterance(text=self._player.reply(own_side), end="stop")

    def close(self) -> None:
        return None


OPENING: Mapping[str, str] = {"en": "(You speak first.)", "zh": "（请你先说。）"}
"""Said to an endpoint that opens a dialogue, since a chat starts with somebody's message: in the
language that is public of the scenario, English where none is.
"""


@dataclass(frozen=True, kw_only=True)
class ApiSpeaker:
    """A model behind an OpenAI-compatible endpoint; with an `adapter` it speaks in that one's form.

    Its prompt is made anew each turn, as an endpoint keeps nothing.
    """

    endpoint: Endpoint
    adapter: Adapter | None = None

    @property
    def name(self) -> str:
        form = f":{self.adapter.name}" if self.adapter else ""
        return f"api:{self.endpoint.settings.name}{form}"

    def sit(self, seat: SeatContext, conductor: Conductor) -> Agent:
        return _ApiAgent(self, seat, conductor)


class _ApiAgent:
    def __init__(self, speaker: ApiSpeaker, seat: SeatContext, conductor: Conductor) -> None:
        self._endpoint, self._adapter = speaker.endpoint, speaker.adapter
        self._seat = seat
        self._conductor = conductor
        # Three conversations of a scenario are three calls, and a rerun replays those three.
        self._conversation = seat.key_of(-1, 0)[0]

    async def reply(self, turns: Sequence[Turn], attempt: int) -> Utterance:
        system = _prompt(self._adapter, self._seat, turns)
        messages = [{"role": "system", "content": system}]
        if not turns or turns[0].role == self._seat.role:
            language = self._seat.scenario.public.get("language", "en")
            messages.append({"role": "user", "content": OPENING[language]})
        for index, turn in enumerate(turns):
            if turn.role == self._seat.role:
                messages.append({"role": "assistant", "content": _own(self._adapter, turn)})
            else:
                told = _beside(self._adapter, self._seat, turns[: index + 1])
                messages.append({"role": "user", "content": turn.text + told})
        answer = await self._conductor.elsewhere(
            self._endpoint.chat(messages, sample_index=self._conversation + attempt)
        )
        end: TurnEnd = "length" if answer.finish in CUT_OFF else "stop"
        return _utterance(self._adapter, answer.text, end)

    def close(self) -> None:
        return None


def _prompt(adapter: Adapter | None, seat: SeatContext, turns: Sequence[Turn]) -> str:
    own_side = [turn.seen_by(seat.role) for turn in turns]
    return adapter.system(seat.scenario, seat.role, own_side) if adapter else seat.prompt


def _beside(adapter: Adapter | None, seat: SeatContext, turns: Sequence[Turn]) -> str:
    """Told to whoever speaks as in training; an adapter's own prompt has it otherwise."""
    return "" if adapter else seat.beside(turns)


def _own(adapter: Adapter | None, turn: Turn) -> str:
    return adapter.own(turn) if adapter else turn.said


def _utterance(adapter: Adapter | None, text: str, end: TurnEnd) -> Utterance:
    """What was written, in the form that the referee reads; a broken form is no utterance."""
    said = adapter.utterance(text) if adapter and end == "stop" else text
    return Utterance(text="", end="error") if said is None else Utterance(text=said, end=end)
