"""The prompts of TeleSales, in Chinese and English: templates with `{{ placeholders }}` (jinja2).

| file | paper | for |
| --- | --- | --- |
| sales.txt | Table 15 | the agent in training: plain text |
| customer.txt | Table 16 | the customer in training: a record |
| customer_turn.txt | Table 16 | its state, told anew beside each utterance of the agent |
| simulator.txt | Table 9 | the prompted customer of the evaluation |
| seller_eval.txt | Table 10 | a prompted agent in the evaluation: JSON |
| story.txt | Table 8 | the compiler of stories |
| audit.txt | Table 12 | the audit after a call |
| judge_sales.txt, judge_customer.txt | section 5.1 | the judges of training |
| hallucination.txt, label_audit.txt | section 5.2 | the two checks of evaluated calls |

A user's own folder may replace any of them by a file of that name. For tiny policies there are
`short` versions of the three prompts of training, which leave most of it out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.sandbox import SandboxedEnvironment

from ibrl_jax.domains.base import Role, Turn
from ibrl_jax.domains.telesales.labels import (
    RUBRIC_CHANGES,
    RUBRIC_WORDS,
    DialogueAction,
    Intent,
    Language,
    Rubric,
)
from ibrl_jax.domains.telesales.profiles.schema import LeadRecord
from ibrl_jax.domains.telesales.scenarios import (
    CUSTOMER,
    SALES,
    Observation,
    attributes_of,
    story_of,
)
from ibrl_jax.domains.telesales.wording import customer_fields, in_brief, lead_fields, lead_text
from ibrl_jax.errors import UserError

_SALES = (
    *("service_name", "service_gender", "service_phone", "vehicle_series", "registration_city"),
    *("purchase_budget", "purchase_time", "vehicle_information", "customer_phone"),
)
_PROFILE = (
    *("name", "age", "occupation", "city", "family_situation", "background", "phone_number"),
    *("wechat_id", "wechat_privacy", "primary_wechat", "vehicle", "budget", "usage_scenario"),
    *("primary_needs", "intent_level", "intent_description", "personality", "concerns"),
    *("speaking_style", "call_environment", "signal_quality"),
)
_STATE = (
    *("stage", "willingness_before", "patience_before"),
    *("wechat_status", "guidance_type", "guidance_quality"),
)
_KNOWN_TO_AGENT = (
    *("SALE_PROFILE", "target_car", "car_city", "budget_range", "purchase_timeline"),
    *("car_info", "phone_number", "phone_tail"),
)

PLACEHOLDERS: Mapping[str, tuple[str, ...]] = {
    "sales": _SALES,
    "customer": (*_PROFILE, *_STATE),
    "customer_turn": _STATE,
    "simulator": ("STORY", "SCORE_TRACE"),
    "seller_eval": _KNOWN_TO_AGENT,
    "story": ("PROFILE_JSON",),
    "audit": ("CUSTOMER_SERVICE_SYSTEM_PROMPT", "AGENT_KNOWN_INFO", "SALE_PROFILE", "DIALOGUE"),
    "judge_sales": ("OBSERVATION", "DIALOGUE"),
    "judge_customer": ("OBSERVATION", "DIALOGUE"),
    "hallucination": ("AGENT_KNOWN_INFO", "DIALOGUE"),
    "label_audit": ("DIALOGUE",),
}
"""What each prompt must have, by the name of its file."""

_OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "sales": ("facts",),
    "customer": ("in_brief",),
    "simulator": ("RUBRIC", "INTENTS", "ACTIONS"),
}

Length = Literal["full", "short"]
SHORT = ("sales", "customer", "customer_turn")
"""The prompts of which there is a short version."""

_ENVIRONMENT = SandboxedEnvironment(
    undefined=StrictUndefined, autoescape=False, keep_trailing_newline=False
)


@dataclass(frozen=True, kw_only=True)
class CallState:
    """The state of a conversation as Table 16's prompt has it; the scores as a record has them."""

    stage: str
    willingness_before: str
    patience_before: str
    wechat_status: str
    guidance_type: str
    guidance_quality: str


