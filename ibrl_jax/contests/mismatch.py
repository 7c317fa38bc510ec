"""The mismatch of a policy between the counterpart that it trained with and another one.

Dialogues against both give the direct estimate. Where both counterparts are local policies, the
counterpart's own turns in the training dialogues are scored under either, in the distribution that
they were sampled from (its temperature, stop tokens included), which gives the weights of
`evaluation.mismatch`. A malformed turn is never sampled again here: a dialogue then would not have
the probability that its tokens say.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from ibrl_jax.contests.duel import Table, finished, set_table
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import RoleView
from ibrl_jax.domains.base import Role
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.mismatch import decompose, direct
from ibrl_jax.evaluation.statistics import StatisticsSettings
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.params import Params
from ibrl_jax.models.score import score
from ibrl_jax.rewards.types import Scored
from ibrl_jax.trainer.frozen import find_frozen, trained_with
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.start import Note

_ROWS = 16  # views a pass


def measure(
    run: RunFolder,
    config: ConfigDict,
    role: Role,
    note: Note,
    *,
    train: str = "",
    deploy: str,
) -> dict[str, Any]:
    """The mismatch of `role`'s final policy, JSON-able.

    Args:
        config: the run's; `evaluation.scenarios`, `split` and `seeds` say what is played.
        train, deploy: the counterparts, by name; `train` is by default who it trained with.

    Raises:
        UserError: the run has no such policy, or a counterpart cannot be used or is not named.
    """
    if role not in config.roles:
        raise UserError(f"--role is {role!r}; the roles are {', '.join(config.roles)}")
    others = [r for r in config.roles if r != role]
    if len(others) != 1:
        raise UserError(f"a mismatch is of two roles, and {config.domain} has {len(others) + 1}")
    (seat,) = others
    own = f"frozen:{run.path}:{role}"
    train = train or _partner(own, tuple(config.roles))
    table = set_table(config, (own, train, deploy), run.path / "mismatch" / "endpoints", note)
    for name in (train, deploy):  # a mistake is told before anything is compiled
        table.check(name, seat)
    played: dict[str, list[Trajectory]] = {}
    planned = 0
    for name in (train, deploy):
        note(f"playing {role} against {name}")
        dialogues = table.play({role: own, seat: name}, ("mismatch", role), retries=0)
        planned, played[name] = len(dialogues), finished(dialogues)
    settings = StatisticsSettings(**dict(config.statistics))
    on, off = ((_rewards(played[n], role), _clusters(played[n])) for n in (train, deploy))
    found: dict[str, Any] = {
        "run": str(run.path),
        "role": role,
        "train": train,
        "deploy": deploy,
        "policies": {name: policy.fingerprint for name, policy in table.locals.items()},
        "temperature": {r: config.roles[r].temperature for r in (role, seat)},
        "dialogues": {
            "train": {"planned": planned, "scored": len(played[train])},
            "deploy": {"planned": planned, "scored": len(played[deploy])},
        },
        "direct": direct(on, off, settings).as_json(),
        "decomposition": None,
        "undecomposed": "",
        "sampler_gap": None,
        "settings": {
            "evaluation": config.evaluation.to_dict(),
            "statistics": config.statistics.to_dict(),
            config.domain: config[config.domain].to_dict(),
            "seed": config.seed,
        },
    }
    strangers = [name for name in (train, deploy) if name not in table.locals]
    if strangers:
        return found | {
            "undecomposed": f"{' and '.join(strangers)}: no local policy, so its turns have no "
            "probabilities here"
        }
    note(f"scoring the turns of {train} under {deploy}")
    views = [t.views[seat] for t in played[train]]
    log_weights, gap = log_weights_of(table, views, train, deploy, seat)
    decomposition = decompose(on[0], log_weights, on[1], settings)
    return found | {"decomposition": decomposition.as_json(), "sampler_gap": gap}


def log_weights_of(
    table: Table, views: Sequence[RoleView], train: str, deploy: str, seat: Role
) -> tuple[np.ndarray, float]:
    """log w [N] of the views of the counterpart in `seat`, and a check on them.

    The check is how far, at most, its tokens' log-probs as sampled are from those computed here.
    """
    temperature = float(table.config.roles[seat].temperature)
    both = (table.locals[name].params() for name in (train, deploy))
    ours, theirs = (token_logps(table, params, views, temperature) for params in both)
    gap = 0.0
    sums = []
    for view, p, q in zip(views, ours, theirs, strict=True):
        sampled = view.loss_mask.astype(bool)
        sums.append((q - p)[sampled].sum())
        if sampled.any():
            gap = max(gap, float(np.abs(view.behaviour_logp - p)[sampled].max()))
    return np.array(sums, np.float64), gap


def token_logps(
    table: Table, params: Params, views: Sequence[RoleView], temperature: float
) -> list[np.ndarray]:
    """Log-probs [T] of each view's tokens under a policy, in float64."""
    length, chunk = table.config.rollout.max_view_tokens, table.config.optimiser.logp_chunk
    model = table.cast.speech.model
    found: list[np.ndarray] = []
    for begin in range(0, len(views), _ROWS):
        block = views[begin : begin + _ROWS]
        ids = np.zeros((_ROWS, length), np.int32)
        segments = np.zeros((_ROWS, length), np.int32)
        for row, view in enumerate(block):
            ids[row, : len(view.ids)] = view.ids
            segments[row, : len(view.ids)] = 1
        scored = _score(model, params, table.base, ids, segments, temperature, chunk)
        logps = np.asarray(scored, np.float64)
        found += [logps[row, : len(view.ids)] for row, view in enumerate(block)]
    return found


