"""Ollama's dialect: the lines DRAFT and PARAMETER draft_num_predict of a Modelfile, and tags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from wager.arms import Speculation
from wager.errors import ConfigError
from wager.external.dialects import ollama_table as table
from wager.external.dialects import vllm_table
from wager.external.dialects.base import Reading, Written
from wager.external.dialects.names import owner
from wager.external.dialects.options import Options
from wager.external.dialects.reader import Scan, told

ENGINE: Final = "ollama"
VERSION: Final = "of August 2026"

_K: Final = "num_speculative_tokens"
_LINE: Final = re.compile(r"\s*(FROM|DRAFT|PARAMETER)\s+(.+?)\s*", re.IGNORECASE)
_ROWS: Final = {row.names[0]: row for row in table.LINES}
_COMMANDS: Final = ("run", "pull", "show", "create", "serve", "launch")
_ONLY: Final = (
    "Ollama drafts with MTP layers and DFlash drafters only; start llama-server with the same "
    "model file instead (ollama show MODEL --modelfile prints its path)"
)


def read(tokens: Sequence[str]) -> Reading:
    """The words behind ``ollama``, or the lines of a Modelfile."""
    found = Scan()
    values: dict[str, Any] = {}
    if any(_LINE.fullmatch(token) for token in tokens):
        _modelfile(found, tokens, values)
    else:
        _command(found, tokens, values)
    speculation = _settle(found, values)
    target, rest, findings = found.reading_parts()
    return Reading(ENGINE, speculation, target, rest, findings)


def _modelfile(found: Scan, lines: Sequence[str], values: dict[str, Any]) -> None:
    for line in lines:
        match = _LINE.fullmatch(line)
        word, value = (match[1].upper(), match[2]) if match else ("", "")
        if word == "PARAMETER":
            word, _, value = value.partition(" ")
        row = _ROWS.get(word)
        if row is None:
            found.rest.append(line.strip())
        elif row.key == "target":
            found.values["target"] = value
        else:
            found.findings.append(told(row, f"{word} {value}"))
            if row.kind != "whole":
                values[str(row.key)] = value
            elif value.strip().isdecimal():
                values[str(row.key)] = int(value)
            else:
                found.say("error", word, f"{value!r} is not a whole number")


def _command(found: Scan, tokens: Sequence[str], values: dict[str, Any]) -> None:
    skipped = False
    for token in tokens:
        if token.startswith("-") and ("draft" in token or "spec" in token):
            skipped = "=" not in token
            found.say(
                "error", token,
                "ollama has no such option: drafting is set in the Modelfile (DRAFT, PARAMETER "
                "draft_num_predict)",
            )  # fmt: skip
        elif token.startswith("-"):
            found.rest.append(token)
        elif skipped:
            skipped = False
        elif token not in _COMMANDS and "target" not in found.values:
            found.values["target"] = token
        elif token not in _COMMANDS:
            found.rest.append(token)
    name = found.values.get("target", "")
    for word, meaning in table.TAGS.items():
        if word in re.split(r"[-:]", name.lower()):
            found.say("note", name, meaning)
            values["method"] = word


def _settle(found: Scan, values: dict[str, Any]) -> Speculation | None:
    if not values:
        return None
    if values.get(_K) == 0:
        found.say("note", "draft_num_predict 0", "drafting is off")
        return None
    model = values.get("model", "")
    method = values.pop("method", "dflash" if "dflash" in model.lower() else "mtp")
    values.setdefault(_K, table.DEFAULT_LENGTH)
    found.say(
        "warning", "drafting",
        "whether drafts are made and accepted is in Ollama's log only: replies carry no counts; "
        "requests with logprobs are not drafted for, and draft_num_predict in a request acts when "
        "the model is loaded",
    )  # fmt: skip
    found.say(
        "note", method,
        "GGUF models run through llama-server (draft-mtp, draft-dflash), others on MLX, Apple only",
    )  # fmt: skip
    return Speculation(method, values)


def write(speculation: Speculation | None) -> Written:
    """As lines of a Modelfile; for plain decoding the one that switches drafting off.

    Raises ConfigError for every method but mtp and dflash.
    """
    if speculation is None:
        return Written(lines=("PARAMETER draft_num_predict 0",))
    options = Options(speculation, ENGINE)
    options.alone()
    method = "mtp" if options.method in vllm_table.MTP_ALIASES else options.method
    if method not in ("mtp", "dflash"):
        raise ConfigError(f"{method}: {_ONLY}")
    # Without a drafter's name: it comes with the target (MTP layers, or a tag of the library).
    model = options.take("model")
    lines = [] if model is None else [f"DRAFT {model}"]
    k = options.whole(_K, table.DEFAULT_LENGTH)
    lines.append(f"PARAMETER draft_num_predict {k}")
    return Written(lines=tuple(lines), notes=options.finish(owner))
