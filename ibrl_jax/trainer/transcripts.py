r"""Transcripts: dialogues of one's own to learn a start from, and a writer of synthetic ones.

A file has one JSON object a line, in UTF-8:

```
{"scenario": {"id": ..., "public": {...}, "private": {"sales": {...}, "customer": {...}}},
 "turns": [{"role": "sales", "text": "Hello, ..."}, {"role": "customer", "text": "{...}"}, ...]}
{"prompts": {"sales": "You are ...", "customer": "..."}, "turns": [...]}
```

`turns[i].text` is the whole turn as its own role wrote it: an agent's with tool calls and end
marker, a customer's as the record that it writes. `said` may stand beside `text`; then that is what
the role wrote, and `text` what the others heard of it.

With a `scenario` the referee of the domain rules on every turn, so what is learned is legal, and
prompts are the domain's; lines that the referee itself speaks are left out or stand with
`"flags": ["scripted"]`. With `prompts` nothing is ruled on: each role that has one learns its own
turns as they stand. The dialogue files of a run are transcripts, too.

    python -m ibrl_jax.trainer.transcripts --config=configs/telesales/mini.py --to=calls.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.domains.base import Domain, Role, Scenario, Turn
from ibrl_jax.entry import Options, run
from ibrl_jax.errors import UserError
from ibrl_jax.identity import generator
from ibrl_jax.trainer.run import write_lines
from ibrl_jax.trainer.teachers import converse, pair_of

_FORM = "a transcript is {'scenario' or 'prompts', 'turns': [{'role', 'text'}, ...]}"


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """A dialogue, and the system prompt of each role that learns from it.

    `scenario` is what it is about, None where the file has prompts alone.
    """

    prompts: Mapping[Role, str]
    turns: Sequence[Turn]
    scenario: Scenario | None


def read_transcripts(path: str, domain: Domain) -> list[Transcript]:
    """The transcripts of a file, in its order.

    Raises:
        UserError: there is no such file, or a line of it is no transcript of the domain.
    """
    file = Path(path)
    try:
        # no `splitlines`: a text may hold line ends of other kinds as they are
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"config.sft.transcripts: {path} cannot be read ({error})") from error
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            found.append(_transcript(line, f"line {number} of {path}", domain))
    if not found:
        raise UserError(f"config.sft.transcripts: {path} holds no transcript; {_FORM}")
    return found


def synthetic(
    domain: Domain, families: Sequence[str], count: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Lines of a file of transcripts: dialogues of scripted players on training scenarios."""
    rng = generator(seed, "transcripts")
    scenarios = domain.scenarios("train")
    for index in range(count):
        scenario = scenarios[int(rng.integers(len(scenarios)))]
        first = domain.roles[index % len(domain.roles)]
        referee = converse(domain, scenario, pair_of(domain, families, rng), first, seed, index)
        yield {
            "scenario": {
                "id": scenario.id,
                "cluster": scenario.cluster,
                "public": dict(scenario.public),
                "private": dict(scenario.private),
            },
            "first": first,
            "turns": [
                {"role": turn.role, "text": turn.text, "said": turn.said, "flags": list(turn.flags)}
                for turn in referee.turns
            ],
        }


def _transcript(line: str, where: str, domain: Domain) -> Transcript:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where} is no JSON ({error}); {_FORM}") from error
    if not isinstance(value, Mapping) or not isinstance(value.get("turns"), list):
        raise UserError(f"{where} has no turns; {_FORM}")
    turns = [_turn(turn, f"turn {n} of {where}", domain) for n, turn in enumerate(value["turns"])]
    if not turns:
        raise UserError(f"{where} has no turns; {_FORM}")
    if "scenario" in value:
        return _ruled(value, turns, where, domain)
    prompts = value.get("prompts")
    if not isinstance(prompts, Mapping) or not prompts:
        raise UserError(f"{where} has neither a scenario nor prompts; {_FORM}")
    for role, prompt in prompts.items():
        if role not in domain.roles or not isinstance(prompt, str):
            raise UserError(
                f"{where} has a prompt for {role!r}; a prompt is the text for one of the roles "
                f"{', '.join(domain.roles)}"
            )
    return Transcript(prompts=dict(prompts), turns=turns, scenario=None)


def _turn(value: Any, where: str, domain: Domain) -> Turn:
    """A turn as the file has it; nothing is ruled on yet."""
    if not isinstance(value, Mapping) or value.get("role") not in domain.roles:
        role = value.get("role") if isinstance(value, Mapping) else None
        raise UserError(
            f"{where} has the role {role!r}; the roles are {', '.join(domain.roles)}"
            if role is not None
            else f"{where} has no role; the roles are {', '.join(domain.roles)}"
        )
    role, private = value["role"], value.get("private")
    text = value.get("text")
    own = private.get(role) if isinstance(private, Mapping) else None
    said = value.get("said", own.get("said") if isinstance(own, Mapping) else None)
    said = text if said is None else said
    if not isinstance(text, str) or not isinstance(said, str):
        raise UserError(f"{where} has no text; what its role said is a text of its own")
    flags = value.get("flags")
    return Turn(
        role=role,
        text=text,
        end="stop",
        action="said",
        flags=tuple(map(str, flags)) if isinstance(flags, list) else (),
        private={} if said == text else {role: {"said": said}},
    )


def _ruled(
    value: Mapping[str, Any], turns: Sequence[Turn], where: str, domain: Domain
) -> Transcript:
    """The turns as the domain's referee takes them."""
    scenario, first = _scenario(value["scenario"], where, domain), value.get("first")
    try:
        referee = domain.referee(scenario, first if first in domain.roles else turns[0].role)
        prompts = {role: domain.prompt(scenario, role) for role in domain.roles}
    except (ValueError, LookupError, TypeError) as error:
        text = str(error).splitlines()[0]
        raise UserError(f"{where} has a scenario that is none of {domain.name}: {text}") from error
    for number, turn in enumerate(turns):
        if "scripted" in turn.flags:
            continue
        if turn.role != referee.to_move:
            then = f"{referee.to_move} is to move" if referee.to_move else "the dialogue has ended"
            raise UserError(f"turn {number} of {where} is {turn.role}'s, and {then}")
        ruled = referee.check(turn.role, turn.said, "stop")
        if not ruled.valid:
            raise UserError(
                f"turn {number} of {where} is no legal turn of {turn.role} ({ruled.error_code})"
            )
        referee.play(ruled)
    return Transcript(prompts=prompts, turns=tuple(referee.turns), scenario=scenario)


def _scenario(value: Any, where: str, domain: Domain) -> Scenario:
    private = value.get("private") if isinstance(value, Mapping) else None
    if not isinstance(private, Mapping) or set(private) != set(domain.roles):
        raise UserError(
            f"{where} has a scenario without private parts for {' and '.join(domain.roles)}"
        )
    name = str(value.get("id", where))
    return Scenario(
        id=name,
        cluster=str(value.get("cluster", name)),
        public=value.get("public") or {},
        private=private,
    )


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("config", "to", "count"))
    config = configs.load(options.need("config", "configs/telesales/mini.py"), options.overrides)
    to = Path(options.need("to", "calls.jsonl"))
    count = options.number("count", 1000)
    rows = synthetic(build_domain(config), config.sft.families, count, config.seed)
    write_lines(to, rows)
    console.print(
        f"{count} transcripts are in {to}; --config.sft.transcripts={to} learns from them",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    run(main)