@partial(jax.jit, static_argnames=("model", "chunk"))
def _score(
    model: Decoder,
    params: Params,
    base: Params | None,
    ids: jax.Array,
    segments: jax.Array,
    temperature: float,
    chunk: int,
) -> jax.Array:
    """Log-probs [B, T] of one view a row; ids and segments are [B, T]."""
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    return score(model, params, base, ids, positions, segments, temperature, chunk)[0]


def told(found: dict[str, Any]) -> str:
    """The result as a table of plain text."""
    unit = f"reward of {found['role']}"
    lines = [
        f"{'':<26}{'mean':>9}   {'interval':<20}{'dialogues':>9}",
        *(
            f"{name:<26}{_row(found['direct'][key])}"
            for name, key in (
                (f"{unit}, train", "train"),
                (f"{unit}, deploy", "deploy"),
                ("mismatch, direct", "mismatch"),
            )
        ),
    ]
    decomposition = found["decomposition"]
    if decomposition is None:
        return "\n".join([*lines, f"not decomposed: {found['undecomposed']}"])
    for name, form in decomposition["forms"].items():
        low, high = form["low"], form["high"]
        lines.append(f"{f'mismatch, {name}':<26}{form['value']:>+9.3f}   [{low:+.3f}, {high:+.3f}]")
    lines += [f"nothing estimated from weights: {reason}" for reason in decomposition["refused"]]
    mean, error = decomposition["mean_weight"], decomposition["weight_error"]
    spread = "" if error is None else f" (standard error {error:.3g})"
    lines.append(
        f"weights: effective sample size {decomposition['effective']:.1f} of "
        f"{decomposition['rows']}, mean {'too large' if mean is None else f'{mean:.3g}'}{spread}, "
        f"largest share {decomposition['largest_share']:.1%}; log-probs differ from those sampled "
        f"by {found['sampler_gap']:.1e} at most"
    )
    return "\n".join(lines)


def _row(interval: dict[str, Any]) -> str:
    if interval["mean"] is None:
        return f"{'-':>9}   {interval['note']}"
    text = f"{interval['mean']:>+9.3f}   "
    if interval["low"] is None:
        return f"{text}{interval['note']}"
    bounds = f"[{interval['low']:+.3f}, {interval['high']:+.3f}]"
    return f"{text}{bounds:<20}{interval['rows']:>9}"


def _partner(own: str, roles: Sequence[Role]) -> str:
    """Who a policy trained with, where that is one."""
    partners = trained_with(find_frozen(own, roles))
    if len(partners) != 1:
        raise UserError(
            f"{own} trained with {', '.join(partners) or 'nobody known'}; name one by --train="
        )
    return partners[0]


def _rewards(played: Sequence[Trajectory], role: Role) -> np.ndarray:
    rewards = (t.rewards[role] for t in played)
    return np.array([reward.value for reward in rewards if isinstance(reward, Scored)])


def _clusters(played: Sequence[Trajectory]) -> np.ndarray:
    return np.array([t.scenario.cluster for t in played])
