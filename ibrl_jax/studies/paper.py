"""The figures that the paper prints: Tables 1 to 4, 7 and 13, as numbers and nothing else.

Labels of rows and keys of columns are ours; where a measure exists here, its key is that measure's
(`domains/*/metrics.py`). Shares that the paper prints in percent are percentages here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PROFILES = 500
CONVERSATIONS = 3
"""Table 1: evaluation profiles, and independent conversations with each."""

IB_RL = "IB-RL"


@dataclass(frozen=True, kw_only=True)
class SalesRow:
    """A row of Table 1. Percentages, changes of a score, the odds ratio and its Holm p.

    `success` holds Success@1, @2 and @3. `odds_ratio` is against `reference`, a row's label; 1 for
    the reference itself. `p` is an upper bound where `p_below`, and None for a reference.
    """

    scale: str
    policy: str
    success: tuple[float, float, float]
    hallucination: float
    delta_willingness: float
    delta_patience: float
    odds_ratio: float
    reference: str
    p: float | None
    p_below: bool = False

    def values(self) -> dict[str, float]:
        """By the keys of our measures."""
        return {
            **{f"success@{n}": share for n, share in enumerate(self.success, 1)},
            "hallucination": self.hallucination,
            "delta_willingness": self.delta_willingness,
            "delta_patience": self.delta_patience,
        }


def _sales(
    scale: str,
    policy: str,
    success: tuple[float, float, float],
    rest: tuple[float, float, float],
    ratio: float,
    p: float | None = 0.001,
) -> SalesRow:
    hallucination, willingness, patience = rest
    return SalesRow(
        scale=scale,
        policy=policy,
        success=success,
        hallucination=hallucination,
        delta_willingness=willingness,
        delta_patience=patience,
        odds_ratio=ratio,
        reference=f"4B {IB_RL}" if scale == "4B" else f"9B {IB_RL}",
        p=p,
        p_below=p == 0.001,
    )


_TABLE1 = (
    _sales("4B", "SFT", (4.8, 0.0, 0.0), (10.3, 0.334, 0.068), 18.23),
    _sales("4B", "unilateral vs SFT user", (37.2, 7.6, 0.4), (9.7, 0.252, 0.025), 1.67),
    _sales("4B", "unilateral vs DS V4 Pro", (22.4, 4.8, 0.0), (25.5, 0.134, -0.098), 2.97),
    _sales("4B", IB_RL, (53.4, 13.6, 1.6), (28.6, 0.338, 0.260), 1.0, None),
    _sales("9B", "SFT", (62.8, 22.2, 4.8), (2.5, 0.197, 0.086), 3.35),
    _sales("9B", "unilateral vs SFT user", (78.8, 39.6, 10.4), (13.5, 0.350, 0.144), 1.90),
    _sales("9B", "unilateral vs DS V4 Pro", (84.6, 54.4, 19.6), (9.9, 0.376, 0.120), 1.28, 0.002),
    _sales("9B", "unilateral vs pool of 3", (64.2, 25.4, 5.0), (8.5, 0.283, 0.074), 3.11),
    _sales("9B", IB_RL, (89.6, 63.2, 23.8), (8.5, 0.335, 0.259), 1.0, None),
    _sales("frontier", "Qwen-3.5-122B", (71.8, 30.4, 6.0), (11.4, 0.476, 0.305), 2.54),
    _sales("frontier", "GLM-5.2", (85.4, 56.4, 20.2), (3.8, 0.428, 0.129), 1.22, 0.006),
    _sales("frontier", "DS V4 Pro", (83.6, 51.6, 15.4), (26.8, 0.493, 0.253), 1.42),
)
TABLE1: Mapping[str, SalesRow] = {f"{row.scale} {row.policy}": row for row in _TABLE1}
"""Held-out evaluation on TeleSales, by label."""


@dataclass(frozen=True, kw_only=True)
class DealCell:
    """A cell of Table 2: agreement in percent; own utility and joint value of agreed dialogues."""

    agreement: float
    own_utility: float
    joint_value: float

    @property
    def expected_utility(self) -> float:
        """Agreement rate times own utility, which the text speaks of and the table leaves out."""
        return self.agreement / 100 * self.own_utility

    def values(self) -> dict[str, float]:
        """By the keys of our measures."""
        return {
            "agreement": self.agreement,
            "own_utility": self.own_utility,
            "joint_value": self.joint_value,
            "expected_utility": self.expected_utility,
        }


VS_GLM, VS_DS, IN_SYSTEM, SELF_PLAY = "vs GLM-5.2", "vs DS V4 Pro", "in-system", "self-play"


def _deal(*cells: tuple[float, float, float] | None) -> dict[str, DealCell]:
    columns = (VS_GLM, VS_DS, IN_SYSTEM, SELF_PLAY)
    return {
        column: DealCell(agreement=cell[0], own_utility=cell[1], joint_value=cell[2])
        for column, cell in zip(columns, cells, strict=True)
        if cell is not None
    }


TABLE2: Mapping[str, Mapping[str, DealCell]] = {
    "4B unilateral vs Qwen-3.5-4B": _deal(
        (43.1, 0.408, 0.800), (52.3, 0.456, 0.814), (86.5, 0.264, 0.659), (17.9, 0.580, 0.679)
    ),
    "4B unilateral vs DS V4 Pro": _deal(
        (40.6, 0.513, 0.870), (56.7, 0.454, 0.874), (56.7, 0.454, 0.874), (37.3, 0.481, 0.698)
    ),
    "4B IB-RL agent 0": _deal(
        (65.7, 0.494, 0.810), (72.3, 0.459, 0.889), (51.7, 0.442, 0.814), (64.4, 0.337, 0.466)
    ),
    "4B IB-RL agent 1": _deal(
        (58.9, 0.562, 0.768), (64.9, 0.559, 0.764), (51.7, 0.770, 0.814), (62.8, 0.462, 0.495)
    ),
    "9B unilateral vs Qwen-3.5-9B": _deal(
        (79.4, 0.362, 0.741), (59.6, 0.322, 0.750), (89.7, 0.758, 0.782), (56.3, 0.596, 0.802)
    ),
    "9B unilateral vs DS V4 Pro": _deal(
        (88.4, 0.591, 0.848), (86.4, 0.612, 0.873), (86.4, 0.612, 0.873), (46.2, 0.658, 0.848)
    ),
    "9B IB-RL agent 0": _deal(
        (94.8, 0.587, 0.854), (98.4, 0.575, 0.870), (97.4, 0.561, 0.892), (71.9, 0.699, 0.893)
    ),
    "9B IB-RL agent 1": _deal(
        (92.9, 0.673, 0.858), (92.7, 0.617, 0.831), (97.4, 0.811, 0.892), (70.6, 0.697, 0.896)
    ),
    "frontier GLM-5.2": _deal(
        (95.2, 0.500, 0.947), (84.4, 0.732, 0.943), None, (95.2, 0.500, 0.947)
    ),
    "frontier DS V4 Pro": _deal(
        (84.4, 0.742, 0.943), (75.3, 0.455, 0.932), None, (75.3, 0.455, 0.932)
    ),
}
"""Deal-or-No-Deal: row, column, cell."""

TABLE3: Mapping[str, Mapping[str, float]] = {
    "IB-RL (full)": {"success@1": 89.6, "success@2": 63.2, "hallucination": 8.5},
    "shared reward": {"success@1": 38.0, "success@2": 9.4, "hallucination": 23.9},
    "joint norm": {"success@1": 78.8, "success@2": 41.4, "hallucination": 13.3},
}
"""Component ablations on TeleSales, 9B: percentages."""


@dataclass(frozen=True, kw_only=True)
class PoolRow:
    """A row of Table 4: returns of training against one counterpart of the pool of three."""

    total_return: float
    episodes: int
    mean_return: float


TABLE4: Mapping[str, PoolRow] = {
    "DS V4 Pro": PoolRow(total_return=1625.18, episodes=3963, mean_return=0.41),
    "GLM-5.2": PoolRow(total_return=1346.59, episodes=3946, mean_return=0.34),
    "Qwen-3.5-122B": PoolRow(total_return=1298.15, episodes=3963, mean_return=0.33),
}

TABLE7: Mapping[str, Mapping[str, tuple[int, float]]] = {
    "difficulty": {
        "easy": (101, 20.2),
        "medium": (192, 38.4),
        "hard": (205, 41.0),
        "stress": (2, 0.4),
    },
    "initial intent": {
        "urgent purchase": (90, 18.0),
        "interested": (139, 27.8),
        "browsing": (138, 27.6),
        "accidental opt-in": (133, 26.6),
    },
    "geography": {
        "same city": (226, 45.2),
        "same province": (155, 31.0),
        "cross-province": (119, 23.8),
    },
    "contact-reachable": {"yes": (394, 78.8), "no": (106, 21.2)},
}
"""Composition of the 500 profiles: dimension, level, (count, percentage). Personality is printed
without percentages."""

TABLE7_PERSONALITIES = ("skeptical", "analytical", "passive", "friendly", "impatient")
TABLE7_PERSONALITY = 100
"""The kinds, and the profiles of each."""

TABLE13: Mapping[bool, Mapping[tuple[bool, bool], int]] = {
    True: {(True, True): 80, (False, False): 2, (True, False): 5, (False, True): 4},
    False: {(True, True): 2, (False, False): 92, (True, False): 8, (False, True): 7},
}
"""What was recorded, then what annotators A and B decided (consent or not): calls."""

TABLE13_KAPPAS: Mapping[str, float] = {
    "annotators A and B": 0.76,
    "record and A": 0.84,
    "record and B": 0.84,
}
"""As the text rounds them."""

TABLE13_AGREEMENT: Mapping[str, float] = {
    "annotators A and B": 88.0,
    "record and A": 92.0,
    "record and B": 92.0,
}
"""Percentages of 200."""

FIGURE4: Mapping[str, Mapping[str, float]] = {
    "sales": {"first": 0.30, "early peak": 0.32, "trough": 0.25},
    "customer": {"trough": 0.63, "last": 0.85},
}
"""Smoothed rewards in training on TeleSales, 9B, as the text reads them off; the sales agent's then
recovers beyond its first level."""

FIGURE6: Mapping[str, float] = {"early to late": 0.74, "within late": 0.86}
"""Similarity of the user's checkpoints by all-MiniLM-L6-v2, as the text reads it off."""
