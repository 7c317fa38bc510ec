"""Stories hold the user's side alone, by templates and from an endpoint."""

import asyncio
import json

import pytest

from ibrl_jax.domains.telesales.boundaries import check_boundaries
from ibrl_jax.domains.telesales.labels import LANGUAGES
from ibrl_jax.domains.telesales.profiles import evaluation_profiles, lead_record
from ibrl_jax.domains.telesales.profiles import terms as t
from ibrl_jax.domains.telesales.profiles.schema import Story
from ibrl_jax.domains.telesales.prompts import Prompts
from ibrl_jax.domains.telesales.story import (
    StoryFailed,
    compile_all,
    compile_offline,
    compile_with,
    story_input,
    with_story,
)
from ibrl_jax.endpoints import Budget, Endpoint, EndpointSettings, EndpointStop
from tests.endpoints.fault_server import FaultServer, say, status


def _profiles(language, n=40):
    return evaluation_profiles(0, n, "sampled", language)


# ---------------------------------------------------------------------------- templates


@pytest.mark.parametrize("language", LANGUAGES)
def test_table_7_every_profile_gets_a_complete_story_that_keeps_the_boundaries(language):
    for profile in evaluation_profiles(0, 500, "paper_exact", language):
        story = compile_offline(profile, 0)
        assert check_boundaries(story.story, story.scene_fewshots, profile) == ()
        assert "{" not in story.story


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_story_covers_what_table_8_asks_for(language):
    for profile in _profiles(language):
        told, user = compile_offline(profile, 0).story, profile.user_profile
        basic, needs, speech = user.basic_profile, user.car_needs, user.speech_profile
        for words in (
            basic.name,
            basic.occupation,
            basic.family_status,
            basic.current_situation,
            basic.purchase_experience.word(language),
            user.location_context.city,
            needs.target_car,
            needs.purchase_timeline.word(language),
            user.lead_context.lead_status.word(language),
            user.lead_context.lead_recency.word(language),
            speech.speaking_style,
            speech.signal_quality.word(language),
            speech.comprehension_level.word(language),
            speech.guidance_need.word(language),
            user.contact_info.phone_number,
            *needs.core_needs,
            *needs.use_scenarios,
            *needs.comparison_cars,
            *user.concerns.objection_details,
            *user.concerns.confusion_points,
        ):
            assert words in told


def test_a_story_has_all_eight_scenes_of_table_8_in_one_to_three_lines():
    for profile in _profiles("en"):
        scenes = compile_offline(profile, 0).scene_fewshots
        assert [scene.value for scene in scenes] == [
            "passive pickup",
            "lead or vehicle memory",
            "cooperative short answers",
            "core concerns",
            "price and fees",
            "condition and documents",
            "contact boundaries",
            "ending the call",
        ]
        assert all(1 <= len(lines) <= 3 for lines in scenes.values())


def test_the_same_seed_tells_the_same_story_and_another_chooses_other_lines():
    profiles = _profiles("zh")
    first = [compile_offline(p, 0) for p in profiles]
    assert first == [compile_offline(p, 0) for p in profiles]
    assert first != [compile_offline(p, 1) for p in profiles]


def test_personality_intent_and_reachability_change_the_story():
    profile = _profiles("en")[0]
    user = profile.user_profile
    for group, field, labels in (
        ("intent_state", "personality", t.Personality),
        ("intent_state", "intent_depth", t.IntentDepth),
        ("lead_context", "lead_memory_state", t.Memory),
        ("location_context", "remote_type", t.Remote),
    ):
        told = set()
        for label in labels:
            changed = getattr(user, group).model_copy(update={field: label})
            other = user.model_copy(update={group: changed})
            told.add(compile_offline(profile.model_copy(update={"user_profile": other}), 0).story)
        assert len(told) == len(labels)


def test_a_number_that_cannot_be_added_brings_the_alternate_and_only_then():
    for profile in _profiles("zh"):
        told, contact = compile_offline(profile, 0).story, profile.user_profile.contact_info
        if contact.alternate_wechat_contact:
            assert contact.alternate_wechat_contact in told
            assert "加不了微信" in told
        else:
            assert "可以加微信" in told


