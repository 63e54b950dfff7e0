"""The workloads: named sets of prompts, generated from a seed, all different.

Four kinds are meant to be easy for drafts that copy (copy, rename, edit, agent), three are free
writing (explain, story, json), two are hard by construction (words, random), one changes between
easy and free with every request (flip), and in two speculation cannot help much whatever it drafts,
since nearly all the time goes into the prompt (summarise, classify).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from wager.bench.workloads import agent, prose, snippets
from wager.bench.workloads.prompts import Drawn, Prompt, Recipe
from wager.config import SamplingParams
from wager.errors import ConfigError

DEFAULT_PROMPTS: Final = 16

_WORDS: Final = (
    "river", "stone", "lamp", "forest", "copper", "window", "garden", "silver", "winter", "bridge",
    "paper", "candle", "mountain", "pocket", "thunder", "feather", "market", "orange", "button",
    "harbour", "mirror", "pepper", "saddle", "ticket", "velvet", "anchor", "basket", "cotton",
    "dragon", "engine",
)  # fmt: skip


def _copy(rng: Random, _: int) -> Drawn:
    passage = f"{prose.paragraph(rng, 10)}\n\n{snippets.function(rng).source.rstrip()}"
    # The first sentence of the copy is given: small models often set off on something else.
    start = passage[: passage.index(".") + 1]
    content = (
        "Copy the text between the lines exactly, twice, without any change.\n"
        f"-----\n{passage}\n-----\nFirst copy:\n-----\n{start}"
    )
    return Drawn(256, 0.0, content, ignore_eos=True)


def _rename(rng: Random, _: int) -> Drawn:
    function = snippets.function(rng)
    name = snippets.new_name(rng)
    content = (
        f"Rename the variable `{function.variable}` to `{name}` in this function. "
        "Answer only with the code block.\n\n"
        f"```python\n{function.source}```"
    )
    expected = snippets.rename(function.source, function.variable, name)
    return Drawn(256, 0.0, content, expected=expected)


def _edit(rng: Random, _: int) -> Drawn:
    edit = snippets.edited_file(rng)
    changes = ", ".join(f"{letter} to {value}" for letter, value in edit.changes)
    content = (
        "In this file three lines end in a mark: change A, change B and change C. "
        f"Set the value in line {changes}. Keep the marks and everything else as it is. "
        "Return the whole file in one code block.\n\n"
        f"```python\n{edit.source}```"
    )
    return Drawn(512, 0.0, content, expected=edit.expected)


_EXPLAIN_WHO: Final = (
    "a new colleague", "a product manager", "a student", "an operator on call", "a customer",
    "the finance team", "a system administrator", "a journalist",
)  # fmt: skip
_EXPLAIN_FOCUS: Final = (
    "what happens while the long prompt is read", "how the waiting time of the others grows",
    "which limits and settings help", "why the memory for keys and values matters",
    "what an operator sees in the graphs", "how splitting a prompt into pieces changes it",
)  # fmt: skip


def _explain(rng: Random, _: int) -> Drawn:
    content = (
        f"A language-model server is shared by {rng.randint(5, 60)} people. One of them sends a "
        f"prompt of {rng.randint(20, 120)} thousand tokens. Explain to {rng.choice(_EXPLAIN_WHO)} "
        f"why that slows the others down, in three short paragraphs. Dwell on "
        f"{rng.choice(_EXPLAIN_FOCUS)}."
    )
    return Drawn(256, 0.7, content)


_HEROES: Final = (
    "a lighthouse keeper", "a retired clockmaker", "a girl who collects maps", "a tired bus driver",
    "a baker's apprentice", "an old violin teacher", "a shy astronomer", "a ferry captain",
)  # fmt: skip
_EVENTS: Final = (
    "finds a letter addressed to someone with the same name", "hears music from an empty house",
    "wakes up in a town without colours", "loses the one key that matters",
    "meets a dog that seems to know the way", "discovers a door behind the wardrobe",
    "receives a parcel that was posted fifty years ago", "is asked to keep a secret for one night",
)  # fmt: skip


def _story(rng: Random, _: int) -> Drawn:
    content = (
        f"Write a short story about {rng.choice(_HEROES)} who {rng.choice(_EVENTS)}. "
        f"It takes place in {rng.choice(sorted(prose.TOPICS))} surroundings and ends "
        f"{rng.choice(('happily', 'in doubt', 'with a joke', 'at dawn', 'in silence'))}."
    )
    return Drawn(256, 1.0, content)


def _flip(rng: Random, vocab_size: int) -> tuple[Drawn, ...]:
    """What was learnt from one request is wrong for the next."""
    return _rename(rng, vocab_size), _story(rng, vocab_size)


def _words(rng: Random, _: int) -> Drawn:
    return Drawn(128, 0.0, " ".join(rng.choice(_WORDS) for _ in range(200)), ignore_eos=True)


def _random(rng: Random, vocab_size: int) -> Drawn:
    ids = tuple(rng.randrange(vocab_size) for _ in range(200))
    return Drawn(128, 1.0, ids, ignore_eos=True)


_FIRST: Final = ("Ada", "Bruno", "Celia", "Dario", "Edda", "Felix", "Gita", "Henrik", "Iris", "Jon")
_LAST: Final = ("Abel", "Borg", "Castro", "Dahl", "Egger", "Fonseca", "Grau", "Holm", "Iversen")
_CITIES: Final = ("Oslo", "Porto", "Graz", "Leeds", "Turin", "Ghent", "Cork", "Basel", "Lyon")


def _json(rng: Random, _: int) -> Drawn:
    lines = [
        f"{rng.choice(_FIRST)} {rng.choice(_LAST)}, {rng.randint(18, 90)} years, "
        f"{rng.choice(_CITIES)}, member since {rng.randint(1990, 2024)}, "
        f"balance {rng.randint(0, 900)}.{rng.randint(10, 99)}"
        for _ in range(8)
    ]
    content = (
        "Turn these records into a JSON array of objects with the keys name, age, city, since "
        "and balance. Answer only with the JSON.\n\n" + "\n".join(lines)
    )
    return Drawn(384, 0.0, content)


def _summarise(rng: Random, _: int) -> Drawn:
    content = f"Summarise this text in one sentence.\n\n{prose.article(rng, 6, 7)}"
    return Drawn(48, 0.0, content)


def _classify(rng: Random, _: int) -> Drawn:
    topics = sorted(prose.TOPICS)
    topic = rng.choice(topics)
    passage = "\n\n".join(prose.paragraph(rng, 10, topic) for _ in range(4))
    content = (
        f"Which one of these is the text about: {', '.join(topics)}? Answer with one word.\n\n"
        f"{passage}"
    )
    return Drawn(8, 0.0, content)


def _one(name: str, summary: str, chat: bool, draw: Callable[[Random, int], Drawn]) -> Recipe:
    return Recipe(name, summary, chat, lambda rng, vocab_size: (draw(rng, vocab_size),))


RECIPES: Final[dict[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        _one("copy", "copy a paragraph and a function exactly", False, _copy),
        _one("rename", "rename one variable of a function", True, _rename),
        _one("edit", "change three marked lines of a 40-line file", True, _edit),
        Recipe("agent", "ten turns of an agent at a terminal", False, agent.session),
        _one("explain", "explain in three short paragraphs, temperature 0.7", True, _explain),
        _one("story", "a short story, temperature 1.0", True, _story),
        Recipe("flip", "a rename and a story in turn", True, _flip),
        _one("words", "go on after 200 words strung at random", False, _words),
        _one("random", "go on after 200 random tokens, temperature 1.0", False, _random),
        _one("json", "records to JSON", True, _json),
        _one("summarise", "a long text, one sentence out", True, _summarise),
        _one("classify", "a long text, one word out", True, _classify),
    )
}


def chosen(names: Sequence[str]) -> list[Recipe]:
    """The recipes named. Raises ConfigError for an unknown, repeated or missing name."""
    if not names:
        raise ConfigError(f"workload: name at least one of {', '.join(RECIPES)}")
    for index, name in enumerate(names):
        if name not in RECIPES:
            raise ConfigError(
                f"workload: {name!r} is unknown; there are: {', '.join(RECIPES)}, or the path of a "
                "file of prompts"
            )
        if name in names[:index]:
            raise ConfigError(f"workload: {name!r} is named twice")
    return [RECIPES[name] for name in names]


def prompts(
    recipe: Recipe, count: int, vocab_size: int, seed: int = 0, max_tokens: int | None = None
) -> list[Prompt]:
    """``count`` different prompts of one workload, the same for the same seed on every machine.

    ``max_tokens`` caps every reply; the limits of the workload are never raised.
    """
    out: list[Prompt] = []
    seen: set[str | tuple[int, ...]] = set()
    draws = 0
    while len(out) < count:
        # Strings seed the generator through a hash of their bytes: the same on every platform.
        rng = Random(f"{recipe.name}/{seed}/{draws}")
        draws += 1
        for drawn in recipe.draw(rng, vocab_size):
            if drawn.content not in seen:
                seen.add(drawn.content)
                id = f"{recipe.name}-{len(out):02d}"
                out.append(_prompt(recipe, id, drawn, rng, max_tokens))
    return out[:count]


def _prompt(recipe: Recipe, id: str, drawn: Drawn, rng: Random, cap: int | None) -> Prompt:
    limit = drawn.max_tokens if cap is None else min(cap, drawn.max_tokens)
    params = SamplingParams(
        temperature=drawn.temperature,
        seed=rng.getrandbits(31),
        max_tokens=limit,
        ignore_eos=drawn.ignore_eos,
    )
    content = drawn.content
    if isinstance(content, tuple):
        return Prompt(id, params, token_ids=content)
    if recipe.chat:
        return Prompt(id, params, messages=(("user", content),), expected=drawn.expected)
    return Prompt(id, params, text=content, expected=drawn.expected)
