"""The stand-in pays those who listen: a competent seller does well, every cheat does not.

The strongest cheat is an open-loop script: fifteen turns fixed beforehand, filled in from the lead
record, whatever the customer says. It is looked for by hill-climbing on some profiles and has to
stay at or under 10% on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from ibrl_jax.domains.telesales.customers import FAMILIES, RuleCustomer
from ibrl_jax.domains.telesales.labels import Behaviour, Language
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles, training_profiles
from ibrl_jax.domains.telesales.profiles.terms import Category, IntentDepth
from ibrl_jax.domains.telesales.scenarios import lead_of, make_scenario, view_of
from ibrl_jax.domains.telesales.sellers import SELLERS, Competent, Seller
from ibrl_jax.domains.telesales.tools import Call, Tool, parse_agent_turn

LIMIT = 15
Atom = tuple[str, Category, int]
"""What a turn of a script does, about which category, in which wording."""


class Town:
    """Profiles and their customers of one family, for many calls."""

    def __init__(self, family: str, language: Language, seed: int, n: int, kind: str = "test"):
        if kind == "test":
            profiles = evaluation_profiles(seed, n, "sampled", language)
        else:
            profiles = training_profiles(seed, n, language)
        scenarios = [make_scenario(profile) for profile in profiles]
        self.family = FAMILIES[family]
        self.leads = [lead_of(scenario) for scenario in scenarios]
        self.people = [view_of(scenario) for scenario in scenarios]
        self.said: dict[tuple[Atom, int], tuple[str, tuple[Call, ...]]] = {}

    def customer(self, index: int) -> RuleCustomer:
        rng = np.random.default_rng([7, index])
        lead, person = self.leads[index], self.people[index]
        return RuleCustomer(self.family, lead, person, rng, score_step=0.01)

    def sold(self, name: str) -> np.ndarray:
        """Which calls of a scripted seller end in an add. [profiles]"""
        found = []
        for index, lead in enumerate(self.leads):
            agent = SELLERS[name](lead, np.random.default_rng([5, index]))
            found.append(self._talk(agent, self.customer(index)))
        return np.array(found)

    def run(self, script: Sequence[Atom]) -> tuple[float, float]:
        """The share of calls that a script brings to an add, and to a yes."""
        added = agreed = 0
        for index in range(len(self.leads)):
            person = self.customer(index)
            for atom in script:
                move = person.hear(*self._perform(atom, index))
                if move.behaviour in (Behaviour.CONFIRM_ADDED, Behaviour.HANG_UP):
                    added += move.behaviour is Behaviour.CONFIRM_ADDED
                    break
            agreed += person.agreed
        return added / len(self.leads), agreed / len(self.leads)

    def _talk(self, agent: Seller, person: RuleCustomer) -> bool:
        heard = "喂"
        for turn in range(LIMIT):
            said = parse_agent_turn(agent.speak(heard, turn))
            assert said.error is None
            if said.ended:
                return False
            move = person.hear(said.words, said.calls)
            if move.behaviour in (Behaviour.CONFIRM_ADDED, Behaviour.HANG_UP):
                return move.behaviour is Behaviour.CONFIRM_ADDED
            heard = move.reply
        return False

    def _perform(self, atom: Atom, index: int) -> tuple[str, tuple[Call, ...]]:
        if (atom, index) not in self.said:
            self.said[atom, index] = self._words(atom, index)
        return self.said[atom, index]

    def _words(self, atom: Atom, index: int) -> tuple[str, tuple[Call, ...]]:
        kind, category, variant = atom
        lead = self.leads[index]
        agent = Competent(lead, np.random.default_rng(variant))
        words, topic = agent.words, category.word(lead.language)
        parts = {
            "greet": lambda: agent.greeting(),
            "fact": lambda: agent.answer(category, shown=True),
            "hedge": lambda: agent.line(words.unknown, topic=topic),
            "promise": lambda: agent.line(words.promises),
            "invite": lambda: agent.line(words.invitations, topic=topic),
            "number": lambda: agent.line(words.asks_number),
            "add": lambda: agent.line(words.sends),
            "send": lambda: agent.line(words.sends),
        }
        said = " ".join(parts[part]() for part in kind.split("+"))
        add = Call(tool=Tool.ADD_CONTACT, phone_number=lead.phone_number)
        calls = {"add": (add,), "send": (Call(tool=Tool.SEND_INVITATION),)}
        return said, calls.get(kind, ())


KINDS = (
    *("greet", "fact", "fact", "fact+invite", "fact+invite", "fact+promise", "hedge"),
    *("hedge+invite", "promise", "promise+invite", "invite", "number", "add", "send"),
)


def draw(rng: np.random.Generator) -> Atom:
    categories = list(Category)
    return (
        KINDS[rng.integers(len(KINDS))],
        categories[rng.integers(len(categories))],
        int(rng.integers(3)),
    )


def neighbour(script: Sequence[Atom], rng: np.random.Generator) -> list[Atom]:
    """One turn replaced, two exchanged, one put in or one taken out."""
    new, move = list(script), rng.random()
    i, j = (int(k) for k in rng.integers(LIMIT, size=2))
    if move < 0.5:
        new[i] = draw(rng)
    elif move < 0.7:
        new[i], new[j] = new[j], new[i]
    elif move < 0.85:
        new.insert(i, draw(rng))
    else:
        del new[i]
        new.append(draw(rng))
    return new[:LIMIT]


def climb(town: Town, script: list[Atom], steps: int, seed: int) -> list[Atom]:
    """The best script that so many steps find; a yes without an add is worth a fifth."""
    rng = np.random.default_rng(seed)
    added, agreed = town.run(script)
    best = added + 0.2 * agreed
    for _ in range(steps):
        new = neighbour(script, rng)
        added, agreed = town.run(new)
        if added + 0.2 * agreed > best:
            script, best = new, added + 0.2 * agreed
    return script


BEST_FOUND: dict[str, tuple[Atom, ...]] = {
    "rule_v1": (
        ("greet", Category.PRICE, 0),
        ("fact", Category.PRICE, 1),
        ("fact", Category.MILEAGE, 0),
        ("fact", Category.FINANCE, 1),
        ("fact+invite", Category.WARRANTY, 0),
        ("fact+invite", Category.AVAILABILITY, 1),
        ("promise+invite", Category.PRICE, 0),
        ("hedge", Category.FINANCE, 0),
        ("fact+invite", Category.PRICE, 1),
        ("hedge", Category.WARRANTY, 2),
        ("hedge+invite", Category.OWNERSHIP, 0),
        ("add", Category.CONDITION, 0),
        ("invite", Category.MILEAGE, 1),
        ("fact+invite", Category.REMOTE, 0),
        ("fact+invite", Category.REMOTE, 0),
    ),
    "rule_v2": (
        ("greet", Category.PRICE, 2),
        ("fact", Category.FINANCE, 2),
        ("fact", Category.OWNERSHIP, 0),
        ("fact+invite", Category.AVAILABILITY, 0),
        ("promise+invite", Category.CONDITION, 1),
        ("fact+invite", Category.FEES, 0),
        ("hedge", Category.MILEAGE, 1),
        ("fact", Category.AVAILABILITY, 1),
        ("fact+invite", Category.REMOTE, 0),
        ("fact", Category.PRIVACY, 0),
        ("invite", Category.REMOTE, 2),
        ("fact+promise", Category.MILEAGE, 0),
        ("promise+invite", Category.PRICE, 2),
        ("fact+invite", Category.FINANCE, 1),
        ("add", Category.MILEAGE, 2),
    ),
}
"""The best scripts of long searches against each family: 2,018 and 2,092 scripts with restarts, on
120 profiles, of which they win 7.5% and 8.3%."""


@cache
def town(family: str, language: Language, kind: str = "test") -> Town:
    return Town(family, language, seed=12, n=300, kind=kind)


MEASURED = ("rule_v1", "rule_v2")  # whose figures are quoted
CELLS = [(family, language) for family in MEASURED for language in ("zh", "en")]
FOOLED = [*CELLS, ("rule_mix", "zh"), ("rule_mix", "en")]  # whoever pays a policy in training


@pytest.mark.parametrize("family, language", CELLS)
def test_a_competent_seller_succeeds_in_about_half_of_its_calls(family, language):
    here = town(family, language)
    sold = here.sold("competent")
    assert 0.38 < sold.mean() < 0.60
    by_intent = {
        intent: np.mean([s for s, p in zip(sold, here.people, strict=True) if p.intent is intent])
        for intent in IntentDepth
    }
    assert by_intent[IntentDepth.ACCIDENTAL] < 0.30
    assert by_intent[IntentDepth.ACCIDENTAL] < by_intent[IntentDepth.BROWSING]
    assert by_intent[IntentDepth.BROWSING] < by_intent[IntentDepth.INTERESTED]
    assert by_intent[IntentDepth.URGENT] > 0.55


def test_a_better_seller_sells_more(monkeypatch):
    """There is something to learn: attention, evidence and care are each worth calls."""
    here = town("rule_v1", "zh")
    plain = here.sold("competent").mean()
    for trait in ("attention", "skill", "care"):
        monkeypatch.setattr(Competent, trait, 1.0)
    assert here.sold("competent").mean() > plain + 0.2


@pytest.mark.parametrize("family, language", FOOLED)
@pytest.mark.parametrize("cheat", ["spammer", "stuffer", "liar", "polite"])
def test_cheats_get_nothing(family, language, cheat):
    assert town(family, language).sold(cheat).sum() == 0


@pytest.mark.parametrize("family, language", FOOLED)
@pytest.mark.parametrize("cheat", ["hedger", "rotator"])
def test_hedging_and_rotating_facts_get_next_to_nothing(family, language, cheat):
    assert town(family, language).sold(cheat).mean() <= 0.03


@pytest.mark.parametrize("family", MEASURED)
def test_an_open_loop_script_found_here_stays_under_a_tenth(family):
    small = Town(family, "zh", seed=11, n=40)
    start = [("greet", Category.PRICE, 0), ("fact", Category.PRICE, 0)]
    start += [("fact+invite", c, 1) for c in list(Category)[1:10]]
    start += [("invite", Category.PRICE, 2), ("number", Category.PRICE, 0)]
    start += [("add", Category.PRICE, 0), ("send", Category.PRICE, 1)]
    script = climb(small, start, steps=60, seed=1)
    assert small.run(script) >= small.run(start)
    assert town(family, "zh").run(script)[0] <= 0.10


@pytest.mark.parametrize("name", BEST_FOUND)
@pytest.mark.parametrize("family, language", FOOLED)
@pytest.mark.parametrize("kind", ["test", "train"])
def test_the_best_scripts_of_long_searches_stay_under_a_tenth(name, family, language, kind):
    assert town(family, language, kind).run(BEST_FOUND[name])[0] <= 0.10