class Prompts:
    """The checked prompts of one language."""

    def __init__(self, language: Language, folder: Path | None, *, length: Length) -> None:
        """`folder`: a user's own files, or None. `length`: of ours.

        Raises UserError for a folder or file that cannot be used.
        """
        self.language: Language = language
        if folder is not None:
            _check_folder(folder)
        self.texts = {name: _read(name, language, folder, length) for name in PLACEHOLDERS}
        self._templates = {name: _ENVIRONMENT.from_string(t) for name, t in self.texts.items()}

    def render(self, name: str, /, **values: str) -> str:
        """A prompt with its placeholders filled; values are never read as templates."""
        return self._templates[name].render(values)

    def sales(self, lead: LeadRecord) -> str:
        """The agent's prompt in training."""
        return self.render("sales", **lead_fields(lead))

    def seller_eval(self, lead: LeadRecord) -> str:
        """The prompt of an agent that was not trained here."""
        return self.render("seller_eval", **lead_fields(lead))

    def customer(self, observation: Observation, state: CallState) -> str:
        """The customer's prompt in training, before a turn that `state` stands before."""
        brief = in_brief(attributes_of(observation), self.language)
        return self.render("customer", **self._profile(observation), in_brief=brief, **vars(state))

    def customer_turn(self, state: CallState) -> str:
        """What a customer in training is told beside what the agent says: where it stands."""
        return self.render("customer_turn", **vars(state))

    def simulator(self, observation: Observation, trace: Sequence[Mapping[str, float]]) -> str:
        """The simulator's prompt; `trace` holds the three scores at the start and after each turn.

        Without a compiled story the profile's fields stand in its place.
        """
        story = story_of(observation)
        if story is None:
            told = "\n".join(f"{k}: {v}" for k, v in self._profile(observation).items())
        else:
            told = "\n".join(
                [story.story]
                + [f"{scene}: {' / '.join(lines)}" for scene, lines in story.scene_fewshots.items()]
            )
        return self.render(
            "simulator",
            STORY=told,
            SCORE_TRACE=json.dumps([dict(scores) for scores in trace]),
            RUBRIC=rubric_text(self.language),
            INTENTS=_listed(Intent, self.language),
            ACTIONS=_listed(DialogueAction, self.language),
        )

    def audit(self, lead: LeadRecord, turns: Sequence[Turn]) -> str:
        """The auditor's prompt: the agent's rules and facts, and what could be heard."""
        return self.render(
            "audit",
            CUSTOMER_SERVICE_SYSTEM_PROMPT=json.dumps(self.sales(lead), ensure_ascii=False),
            AGENT_KNOWN_INFO=json.dumps(lead_text(lead), ensure_ascii=False),
            SALE_PROFILE=lead_fields(lead)["SALE_PROFILE"],
            DIALOGUE=quoted(turns, None),
        )

    def hallucination(self, lead: LeadRecord, turns: Sequence[Turn]) -> str:
        """The prompt that has the agent's claims checked against the lead record."""
        return self.render(
            "hallucination",
            AGENT_KNOWN_INFO=json.dumps(lead_text(lead), ensure_ascii=False),
            DIALOGUE=quoted(turns, None),
        )

    def label_audit(self, turns: Sequence[Turn]) -> str:
        """The prompt that has the customer's recorded actions compared with its words."""
        return self.render("label_audit", DIALOGUE=quoted(turns, CUSTOMER))

    def judge(self, role: Role, observation: Observation, turns: Sequence[Turn]) -> str:
        """The prompt of a role's judge: that role's observation, and its own side of each turn."""
        if role == SALES:
            known = lead_text(LeadRecord.model_validate(observation))
        else:
            known = "\n".join(f"{k}: {v}" for k, v in self._profile(observation).items())
        return self.render(
            f"judge_{role}",
            OBSERVATION=json.dumps(known, ensure_ascii=False),
            DIALOGUE=quoted(turns, role),
        )

    def _profile(self, observation: Observation) -> dict[str, str]:
        return customer_fields(attributes_of(observation), self.language)


