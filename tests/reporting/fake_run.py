"""Builds run folders as training leaves them: small, with everything that a report reads."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

ROLES = ("agent0", "agent1")
COLUMNS = (
    ("fair", "held-out"),
    ("greedy", "held-out"),
    ("partner", "in-system"),
    ("self-play", "self-play"),
    ("stubborn", "development"),
)
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)> & \"q\" '"


def build(path: Path, *, iterations: int = 24, groups: int = 3, rollouts: int = 4) -> Path:
    """A finished and evaluated run with dialogues at every sixth iteration."""
    rng = np.random.default_rng(7)
    run = path / "mini" / "seed0"
    (run / "dialogues").mkdir(parents=True)
    rows = [metrics_row(k, iterations, rng) for k in range(1, iterations + 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for k in (1, *range(6, iterations + 1, 6)):
        lines = [
            json.dumps(record(k, g, r, rng, skill=k / iterations))
            for g in range(groups)
            for r in range(rollouts)
        ]
        (run / "dialogues" / f"iter_{k:06d}.jsonl").write_text("\n".join(lines) + "\n")
    (run / "evaluation.json").write_text(json.dumps(evaluation()))
    (run / "config.json").write_text(
        json.dumps(
            {
                "name": "mini",
                "seed": 0,
                "isolation": {"reward": "own", "advantage": "role", "mask": "own"},
                "loss": {"clip_low": 0.2, "clip_high": 0.2, "kl": 0.02, "normalise": "tokens"},
                "pool": {"every": 5, "sample_per": "rollout"},
                "roles": {
                    role: {"learning_rate": lr}
                    for role, lr in zip(ROLES, (1e-3, 5e-4), strict=True)
                },
            }
        )
    )
    (run / "summary.json").write_text(
        json.dumps({"iterations": iterations, "seconds": 96.4, "compilations_after_warm_up": 0})
    )
    return run


def metrics_row(k: int, total: int, rng: np.random.Generator) -> dict[str, Any]:
    skill = k / total
    roles = {}
    for i, role in enumerate(ROLES):
        updated = i == 0 or k % 2 == 0
        roles[role] = {
            "reward": round(0.28 + 0.3 * skill + 0.05 * i + rng.normal(0, 0.03), 4),
            "reward_std": 0.3,
            "advantage_spread": 0.8 - 0.1 * skill,
            "groups": 16,
            "degenerate_groups": int(rng.integers(0, 6)),
            "kl": 0.02 * skill + 0.001 if updated else None,
            "entropy": 1.4 - 0.6 * skill if updated else None,
            "clip_low": 0.01 * skill if updated else None,
            "clip_high": 0.02 * skill if updated else None,
            "grad_norm": 0.6 + rng.normal(0, 0.05) if updated else None,
            "loss": -0.01 if updated else None,
            "updated": updated,
            "updates": k if i == 0 else k // 2,
            "learning_rate": 1e-3 / (1 + i),
            "sampler_trainer_max": 3e-6 + abs(rng.normal(0, 1e-6)),
            "sampler_trainer_mean": 2e-7,
            "rows": 64 - 8 * i,
        }
    deals = int(64 * (0.35 + 0.5 * skill))
    return {
        "iteration": k,
        "seconds": {"rollout": 2.4 - 0.4 * skill, "score": 0.1, "update": 1.3, "total": 4.0},
        "roles": roles,
        "dialogues": {
            "count": 64,
            "agreement": deals / 64,
            "turns": 6.1 - skill,
            "tokens": 5200,
            "retries": 0,
        },
        "end_reasons": {
            "deal": deals,
            "no_deal": (64 - deals) // 2,
            "horizon": 64 - deals - (64 - deals) // 2 - 2,
            "malformed": 2,
        },
        "format_failures": {"agent0": {"bad_number": 1}, "agent1": {"two_selections": 1}},
        "matchups": {"agent0+agent1": 44, "agent0": 13, "agent1": 7},
        "pool": {role: {"size": k // 5, "drawn": (k // 5) * 5 or None} for role in ROLES},
        "compilations": 7,
        "coverage": 1.0,
    }


def record(
    k: int, group: int, rollout: int, rng: np.random.Generator, *, skill: float
) -> dict[str, Any]:
    """One dialogue; the first of each iteration holds text that tries to break out of the page."""
    counts, values = [1, 2, 3], {"agent0": [4, 3, 0], "agent1": [1, 0, 3]}
    deal = bool(rng.random() < 0.35 + 0.6 * skill)
    mine, rest = [1, 1 + rollout % 2, 0], [0, 1 - rollout % 2, 3]
    say = [
        ("agent0", HOSTILE if group + rollout == 0 else "i want item0 and item1.", "talk", None),
        ("agent1", "i care most about item2. you may have the rest.", "talk", None),
        ("agent0", f"<try> {spell(mine)} <try>", "propose", mine),
        ("agent1", f"<selection> {spell(rest)} <selection>", "select", rest),
        (
            ("agent0", f"<selection> {spell(mine)} <selection>", "select", mine)
            if deal
            else ("agent0", "<selection> item0=9 item1=1 <selection>", "malformed", None)
        ),
    ]
    turns = [
        {
            "role": role,
            "text": text,
            "end": "stop",
            "action": action,
            "valid": action != "malformed",
            "payload": payload,
            "error_code": "bad_items" if action == "malformed" else None,
            "flags": ["not_last_try"] if action == "select" and rollout == 1 else [],
        }
        for role, text, action, payload in say
    ]
    live = ROLES if rollout else ("agent0",)
    speakers = {r: f"live:{r}@{k}" if r in live else f"past:{r}@{max(0, k - 5)}" for r in ROLES}
    points = {"agent0": 4 + 3 * mine[1], "agent1": 9} if deal else dict.fromkeys(ROLES, 0)
    rewards: dict[str, Any] = {r: {"scored": points[r] / 10} for r in ROLES}
    if rollout == 3 and group == 1:
        rewards["agent1"] = {"failed": "the judge timed out"}
    return {
        "iteration": k,
        "draw": f"{k}.{group}",
        "rollout": rollout,
        "scenario": {
            "id": "1.2.3-4.3.0-1.0.3",
            "cluster": "1.2.3-1.0.3-4.3.0",
            "public": {"counts": counts},
            "private": {r: {"counts": counts, "values": values[r]} for r in ROLES},
        },
        "first": "agent0",
        "matchup": list(live),
        "speakers": speakers,
        "turns": turns,
        "views": {r: view(r, k, turns, live, rng) for r in ROLES if r in live},
        "outcome": {
            "end_reason": "deal" if deal else "malformed",
            "success": deal,
            "facts": {
                "points": points,
                "items": {"agent0": mine, "agent1": rest} if deal else None,
                "total": {"agent0": 10, "agent1": 10},
                "first_best": 19,
                "pareto": True if deal else None,
            },
            "offender": None if deal else "agent0",
        },
        "rewards": rewards,
        "advantages": {r: round(float(rng.normal()), 3) if r in live else None for r in ROLES},
        "retries": dict.fromkeys(ROLES, 0),
    }


def spell(items: list[int]) -> str:
    return " ".join(f"item{i}={n}" for i, n in enumerate(items))


def view(role, k, turns, live, rng) -> dict[str, Any]:
    """Pieces as sentencepiece spells them, with the chat template's tokens around each turn."""
    pieces, segment, index, mask, logp = [], [], [], [], []

    def add(words: list[str], turn: int, kind: int, sampled: bool) -> None:
        for word in words:
            pieces.append(word)
            segment.append(kind)
            index.append(turn)
            mask.append(int(sampled))
            logp.append(round(-float(rng.exponential(0.4)), 4) if sampled else 0.0)

    add(
        ["<|im_start|>", "system", "\n", "▁divide", "▁the", "▁items", "<|im_end|>", "\n"],
        -1,
        0,
        False,
    )
    for t, turn in enumerate(turns):
        own = turn["role"] == role
        words = ["▁" + word for word in turn["text"].split(" ")]
        add(["<|im_start|>", "assistant" if own else "user", "\n"], t, 0, False)
        add(words, t, 1 if own else 2, own)
        add(["<|im_end|>"], t, 1 if own else 0, own)
        add(["\n"], t, 0, False)
    return {
        "policy": {"id": role, "seat": "live", "version": k},
        "ids": [zlib.crc32(p.encode()) % 512 for p in pieces],
        "segment": segment,
        "turn_index": index,
        "loss_mask": mask,
        "behaviour_logp": logp,
        "pieces": pieces,
    }


