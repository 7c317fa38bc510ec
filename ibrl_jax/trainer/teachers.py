"""Dialogues of scripted players, and how a policy sees them: the data of the start.

Every dialogue gives one example a role: the same ids that the role's own agent would have appended
had it said these words, with a weight of 1 on each token of its own turns (the end of the turn
included) and 0 elsewhere. A line that the domain spoke for the role weighs 0.

A recital has one turn of its role, and the same weights (`trainer.lessons` says what it is for).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.domains.base import Domain, Referee, Role, Scenario, Turn
from ibrl_jax.errors import UserError
from ibrl_jax.identity import generator


@dataclass(frozen=True, kw_only=True)
class Example:
    """One role's side of a dialogue.

    `ids` and `weight` have shape [T]; `turns` counts the public turns. `opening` is the length of
    the system prompt, `heard` where each of the counterpart's turns begins, both in tokens.
    """

    ids: np.ndarray
    weight: np.ndarray
    turns: int
    opening: int
    heard: tuple[int, ...]


def converse(
    domain: Domain, scenario: Scenario, families: Mapping[Role, str], first: Role, *seed: int | str
) -> Referee:
    """One dialogue between scripted players, played to its end."""
    referee = domain.referee(scenario, first)
    players = {
        role: domain.scripted(family, scenario, role, generator(0, "teacher", *seed, role))
        for role, family in families.items()
    }
    while (role := referee.to_move) is not None:
        referee.play(referee.check(role, players[role].reply(referee.turns), "stop"))
    return referee


def pair_of(domain: Domain, families: Sequence[str], rng: np.random.Generator) -> dict[Role, str]:
    """A family for each role, drawn from those that can hold its seat.

    Raises:
        UserError: a family is unknown, or none can hold a seat.
    """
    if domain.interchangeable:
        pair = rng.choice(families, len(domain.roles))
        return {role: str(family) for role, family in zip(domain.roles, pair, strict=True)}
    found = {}
    for role in domain.roles:
        offered = [family for family in families if family in domain.families[role]]
        if not offered:
            raise UserError(
                f"config.sft.families ({', '.join(families)}) has nobody for {role}; there are "
                f"{', '.join(domain.families[role])}"
            )
        found[role] = str(rng.choice(offered))
    return found


def examples(
    domain: Domain,
    speech: Speech,
    *,
    families: Sequence[str],
    count: int,
    seed: int,
    number_weight: float,
    deals_only: bool,
) -> list[Example]:
    """Examples of both roles from `count` dialogues on training scenarios, in a seeded order."""
    rng = generator(seed, "teachers")
    scenarios = domain.scenarios("train")
    renderer = Renderer(domain, speech, number_weight)
    found: list[Example] = []
    for index in range(count):
        scenario = scenarios[int(rng.integers(len(scenarios)))]
        pair = pair_of(domain, families, rng)
        first = domain.roles[index % len(domain.roles)]
        referee = converse(domain, scenario, pair, first, seed, index)
        assert referee.outcome is not None
        if deals_only and not referee.outcome.success:
            continue
        for role in domain.roles:
            prompt = domain.prompt(scenario, role)
            found.append(renderer.example(prompt, role, referee.turns, scenario))
    if not found:
        raise UserError(
            f"none of {count} dialogues between config.sft.families {', '.join(families)} came to "
            "a deal; name other families or set config.sft.deals_only=False"
        )
    return found


TOLD, SAID = (2, 6), (3, 9)
"""How many fields a recital has, and how often it says one: at least, and below."""


def recitals(
    domain: Domain, speech: Speech, *, count: int, seed: int, number_weight: float
) -> list[Example]:
    """Exercises of one turn each, of the role that has most to look up.

    The prompt is some of the fields of a scenario's own, with other figures and without the rules
    before them. The counterpart asks for them in any order, some again, by a word that no other of
    them has, and the turn is these. Fields are what semicolons part in a prompt's last paragraph;
    markup is none. Where no field can be asked for there is no exercise, so there may be fewer than
    `count`.
    """
    rng = generator(seed, "recitals")
    scenarios = domain.scenarios("train")
    renderer = Renderer(domain, speech, number_weight)
    fields: dict[str, tuple[Role, list[str]]] = {}
    found = []
    for _ in range(count):
        scenario = scenarios[int(rng.integers(len(scenarios)))]
        if scenario.id not in fields:
            prompts = {role: _fields(domain.prompt(scenario, role)) for role in domain.roles}
            fields[scenario.id] = max(prompts.items(), key=lambda found: len(found[1]))
        role, known = fields[scenario.id]
        if not known:
            raise UserError(
                "config.sft.recitals needs prompts whose last paragraph has fields to recite, "
                "parted by semicolons and without markup; set it to 0"
            )
        other = next(other for other in domain.roles if other != role)
        size = min(int(rng.integers(*TOLD)), len(known))
        told = [_renumbered(known[i], rng) for i in rng.permutation(len(known))[:size]]
        asking = [_telling(field, told) for field in told]
        known_by = [i for i, words in enumerate(asking) if words]
        if not known_by:
            continue
        said = [known_by[i] for i in rng.integers(len(known_by), size=int(rng.integers(*SAID)))]
        asked = " ".join(str(rng.choice(asking[i])) for i in said)
        turns = (
            Turn(role=other, text=f"{asked}?", end="stop", action="ask"),
            Turn(role=role, text="; ".join(told[i] for i in said), end="stop", action="recite"),
        )
        found.append(renderer.example("; ".join(told), role, turns, None))
    return found


_CHINESE = re.compile("[一-鿿]")
_WORD = re.compile(r"[一-鿿]+|[^\W\d_一-鿿]{3,}")
"""What a field can be asked for by: never its number, which is what has to be looked up."""


def _renumbered(field: str, rng: np.random.Generator) -> str:
    """A field with other figures: `72%` for `40%`, `162,000` for `151,000`."""

    def other(match: re.Match[str]) -> str:
        first = match[0][0] if len(match[0]) > 2 else str(rng.integers(1, 10))
        return first + "".join(map(str, rng.integers(10, size=len(match[0]) - 1)))

    return re.sub(r"(?<![\d,])\d+", other, field)


def _telling(field: str, told: Sequence[str]) -> list[str]:
    """Words that a field alone has among those told; itself where there are none, as a short name.

    In Chinese never itself: there a field may be one run from its key to its answer, and a question
    that holds the answer teaches nobody to look it up. What has no other word is not asked for.
    """
    others = {word for other in told if other is not field for word in _words(other)}
    words = [word for word in _words(field) if word not in others]
    return [word for word in words if word != field] if _CHINESE.search(field) else words or [field]


def _words(field: str) -> list[str]:
    """Words of three letters or more; of Chinese, which has no spaces, pairs of characters."""
    found: list[str] = []
    for run in _WORD.findall(field):
        chinese = _CHINESE.match(run)
        found += [run[i : i + 2] for i in range(len(run) - 1)] if chinese else [run]
    return found


def _fields(prompt: str) -> list[str]:
    found = re.split("[;；]", prompt.strip().split("\n\n")[-1])
    return [field.strip() for field in found if "<" not in field]


class Renderer:
    """Spells dialogues as a policy's own view has them."""

    def __init__(self, domain: Domain, speech: Speech, number_weight: float) -> None:
        self._domain = domain
        self._speech = speech
        self._number_weight = number_weight
        self._known: dict[str, list[int]] = {}
        pieces = speech.tokenizer.pieces(range(speech.tokenizer.vocab_size))
        self._numbers = {i for i, piece in enumerate(pieces) if _is_number(piece.strip())}

    def example(
        self, prompt: str, role: Role, turns: Sequence[Turn], scenario: Scenario | None
    ) -> Example:
        """One role's side. `scenario`: what the dialogue is about; None where only a prompt says.

        With one, the role is told beside each utterance what `Domain.beside` has for it.
        """
        chat = self._speech.chat
        ids: list[int] = []
        weight: list[float] = []

        def add(tokens: Sequence[int], weights: Sequence[float] | None = None) -> None:
            ids.extend(tokens)
            weight.extend(weights or [0.0] * len(tokens))

        for around, text in [(chat.system(), prompt)]:
            add([*around[0], *self._encode(text), *around[1]])
        opening, heard = len(ids), []
        own_side = [turn.seen_by(role) for turn in turns]
        for index, turn in enumerate(turns):
            if turn.role != role:
                before, after = chat.heard()
                heard.append(len(ids))
                add([*before, *self._encode(turn.text)])
                if scenario is not None:
                    told = self._domain.beside(scenario.seen_by(role), role, own_side[: index + 1])
                    add(self._encode(told))
                add(after)
                continue
            words = self._encode(turn.said)
            if "scripted" in turn.flags:
                add([*chat.header(), *words, *chat.close(False)])
                continue
            own = [*words, chat.stop_ids[0]]
            number = self._number_weight if self._domain.exact(turn) else 1.0
            add(chat.header())
            add(own, [number if token in self._numbers else 1.0 for token in own])
            add(chat.close(True))
        return Example(
            ids=np.asarray(ids, np.int32),
            weight=np.asarray(weight, np.float32),
            turns=len(turns),
            opening=opening,
            heard=tuple(heard),
        )

    def _encode(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._speech.tokenizer.encode(text)
        return self._known[text]


def _is_number(piece: str) -> bool:
    """`7`, `42`, `-0.05`."""
    return piece.removeprefix("-").replace(".", "", 1).isdigit()
