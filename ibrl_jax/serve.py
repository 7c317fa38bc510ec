"""`make play RUN=...`: talk to a trained policy in the terminal.

You hold one seat (`--seat=agent1`), the policy the other; rules and referee are an evaluation's.
A line that is no legal turn is asked for again, with the reason. Whoever is the customer of
TeleSales types words alone, and the record is written around them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, run
from ibrl_jax.errors import UserError


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("run", "seat", "draw"))

    from ibrl_jax.dialogue.build import build_cast, build_domain, build_hall, build_speech
    from ibrl_jax.dialogue.loop import Match, play
    from ibrl_jax.dialogue.person import Manner, PersonSpeaker
    from ibrl_jax.dialogue.views import PolicyRef
    from ibrl_jax.domains.telesales.person import as_record, brief, standing
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
    typed = Manner(brief=brief, beside=standing, written=as_record)
    match = Match(
        stage=("play",),
        draw=draw,
        rollout=0,
        scenario=scenarios[int(rng.integers(len(scenarios)))],
        first=roles[int(rng.integers(len(roles)))],
        matchup=frozenset(),
        speakers={
            seat: PersonSpeaker(manner=typed if seat == CUSTOMER else None),
            other: cast.local(other, "play", ref, config.evaluation.temperature),
        },
    )
    hall = build_hall(config, domain, retries=config.evaluation.retries, concurrency=1)
    try:
        (played,) = play(hall, [match])
    except EOFError:
        sentence = "you left; nothing was agreed"
    else:
        sentence = domain.told(played.outcome)
        for last in played.turns[-1:]:
            if not last.valid:
                sentence += f" ({last.role} said no legal turn: {domain.refusal(last)})"
            elif last.role != seat:  # which nobody was asked to answer
                console.print(f"{last.role}> {last.text}", highlight=False, markup=False)
    folder.summary({"sentence": sentence})
    console.print(sentence, highlight=False, markup=False)


if __name__ == "__main__":
    run(main)