def quoted(turns: Sequence[Turn], role: Role | None) -> str:
    """A dialogue as data: one JSON line a turn, with its index in the record (0: the pick-up).

    Each turn has what was said, and one of the agent's its calls, apart: the notice of a call is no
    word of the agent's. With a `role`, that role's turns have its own record too. A malformed turn
    was not heard, and is left out.
    """
    lines = []
    for number, turn in enumerate(turns):
        if not turn.valid:
            continue
        line: dict[str, object] = {"turn": number, "role": turn.role, "text": turn.text}
        if isinstance(turn.payload, Mapping):
            line["text"] = turn.payload["words"]
            if turn.payload["calls"]:
                line["calls"] = turn.payload["calls"]
        if turn.role == role == CUSTOMER:
            own = turn.private.get(CUSTOMER, {})
            line |= {k: own[k] for k in _JUDGED if k in own}
        lines.append(json.dumps(line, ensure_ascii=False).translate(_BREAKS))
    return "\n".join(lines)


_BREAKS = {ord(c): f"\\u{ord(c):04x}" for c in "\x7f\x85\u2028\u2029"}
"""What ends a line for some readers and that JSON leaves as it is."""


_JUDGED = (
    *("behavior", "stage", "willingness_before", "willingness_after", "willingness_delta"),
    *("patience_before", "patience_after", "patience_delta"),
    *("intent_action", "dialogue_action", "score_rules_hit", "score_delta", "score_after"),
)


def rubric_text(language: Language) -> str:
    """Table 11, a line an entry: the code, what the agent did, and what it adds to each score."""
    lines = []
    for code, change in RUBRIC_CHANGES.items():
        added = f"{change.willingness:+.2f} / {change.trust:+.2f} / {change.patience:+.2f}"
        if code is Rubric.B15:
            added = {"zh": "按同轮行为", "en": "by the rest of the turn"}[language]
        lines.append(f"{code} | {RUBRIC_WORDS[code][language]} | {added}")
    return "\n".join(["| willingness / trust / patience", *lines])


def _listed(labels: type[Intent] | type[DialogueAction], language: Language) -> str:
    return ("、" if language == "zh" else ", ").join(m.word(language) for m in labels)


def _read(name: str, language: Language, folder: Path | None, length: Length) -> str:
    ours, needed = Path(__file__).parent / "prompts" / language, PLACEHOLDERS[name]
    if folder is not None and (folder / f"{name}.txt").is_file():
        path = folder / f"{name}.txt"
    elif length == "short" and name in SHORT:
        path, needed = ours / "short" / f"{name}.txt", ()
    else:
        path = ours / f"{name}.txt"
    try:
        text = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is no UTF-8 text ({error.reason}); a prompt is a text file in UTF-8."
        ) from error
    try:
        found = meta.find_undeclared_variables(_ENVIRONMENT.parse(text))
    except TemplateError as error:
        raise UserError(
            f"{path} is no template ({error.message}); placeholders are {{{{ name }}}}."
        ) from error
    for placeholder in needed:
        if placeholder not in found:
            raise UserError(
                f"{path} lacks the placeholder {{{{ {placeholder} }}}}; it needs "
                f"{', '.join(needed)}."
            )
    known = {*PLACEHOLDERS[name], *_OPTIONAL.get(name, ())}
    for placeholder in sorted(found - known):
        raise UserError(
            f"{path} has the unknown placeholder {{{{ {placeholder} }}}}; the known ones are "
            f"{', '.join(sorted(known))}."
        )
    return text


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(
            f"config.telesales.prompts_dir is {str(folder)!r}, which is no folder; name one that "
            f"holds any of {', '.join(f'{name}.txt' for name in PLACEHOLDERS)}."
        )
    names = sorted(file.stem for file in folder.glob("*.txt"))
    unknown = [name for name in names if name not in PLACEHOLDERS]
    if unknown or not names:
        what = f"{unknown[0]}.txt, which no prompt is called" if unknown else "no prompt"
        raise UserError(
            f"config.telesales.prompts_dir {str(folder)!r} holds {what}; the names are "
            f"{', '.join(f'{name}.txt' for name in PLACEHOLDERS)}."
        )
