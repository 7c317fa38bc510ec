"""Profiles out of the pools: `training_profiles` and `evaluation_profiles`.

A seed and a version give the same profiles, byte for byte. A drawn profile depends on its own index
and on no other profile, so a larger batch begins with the smaller one (not so with `paper_exact`,
whose quotas depend on the size). The same draws serve both languages: one profile, two wordings.
"""

from __future__ import annotations

from collections.abc import Callable

from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.profiles import evaluation, training
from ibrl_jax.domains.telesales.profiles.composition import (
    DIFFICULTY,
    Composition,
    draw_cell,
    exact_cells,
    quotas,
)
from ibrl_jax.domains.telesales.profiles.draws import Draws
from ibrl_jax.domains.telesales.profiles.schema import (
    EvaluationProfile,
    GenerationMeta,
    TrainingProfile,
)

VERSION = "1"
"""Of pools and rules: a change of either is another version."""

_MOST_ATTEMPTS = 5_000


def training_profiles(seed: int, n: int, language: Language) -> tuple[TrainingProfile, ...]:
    """`n` training profiles."""
    return tuple(
        training.draw_profile(
            Draws(VERSION, "training", seed, index),
            GenerationMeta(seed=seed, version=VERSION, index=index, composition="sampled"),
            language,
        )
        for index in range(n)
    )


def evaluation_profiles(
    seed: int, n: int, composition: Composition, language: Language
) -> tuple[EvaluationProfile, ...]:
    """`n` evaluation profiles.

    `sampled` draws every dimension of Table 7 with its share, and difficulty comes out as it does;
    `paper_exact` meets Table 7's counts in every dimension.
    """
    if composition == "sampled":
        cells = [draw_cell(Draws(VERSION, "cell", seed, index)) for index in range(n)]
    else:
        cells = exact_cells(seed, n, VERSION)

    def draw(index: int, attempt: int) -> EvaluationProfile:
        meta = GenerationMeta(seed=seed, version=VERSION, index=index, composition=composition)
        name = (VERSION, "evaluation", seed, index, attempt)
        return evaluation.draw_profile(Draws(*name), cells[index], meta, language)

    profiles = [draw(index, 0) for index in range(n)]
    if composition == "paper_exact":
        _meet_difficulty(profiles, draw)
    return tuple(profiles)


def _meet_difficulty(
    profiles: list[EvaluationProfile], draw: Callable[[int, int], EvaluationProfile]
) -> None:
    """Draws profiles again, in their cells, until the levels' counts are Table 7's.

    By the order of the scores each profile has a level that it should have; only those on the wrong
    side of a cut, the ones nearest to it, are drawn again.
    """
    order = sorted(range(len(profiles)), key=lambda i: profiles[i].case_control.difficulty_score)
    wanted = [
        level for level, count in quotas(DIFFICULTY, len(profiles)).items() for _ in range(count)
    ]
    for index, level in zip(order, wanted, strict=True):
        attempt = 0
        while profiles[index].case_control.difficulty is not level:
            attempt += 1
            if attempt > _MOST_ATTEMPTS:
                raise RuntimeError(f"no {level} profile in {_MOST_ATTEMPTS} draws of cell {index}")
            profiles[index] = draw(index, attempt)
