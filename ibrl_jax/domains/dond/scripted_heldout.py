"""Held-out families: met in evaluation only, never in training data or as training counterparts.

fair       asks for about 6 points, then 5, leaving the most units; takes half from the start
mirror     asks for its best units, as many as the counterpart asked for; takes what equals that
lexi       asks for all of its dearest item, gives up the cheapest units one a turn, and takes any
           offer with all of its dearest item
boulware   asks for nearly everything until late; its target collapses at the end
greedy     asks for everything that it values; takes 8 points or more, 7 at the last chance
"""

from __future__ import annotations

from ibrl_jax.domains.dond.grammar import Items
from ibrl_jax.domains.dond.scripted import Negotiator, Phrases, Position


class Fair(Negotiator):
    """Wants half and no more than a little above it."""

    floor = 4.0
    phrases = Phrases(
        open=("this is good i think", "we share the same"),
        hold=("the same is good", "still good for both"),
        concede=("then you get some more", "ok this way then"),
        counter=("is this good", "we can share this"),
        last=("share and close", "please share this"),
    )

    def aspiration(self, position: Position) -> float:
        return 5.0

    def offer(self, position: Position) -> Items:
        target = 6.0 if self.progress(position) < 0.35 else 5.0
        return self.at_least(target, lambda n: (-self.points(n), -sum(n)))


class Mirror(Negotiator):
    """Does as it is done by: it asks for as many units as the counterpart did, its best ones."""

    floor = 4.0
    phrases = Phrases(
        open=("you start i do the same", "i start with this"),
        hold=("same as you", "i do the same"),
        concede=("you take less i too", "less for me too"),
        counter=("you want so i want", "now i want these"),
        last=("last one same as you", "one more for both"),
    )

    def aspiration(self, position: Position) -> float:
        return float(self.points(self.offer(position)))

    def offer(self, position: Position) -> Items:
        units = sum(position.theirs[-1]) if position.theirs else (sum(self.seat.counts) + 1) // 2
        return best_units(self, units)


class Lexi(Negotiator):
    """Lexicographic: the dearest item type decides; the rest is for trading away."""

    floor = 3.0
    phrases = Phrases(
        open=("i need all of these", "these i need most"),
        hold=("i still need these", "all of these please"),
        concede=("you can take the rest", "i need just these"),
        counter=("these or no deal", "all these for me"),
        last=("just these and close", "last i need these"),
    )

    def aspiration(self, position: Position) -> float:
        return 4.0

    def offer(self, position: Position) -> Items:
        valued = sum(c for c, v in zip(self.seat.counts, self.seat.values, strict=True) if v)
        dearest = self.seat.counts[self._dearest()]
        return best_units(self, max(dearest, valued - len(position.mine)))

    def accepts(self, position: Position, items: Items, planned: Items) -> bool:
        dearest = self._dearest()
        has_all = items[dearest] == self.seat.counts[dearest]
        enough = self.points(items) >= self.aspiration(position)
        return (has_all and enough) or self.points(items) >= self.points(planned)

    def _dearest(self) -> int:
        return max(range(3), key=lambda j: (self.seat.values[j], self.seat.counts[j]))


class Boulware(Negotiator):
    """Yields next to nothing until the end: its target is 10 - 5 t^4."""

    floor = 3.0
    phrases = Phrases(
        open=("i want most of this", "i want all these"),
        hold=("i want the same", "no i want these", "i do not move"),
        concede=("ok i move some", "less but not more"),
        counter=("no i need this", "not good for me"),
        last=("my last offer is", "take this or no deal"),
    )

    def aspiration(self, position: Position) -> float:
        return 10.0 - 5.0 * self.progress(position) ** 4

    def offer(self, position: Position) -> Items:
        return self.at_least(self.aspiration(position), lambda n: (-self.points(n), -sum(n)))


class Greedy(Negotiator):
    """Never yields."""

    floor = 7.0
    phrases = Phrases(
        open=("all for me", "i get all"),
        hold=("all for me please", "i will not give", "still all for me"),
        concede=("you get the rest",),
        counter=("no all for me",),
        last=("all or no deal", "you get less"),
    )

    def aspiration(self, position: Position) -> float:
        return 8.0

    def offer(self, position: Position) -> Items:
        n0, n1, n2 = (
            c if v else 0 for c, v in zip(self.seat.counts, self.seat.values, strict=True)
        )
        return n0, n1, n2


def best_units(player: Negotiator, units: int) -> Items:
    """The `units` units that are worth most to a player."""
    taken = [0, 0, 0]
    for j in sorted(range(3), key=lambda j: -player.seat.values[j]):
        taken[j] = min(player.seat.counts[j], max(0, units - sum(taken)))
    return taken[0], taken[1], taken[2]


FAMILIES: dict[str, type[Negotiator]] = {
    "fair": Fair,
    "mirror": Mirror,
    "lexi": Lexi,
    "boulware": Boulware,
    "greedy": Greedy,
}
