"""Workloads from files: the benchmark sets that others use, and the user's own requests.

Nothing of these sets is shipped; the files are the user's. The format follows from the content;
``path:format`` forces it. Sources: HumanEval (Chen et al. 2021), GSM8K (Cobbe et al. 2021),
MT-Bench (Zheng et al. 2023), Spec-Bench (Xia et al. 2024), ShareGPT, SPEED-Bench (NVIDIA 2026).
"""

from __future__ import annotations

import gzip
import json
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from wager.backend import Prompt
from wager.bench.workloads.bodies import DEFAULT_TOKENS, read_body
from wager.config import SamplingParams
from wager.errors import ConfigError

PLACEHOLDER: Final = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""What SPEED-Bench's public files hold in the place of texts that it may not pass on."""

_SPEC_BENCH: Final = frozenset({"translation", "summarization", "qa", "math_reasoning", "rag"})
_HUMANEVAL_STOP: Final = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
_ASKS: Final = ("human", "user")


@dataclass(frozen=True, slots=True)
class Dataset:
    """Prompts chosen from a file, and what a reader must know about them.

    ``held`` counts the prompts of the whole file, ``repeated`` the chosen prompts that ask the
    same as an earlier one. ``notes`` are lines for people.
    """

    name: str
    format: str
    path: str
    prompts: list[Prompt]
    held: int
    repeated: int
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Reading:
    """What a reader of a format is given, and what it finds on its way."""

    name: str
    seed: int
    cap: int | None
    unknown: set[str] = field(default_factory=set)
    skipped: int = 0
    dropped_replies: int = 0

    def greedy(self, row: _Row, stop: tuple[str, ...] = (), tail: str = "") -> SamplingParams:
        """How the prompts of the benchmark sets are answered."""
        limit = DEFAULT_TOKENS if self.cap is None else self.cap
        return SamplingParams(
            temperature=0.0, seed=self.noise(row, tail), max_tokens=limit, stop=stop
        )

    def question(self, row: _Row, text: str, tail: str = "") -> Prompt:
        """A chat of one question."""
        messages = (("user", text),)
        return Prompt(self.id(row, tail), self.greedy(row, tail=tail), messages=messages)

    def id(self, row: _Row, tail: str = "") -> str:
        return f"{self.name}-{row.id}{tail}"

    def noise(self, row: _Row, tail: str = "") -> int:
        """The sampling seed of a request that brings none: its own, the same on every machine."""
        return Random(f"{self.name}/{self.seed}/{row.number}{tail}").getrandbits(31)


@dataclass(frozen=True, slots=True)
class _Row:
    """One object of a file: ``number`` is its line (of JSON lines) or place (of an array)."""

    number: int
    where: str
    data: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The file's own name for it, else its number."""
        for key in ("task_id", "question_id", "custom_id", "id"):
            value = self.data.get(key)
            if isinstance(value, str | int) and str(value).strip():
                return str(value).rsplit("/", 1)[-1]
        return str(self.number)

    def text(self, key: str) -> str:
        value = self.data.get(key)
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{self.where}: {key}: must be a text that is not empty")
        return value


Reader = Callable[[_Row, _Reading], Iterator[Prompt]]


def load_prompts(
    path: str | Path, n: int | None = None, seed: int = 0, max_tokens: int | None = None
) -> list[Prompt]:
    """As `load_dataset`, with its notes as warnings."""
    dataset = load_dataset(path, n, seed, max_tokens)
    for note in dataset.notes:
        warnings.warn(note, stacklevel=2)
    return dataset.prompts


def load_dataset(
    path: str | Path, n: int | None = None, seed: int = 0, max_tokens: int | None = None
) -> Dataset:
    """``n`` prompts of the file, chosen by ``seed`` and in the file's order; all if n is None.

    ``path`` may end in ``:format``. ``max_tokens`` lowers the limits that the file's own requests
    bring, and replaces the default limit of 256 where it brings none. Raises ConfigError, which
    names the file and the line.
    """
    file, forced = split_format(path)
    rows = _rows(file)
    if not rows:
        raise ConfigError(f"workload: {file}: holds no prompt")
    kind = forced or _detect(rows, file)
    base = kind.removesuffix(_ALL)
    name = base if base in _SETS else _stem(file)
    reading = _Reading(name, seed, max_tokens)
    every = [prompt for row in rows for prompt in _READERS[kind](row, reading)]
    if not every:
        raise ConfigError(f"workload: {file}: holds no prompt that can be asked as {kind}")
    chosen = every
    if n is not None and n < len(every):
        chosen = [every[i] for i in sorted(Random(f"choice/{seed}").sample(range(len(every)), n))]
    prompts = _distinct(chosen)
    repeated = len(prompts) - len({(p.messages, p.text, p.token_ids) for p in prompts})
    notes = _notes(file, reading, kind, len(chosen), n, repeated)
    return Dataset(name, kind, str(file), prompts, len(every), repeated, tuple(notes))


