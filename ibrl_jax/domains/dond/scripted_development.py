"""Development families: they make the supervised data and serve as scripted training counterparts.

conceder       asks for just its target, leaving the most units; the target falls linearly
reciprocator   asks for what is nearest to the counterpart's wish; yields as much as it was given
splitter       asks for the fairest split by its estimate of the counterpart's values
wanderer       asks for any allocation near its target; the target falls by random steps
trader         holds its target and asks for what the counterpart seems to want least
"""

from __future__ import annotations

from ibrl_jax.domains.dond.grammar import Items
from ibrl_jax.domains.dond.scoring import complement
from ibrl_jax.domains.dond.scripted import Negotiator, Phrases, Position


class Conceder(Negotiator):
    """Starts at 8 to 10 points, ends at 4 to 5.5, in a straight line."""

    floor = 3.0
    phrases = Phrases(
        open=("i would like these", "hi i want these", "i need these most"),
        hold=("i still want these", "no i need these"),
        concede=("ok i can give more", "i can take less", "i will give some"),
        counter=("how about this", "can we do this"),
        last=("please take this", "this is all i can"),
    )

    def prepare(self) -> None:
        self.start = self.rng.uniform(8.0, 10.0)
        self.end = self.rng.uniform(4.0, 5.5)

    def aspiration(self, position: Position) -> float:
        return self.start + (self.end - self.start) * self.progress(position)

    def offer(self, position: Position) -> Items:
        target = self.aspiration(position)
        return self.at_least(target, lambda n: (-self.points(n), -sum(n)))


class Reciprocator(Negotiator):
    """Tit for tat: its target falls by what the counterpart has come up by, in own points."""

    floor = 3.0
    phrases = Phrases(
        open=("my first offer is", "let us start here"),
        hold=("now you move", "your turn to move", "you did not move"),
        concede=("you gave so i give", "i move with you", "i move too"),
        counter=("same for me but", "let us change this"),
        last=("one more move", "my best move"),
    )

    def prepare(self) -> None:
        self.start = self.rng.uniform(8.0, 9.5)
        self.patience = self.rng.uniform(0.5, 0.8)

    def aspiration(self, position: Position) -> float:
        offers = [self.points(complement(n, self.seat.counts)) for n in position.theirs]
        given = max(offers) - offers[0] if offers else 0
        yielded = max(float(given), self.patience * position.index)
        return max(4.5, self.start - yielded)

    def offer(self, position: Position) -> Items:
        target = self.aspiration(position)
        wanted = position.theirs[-1] if position.theirs else self.seat.counts
        left = complement(wanted, self.seat.counts)
        return self.at_least(target, lambda n: (-_distance(n, left), -self.points(n), -sum(n)))


class Splitter(Negotiator):
    """Equaliser: the larger the smaller of the two sides' points, by its estimate, the better."""

    floor = 3.0
    greets = 0.25
    phrases = Phrases(
        open=("let us share well", "we both get some", "good for both"),
        hold=("this is good for both", "we both win here"),
        concede=("more for you then", "ok you get more"),
        counter=("then we share this way", "is this good for you"),
        last=("let us close this", "good deal for both"),
        greet=("hi what do you need", "hello what do you want"),
    )

    def aspiration(self, position: Position) -> float:
        return self.points(self.offer(position)) - (1.0 if self.progress(position) > 0.6 else 0.0)

    def offer(self, position: Position) -> Items:
        weights = estimated_values(position, self.seat.counts)

        def fairness(n: Items) -> tuple:
            own, rest = self.points(n), complement(n, self.seat.counts)
            theirs = sum(w * u for w, u in zip(weights, rest, strict=True))
            return (min(float(own), theirs), own + theirs)

        return max(self.options, key=fairness)


class Wanderer(Negotiator):
    """Its target falls by random steps; it asks for any allocation within a point of it."""

    floor = 2.0
    greets = 0.25
    phrases = Phrases(
        open=("maybe this", "what about this one", "i think this"),
        hold=("maybe again", "i think the same"),
        concede=("or maybe this", "well then this"),
        counter=("or this one", "what if we do this", "or as you like"),
        last=("any of this", "just this then"),
        greet=("hello let us talk", "hi there"),
    )

    def prepare(self) -> None:
        steps = self.rng.exponential(0.8, self.seat.horizon)
        self.targets = 9.0 - steps.cumsum() + steps[0]
        self.tastes = self.rng.random((self.seat.horizon, len(self.options)))

    def aspiration(self, position: Position) -> float:
        return max(4.0, float(self.targets[position.index]))

    def offer(self, position: Position) -> Items:
        target = self.aspiration(position)
        taste = dict(zip(self.options, self.tastes[position.index], strict=True))
        return self.at_least(
            target, lambda n: (self.points(n) <= target + 1.0, self._useful(n), taste[n])
        )

    def _useful(self, items: Items) -> int:
        """Minus the units that it asks for without valuing them."""
        return -sum(n for n, v in zip(items, self.seat.values, strict=True) if v == 0)


class Trader(Negotiator):
    """Holds its target and trades: it keeps away from what the counterpart has asked for so far."""

    floor = 3.0
    phrases = Phrases(
        open=("i like these most", "you keep the rest"),
        hold=("i like these still", "these and you rest"),
        concede=("i trade this for less", "you can keep more"),
        counter=("let us trade", "i trade with you"),
        last=("last trade", "trade and close"),
    )

    def prepare(self) -> None:
        self.start = self.rng.uniform(7.0, 8.5)

    def aspiration(self, position: Position) -> float:
        gone = self.progress(position)
        return self.start if gone < 0.4 else self.start - 1.5 if gone < 0.8 else self.start - 3.0

    def offer(self, position: Position) -> Items:
        weights = estimated_values(position, self.seat.counts)

        def cheapest(n: Items) -> tuple:
            return (-sum(w * u for w, u in zip(weights, n, strict=True)), -self.points(n))

        return self.at_least(self.aspiration(position), cheapest)


def estimated_values(position: Position, counts: Items) -> list[float]:
    """The counterpart's values as its tries suggest, worth 10 in all.

    An item counts as many units as it asked for over the units that there are. One imaginary try
    of half of everything keeps the estimate from extremes.
    """
    asked = [
        (0.5 + sum(n[j] for n in position.theirs) / counts[j]) / (1 + len(position.theirs))
        for j in range(3)
    ]
    scale = 10.0 / sum(a * c for a, c in zip(asked, counts, strict=True))
    return [a * scale for a in asked]


def _distance(a: Items, b: Items) -> int:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True))


FAMILIES: dict[str, type[Negotiator]] = {
    "conceder": Conceder,
    "reciprocator": Reciprocator,
    "splitter": Splitter,
    "wanderer": Wanderer,
    "trader": Trader,
}