def evaluation() -> dict[str, Any]:
    rows = []
    for policy, base in (("SFT start", 0.42), ("IB-RL", 0.71)):
        for i, role in enumerate(ROLES):
            cells = {}
            for c, (name, _) in enumerate(COLUMNS):
                agreement = min(0.99, base + 0.05 * i + 0.06 * c)
                own = 0.55 + 0.03 * i - 0.02 * c
                cells[name] = {
                    "n": 200 if c else 198,
                    "clusters": 100,
                    "planned": 200,
                    "coverage": 1.0 if c else 0.99,
                    "bounds": {"agreement": [0.99 * agreement, 0.99 * agreement + 0.01]},
                    "agreement": agreement,
                    "own_utility": own,
                    "joint_value": 0.86,
                    "pareto": 0.6,
                    "expected_utility": agreement * own,
                    "turns": 5.4,
                    "format_failures": {"own": {"bad_number": 2}, "counterpart": {}},
                    "end_reasons": {"deal": round(200 * agreement), "horizon": 20},
                    "agreement_ci": [agreement - 0.06, min(1.0, agreement + 0.06)],
                    "expected_utility_ci": [agreement * own - 0.04, agreement * own + 0.04],
                }
            rows.append({"policy": policy, "role": role, "cells": cells})
    return {
        "columns": [{"name": name, "kind": kind} for name, kind in COLUMNS],
        "rows": rows,
        "settings": {"temperature": 0.6, "split": "test", "ddof": 1, "eps": 1e-6, "seed": 0},
        "comparisons": [
            {
                "column": "fair",
                "policy": "IB-RL",
                "reference": "SFT start",
                "measure": "agreement",
                "difference": 0.171,
                "ci": [0.102, 0.240],
                "status": "estimated",
                "odds_ratio": 0.31,
                "interval": [0.2, 0.47],
                "p": 0.0001,
                "p_holm": 0.0002,
                "family": 2,
                "note": "",
            },
            {
                "column": "greedy",
                "policy": "IB-RL",
                "reference": "SFT start",
                "status": "separated",
                "odds_ratio": 0.01,
                "interval": None,
                "p": 0.0005,
                "p_holm": 0.001,
                "family": 2,
                "note": "an arm without a failure or a success: the ratio is a bound",
            },
        ],
    }
