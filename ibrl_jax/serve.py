"""`make play RUN=...`: talk to a trained policy in the terminal.

You hold one seat (`--seat=agent1`), the policy the other; rules and referee are an evaluation's.
Whoever is the customer of TeleSales types words alone, and the record is written around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, run
from ibrl_jax.errors import UserError

if TYPE_CHECKING:
    from ibrl_jax.dialogue.agents import Agent, SeatContext, Speaker, Utterance
    from ibrl_jax.dialogue.conductor import Conductor
    from ibrl_jax.dialogue.views import RoleView
    from ibrl_jax.domains.base import Turn


@dataclass(frozen=True, kw_only=True)
class CustomerSpeaker:
    """A person in the customer's seat of TeleSales, who is no writer of records."""

    person: Speaker

    @property
    def name(self) -> str:
        return self.person.name

    def sit(self, seat: SeatContext, conductor: Conductor) -> Agent:
        from ibrl_jax.domains.telesales.person import brief

        observation = seat.scenario.private[seat.role]
        told = replace(seat, prompt=brief(observation))
        return _Customer(agent=self.person.sit(told, conductor), seat=seat)


@dataclass(frozen=True, kw_only=True)
class _Customer:
    agent: Agent
    seat: SeatContext

    async def reply(self, turns: Sequence[Turn], attempt: int) -> Utterance:
        from ibrl_jax.domains.telesales.person import NoBehaviour, as_record

        observation = self.seat.scenario.private[self.seat.role]
        while True:
            typed = await self.agent.reply(turns, attempt)
            try:
                return replace(typed, text=as_record(typed.text, observation, turns))
            except NoBehaviour as unknown:
                print(f"({unknown})", flush=True)

    def close(self) -> RoleView | None:
        return self.agent.close()


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("run", "seat", "draw"))

    from ibrl_jax.dialogue.agents import PersonSpeaker
    from ibrl_jax.dialogue.build import build_cast, build_domain, build_hall, build_speech
    from ibrl_jax.dialogue.loop import Match, play
    from ibrl_jax.dialogue.views import PolicyRef
    from ibrl_jax.domains.telesales.scenarios import CUSTOMER
    from ibrl_jax.identity import generator
    from ibrl_jax.trainer.placing import places
    from ibrl_jax.trainer.run import RunFolder
    from ibrl_jax.trainer.weights import load_weights

    folder = RunFolder.existing(options.need("run", "runs/mini/seed0"))
    config = configs.override(folder.config(), options.overrides)
    domain, speech = build_domain(config), build_speech(config)
    roles = domain.roles
    seat = options.get("seat", roles[-1] if domain.interchangeable else roles[0])
    if seat not in roles:
        raise UserError(f"--seat is {seat!r}; the seats are {', '.join(roles)}")
    other = next(role for role in roles if role != seat)
    policy = other if config.roles[other].train else next(r for r in roles if config.roles[r].train)
    cast = build_cast(config, domain, speech, slots=1)
    folder.need_policies([policy])
    place = places(config, speech, roles)[other]
    weights = load_weights(config, speech, place, folder.policy(policy))
    cast.hold(other, weights.frozen)
    cast.load(other, "play", weights.trained)
    ref = PolicyRef(id=policy, seat="frozen", version=0)
    scenarios = domain.scenarios(config.evaluation.split)
    draw = options.get("draw", "0")
    rng = generator(config.seed, "play", draw)
    person = PersonSpeaker()
    match = Match(
        stage=("play",),
        draw=draw,
        rollout=0,
        scenario=scenarios[int(rng.integers(len(scenarios)))],
        first=roles[int(rng.integers(len(roles)))],
        matchup=frozenset(),
        speakers={
            seat: CustomerSpeaker(person=person) if seat == CUSTOMER else person,
            other: cast.local(other, "play", ref, config.evaluation.temperature),
        },
    )
    hall = build_hall(config, domain, retries=config.evaluation.retries, concurrency=1)
    try:
        (played,) = play(hall, [match])
    except EOFError:
        sentence = "you left; nothing was agreed"
    else:
        outcome = played.outcome
        for turn in played.turns[-1:]:
            console.print(f"{turn.role}> {turn.text}", highlight=False, markup=False)
        sentence = domain.told(outcome)
    folder.summary({"sentence": sentence})
    console.print(sentence, highlight=False, markup=False)


if __name__ == "__main__":
    run(main)