def test_a_story_is_not_moved_by_the_agents_side():
    profile = _profiles("en")[0]
    vehicle = profile.agent_info.vehicle.model_copy(update={"price": 123, "mileage": 77_000})
    agent = profile.agent_info.model_copy(update={"vehicle": vehicle})
    other = profile.model_copy(update={"agent_info": agent})
    assert compile_offline(other, 0) == compile_offline(profile, 0)


def test_a_compiled_story_survives_the_file(tmp_path):
    profile = _profiles("zh")[0]
    told = with_story(profile, compile_offline(profile, 0))
    assert profile.story is None
    assert type(told).model_validate_json(told.model_dump_json()) == told


# ---------------------------------------------------------------------------- boundaries


@pytest.fixture(scope="module")
def profile():
    """Whose car has every fact, and stands where the user does not remember."""
    made = next(
        p
        for p in evaluation_profiles(0, 400, "sampled", "en")
        if p.user_profile.location_context.remote_type is t.Remote.CROSS_PROVINCE
        and p.user_profile.car_needs.car_city_memory_state is not t.Memory.CLEAR
    )
    vehicle = made.agent_info.vehicle.model_copy(
        update={
            "registered": 2019,
            "price": 123_000,
            "fees": 3_400,
            "mileage": 61_000,
            "condition": t.VehicleCondition.CLEAN,
            "warranty_months": 14,
            "battery_percent": 91,
            "down_payment_percent": 30,
        }
    )
    agent = made.agent_info.model_copy(update={"vehicle": vehicle})
    return made.model_copy(update={"agent_info": agent})


def _crossed(profile, sentence):
    story = compile_offline(profile, 0)
    told = f"{story.story}\n{sentence}"
    return check_boundaries(told, story.scene_fewshots, profile)


@pytest.mark.parametrize(
    "sentence, what",
    [
        ("The car costs RMB 123,000.", "the car's price"),
        ("It costs 123K.", "the car's price"),
        ("车价12.3万。", "the car's price"),
        ("Fees come to 3400.", "the car's fees"),
        ("It has done 61,000 km.", "the car's mileage"),
        ("跑了6.1万公里。", "the car's mileage"),
        ("First registered in 2019.", "the car's registered"),
        ("There are 14 months of warranty left.", "the car's warranty"),
        ("The battery is at 91%.", "the car's battery_percent"),
        ("A down payment of 30 % is known.", "the car's down_payment_percent"),
        ("It has no accident, flood or fire.", "the car's condition"),
        ("The number 13800138000 may be added.", "a phone number that is not the user's"),
        ("He finally accepts.", "it fixes an outcome"),
        ("She will definitely hang up.", "it fixes an outcome"),
        ("用户最终会同意添加。", "it fixes an outcome"),
        ("最后一定挂断。", "it fixes an outcome"),
        ("The salary is high.", "a sensitive fact"),
        ("他的征信有问题。", "a sensitive fact"),
        ("He has no debts, but his salary is low.", "a sensitive fact"),
        ("他没有欠债。", "a sensitive fact"),
        ("He does not know cars, and finally accepts.", "it fixes an outcome"),
        ("他不懂车，最后会同意添加。", "it fixes an outcome"),
        ("If in doubt, he waits. In the end, he buys.", "it fixes an outcome"),
    ],
)
def test_a_story_that_crosses_a_boundary_is_caught(profile, sentence, what):
    assert any(what in crossed for crossed in _crossed(profile, sentence))


@pytest.mark.parametrize(
    "sentence",
    [
        "They finally sold the old car.",
        "May accept materials only.",
        "Nothing says that the customer accepts.",
        "30 minutes at most.",
        "Aged 31.",
        "最后问一个问题。",
        "Whether he finally accepts is open.",
        "It does not mean that she will definitely accept.",
        "She may eventually agree or decline, as the answers go.",
        "Only if the fees are clear will he finally agree to look at it.",
        "即使号码可用，也不一定会同意添加。",
        "是否最终接受，要看客服怎么回答。",
        "只有先答清质保，最后会同意看看资料。",
        "Does not like to give a home address on the phone.",
        "不愿在电话里透露家庭住址。",
        "9" * 400 + "万。",  # a model that repeats itself
    ],
)
def test_a_harmless_sentence_crosses_nothing(profile, sentence):
    assert _crossed(profile, sentence) == ()


def _registered(profile, **facts):
    agent = profile.agent_info
    vehicle = agent.vehicle.model_copy(update=facts)
    return profile.model_copy(update={"agent_info": agent.model_copy(update={"vehicle": vehicle})})


