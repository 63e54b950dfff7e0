"""Takes what a user pasted apart: program, what stands before it, arguments, or JSON."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from wager.errors import ConfigError
from wager.external.dialects.base import Finding
from wager.external.dialects.names import FLAGS, GENERAL
from wager.external.dialects.options import strict_json
from wager.external.translate.python import find_call

Role: TypeAlias = Literal["server", "client", "offline", "python"]


@dataclass(frozen=True, slots=True)
class Program:
    """One way to start something of an engine, as it is quoted, and as it is written now.

    ``words`` are patterns of what it looks like; the first may have a path before it.
    ``now`` is empty where it is still written like this.
    """

    words: tuple[str, ...]
    engine: str
    role: Role = "server"
    now: tuple[str, ...] = ()
    said: str = ""


_PYTHON: Final = r"python[\d.]*"
_GONE: Final = "removed; it is now"

PROGRAMS: Final[tuple[Program, ...]] = (
    Program(("vllm", "serve"), "vllm"),
    Program(("vllm", "bench", "serve"), "vllm", "client"),
    Program(("vllm", "bench", r"throughput|latency"), "vllm", "offline"),
    Program((_PYTHON, "-m", r"vllm\.entrypoints\.openai\.api_server"), "vllm", "server",
            ("vllm", "serve"), "deprecated: it starts with a warning; write `vllm serve`"),
    Program((_PYTHON, "-m", r"vllm\.entrypoints\.api_server"), "vllm", "server",
            ("vllm", "serve"), f"{_GONE} `vllm serve`, with the OpenAI routes"),
    Program((_PYTHON, "-m", r"vllm\.benchmarks\.benchmark_serving"), "vllm", "client",
            ("vllm", "bench", "serve"), f"{_GONE} `vllm bench serve`"),
    Program((_PYTHON, "-m", r"vllm\.benchmarks\.benchmark_throughput"), "vllm", "offline",
            ("vllm", "bench", "throughput"), f"{_GONE} `vllm bench throughput`"),
    Program((_PYTHON, "-m", r"vllm\.benchmarks\.benchmark_latency"), "vllm", "offline",
            ("vllm", "bench", "latency"), f"{_GONE} `vllm bench latency`"),
    Program((_PYTHON, r"(.*/)?benchmark_serving\.py"), "vllm", "client",
            ("vllm", "bench", "serve"), f"the script was {_GONE} `vllm bench serve`"),
    Program((_PYTHON, r"(.*/)?benchmark_throughput\.py"), "vllm", "offline",
            ("vllm", "bench", "throughput"), f"the script was {_GONE} `vllm bench throughput`"),
    Program((_PYTHON, r"(.*/)?benchmark_latency\.py"), "vllm", "offline",
            ("vllm", "bench", "latency"), f"the script was {_GONE} `vllm bench latency`"),
    Program((r"vllm-openai(-\w+)?(:.*)?",), "vllm"),
    Program((_PYTHON, "-m", r"sglang\.launch_server"), "sglang"),
    Program(("sglang", "serve"), "sglang"),
    Program((r"llama-server(\.exe)?",), "llamacpp"),
    Program((r"llama-cli(\.exe)?",), "llamacpp", "offline"),
    Program((r"llama-(speculative|lookup)(-simple)?",), "llamacpp", "offline"),
    Program((r"\./(?:.*/)?server(\.exe)?",), "llamacpp", "server", ("llama-server",),
            "an older name of llama-server"),
    Program((r"llama\.cpp:.*server.*",), "llamacpp"),
    Program(("ollama", r"run|create|serve|pull|show|launch"), "ollama"),
    Program((r"mlx_lm\.(server|generate|chat)",), "mlx"),
    Program((_PYTHON, "-m", r"mlx_lm(\.server|\.generate)?"), "mlx"),
    Program(("wager", r"run|serve|bench|tune"), "own"),
)  # fmt: skip

_VARIABLE: Final = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_BARE_JSON: Final = re.compile(r"""(?<=[\s=])(\{[^{}]*\})(?=\s|$)""")
_MODELFILE: Final = re.compile(r"^\s*(FROM|DRAFT|PARAMETER)\s+\S", re.MULTILINE)
_LIBRARY_TAG: Final = re.compile(r"[\w.\-/]+:[\w.\-]+-(dflash|mtp)[\w.\-]*|[\w.\-]+-(dflash|mtp)")


@dataclass(slots=True)
class Pasted:
    """What was pasted, in its parts.

    ``config`` is set where it is JSON, ``kept`` are the other keywords where it is a call.
    """

    engine: str | None = None
    role: Role = "server"
    prefix: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    config: dict[str, Any] | None = None
    kept: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)


def split(text: str | Sequence[str]) -> Pasted:
    """From one text, or from words that a shell has taken apart. Raises ConfigError."""
    if not isinstance(text, str):
        words = [word for word in text if word.strip()]
        if len(words) != 1:
            return _command(words, Pasted())
        text = words[0]
    text = text.strip()
    if not text:
        raise ConfigError("translate: nothing to read; give a command line or a JSON config")
    if text.startswith("{"):
        return Pasted(config=_object(text))
    if _MODELFILE.search(text):
        lines = [line for line in text.splitlines() if line.strip()]
        return Pasted(engine="ollama", arguments=tuple(lines))
    call = find_call(text)
    if call is not None:
        return Pasted(call.engine, "python", (), (call.name,), call.arguments, kept=call.others)
    pasted = Pasted()
    return _command(_words(text, pasted), pasted)


def _object(text: str) -> dict[str, Any]:
    try:
        value = strict_json(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"translate: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError('translate: the JSON must be an object, e.g. \'{"method": "ngram"}\'')
    return value


def _words(text: str, pasted: Pasted) -> list[str]:
    """As a shell takes a command apart, but JSON without quotes around it is kept whole."""
    text = re.sub(r"\\\s*\n", " ", text).replace("\n", " ")
    quoted = _quote_json(text)
    if quoted != text:
        said = "the JSON needs single quotes around it: a shell removes its double quotes"
        pasted.findings.append(Finding("warning", "quotes", said))
    try:
        words = shlex.split(quoted, comments=True)
    except ValueError as error:
        raise ConfigError(f"translate: {error}: {text!r}") from None
    return words[1:] if words[:1] == ["$"] else words


def _quote_json(text: str) -> str:
    """Single quotes around JSON that stands outside of any."""
    return _BARE_JSON.sub(
        lambda match: f"'{match[1]}'" if text.count("'", 0, match.start()) % 2 == 0 else match[0],
        text,
    )


def _command(words: Sequence[str], pasted: Pasted) -> Pasted:
    if not words:
        raise ConfigError("translate: nothing to read; give a command line or a JSON config")
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        return Pasted(config=_object(words[0]))
    for place in range(len(words)):
        for program in PROGRAMS:
            if matches(program, words, place):
                return _with_program(program, words, place, pasted)
    variables = [word for word in words if _VARIABLE.fullmatch(word) and not word.startswith("-")]
    pasted.engine = _by_options(words)
    pasted.arguments = tuple(words)
    if pasted.engine is None and len(words) == 1 and _LIBRARY_TAG.fullmatch(words[0]):
        pasted.engine = "ollama"
    if pasted.engine is None and not variables and not words[0].startswith("-"):
        raise ConfigError(
            f"translate: {words[0]!r} is no program or option that is known; give a command of "
            "vllm, llama-server, sglang, ollama or wager, its options, or a JSON config"
        )
    return pasted


def matches(program: Program, words: Sequence[str], place: int) -> bool:
    """Whether ``words`` go on like this at ``place``."""
    here = list(words[place : place + len(program.words)])
    if len(here) < len(program.words):
        return False
    patterns = [rf"(?:.*/)?(?:{program.words[0]})", *program.words[1:]]
    return all(re.fullmatch(p, word) for p, word in zip(patterns, here, strict=True))


def _with_program(program: Program, words: Sequence[str], place: int, pasted: Pasted) -> Pasted:
    end = place + len(program.words)
    pasted.engine, pasted.role = program.engine, program.role
    pasted.program = program.now or tuple(words[place:end])
    if program.said:
        old = " ".join(words[place:end])
        severity = "error" if "removed" in program.said else "warning"
        pasted.findings.append(Finding(severity, old, program.said))  # type: ignore[arg-type]
    known = {o.variable for options in FLAGS.values() for o in options} | {
        name for options in FLAGS.values() for o in options for name in o.names
    }
    before = words[:place]
    ours = [w for w in before if _VARIABLE.fullmatch(w) and w.partition("=")[0] in known]
    pasted.prefix = tuple(word for word in before if word not in ours)
    pasted.arguments = (*ours, *words[end:])
    return pasted


def _by_options(words: Sequence[str]) -> str | None:
    """The engine most of whose speculation options occur; None where none does."""
    names = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("-")}
    names |= {word.partition("=")[0] for word in words if _VARIABLE.fullmatch(word)}
    dotted = {name.partition(".")[0] for name in names}
    scores = {
        engine: sum(
            1
            for option in options
            if option.key not in GENERAL and {*option.names, option.variable} & (names | dotted)
        )
        for engine, options in FLAGS.items()
    }
    best = max(scores, key=lambda engine: scores[engine])
    return best if scores[best] else None
