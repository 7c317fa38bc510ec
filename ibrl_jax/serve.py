"""`make play RUN=...`: talk to a trained policy in the terminal.

You hold one seat (`--seat=agent1`), the policy the other; rules and referee are an evaluation's.
A line that is no legal turn is asked for again, with the reason. Whoever is the customer of
TeleSales types words alone, and the record is written around them. In the seat of a role that did
not train sits who held it in training.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ml_collections import ConfigDict
from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, run
from ibrl_jax.errors import UserError
from ibrl_jax.names import bare, kind_of

if TYPE_CHECKING:
    from ibrl_jax.dialogue.agents import Speaker
    from ibrl_jax.dialogue.cast import Cast
    from ibrl_jax.dialogue.trajectory import Trajectory
    from ibrl_jax.domains.base import Domain, Role
    from ibrl_jax.trainer.run import RunFolder


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("run", "seat", "draw"))

    from ibrl_jax.dialogue.build import build_cast, build_domain, build_hall, build_speech
    from ibrl_jax.dialogue.loop import Match, play
    from ibrl_jax.dialogue.person import NOBODY, Manner, PersonSpeaker
    from ibrl_jax.domains.telesales.person import as_record, standing
    from ibrl_jax.domains.telesales.scenarios import CUSTOMER
    from ibrl_jax.identity import generator
    from ibrl_jax.trainer.run import RunFolder

    if sys.stdin is None:
        raise UserError(NOBODY)
    folder = RunFolder.existing(options.need("run", "runs/mini/seed0"))
    config = configs.override(folder.config(), options.overrides)
    domain, speech = build_domain(config), build_speech(config)
    roles = domain.roles
    seat = options.get("seat", opposite(config, domain))
    if seat not in roles:
        raise UserError(f"--seat is {seat!r}; the seats are {', '.join(roles)}")
    other = next(role for role in roles if role != seat)
    draw = options.get("draw", "0")
    rng = generator(config.seed, "play", draw)
    scenarios = domain.scenarios(config.evaluation.split)
    scenario = scenarios[int(rng.integers(len(scenarios)))]
    first = roles[int(rng.integers(len(roles)))]
    names = partners(config, domain, other)
    name = names[int(rng.integers(len(names)))] if len(names) > 1 else names[0]
    with config.unlocked():  # whoever is not asked needs no key
        config.endpoints = {k: v for k, v in config.endpoints.items() if k in name.split(":")}
    cast = build_cast(config, domain, speech, slots=1, ledgers=folder.path / "endpoints")
    partner = seated(config, cast, folder, name, other)
    typed = Manner(beside=standing, written=as_record) if seat == CUSTOMER else None
    brief = domain.brief(scenario.seen_by(seat), seat)
    match = Match(
        stage=("play",),
        draw=draw,
        rollout=0,
        scenario=scenario,
        first=first,
        matchup=frozenset(),
        speakers={seat: PersonSpeaker(brief=brief, manner=typed), other: partner},
    )
    hall = build_hall(config, domain, retries=config.evaluation.retries, concurrency=1)
    who = "the policy that this run trained" if kind_of(name) == "frozen" else name
    if not config.roles[other].train and name in config.roles[other].counterpart:
        who = f"{name}, who had this seat in training"
    console.print(f"{other} is {who}\n", highlight=False, markup=False)
    try:
        (played,) = play(hall, [match])
    except EOFError:
        console.print()  # the prompt stands on the last line
        sentence = "you left; nothing was agreed"
    else:
        for last in played.turns[-1:]:
            if last.valid and last.role != seat:  # which nobody was asked to answer
                console.print(f"{last.role}> {last.text}", highlight=False, markup=False)
        sentence = ending(domain, played, seat)
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    folder.summary({"sentence": sentence})


def opposite(config: ConfigDict, domain: Domain) -> Role:
    """The seat from which one meets a policy that has trained; the last or first, if both do."""
    seats = domain.roles[::-1] if domain.interchangeable else domain.roles
    return next(
        (seat for seat in seats if any(config.roles[r].train for r in seats if r != seat)), seats[0]
    )


def partners(config: ConfigDict, domain: Domain, role: Role) -> Sequence[str]:
    """Who can hold a role's seat, by name: what trained for it, else who held it in training."""
    learners = [r for r in domain.roles if config.roles[r].train]
    if role in learners:
        return [f"frozen:{role}"]
    if domain.interchangeable and learners:
        return [f"frozen:{learners[0]}"]
    return config.roles[role].counterpart


def seated(config: ConfigDict, cast: Cast, folder: RunFolder, name: str, role: Role) -> Speaker:
    """Whoever has a name, to hold a role's seat; a policy of the run goes by its role alone."""
    if kind_of(name) != "frozen":
        return cast.named(name, role)
    from ibrl_jax.dialogue.views import PolicyRef
    from ibrl_jax.trainer.frozen import find_frozen
    from ibrl_jax.trainer.placing import places
    from ibrl_jax.trainer.weights import load_weights

    roles = cast.domain.roles
    policy = find_frozen(name, roles, own=str(folder.path))
    place = places(config, cast.speech, roles)[role]
    weights = load_weights(config, cast.speech, place, policy.folder)
    cast.hold(role, weights.frozen)
    cast.load(role, "play", weights.trained)
    ref = PolicyRef(id=bare(name), seat="frozen", version=policy.updates)
    return cast.local(role, "play", ref, config.evaluation.temperature)


def ending(domain: Domain, played: Trajectory, seat: Role) -> str:
    """What came of a dialogue, and what each side is paid for it, from one seat."""
    from ibrl_jax.rewards.types import Scored

    sentence = domain.told(played.outcome)
    paid = [
        f"{'you' if role == seat else role} {reward.value:.2f}"
        for role, reward in played.rewards.items()
        if isinstance(reward, Scored)
    ]
    if paid:
        sentence += f"; reward by rule: {', '.join(paid)}"
        sentence += f" ({domain.remark})" if domain.remark else ""
    return sentence


if __name__ == "__main__":
    run(main)
