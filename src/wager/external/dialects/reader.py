"""Goes along an engine's arguments with its table of options."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from wager.external.dialects.base import Finding, Option, Severity
from wager.external.dialects.names import FLAGS, GENERAL, elsewhere, meant, spelled
from wager.external.dialects.options import TITLES, strict_json

_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]+")


@dataclass(slots=True)
class Scan:
    """What was found along the arguments.

    ``values`` by the options' keys; ``rest`` are the arguments that are not about speculation, in
    order; ``spellings`` says how each key was written; ``foreign`` are the keys set by an option
    of another engine, with that engine.
    """

    values: dict[str, Any] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    spellings: dict[str, str] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)

    def say(self, severity: Severity, what: str, text: str) -> None:
        self.findings.append(Finding(severity, what, text))

    def reading_parts(self) -> tuple[str | None, tuple[str, ...], tuple[Finding, ...]]:
        """The target, the rest and the findings, as a `Reading` wants them."""
        return self.values.get("target"), tuple(self.rest), tuple(self.findings)


@dataclass(frozen=True, slots=True)
class Rule:
    """What is said where several options come together.

    ``when`` sees the options of the speculation, its method among them; ``text`` may name their
    values in braces.
    """

    severity: Severity
    what: str
    when: Callable[[Mapping[str, Any]], bool]
    text: str

    def finding(self, values: Mapping[str, Any]) -> Finding | None:
        """The finding, if the rule holds."""
        if not self.when(values):
            return None
        return Finding(self.severity, self.what, self.text.format_map(values))


def scan(
    tokens: Sequence[str],
    engine: str,
    clean: Callable[[str], str] = str,
    *,
    swallows: bool = False,
    positional: bool = True,
) -> Scan:
    """Read ``tokens`` by the table of ``engine``.

    ``clean`` gives an argument's spelling in the table. ``swallows``: the engine takes whatever
    follows an option as its value, an option too, and knows no ``--option=value``. ``positional``:
    an argument that belongs to no option is the target.
    """
    found = Scan()
    place = 0
    free = positional
    while place < len(tokens):
        token = tokens[place]
        place += 1
        name, attached = _split(token, swallows)
        name = clean(name)
        option, theirs = spelled(name, engine), None
        if option is None and (other := elsewhere(name, engine)) is not None:
            theirs, option = other
        if option is None:
            if free and not token.startswith("-") and "target" not in found.values:
                found.values["target"] = token
            else:
                found.rest.append(token)
                if (near := meant(name, engine)) is not None:
                    found.say("error", name, f"no such option is known: is {near} meant?")
            free = False
            continue
        free = positional
        value: Any = attached
        if option.kind == "flag":
            value = True if attached is None else attached
        elif attached is None and not _is_option(tokens, place, engine, clean):
            value = tokens[place]
            place += 1
        if value is None:
            here = f" (here {tokens[place]})" if place < len(tokens) else ""
            _missing(found, option, name, engine, here if swallows else None)
        else:
            _take(found, option, name, value, engine, theirs)
    return found


def dashes(name: str) -> str:
    """A long option's spelling in the table, for the engines that take underscores in it too."""
    return name.replace("_", "-") if name.startswith("--") else name


def _split(token: str, swallows: bool) -> tuple[str, str | None]:
    """``--name=value`` and ``VARIABLE=value`` in their parts; None where there is no value."""
    name, equals, value = token.partition("=")
    if equals and (_VARIABLE.fullmatch(name) or (token.startswith("--") and not swallows)):
        return name, value
    return token, None


def _is_option(tokens: Sequence[str], place: int, engine: str, clean: Callable[[str], str]) -> bool:
    """Whether what is at ``place`` is no value: another option, or the end."""
    if place >= len(tokens):
        return True
    token = tokens[place]
    if not token.startswith("-") or token.lstrip("-")[:1].isdigit():
        return False
    return token.startswith("--") or spelled(clean(token), engine) is not None


def _missing(found: Scan, option: Option, name: str, engine: str, taken: str | None) -> None:
    """An option without its value, at the end or with another option behind it.

    ``taken`` is None where the engine's parser sees that.
    """
    text = (
        f"its value is missing, and {TITLES[engine]} takes whatever follows for it, the next "
        f"option too{taken}"
        if taken is not None
        else "its value is missing, and the parser refuses the line"
    )
    found.say("error", name, f"{option.meaning}; {text}" if option.meaning else text)
    if option.key is not None:
        found.values.setdefault(option.key, None)
        found.spellings.setdefault(option.key, name)


def _take(
    found: Scan, option: Option, name: str, raw: Any, engine: str, theirs: str | None
) -> None:
    """Note an option's value, and what there is to say about it."""
    if option.key in GENERAL:
        if option.key == "target":
            found.values["target"] = raw
            return
        words = [name] if raw is True else [name, str(raw)]
        found.rest += words
        found.values[option.key] = raw
        if option.meaning:
            found.findings.append(told(option, " ".join(words)))
        return
    if theirs is not None and option.key == "num_speculative_tokens":
        # A draft length is a number on every engine, whatever guides put behind `--draft`.
        option = replace(option, kind="whole")
    value, wrong = convert(option, raw)
    joint = "=" if _VARIABLE.fullmatch(name) else " "
    what = name if raw is True else f"{name}{joint}{raw}"
    if theirs is not None:
        found.say("error", what, _foreign(option, engine, theirs))
    elif option.meaning and (option.key != "method" or option.verdict):
        # What a method means is said once it is settled which one it is.
        found.findings.append(told(option, what))
    if wrong:
        found.say("error", what, wrong)
    key = option.key
    if key is None or value is None:
        return
    if key in found.values and found.values[key] not in (None, value) and theirs is None:
        found.say("warning", what, f"given twice: {found.values[key]!r} is replaced")
    if theirs is None or found.values.get(key) is None:
        found.values[key] = value
        found.spellings[key] = name
        if theirs is not None:
            found.foreign[key] = theirs


def _foreign(option: Option, engine: str, theirs: str) -> str:
    """What is said of an option on another engine's command line."""
    meaning = f" ({option.meaning})" if option.meaning else ""
    text = f"an option of {TITLES[theirs]}{meaning}, which {TITLES[engine]} refuses"
    ours = [o.names[0] for o in FLAGS[engine] if o.key == option.key and o.severity != "error"]
    return f"{text}; here it is {ours[0]}" if ours else text


def told(option: Option, what: str) -> Finding:
    """What an option's table row says about it."""
    text = f"{option.meaning}; {option.verdict}" if option.verdict else option.meaning
    return Finding(option.severity, what, text)


_KINDS: Final = {
    "text": "a text",
    "whole": "a whole number",
    "real": "a number",
    "json": "JSON",
    "flag": "true or false",
}


def convert(option: Option, raw: Any) -> tuple[Any, str]:
    """An option's value as what it is, and what is wrong with it (else an empty text).

    ``raw`` is text where it comes from a command line, and anything at all from JSON.
    """
    value = _converted(option, raw)
    if value is None and raw is not None:
        return None, f"{raw!r} is not {_KINDS[option.kind]}"
    return value, ""


def _converted(option: Option, raw: Any) -> Any:
    """None for what is none of its kind."""
    kind = option.kind
    if kind == "text" or option.key == "speculative_config":
        return raw if isinstance(raw, str) and raw else None
    try:
        value = strict_json(raw) if isinstance(raw, str) else raw
    except (ValueError, RecursionError):
        return None
    if kind == "json":
        return value
    if kind == "flag":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind == "whole":
        return value if isinstance(value, int) else None
    return float(value) if math.isfinite(value) else None