@pytest.mark.parametrize(
    "facts, what, sentences",
    [
        (
            {"owners": 3},
            "the car's owners, 3",
            (
                "It has had 3 previous owners.",
                "The car changed hands 3 times.",
                "Previous owners: 3.",
                "这车过户过3次。",
                "用户知道前面有3任车主。",
            ),
        ),
        ({"owners": 1}, "the car's owners, 1", ("There was 1 owner.", "车子过户1次。")),
        (
            {"availability": t.Availability.RESERVED},
            "the car's availability, reserved",
            ("The car is already reserved.", "Its availability: reserved.", "这台车已被预订。"),
        ),
        (
            {"availability": t.Availability.ON_SALE},
            "the car's availability, on_sale",
            ("It's still on sale.", "Knows that the car is for sale.", "用户知道车还在售。"),
        ),
        (
            {"availability": t.Availability.SOLD},
            "the car's availability, sold",
            ("The car has been sold.", "那辆车已售出。"),
        ),
        (
            {"warranty_months": 0},
            "the car's warranty, which has expired",
            (
                "The warranty has already expired.",
                "The car is out of warranty.",
                "车的质保已过期。",
                "这台车当前已过保。",
                "用户清楚这车已经过保。",
            ),
        ),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_owners_availability_and_an_expired_warranty_are_the_agents(
    profile, facts, what, sentences
):
    known = _registered(profile, **facts)
    for sentence in sentences:
        assert any(what in crossed for crossed in _crossed(known, sentence)), sentence
        assert _crossed(_registered(profile, **dict.fromkeys(facts)), sentence) == (), sentence


@pytest.mark.parametrize("availability", t.Availability)
@pytest.mark.parametrize(
    "sentence",
    [
        "Has the warranty run out?",
        "Worries that the warranty has expired.",
        "If the car is reserved, patience falls.",
        "It isn't reserved yet, is it?",
        "Is the car still on sale?",
        "Fears that the car is sold and the listing a bait.",
        "The old car was sold last month.",
        "The warranty of the last car has expired.",
        "The car is not yet reserved.",
        "The warranty has not expired.",
        "It isn't out of warranty.",
        "It is no longer on sale.",
        "Wants a car with at most 3 owners.",
        "Booked a viewing, and is 33 years old.",
        "保修过没过期？",
        "担心车已经过保。",
        "这车还在售吗",
        "怕车早被预订了。",
        "旧车已经卖掉了。",
        "旧车的质保已过期。",
        "车还没过保。",
        "这台车还没被预订。",
        "如果客服说车已售出，意愿下降。",
        "最多能接受过户3次。",
        "过户手续麻烦，3年内不换车。",
    ],
)
def test_what_is_asked_feared_or_the_users_own_crosses_nothing(profile, sentence, availability):
    known = _registered(profile, owners=3, warranty_months=0, availability=availability)
    assert _crossed(known, sentence) == ()


def test_who_calls_and_a_forgotten_city_are_caught(profile):
    service, needs = profile.agent_info.service, profile.user_profile.car_needs
    assert "names the agent" in _crossed(profile, f"Expects {service.name} to call.")[0]
    assert "a phone number" in _crossed(profile, f"Knows {service.phone}.")[0]
    assert "knows where the car is" in _crossed(profile, f"The car is in {needs.car_city}.")[0]


def test_a_missing_scene_and_a_speech_for_a_line_are_caught(profile):
    story = compile_offline(profile, 0)
    scenes = dict(story.scene_fewshots)
    del scenes[t.Scene.ENDING]
    scenes[t.Scene.PRICE] = ("word " * 60,)
    scenes[t.Scene.PICKUP] = ("a", "b", "c", "d")
    crossed = check_boundaries(story.story, scenes, profile)
    assert [c.split("'")[1] for c in crossed] == [
        "passive pickup",
        "price and fees",
        "ending the call",
    ]


# ---------------------------------------------------------------------------- an endpoint


def _endpoint(url, cache=None):
    return Endpoint(
        EndpointSettings(
            name="stories",
            base_url=url,
            model="scripted",
            key_env=None,
            temperature=0.7,
            max_tokens=2_000,
            timeout_s=5.0,
            retries=1,
            backoff_s=0.001,
            max_wait_s=0.5,
            concurrency=8,
            requests_per_minute=None,
            budget=Budget(max_calls=None, max_tokens=None, max_cost=None),
            price_in=None,
            price_out=None,
            cache_dir=None if cache is None else str(cache),
            schema_mode="none",
            extra_body={},
        )
    )


@pytest.fixture
def prompts():
    return Prompts("en", None, length="full")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def _run(url, work, cache=None):
    async def inside():
        endpoint = _endpoint(url, cache)
        try:
            return await work(endpoint)
        finally:
            await endpoint.aclose()

    return asyncio.run(inside())


def _answer(profile, extra=""):
    story = compile_offline(profile, 0)
    return json.dumps(
        {
            "story": story.story + extra,
            "scene_fewshots": {k.value: list(v) for k, v in story.scene_fewshots.items()},
        }
    )


def test_an_endpoints_story_is_used_and_replayed_from_the_cache(profile, prompts, tmp_path):
    def work(endpoint):
        return compile_with(endpoint, profile, prompts, attempts=2)

    with FaultServer(lambda asked: say(f"```json\n{_answer(profile)}\n```")) as server:
        first = _run(server.url, work, tmp_path)
        again = _run(server.url, work, tmp_path)
        assert len(server.asked) == 1
    assert first == again == compile_offline(profile, 0)


def test_a_story_that_leaks_is_asked_for_again(profile, prompts):
    leaky = _answer(profile, " The car costs RMB 123,000.")
    script = [say(leaky), say(_answer(profile))]
    with FaultServer(lambda asked: script[asked.number]) as server:
        story = _run(server.url, lambda e: compile_with(e, profile, prompts, attempts=2))
        first, again = (asked.body["messages"] for asked in server.asked)
    assert isinstance(story, Story)
    assert "123,000" not in story.story
    assert again[:1] == first
    assert [message["role"] for message in again] == ["user", "assistant", "user"]
    assert again[1]["content"] == leaky
    assert "it knows the car's price, 123000" in again[2]["content"]


def test_a_profile_without_a_usable_story_fails_by_name_and_is_not_filled_in(profile, prompts):
    leaky = _answer(profile, " He finally accepts.")
    with FaultServer(lambda asked: say(leaky)) as server:
        failed = _run(server.url, lambda e: compile_with(e, profile, prompts, attempts=3))
        assert len(server.asked) == 3
    assert isinstance(failed, StoryFailed)
    assert failed.id == profile.id
    assert "it fixes an outcome" in failed.reason


def test_many_profiles_keep_their_order_and_failures_are_told_apart(prompts):
    profiles = _profiles("en", 12)
    answers = {p.id: say(_answer(p)) for p in profiles}
    answers[profiles[3].id] = say("no story today")

    def script(asked):
        found = [name for name in answers if f'"{name}"' in asked.prompt]
        assert len(found) == 1
        return answers[found[0]]

    with FaultServer(script) as server:
        told, failed = _run(server.url, lambda e: compile_all(e, profiles, prompts, attempts=1))
    assert [p.id for p in told] == [p.id for p in profiles if p is not profiles[3]]
    assert all(p.story == compile_offline(p, 0) for p in told)
    assert [f.id for f in failed] == [profiles[3].id]


def test_an_address_that_is_wrong_stops_all(profile, prompts):
    with FaultServer(lambda asked: status(404)) as server, pytest.raises(EndpointStop):
        _run(server.url, lambda e: compile_all(e, [profile], prompts, attempts=1))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compilers_input_has_table_8_five_parts_in_the_calls_language(language):
    profile = _profiles(language)[0]
    parts = story_input(profile)
    assert list(parts) == [
        "case_control",
        "user_profile",
        "agent_info",
        "runtime_state",
        "generation_meta",
    ]
    user, known = parts["user_profile"], parts["agent_info"]["known_customer_info"]
    personality = profile.user_profile.intent_state.personality
    assert user["intent_state"]["personality"] == personality.word(language)
    assert known["target_car"] == lead_record(profile).target_car
    assert len(user) == 8
    assert sum(map(len, user.values())) == 40


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compilers_prompt_names_every_scene_and_personality(language):
    prompt = Prompts(language, None, length="full").render("story", PROFILE_JSON="{}")
    assert all(f'"{scene.value}"' in prompt for scene in t.Scene)
    assert all(personality.word(language) in prompt for personality in t.Personality)