def split_format(path: str | Path) -> tuple[Path, str | None]:
    """(file, forced format or None) of ``path`` or ``path:format``. Raises ConfigError."""
    text = str(path)
    whole, colon, tail = text.rpartition(":")
    if not colon or Path(text).exists():
        return Path(text), None
    if tail not in _READERS:
        raise ConfigError(
            f"workload: {text}: there is no such file, and {tail!r} is not a format; formats: "
            f"{', '.join(FORMATS)}"
        )
    return Path(whole), tail


def _rows(file: Path) -> list[_Row]:
    """The objects of a file: JSON lines, or an array of objects; gzip is seen by its content."""
    text = _text(file)
    start = text.lstrip()[:1]
    if not start:
        raise ConfigError(f"workload: {file}: is empty")
    if start == "[":
        return _array(file, text)
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"workload: {file}: line {number}"
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{where}: is not JSON: {error}; a file holds one object per line, or one array"
            ) from error
        rows.append(_row(number, where, data))
    return rows


def _array(file: Path, text: str) -> list[_Row]:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"workload: {file}: is not JSON: {error}") from error
    return [_row(i, f"workload: {file}: entry {i}", entry) for i, entry in enumerate(entries, 1)]


def _row(number: int, where: str, data: object) -> _Row:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: must be an object, got {data!r:.40}")
    return _Row(number, where, data)


def _text(file: Path) -> str:
    try:
        raw = file.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"workload: {file}: cannot be read: {reason}") from error
    if raw[:4] == b"PAR1":
        raise ConfigError(
            f"workload: {file}: is a Parquet file; save it as JSON lines first, for instance with "
            'pandas: pd.read_parquet("F").to_json("G.jsonl", orient="records", lines=True)'
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"workload: {file}: line {line}: is not UTF-8 text") from error


def _detect(rows: Sequence[_Row], file: Path) -> str:
    first = rows[0].data
    keys = set(first)
    if {"task_id", "prompt", "entry_point"} <= keys:
        return "humaneval"
    if {"question", "answer"} <= keys:
        return "gsm8k"
    if isinstance(first.get("turns"), list):
        if keys & {"sub_category", "src_id", "multiturn"}:
            return "speed-bench"
        categories = {row.data.get("category") for row in rows}
        return "spec-bench" if categories & _SPEC_BENCH else "mt-bench"
    if isinstance(first.get("conversations"), list):
        return "sharegpt"
    if any("model" in _body(row) or _body(row) is not row.data for row in rows):
        return "requests"
    if keys & {"prompt", "messages"}:
        return "prompts"
    raise ConfigError(
        f"{rows[0].where}: no known format has the fields {', '.join(sorted(map(str, keys))[:8])}; "
        f"force one with {file}:FORMAT, of {', '.join(FORMATS)}"
    )


def _body(row: _Row) -> Mapping[str, Any]:
    """The request in a line of a batch file or of a log, or the line itself."""
    for key in ("body", "request"):
        inner = row.data.get(key)
        if isinstance(inner, dict):
            return inner
    return row.data


def _humaneval(row: _Row, reading: _Reading) -> Iterator[Prompt]:
    # Completed as they stand, and stopped where the paper stops.
    params = reading.greedy(row, _HUMANEVAL_STOP)
    yield Prompt(reading.id(row), params, text=row.text("prompt"))


def _gsm8k(row: _Row, reading: _Reading) -> Iterator[Prompt]:
    yield reading.question(row, row.text("question"))


