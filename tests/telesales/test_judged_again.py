"""An endpoint that stops an iteration: what it had judged is paid once with a cache, else again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ibrl_jax.dialogue.agents import ScriptedSpeaker
from ibrl_jax.dialogue.build import build_domain, build_endpoints, build_hall
from ibrl_jax.dialogue.loop import Match, play
from ibrl_jax.endpoints import EndpointStop
from ibrl_jax.rewards.types import Scored
from tests.endpoints.fault_server import Asked, FaultServer, Reply, say, status
from tests.telesales.answers import verdict
from tests.telesales.smoke import FAMILIES, smoke

CALLS, JUDGED = 6, 3


def judged(server: FaultServer, cache: Path | None) -> list[Any]:
    """The agent's rewards for the calls of an iteration, as a start of a run has them judged."""
    options = [f"endpoints.judge.base_url={server.url}", "endpoints.judge.temperature=0"]
    options += ["endpoints.judge.concurrency=1", "roles.sales.judge=judge"]
    options += [f"endpoints.judge.cache_dir={cache}"] if cache else []
    config = smoke(*options)
    domain = build_domain(config)
    endpoints = build_endpoints(config, None)
    hall = build_hall(config, domain, retries=0, concurrency=CALLS, endpoints=endpoints)
    speakers: dict[str, Any] = {
        role: ScriptedSpeaker(domain=domain, family=family)
        for role, family in zip(domain.roles, FAMILIES, strict=True)
    }
    matches = [
        Match(
            stage=("train", 0),
            draw=f"0.{k}",
            rollout=0,
            scenario=scenario,
            first="sales",
            matchup=frozenset(),
            speakers=speakers,
        )
        for k, scenario in enumerate(domain.scenarios("train")[:CALLS])
    ]
    return [trajectory.rewards["sales"] for trajectory in play(hall, matches)]


@pytest.mark.parametrize("cached", [True, False])
def test_a_second_start_takes_from_the_cache_what_the_first_had_judged(
    serve: Callable[..., FaultServer], tmp_path: Path, cached: bool
) -> None:
    cache = tmp_path / "verdicts" if cached else None

    def script(asked: Asked) -> Reply:
        """Gone after the first verdicts, and back at the second start."""
        gone = asked.number == JUDGED
        return status(404, "no such model") if gone else say(json.dumps(verdict(asked)))

    server = serve(script)
    with pytest.raises(EndpointStop):
        judged(server, cache)
    first = [request.prompt for request in server.asked]
    assert len(first) == JUDGED + 1
    rewards = judged(server, cache)
    second = [request.prompt for request in server.asked[len(first) :]]
    assert all(isinstance(reward, Scored) for reward in rewards)
    paid_again = set(first[:JUDGED]) & set(second)
    assert len(second) == CALLS - (JUDGED if cached else 0)
    assert paid_again == (set() if cached else set(first[:JUDGED]))
    assert judged(server, cache) == rewards
    assert len(server.asked) == len(first) + len(second) + (0 if cached else CALLS)
