"""A person at the terminal, in one seat of a dialogue.

What a policy is told, a person is told too: the prompt, or a brief in its place, what the
counterpart says, and what `Domain.beside` has beside it. A line that is no legal turn is not taken:
the person is told why, and types another one, as often as it takes.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ibrl_jax.dialogue.agents import Agent, SeatContext, Utterance
from ibrl_jax.dialogue.conductor import Conductor
from ibrl_jax.domains.base import Turn
from ibrl_jax.errors import UserError

NOBODY = "nobody is there to type: standard input is at its end; play in a terminal"
"""Said where standard input is closed, or is no terminal and ends before a line came."""


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a person plays a role whose turns nobody would type. An observation is the role's own.

    beside     from observation and turns to what is told beside the last of them
    written    from line, observation and turns to the turn as a policy writes it; its ValueError
               says what cannot be meant
    """

    beside: Callable[[Any, Sequence[Turn]], str]
    written: Callable[[str, Any, Sequence[Turn]], str]


@dataclass(frozen=True, kw_only=True)
class PersonSpeaker:
    """A person at the terminal.

    brief      what they are told before the first turn; empty: the prompt
    manner     None: lines are turns as a policy would write them
    """

    brief: str = ""
    manner: Manner | None = None

    @property
    def name(self) -> str:
        return "person"

    def sit(self, seat: SeatContext, conductor: Conductor) -> Agent:
        return _PersonAgent(seat, conductor, self.brief or seat.prompt, self.manner)


class _PersonAgent:
    def __init__(
        self, seat: SeatContext, conductor: Conductor, brief: str, manner: Manner | None
    ) -> None:
        self._seat = seat
        self._conductor = conductor
        self._manner = manner
        self._observation = seat.scenario.private[seat.role]
        self._heard = 0
        self._typed = False
        # A file of its own: the interpreter cannot end while a thread reads from sys.stdin itself.
        self._lines = open(  # noqa: SIM115
            sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False
        )
        print(brief, "\n\n(end of input, Ctrl-D, leaves)\n", sep="", flush=True)

    async def reply(self, turns: Sequence[Turn], attempt: int) -> Utterance:
        del attempt  # what is not legal is asked for again here
        for index in range(self._heard, len(turns)):
            turn = turns[index]
            if turn.role != self._seat.role:
                self._hear(turns[: index + 1])
            elif "scripted" in turn.flags:  # said for them
                print(f"{turn.role}> {turn.text}", flush=True)
        self._heard = len(turns)
        while True:
            line = await self._conductor.elsewhere(self._ask())
            if not line:
                if not self._typed and not self._lines.isatty():
                    raise UserError(NOBODY)
                raise EOFError("the person left")
            self._typed = True
            try:
                text = self._written(line.rstrip("\n"), turns)
            except ValueError as unclear:
                print(f"({unclear})", flush=True)
                continue
            turn = self._seat.check(text)
            if turn.valid:
                return Utterance(text=text, end="stop")
            print(f"({self._seat.refusal(turn)})", flush=True)

    def close(self) -> None:
        return None

    def _hear(self, turns: Sequence[Turn]) -> None:
        """The last of `turns`, and what its role is told beside it."""
        print(f"{turns[-1].role}> {turns[-1].text}", flush=True)
        manner, own_side = self._manner, [turn.seen_by(self._seat.role) for turn in turns]
        told = manner.beside(self._observation, own_side) if manner else self._seat.beside(turns)
        if told.strip():
            print(told.strip(), flush=True)

    def _written(self, line: str, turns: Sequence[Turn]) -> str:
        if self._manner is None:
            return line
        own_side = [turn.seen_by(self._seat.role) for turn in turns]
        return self._manner.written(line, self._observation, own_side)

    def _ask(self) -> asyncio.Future[str]:
        """The next line, empty at the end; its thread is a daemon, so Ctrl-C need not wait."""
        print(f"{self._seat.role}> ", end="", flush=True)
        loop, lines = asyncio.get_running_loop(), self._lines
        answer: asyncio.Future[str] = loop.create_future()

        def settle(line: str) -> None:
            if not answer.done():
                answer.set_result(line)

        def read() -> None:
            try:
                line = lines.readline()
            except OSError:  # a terminal that was closed
                line = ""
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, line)

        threading.Thread(target=read, name="person", daemon=True).start()
        return answer