def _turns(row: _Row) -> list[str]:
    turns = row.data.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t for t in turns):
        raise ConfigError(f"{row.where}: turns: must be a list of texts that are not empty")
    if any(PLACEHOLDER in turn for turn in turns):
        raise _masked(row)
    return turns


def _masked(row: _Row) -> ConfigError:
    return ConfigError(
        f"{row.where}: holds the placeholder of SPEED-Bench's public files instead of a prompt, so "
        "that speeds on it mean nothing; build the full file with the prepare script that its "
        "dataset card names, or delete these lines"
    )


def _first_turn(row: _Row, reading: _Reading) -> Iterator[Prompt]:
    yield reading.question(row, _turns(row)[0])


def _all_turns(row: _Row, reading: _Reading) -> Iterator[Prompt]:
    for i, turn in enumerate(_turns(row), 1):
        yield reading.question(row, turn, f".{i}")


def _sharegpt(row: _Row, reading: _Reading) -> Iterator[Prompt]:
    """The first thing that a person asked; conversations that begin otherwise are left out."""
    turns = row.data.get("conversations")
    if not isinstance(turns, list):
        raise ConfigError(f"{row.where}: conversations: must be a list")
    first = turns[0] if turns else None
    value = first.get("value") if isinstance(first, dict) else None
    if isinstance(first, dict) and first.get("from") in _ASKS and isinstance(value, str) and value:
        yield reading.question(row, value)
    else:
        reading.skipped += 1


def _lines(row: _Row, reading: _Reading, temperature: float) -> Iterator[Prompt]:
    body = read_body(
        _body(row),
        row.where,
        reading.id(row),
        temperature=temperature,
        seed=reading.noise(row),
        cap=reading.cap,
    )
    reading.unknown |= body.unknown
    reading.dropped_replies += body.dropped_reply
    if any(PLACEHOLDER in str(prompt) for prompt in body.prompts):
        raise _masked(row)
    yield from body.prompts


def _prompt_lines(row: _Row, reading: _Reading) -> Iterator[Prompt]:
    # A bare prompt says nothing about sampling; greedy is what can be compared token for token.
    return _lines(row, reading, temperature=0.0)


def _request_lines(row: _Row, reading: _Reading) -> Iterator[Prompt]:
    # A request without a temperature means the API's default.
    return _lines(row, reading, temperature=1.0)


_ALL: Final = "-all"
_READERS: Final[Mapping[str, Reader]] = {
    "humaneval": _humaneval,
    "gsm8k": _gsm8k,
    "mt-bench": _first_turn,
    "mt-bench-all": _all_turns,
    "spec-bench": _first_turn,
    "spec-bench-all": _all_turns,
    "speed-bench": _first_turn,
    "speed-bench-all": _all_turns,
    "sharegpt": _sharegpt,
    "prompts": _prompt_lines,
    "requests": _request_lines,
}
FORMATS: Final = tuple(_READERS)
_SETS: Final = frozenset(FORMATS) - {"prompts", "requests"}


def _stem(file: Path) -> str:
    name = file.name.removesuffix(".gz")
    return name.rsplit(".", 1)[0] if "." in name[1:] else name


def _distinct(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The same prompts, with ids that differ."""
    seen: dict[str, int] = {}
    out = []
    for prompt in prompts:
        times = seen[prompt.id] = seen.get(prompt.id, 0) + 1
        out.append(prompt if times == 1 else replace(prompt, id=f"{prompt.id}#{times}"))
    return out


def _notes(
    file: Path, reading: _Reading, kind: str, chosen: int, n: int | None, repeated: int
) -> list[str]:
    notes = []
    if n is not None and chosen < n:
        notes.append(f"holds {chosen} prompts, {n} were asked for")
    if repeated:
        notes.append(
            f"{repeated} of {chosen} prompts repeat an earlier one, which flatters drafters that "
            "remember and prefix caches"
        )
    if reading.skipped:
        notes.append(f"{reading.skipped} entries that do not begin with a question are left out")
    if reading.dropped_replies:
        notes.append(
            f"{reading.dropped_replies} recorded answers at the end of a chat are not sent"
        )
    if reading.unknown:
        named = ", ".join(sorted(reading.unknown))
        notes.append(f"fields that are not known, and not sent: {named}")
    return [f"workload: {file} ({kind}): {note}" for note in notes]
