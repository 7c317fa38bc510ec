"""Whether what a run or an evaluation should leave is there: whole, and of what is there today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.errors import UserError
from ibrl_jax.reporting.unfinished import unfinished
from ibrl_jax.settings import ROLES
from ibrl_jax.trainer.frozen import find_frozen
from ibrl_jax.trainer.policies import is_policy
from ibrl_jax.trainer.run import RunFolder, as_json, difference, read_json
from ibrl_jax.trainer.weights import fingerprint

_MEASURING = ("evaluation", "statistics", "endpoints")
"""The settings by which a run is measured, all of which may differ between its starts."""
_OF_ITSELF = ("policies", "*.key_env")
"""What of them says nothing: whom a run's evaluation is of, and where keys are read."""


def is_finished(folder: RunFolder, config: ConfigDict, *, evaluate: bool) -> bool:
    """Whether a folder's run has got as far as its config asks, and has left what it should."""
    if folder.ended != config.iterations:
        return False
    roles = [role for role, settings in config.roles.items() if settings.train]
    if not all((folder.policy(role) / "policy.json").is_file() for role in roles):
        return False
    return not evaluate or is_evaluated(folder, config)


def is_evaluated(folder: RunFolder, config: ConfigDict) -> bool:
    """Whether a run's evaluation is whole, and is the one that its config asks for."""
    if not is_whole(folder.path):
        return False
    then, now = read_json(folder.path / "evaluation.json").get("config") or {}, as_json(config)
    return not any(difference(then.get(key), now[key], _OF_ITSELF) for key in _MEASURING)


def is_whole(folder: Path) -> bool:
    """Whether an evaluation is of today and nothing of it is left to do: no dialogue that an
    endpoint broke off, no audit that is open."""
    if not is_of_today(folder):
        return False
    try:
        return not unfinished(read_json(folder / "evaluation.json"))
    except (LookupError, TypeError, AttributeError):  # damaged
        return False


def is_of_today(folder: Path) -> bool:
    """Whether an evaluation has ended, and was of the policies that lie in their folders now, with
    the counterparts that do. One whose file is damaged is of no day."""
    try:
        said = read_json(folder / "evaluation.json")
        if not all(_lies_there(policy) for policy in said.get("policies", ())):
            return False
        others = said.get("counterparts", {}).items()
        then = {name: who["fingerprint"] for name, who in others if "fingerprint" in who}
        roles = ROLES[said["config"]["domain"]] if then else ()
        return then == {n: find_frozen(n, roles, str(folder)).fingerprint for n in then}
    except (FileNotFoundError, UserError):  # one of them is gone
        return False
    except (LookupError, TypeError, AttributeError, ValueError):  # damaged
        return False


def _lies_there(policy: dict[str, Any]) -> bool:
    """Whether a policy of an evaluation still lies in its folder; one of no folder is nowhere."""
    where = policy.get("folder")
    if not where:
        return True
    return is_policy(Path(where)) and fingerprint(Path(where)) == policy["fingerprint"]
