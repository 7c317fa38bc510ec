"""What the studies share: settings of the miniature, names of endpoints, and the measures."""

from __future__ import annotations

from typing import Any

from ibrl_jax.studies.declare import Env, Measured

MINI: dict[str, Any] = {
    "iterations": 200,
    "roles.agent0.kl": 0.02,
    "roles.agent1.kl": 0.02,
    "run.snapshots_every": 25,
    "run.dialogues_every": 25,
}
"""Of every run of the miniature, beside what its config file says: the paper's KL weight."""

PAPER: dict[str, Any] = {"run.snapshots_every": 10}
"""Of every run at the paper's scale."""

TINY_NETWORKS = (
    "The miniature: networks of 164 thousand parameters that speak the eighty-odd words of "
    "scripted teachers. It says how methods behave; how high they come cannot be set beside the "
    "paper's."
)

DEALS = (
    Measured(key="agreement", title="Agreement", form="percent"),
    Measured(key="own_utility", title="Own utility", form="share"),
    Measured(key="expected_utility", title="Expected utility", form="share"),
    Measured(key="joint_value", title="Joint value", form="share"),
)
"""Own utility and joint value are of agreed dialogues; expected utility is 0 without a deal."""

CALLS = (
    Measured(key="success", title="Success", form="percent"),
    Measured(key="success@1", title="Success@1", form="percent", of="success", at_least=1),
    Measured(key="success@2", title="Success@2", form="percent", of="success", at_least=2),
    Measured(key="hallucination", title="Hallucination", form="percent"),
    Measured(key="delta_willingness", title="Change of willingness", form="signed"),
)


def endpoint(name: str, **settings: Any) -> dict[str, Any]:
    """An endpoint whose address, model and key stand in `IBRL_<NAME>_URL`, `_MODEL` and `_KEY`."""
    stem = f"IBRL_{name.upper()}"
    found: dict[str, Any] = {
        "base_url": Env(f"{stem}_URL"),
        "model": Env(f"{stem}_MODEL"),
        "key_env": Env(f"{stem}_KEY", named=True),
        "cache_dir": f".cache/studies/{name}",
    }
    return {f"endpoints.{name}.{key}": value for key, value in (found | settings).items()}
