"""What a person who plays Deal-or-No-Deal is told: before it, and of what came out."""

from __future__ import annotations

from collections.abc import Mapping

from ibrl_jax.domains.base import Outcome, Role, Scenario
from ibrl_jax.domains.dond.grammar import ErrorCode
from ibrl_jax.domains.dond.referee import EndReason, RefereeSettings
from ibrl_jax.domains.dond.refusals import REFUSALS
from ibrl_jax.domains.dond.scoring import other, worth

_BRIEF = """\
Deal-or-No-Deal. You are {role}. {other} and you share out what lies on the table, if you agree:

{items}

All of it is worth {total} points to you. What it is worth to {other} you do not see, and {other}
does not see what it is worth to you. You are paid for the points of what you receive; what {other}
receives is nothing to you, and without a deal nobody gets anything.

You speak in turn, {turns} lines in all. A line is one of these; its numbers are the units that you
take, and all others are for {other}.

  talk         I could do with some item{best}.
  offer        How about this: {offer}
  agreement    {selection}
  no deal      <disagree>

{agreeing} If {other} then selects just what it leaves,
{rest}, it is a deal; any other selection is no deal. The same goes
for you if {other} agrees first. <disagree> stands alone, and ends it at once."""

_AGREEING: Mapping[str, str] = {
    "any_try": "An agreement needs an offer before it, of either side.",
    "last_try": "An agreement is to the last offer of the other side.",
}

_ENDS: Mapping[EndReason, str] = {
    EndReason.DEAL: "a deal",
    EndReason.DISAGREE: "no deal, for one side said <disagree>",
    EndReason.SELECTIONS_SAME: "no deal, for both selected the same units",
    EndReason.SELECTIONS_SHORT: "no deal, for the selections leave something on the table",
    EndReason.SELECTIONS_OVER: "no deal, for the selections take more than there is",
    EndReason.SELECTIONS_MIXED: "no deal, for the selections do not make up what there is",
    EndReason.TURN_LIMIT: "no deal, for the turns ran out",
    EndReason.MALFORMED: "no deal, for {offender} said no legal turn ({why})",
    EndReason.ABORTED: "broken off, without a result: {abort}",
}


def brief(scenario: Scenario, role: Role, settings: RefereeSettings) -> str:
    """The game from a role's seat, with an example of each kind of line.

    Args:
        scenario: the role's own side of it.
    """
    counts, values = scenario.private[role]["counts"], scenario.private[role]["values"]
    best = max(range(len(values)), key=lambda j: counts[j] * values[j])
    wanted, rest = (
        " ".join(f"item{j}={n if (j == best) is own else 0}" for j, n in enumerate(counts))
        for own in (True, False)
    )
    slash = "/" if settings.close == "either" else ""
    return _BRIEF.format(
        role=role,
        other=other(role),
        items="\n".join(
            f"  item{j}: {n} of them, each worth {v} to you"
            for j, (n, v) in enumerate(zip(counts, values, strict=True))
        ),
        total=worth(counts, values),
        turns=settings.horizon_turns,
        best=best,
        offer=f"<try> {wanted} <{slash}try>",
        selection=f"<selection> {wanted} <{slash}selection>",
        rest=rest,
        agreeing=_AGREEING[settings.select_rule],
    )


def told(outcome: Outcome) -> str:
    """How it ended, and of a deal the points of each seat."""
    facts = outcome.facts
    words = _ENDS[EndReason(outcome.end_reason)]
    why = REFUSALS[ErrorCode(facts["error_code"])] if outcome.offender else ""
    text = words.format(offender=outcome.offender, why=why, abort=facts.get("abort"))
    if not outcome.success:
        return text
    shares = (f"{role} has {n} of {facts['total'][role]}" for role, n in facts["points"].items())
    return f"{text}: {', '.join(shares)} points"
