"""Stories: from an evaluation profile to the simulator's persona (Table 8).

`compile_offline` fills sentences of our own, without any model; `compile_with` asks an endpoint,
whose cache replays what was compiled before. What comes back is held to the knowledge boundaries
by `boundaries.check_boundaries` before it is used.
"""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ibrl_jax.domains.telesales.boundaries import check_boundaries
from ibrl_jax.domains.telesales.labels import Label, Language
from ibrl_jax.domains.telesales.profiles.draws import Draws
from ibrl_jax.domains.telesales.profiles.pools import find_situation, load_pool
from ibrl_jax.domains.telesales.profiles.schema import EvaluationProfile, Story, lead_record
from ibrl_jax.domains.telesales.profiles.terms import Memory, Scene
from ibrl_jax.domains.telesales.prompts import Prompts
from ibrl_jax.domains.telesales.wording import span
from ibrl_jax.endpoints import Endpoint, EndpointError

FOLDER = Path(__file__).parent / "stories"


# ------------------------------------------------------------------------ from templates


def compile_offline(profile: EvaluationProfile, seed: int) -> Story:
    """The story by templates; `seed` chooses among spoken lines."""
    language = profile.language
    texts = _texts(language)
    filling = _filling(profile, texts)
    told = "\n".join(paragraph.format(**filling) for paragraph in texts["paragraphs"])
    draws = Draws("story", seed, profile.id)
    scenes = {scene: _lines(profile, scene, filling, draws) for scene in Scene}
    return Story(story=told, scene_fewshots=scenes)


def with_story(profile: EvaluationProfile, story: Story) -> EvaluationProfile:
    """The profile with its story."""
    return profile.model_copy(update={"story": story})


@cache
def _texts(language: Language) -> dict[str, Any]:
    with (FOLDER / f"{language}.toml").open("rb") as file:
        return tomllib.load(file)


def _filling(profile: EvaluationProfile, texts: Mapping[str, Any]) -> dict[str, str]:
    """What the placeholders of the templates stand for: facts of the user's side alone."""
    language, user = profile.language, profile.user_profile
    basic, needs, lead = user.basic_profile, user.car_needs, user.lead_context
    state, speech, contact = user.intent_state, user.speech_profile, user.contact_info
    words: Mapping[str, str] = texts["words"]
    comma, joiner = words["comma"], words["joiner"]
    pool = load_pool("evaluation")
    households = {f[language]: f.household for f in pool.families}
    situation = find_situation(basic.current_situation)
    busy = situation is not None and situation.busy
    place = {Memory.CLEAR: "clear", Memory.VAGUE: "vague", Memory.NONE: "none"}
    concerns = zip(user.concerns.objections, user.concerns.objection_details, strict=True)
    confused = comma.join(user.concerns.confusion_points)
    previous = basic.previous_car_type
    channel = "can_add" if contact.phone_can_add_wechat else "cannot_add"
    plain = {
        "name": basic.name,
        "gender": basic.gender.word(language),
        "ages": basic.age_range.word(language),
        "occupation": basic.occupation,
        "city": user.location_context.city,
        "family": basic.family_status,
        "situation": basic.current_situation,
        "needs": comma.join(needs.core_needs),
        "uses": comma.join(needs.use_scenarios),
        "car": needs.target_car,
        "car_city": needs.car_city,
        "car_type": needs.target_car_type.word(language),
        "compared": comma.join(needs.comparison_cars) or words["nobody"],
        "budget": span(needs.budget_range, language),
        "timeline": needs.purchase_timeline.word(language),
        "lead": lead.lead_status.word(language),
        "recency": lead.lead_recency.word(language),
        "concerns": joiner.join(
            words["concern"].format(concern=c.word(language), detail=detail)
            for c, detail in concerns
        ),
        "experience": basic.purchase_experience.word(language),
        "comprehension": speech.comprehension_level.word(language),
        "style": speech.speaking_style,
        "disfluency": speech.disfluency_pattern.word(language),
        "signal": speech.signal_quality.word(language),
        "guidance": speech.guidance_need.word(language),
        "phone": contact.phone_number,
        "alternate": contact.alternate_wechat_contact or "",
        "decides": words[f"decides_{households.get(basic.family_status, 'alone')}"],
        "convenient": words["convenient_busy" if busy else "convenient_free"],
        "motive": texts["motive"][state.intent_depth],
        "baseline": texts["baseline"][state.intent_depth],
        "memory": texts["memory"][lead.lead_memory_state],
        "distance": texts["distance"][user.location_context.remote_type],
        "hearing": texts["hearing"][speech.signal_quality],
        "privacy": texts["privacy"][state.privacy_sensitivity],
    }
    filled = {
        "place": words[f"place_{place[needs.car_city_memory_state]}"],
        "channel": words[channel],
        "calibration": texts["calibration"][state.personality],
        "confusions": words["confusions" if confused else "no_confusions"],
        "previous": "" if previous is None else words["previous"],
    }
    inner = plain | {
        "confusions": confused,
        "previous": "" if previous is None else previous.word(language),
    }
    return plain | {name: sentence.format(**inner) for name, sentence in filled.items()}


