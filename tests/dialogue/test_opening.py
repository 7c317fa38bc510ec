"""What a role's views begin with is found from the prompts, and is what its agents read first."""

from ibrl_jax.dialogue.cast import opening
from ibrl_jax.dialogue.conductor import Conductor
from ibrl_jax.dialogue.loop import _seat
from ibrl_jax.domains.base import Scenario
from tests.dialogue.fakes import LEFT, RIGHT, TOKENIZER, Chatter, TalkingEngine, polite, scenario


class Ruled(Chatter):
    """Its prompts are the role's rules, then what the scenario adds."""

    def scenarios(self, split: str) -> list[Scenario]:
        assert split == "train"
        return [scenario(number) for number in range(1, 200)]

    def prompt(self, scenario: Scenario, role: str) -> str:
        return f"You are {role}. Be brief. {scenario.private[role]}"


def test_an_opening_is_the_rules_up_to_the_private_input(speech) -> None:
    domain = Ruled(horizon=1)
    for role in (LEFT, RIGHT):
        said = TOKENIZER.decode(opening(domain, speech, role))
        assert f"You are {role}. Be brief." in said
        assert not any(character.isdigit() for character in said)


def test_every_agents_view_begins_with_the_opening(speech, local, hall, matches) -> None:
    domain, engine = Ruled(horizon=2), TalkingEngine(polite)
    ids = opening(domain, speech, LEFT)
    speaker = local(engine, LEFT, 64)
    for match in matches({LEFT: speaker, RIGHT: speaker}, 3):
        referee = domain.referee(match.scenario, match.first)
        agent = speaker.sit(_seat(hall(domain=domain), match, LEFT, referee), Conductor())
        view = agent.close()
        assert view.ids[: len(ids)].tolist() == ids
        assert len(view.ids) > len(ids) > 5


def test_a_single_scenario_has_no_opening(speech) -> None:
    class One(Ruled):
        def scenarios(self, split: str) -> list[Scenario]:
            return [scenario(1)]

    assert opening(One(horizon=1), speech, LEFT) == []  # of one prompt nothing is known to recur
