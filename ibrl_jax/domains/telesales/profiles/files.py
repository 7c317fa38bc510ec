"""Profiles as JSON lines: ours written out, a user's own read in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from ibrl_jax.domains.telesales.profiles.consistency import problems
from ibrl_jax.domains.telesales.profiles.schema import EvaluationProfile, Profile, TrainingProfile
from ibrl_jax.errors import UserError

Kind = TypeVar("Kind", TrainingProfile, EvaluationProfile)


def dump_profiles(profiles: Iterable[Profile]) -> bytes:
    """One JSON object a line, UTF-8; the same profiles give the same bytes."""
    return "".join(f"{profile.model_dump_json()}\n" for profile in profiles).encode()


def read_profiles(path: Path, kind: type[Kind]) -> tuple[Kind, ...]:
    """The profiles of a file.

    Raises UserError, one sentence, for a file that cannot be read, a line that is no profile of
    this kind or does not agree with itself, or an id that stands twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); give a file with a profile a line."
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no UTF-8 text ({error.reason}).") from error
    profiles: dict[str, Kind] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        profile = _read(line, kind, where)
        if profile.id in profiles:
            raise UserError(f"{where}: the id {profile.id!r} stands twice; ids must differ.")
        profiles[profile.id] = profile
    if not profiles:
        raise UserError(f"{path} holds no profile; it needs one JSON object a line.")
    return tuple(profiles.values())


def _read(line: str, kind: type[Kind], where: str) -> Kind:
    try:
        profile = kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"])) or "the line"
        name = "training" if kind is TrainingProfile else "evaluation"
        raise UserError(f"{where} is no {name} profile: {at}: {first['msg']}.") from error
    if found := problems(profile):
        raise UserError(f"{where}, profile {profile.id!r}: {found[0]}.")
    return profile
