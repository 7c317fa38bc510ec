"""Our renderings against templates: equal where these append, told apart where they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibrl_jax.dialogue.chat import load_chat
from ibrl_jax.dialogue.template_check import differences
from ibrl_jax.dialogue.tokenizers import load_tokenizer
from tests.dialogue.released import CHATML, LLAMA3, PLAIN_TEMPLATE, THOUGHT, write_folder

HEADER = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
EMPTY = "<think>\n\n</think>\n\n"
EMPTY_KEPT = (
    PLAIN_TEMPLATE.replace(
        "+ m.content", f"+ ('{EMPTY}' if m.role == 'assistant' else '') + m.content"
    ).replace("assistant\n' }}", f"assistant\n{EMPTY}' }}}}")
    + "{{ 1 // 0 if enable_thinking else '' }}"
)
THOUGHT_OPENED = PLAIN_TEMPLATE.replace("assistant\n' }}", "assistant\n<think>\n' }}")
THOUGHTS_STRIPPED = PLAIN_TEMPLATE.replace(
    "m.content", "(m.content if loop.last else m.content.split('</think>\n\n')[-1])"
)
LLAMA_TEMPLATE = """\
{{- '<|begin_of_text|>' }}{% for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}
{%- endfor %}{% if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""


def check(folder: Path, name: str, template: str | None, *, thinking: bool = False) -> str | None:
    special = LLAMA3 if name == "llama3" else CHATML
    write_folder(folder, special=special, spelled=THOUGHT, template=template)
    tokenizer = load_tokenizer(str(folder))
    chat = load_chat(name, tokenizer, folder, thinking=thinking, thoughts="keep")
    return differences(chat, tokenizer, thinking)


@pytest.mark.parametrize(
    "name, template, thinking",
    [
        ("chatml", PLAIN_TEMPLATE, False),
        ("qwen3", EMPTY_KEPT, False),
        ("qwen3", PLAIN_TEMPLATE, True),
        ("qwen3_5", EMPTY_KEPT, False),
        ("qwen3_5", THOUGHT_OPENED, True),
        ("llama3", LLAMA_TEMPLATE, False),
    ],
)
def test_each_format_is_what_a_template_of_its_family_renders(
    tmp_path: Path, name: str, template: str, thinking: bool
) -> None:
    assert check(tmp_path, name, template, thinking=thinking) is None


def test_a_difference_is_shown_with_both_sides(tmp_path: Path) -> None:
    said = check(tmp_path, "chatml", PLAIN_TEMPLATE.replace("'<|im_end|>", "'!<|im_end|>"))
    assert said is not None
    assert "part in a dialogue of 2 messages" in said
    assert r"person.<|im_end|>\n" in said
    assert "person.!<|im_end|>" in said
    assert "append-only" not in said
    assert "\n" not in said


def test_a_template_that_takes_thoughts_back_is_told(tmp_path: Path) -> None:
    said = check(tmp_path, "qwen3", THOUGHTS_STRIPPED, thinking=True)
    assert said is not None
    assert "part in a dialogue of 4 messages" in said
    assert r"\n<think>\nballs" in said
    assert "the template is not append-only" in said


def test_thinking_is_told_to_the_template(tmp_path: Path) -> None:
    """`EMPTY_KEPT` fails where it is told to think."""
    said = check(tmp_path, "qwen3", EMPTY_KEPT, thinking=True)
    assert said is not None
    assert "cannot be rendered (ZeroDivisionError" in said


def test_another_format_than_the_templates_is_told(tmp_path: Path) -> None:
    said = check(tmp_path, "qwen3_5", PLAIN_TEMPLATE)
    assert said is not None
    assert "part in a dialogue of 2 messages" in said
    assert r"<think>\n\n</think>\n\n" in said


@pytest.mark.parametrize(
    "template, says",
    [
        (None, "has no chat template of its own"),
        ("{% for m in messages %}", "cannot be rendered (TemplateSyntaxError"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ],
)
def test_a_missing_or_broken_template_is_told(tmp_path: Path, template, says: str) -> None:
    said = check(tmp_path, "chatml", template)
    assert said is not None
    assert says in said


def test_the_embedded_tokenizer_has_no_template_to_compare_with() -> None:
    tokenizer = load_tokenizer("embedded")
    chat = load_chat("auto", tokenizer, None, thinking=False, thoughts="keep")
    assert differences(chat, tokenizer, False) is None
