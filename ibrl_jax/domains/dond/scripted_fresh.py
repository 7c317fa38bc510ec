"""Fresh held-out families: written once, after the others' figures were known, and never tuned.

Nothing was ever trained, chosen or adjusted by how a policy does against them.

anchor    opens with everything, and moves by what the counterpart's last move was worth to it; it
          never asks again for a unit that it gave up
tally     counts units: it wants as many as the other side has, and values break ties alone
patient   talks and repeats its offer until half of the time is gone, then yields in even steps
swapper   starts from the counterpart's last try, and exchanges cheap units for dear ones
"""

from __future__ import annotations

from itertools import pairwise

from ibrl_jax.domains.dond.grammar import Items
from ibrl_jax.domains.dond.scoring import allocations, complement
from ibrl_jax.domains.dond.scripted import Negotiator, Phrases, Position


class Anchor(Negotiator):
    """An extreme first demand, then `share` of what each of the counterpart's moves gave it.

    Where the counterpart holds, it moves by a token: `tokens` points over the whole time.
    """

    floor = 3.0
    phrases = Phrases(
        open=("i need all this to start", "i would like all of these"),
        hold=("you move then i move", "i keep this"),
        concede=("you move so i can too", "ok some less for me"),
        counter=("what i need is this",),
        last=("this is my last move", "all i can give"),
    )

    def prepare(self) -> None:
        self.share = self.rng.uniform(0.5, 0.9)
        self.tokens = self.rng.uniform(3.0, 4.0)

    def aspiration(self, position: Position) -> float:
        offers = [self.points(complement(n, self.seat.counts)) for n in position.theirs]
        moves = [max(0, b - a) for a, b in pairwise(offers)]
        yielded = max(self.share * sum(moves), self.tokens * self.progress(position))
        return max(4.0, self.total - yielded) if position.mine else float(self.total)

    def offer(self, position: Position) -> Items:
        target = self.aspiration(position)
        n0, n1, n2 = position.mine[-1] if position.mine else self.seat.counts
        within = [n for n in allocations((n0, n1, n2)) if self.points(n) >= target]
        if not within:
            return n0, n1, n2
        return min(within, key=lambda n: (self.points(n), -sum(n)))


class Tally(Negotiator):
    """Equal numbers: two units more than half at first, then one, then half.

    Which units they are matters little to it: those that the counterpart leaves, then its best.
    """

    floor = 4.0
    phrases = Phrases(
        open=("same for you and me", "we get the same"),
        hold=("i get what you get", "still the same for both"),
        concede=("you can get one more", "ok one less for me"),
        counter=("this way we get the same", "then the same this way"),
        last=("the same and we close", "let us get the same"),
    )

    def aspiration(self, position: Position) -> float:
        return float(self.points(self.offer(position)))

    def offer(self, position: Position) -> Items:
        units = min(sum(self.seat.counts), self.half + max(0, 2 - len(position.mine)))
        left = self.offered(position) or (0, 0, 0)
        fitting = [n for n in self.options if sum(n) == units]
        return max(fitting, key=lambda n: (_common(n, left), self.points(n)))

    def accepts(self, position: Position, items: Items, planned: Items) -> bool:
        late = self.progress(position) > 0.6
        wanted = sum(self.seat.counts) // 2 if late else self.half
        return sum(items) >= wanted and self.points(items) > 0

    @property
    def half(self) -> int:
        """The least number of units that is no less than the other side's."""
        return (sum(self.seat.counts) + 1) // 2


class Patient(Negotiator):
    """Time is on its side: nothing until half of it is gone, then a straight line down."""

    floor = 3.5
    greets = 1.0
    phrases = Phrases(
        greet=("hello how do you do", "hi let us start well"),
        open=("here is what i want", "i would like to start here"),
        hold=("this is still what i want", "we can talk more"),
        concede=("ok now i can move", "now you get one more"),
        counter=("now what about this",),
        last=("now let us close", "i did move so close"),
    )

    def prepare(self) -> None:
        self.start = self.rng.uniform(7.5, 9.0)
        self.end = self.rng.uniform(4.0, 5.0)

    def aspiration(self, position: Position) -> float:
        gone = max(0.0, 2.0 * position.index / self.seat.horizon - 1.0)
        latest = max(1e-9, 2.0 * (self.seat.horizon - 3) / self.seat.horizon - 1.0)
        return self.start + (self.end - self.start) * min(1.0, gone / latest)

    def offer(self, position: Position) -> Items:
        first = position.mine[0] if position.mine else self.seat.counts
        target = self.aspiration(position)
        return self.at_least(target, lambda n: (-self.points(n), _common(n, first), -sum(n)))


class Swapper(Negotiator):
    """One unit for another: never a demand of its own, always a change to the other side's."""

    floor = 3.0
    greets = 0.5
    phrases = Phrases(
        greet=("hi what would you like", "what do you like most"),
        open=("one for you one for me", "let us start this way"),
        hold=("i would still change one", "same change again"),
        concede=("i change less then", "then you keep some more"),
        counter=("i give one for one", "how about we change one"),
        last=("one last change", "just one change and close"),
    )

    def prepare(self) -> None:
        self.start = self.rng.uniform(6.0, 7.0)

    def aspiration(self, position: Position) -> float:
        return self.start - 2.5 * self.progress(position)

    def offer(self, position: Position) -> Items:
        """Swaps until it is worth the aspiration, one at least; with nothing to give it takes."""
        left = self.offered(position)
        items = list(left if left is not None else (c // 2 for c in self.seat.counts))
        values, counts = self.seat.values, self.seat.counts
        swapped = False
        while not swapped or self.points(items) < self.aspiration(position):
            swapped = True
            wanted = [j for j in range(3) if items[j] < counts[j] and values[j]]
            if not wanted:
                break
            dear = max(wanted, key=lambda j: values[j])
            spare = [i for i in range(3) if items[i] and values[i] < values[dear]]
            if spare:
                items[min(spare, key=lambda i: values[i])] -= 1
            items[dear] += 1
        return items[0], items[1], items[2]


def _common(a: Items, b: Items) -> int:
    """Units that two allocations both hold."""
    return sum(min(x, y) for x, y in zip(a, b, strict=True))


FAMILIES: dict[str, type[Negotiator]] = {
    "anchor": Anchor,
    "tally": Tally,
    "patient": Patient,
    "swapper": Swapper,
}
