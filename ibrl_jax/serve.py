"""`make play RUN=...`: talk to a trained policy in the terminal.

You hold one seat (`--seat=agent1`), the policy the other; rules and referee are an evaluation's.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, run
from ibrl_jax.errors import UserError


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("run", "seat", "draw"))

    from ibrl_jax.dialogue.agents import PersonSpeaker
    from ibrl_jax.dialogue.build import build_cast, build_domain, build_hall, build_speech
    from ibrl_jax.dialogue.loop import Match, play
    from ibrl_jax.dialogue.views import PolicyRef
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
    match = Match(
        stage=("play",),
        draw=draw,
        rollout=0,
        scenario=scenarios[int(rng.integers(len(scenarios)))],
        first=roles[int(rng.integers(len(roles)))],
        matchup=frozenset(),
        speakers={
            seat: PersonSpeaker(),
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
