"""README.ko.md says what README.md says: the same parts, commands, figures and links."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# A figure stands on its own: not within a word such as f32 or SmolLM2, nor in a link's address.
FIGURE = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?!\w)", re.ASCII)
LINK = re.compile(r"\[[^\]]*\]\(([^)]+)\)")


@dataclass
class Part:
    """A heading with what stands below it."""

    level: int
    code: list[str] = field(default_factory=list)
    links: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    rows: list[int] = field(default_factory=list)


def parts(name: str) -> list[Part]:
    found: list[Part] = []
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            found.append(Part(len(line) - len(line.lstrip("#"))))
            continue
        part = found[-1]
        if line.startswith("    "):
            # A remark behind a command is for people, and may be translated.
            part.code.append(line.partition("  #")[0].rstrip())
            continue
        if line.startswith("|"):
            part.rows.append(line.count("|"))
        # The other language's README is the one link that differs.
        part.links.update(link for link in LINK.findall(line) if "README" not in link)
        part.figures.update(FIGURE.findall(LINK.sub("", line)))
    return found


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Part, Part]]:
    english, korean = parts("README.md"), parts("README.ko.md")
    assert [part.level for part in english] == [part.level for part in korean]
    return list(zip(english, korean, strict=True))


@pytest.mark.parametrize("what", ["code", "links", "figures", "rows"])
def test_the_korean_readme_says_the_same(pairs: list[tuple[Part, Part]], what: str) -> None:
    for number, (english, korean) in enumerate(pairs):
        assert getattr(korean, what) == getattr(english, what), f"part {number}"


def test_there_is_something_to_compare(pairs: list[tuple[Part, Part]]) -> None:
    total = Counter[str]()
    for english, _ in pairs:
        total.update(english.figures)
    assert total.total() > 50
    assert sum(len(english.code) for english, _ in pairs) > 5
