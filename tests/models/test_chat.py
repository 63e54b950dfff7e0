"""Templates: what published ones use works, and what a hostile one tries ends in one line."""

from __future__ import annotations

from datetime import datetime

import pytest

from wager.errors import ModelError, RequestError
from wager.models.chat import ChatTemplate

HI = [{"role": "user", "content": "Hi <&>"}]


def render(text: str, messages: list[dict[str, str]] = HI) -> str:
    return ChatTemplate(text, {"bos_token": "<s>"}, "model").render(messages, True)


def test_blocks_are_trimmed_as_templates_expect() -> None:
    text = """{{ bos_token }}
{% for message in messages %}
    {% if message.role == 'user' %}
[{{ message['content'] | trim }}]
    {% endif %}
{% endfor %}
end"""
    assert render(text) == "<s>\n[Hi <&>]\nend"


def test_helpers() -> None:
    assert render("{{ messages | tojson }}") == '[{"role": "user", "content": "Hi <&>"}]'
    assert render("{{ 'é<' | tojson }}") == '"é<"'
    assert (
        render("{{ {'b': 1, 'a': [2]} | tojson(indent=1) }}") == '{\n "b": 1,\n "a": [\n  2\n ]\n}'
    )
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)
    loop = "{% for m in [1,2,3] %}{% if m == 2 %}{% continue %}{% endif %}{{ m }}{% endfor %}"
    assert render(loop) == "13"
    assert render("{% if tools is none and add_generation_prompt %}yes{% endif %}") == "yes"
    assert render("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}"
                  "{% endfor %}{{ ns.n }}") == "3"  # fmt: skip


def test_the_template_may_refuse() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{% for i in range(100000000) %}{% endfor %}",
        "{% for i in range(2000) %}{% for j in range(2000) %}{% endfor %}{% endfor %}",
        "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ messages[7].content.strip() }}",
        "{{ 'a' + 1 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include 'other' %}",
        "{{ range(1, 2, 0) }}",
        "{{ messages[0].content | tojson(indent='x', nothing=1) }}",
    ],
)
def test_hostile_or_broken(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(text)
    assert str(caught.value).startswith("messages: ")
    assert len(str(caught.value).splitlines()) == 1


def test_a_template_that_does_not_parse() -> None:
    with pytest.raises(ModelError, match=r"model: the chat template is broken: .*end of template"):
        render("{% for m in messages %}")
    with pytest.raises(ModelError, match="longer than"):
        ChatTemplate("x" * (1 << 21), {}, "model")


def test_generation_blocks_print_what_is_inside() -> None:
    text = "{% for m in messages %}{% generation %}<{{ m.role }}>{% endgeneration %}{% endfor %}."
    assert render(text) == "<user>."


def test_what_a_template_changes_is_not_the_callers() -> None:
    messages = [dict(HI[0])]
    assert render("{% set messages = messages[1:] %}{{ messages | length }}", messages) == "0"
    assert messages == HI