def _lines(
    profile: EvaluationProfile, scene: Scene, filling: Mapping[str, str], draws: Draws
) -> tuple[str, ...]:
    """One to three spoken lines of a scene."""
    scenes: Mapping[str, list[str]] = _texts(profile.language)["scenes"]
    user = profile.user_profile
    situation = find_situation(user.basic_profile.current_situation)
    if scene is Scene.CONCERNS:
        return tuple(user.concerns.category_details.values())[:3]
    kind = {
        Scene.PICKUP: " busy" if situation is not None and situation.busy else "",
        Scene.MEMORY: f" {user.lead_context.lead_memory_state}",
        Scene.CONTACT: f" {user.intent_state.privacy_sensitivity}",
    }.get(scene, "")
    lines = scenes[scene + kind]
    return tuple(line.format(**filling) for line in draws.sample(lines, draws.integer(1, 2)))


# ------------------------------------------------------------------------ from an endpoint


class StoryAnswer(BaseModel):
    """What the compiler's prompt asks for."""

    story: str
    scene_fewshots: dict[Scene, tuple[str, ...]]


_AGAIN: Mapping[Language, str] = {
    "zh": "这份人物设定越过了边界：{}。请改正后按同样的格式重新输出完整的 JSON 对象。",
    "en": "That persona crosses a boundary: {}. Write the whole JSON object again, in the same "
    "form, without it.",
}
"""Said to whoever wrote a story that cannot be used."""


@dataclass(frozen=True, kw_only=True)
class StoryFailed:
    """A profile that has no story, and why; it is left out and counted, never filled in."""

    id: str
    reason: str


def story_input(profile: EvaluationProfile) -> dict[str, Any]:
    """What the prompt holds of a profile, in the five parts of Table 8 and in the call's language.

    The agent's side is in it, so that the model knows what must not become the user's knowledge.
    """
    language = profile.language
    control = profile.case_control
    return _worded(
        {
            "case_control": {"sample_id": profile.id, **control.model_dump()},
            "user_profile": profile.user_profile.model_dump(),
            "agent_info": {"known_customer_info": lead_record(profile).model_dump()},
            "runtime_state": {"initial_state": profile.initial_state.model_dump()},
            "generation_meta": profile.meta.model_dump(),
        },
        language,
    )


async def compile_with(
    endpoint: Endpoint, profile: EvaluationProfile, prompts: Prompts, *, attempts: int
) -> Story | StoryFailed:
    """The story by an endpoint; one that crosses a boundary is asked for again, and told where.

    Raises EndpointStop where the endpoint as a whole is at fault.
    """
    prompt = prompts.render(
        "story", PROFILE_JSON=json.dumps(story_input(profile), ensure_ascii=False)
    )
    messages = opening = [{"role": "user", "content": prompt}]
    reason = "no attempt was allowed"
    for attempt in range(attempts):
        try:
            answer = await endpoint.chat(messages, sample_index=attempt, schema=StoryAnswer)
        except EndpointError as error:
            return StoryFailed(id=profile.id, reason=str(error))
        crossed = check_boundaries(answer.parsed.story, answer.parsed.scene_fewshots, profile)
        if not crossed:
            return Story(
                story=answer.parsed.story, scene_fewshots=dict(answer.parsed.scene_fewshots)
            )
        reason = "; ".join(crossed)
        messages = [
            *opening,
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": _AGAIN[profile.language].format(reason)},
        ]
    return StoryFailed(id=profile.id, reason=reason)


async def compile_all(
    endpoint: Endpoint, profiles: Sequence[EvaluationProfile], prompts: Prompts, *, attempts: int
) -> tuple[tuple[EvaluationProfile, ...], tuple[StoryFailed, ...]]:
    """The profiles that have a story now, in order, and those that could not get one.

    Raises EndpointStop where the endpoint as a whole is at fault; nothing is asked after it.
    """
    tasks = [
        asyncio.create_task(compile_with(endpoint, profile, prompts, attempts=attempts))
        for profile in profiles
    ]
    try:
        results = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    told = tuple(
        with_story(profile, result)
        for profile, result in zip(profiles, results, strict=True)
        if isinstance(result, Story)
    )
    return told, tuple(result for result in results if isinstance(result, StoryFailed))


def _worded(value: Any, language: Language) -> Any:
    """JSON in which labels read as words of the language."""
    if isinstance(value, Label):
        return value.word(language)
    if isinstance(value, Mapping):
        return {str(_worded(k, language)): _worded(v, language) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_worded(item, language) for item in value]
    return value
