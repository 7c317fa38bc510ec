"""What judges and auditors behind an endpoint answer: its forms, and whether evidence stands.

An answer is asked at temperature 0 and validated whole: a missing turn, a turn too many, a key
that is not asked for and a number out of range are no answer. The client asks again as often as
its settings say; after that there is a `NoVerdict` of one kind, and never a score.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ibrl_jax.endpoints.client import Endpoint
from ibrl_jax.endpoints.errors import EndpointError

QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""What a judge's score can be."""

RANGE = "range"
"""The kind of a failure beside those of `endpoints.errors.Kind`: a number that is none of those
asked for."""

_OUT_OF_RANGE = "out of range, it must be a quarter of 1 or several"


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Answered = TypeVar("Answered", bound=BaseModel)


def _quarter(score: float) -> float:
    if score not in QUARTERS:
        raise PydanticCustomError(RANGE, _OUT_OF_RANGE)
    return score


class OfTurn(Form):
    """Something about one turn; `turn` is its index in the record."""

    turn: int


Entry = TypeVar("Entry", bound=OfTurn)


class EachTurn(Form, Generic[Entry]):
    """Something about each of certain turns: see `covering`."""

    expected: ClassVar[tuple[int, ...]] = ()
    turns: tuple[Entry, ...]

    @model_validator(mode="after")
    def _covers(self) -> Self:
        given = sorted(entry.turn for entry in self.turns)
        if given != list(self.expected):
            raise ValueError(f"turns are {given}, and not {list(self.expected)}")
        return self


Covering = TypeVar("Covering", bound=EachTurn[Any])


@lru_cache(maxsize=256)
def covering(form: type[Covering], turns: tuple[int, ...]) -> type[Covering]:
    """The form with exactly one entry for each of `turns`, in any order."""
    made = type(form.__name__, (form,), {"expected": turns, "__module__": form.__module__})
    return cast("type[Covering]", made)


# ------------------------------------------------------------------------- the judges of training


class AgentTurnVerdict(OfTurn):
    """The four questions about a turn of the agent."""

    answered: bool
    grounded: bool
    not_pushy: bool
    spoken: bool


class ClaimedFabrication(Form):
    """A claim against the lead record; both texts are evidence and checked."""

    hit: bool
    claim: str
    reference: str


class SalesVerdict(EachTurn[AgentTurnVerdict]):
    """What the sales agent's judge answers."""

    fabrication: ClaimedFabrication
    informed_deferral: bool
    instructs_judge: bool
    reason: str


class CustomerTurnVerdict(OfTurn):
    """The four questions about a turn of the customer."""

    fits_profile: bool
    plausible_delta: bool
    legal_behavior: bool
    no_role_swap: bool


class CustomerVerdict(EachTurn[CustomerTurnVerdict]):
    """What the customer's judge answers; `decision` is one of `QUARTERS`."""

    decision: Annotated[float, AfterValidator(_quarter)]
    instructs_judge: bool
    reason: str


# ------------------------------------------------------------------------- the checks of a call


class ClaimedHallucination(OfTurn):
    """A claim against or beyond the lead record."""

    claim: str = Field(min_length=1)
    kind: Literal["contradicted", "unsupported"]
    reference: str


class HallucinationReport(Form):
    """The agent's claims that the lead record does not bear out, and whether it made any at all."""

    any_claim: bool
    findings: tuple[ClaimedHallucination, ...]
    reason: str


class LabelVerdict(OfTurn):
    """Whether the recorded actions of a customer's turn are what its words say."""

    matches: bool
    label: str


class LabelReport(EachTurn[LabelVerdict]):
    """The label audit's answer."""

    reason: str


# ------------------------------------------------------------------------- asking


@dataclass(frozen=True, kw_only=True)
class NoVerdict:
    """Why there is none. `kind` is one of `endpoints.errors.Kind`, or `RANGE`."""

    kind: str
    reason: str
    attempts: int


async def ask(endpoint: Endpoint, prompt: str, form: type[Answered]) -> Answered | NoVerdict:
    """One answer at temperature 0. The client retries and caches; nothing here does.

    Raises EndpointStop where the endpoint as a whole is at fault.
    """
    try:
        answer = await endpoint.chat(
            [{"role": "user", "content": prompt}], schema=form, temperature=0.0
        )
    except EndpointError as error:
        kind = RANGE if _OUT_OF_RANGE in error.detail else str(error.kind)
        return NoVerdict(kind=kind, reason=str(error), attempts=error.attempts)
    return answer.parsed


# ------------------------------------------------------------------------- evidence


def quoted_in(claim: str, spoken: Mapping[int, str], turns: Sequence[int]) -> tuple[int, ...]:
    """Those of `turns` whose words hold the claim.

    `spoken` is by index in the record. White space, case, widths and punctuation are not compared,
    except a point or comma between digits.
    """
    wanted = _plain(claim)
    if len(wanted) < 2:
        return ()
    return tuple(n for n in dict.fromkeys(turns) if wanted in _plain(spoken.get(n, "")))


def refers_to(reference: str, known: str) -> bool:
    """Whether a reference can be about `known`, the text that an auditor was given.

    All its numbers have to stand there, and at least a number or two characters in a row (a word
    of four letters) of it. Wording is free otherwise: "the warranty has run out" refers to
    "0 months of warranty left".
    """
    text, source = _plain(reference), _plain(known)
    if len(text) < 2:
        return False
    if text in source:
        return True
    numbers, recorded = _numbers(reference), _numbers(known)
    if numbers:
        return numbers <= recorded
    return any(piece in source for piece in _pieces(reference))


def _plain(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).casefold()
    return re.sub(r"(?<!\d)[.,]|[.,](?!\d)|[^\w.,%]|_", "", text)


def _numbers(text: str) -> set[float]:
    """The numbers of a text; one in ten thousands (`12.8万`) is written out."""
    text = unicodedata.normalize("NFKC", text)
    found = re.findall(r"(\d[\d,]*(?:\.\d+)?)\s*(万)?", text)
    return {
        round(float(number.replace(",", "")) * (10_000 if unit else 1), 6) for number, unit in found
    }


def _pieces(text: str) -> list[str]:
    """Words of four letters or more, and pairs of Chinese characters."""
    text = unicodedata.normalize("NFKC", text).casefold()
    words = re.findall(r"[a-z]{4,}", text)
    runs = re.findall(r"[一-鿿]{2,}", text)
    return words + [run[i : i + 2] for run in runs for i in range(len(run) - 1)]
