"""The current form for each engine of what was read: shell lines, a Modelfile, or why not."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wager.arms import Speculation
from wager.errors import ConfigError
from wager.external.dialects import dialect
from wager.external.dialects.base import Reading, Written
from wager.external.dialects.options import TITLES, is_gguf, is_hub_id
from wager.external.dialects.programs import PROGRAMS, naming
from wager.external.translate.split import Role
from wager.speculation import SpeculationConfig

_SERVERS: Final = ("vllm", "llamacpp", "sglang")
_LLAMA_PORT: Final = "8080"
_MODEL: Final = "MODEL"
_HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Form:
    """The current form for one engine: shell lines, and a Modelfile where it needs one.

    ``error`` is set where the engine cannot do it; ``commands`` are then what does it instead, or
    empty.
    """

    engine: str
    version: str
    commands: tuple[str, ...] = ()
    modelfile: str | None = None
    notes: tuple[str, ...] = ()
    error: str | None = None


def forms(reading: Reading, role: Role, wanted: Sequence[str]) -> tuple[Form, ...]:
    """One for each engine of ``wanted``; none where nothing is left of what was read."""
    if role == "client":
        return tuple(_client(reading, engine) for engine in wanted)
    if reading.speculation is None and not reading.program:
        errors = any(finding.severity == "error" for finding in reading.findings)
        wanted = () if errors else wanted
    return tuple(_form(reading, role, engine) for engine in wanted)


def _client(reading: Reading, engine: str) -> Form:
    """`vllm bench serve`, and what measures both arms."""
    version = dialect(engine).VERSION
    if engine == "vllm":
        model = () if reading.target is None else ("--model", reading.target)
        line = shlex.join([*reading.prefix, *reading.program, *model, *reading.rest])
        note = (
            "a client: speculation options belong to the server; it reports acceptance, not what "
            "speculation gains, and `random` prompts give acceptance without meaning"
        )
        return Form(engine, version, (line,), notes=(note,))
    if engine != "own":
        said = "the client is vLLM's, and asks any OpenAI-compatible server: add --base-url"
        return Form(engine, version, error=said)
    line = shlex.join(["wager", "bench", "--engine", "vllm", reading.target or _MODEL])
    note = "starts the server with and without speculation and measures both on the same prompts"
    return Form(engine, version, (line,), notes=(note,))


def _form(reading: Reading, role: Role, engine: str) -> Form:
    version = dialect(engine).VERSION
    try:
        speculation, notes = _names(reading, engine)
        written = _written(reading, speculation, engine)
    except ConfigError as error:
        elsewhere = _elsewhere(reading, ("bench", "serve")) if engine == "own" else ()
        return Form(engine, version, elsewhere, error=str(error))
    target, more = _target(reading, engine)
    same = engine == reading.engine and (role != "python" or engine == "vllm")
    notes = (*_left_out(reading, engine, same), *more, *notes, *written.notes)
    if same and role == "python":
        return Form(engine, version, (_python(reading, target, written),), notes=notes)
    if same and reading.program and not _needs_modelfile(reading):
        return Form(engine, version, (_same(reading, role, target, written),), notes=notes)
    if engine == "ollama":
        return _ollama(reading, target, written, version, notes)
    if engine == "own":
        notes = (*notes, *_in_measurements(written))
        return Form(engine, version, _own(reading, target, written), notes=notes)
    rest = reading.rest if same else _address(reading)
    if engine == "llamacpp":
        rest = _with_port(rest)
    words = (*PROGRAMS[engine], *_where(engine, "server", target), *rest, *written.arguments)
    return Form(engine, version, (shlex.join(words),), notes=notes)


def _written(reading: Reading, speculation: Speculation | None, engine: str) -> Written:
    """In an engine's dialect. A line of wager's for another engine has that engine's keys, which
    stay as they are. Raises ConfigError where the engine cannot take it."""
    other = _given(reading, "--engine")[1:] if engine == reading.engine == "own" else ()
    if speculation is None or not other or other[0] not in _SERVERS:
        return dialect(engine).write(speculation)
    dialect(other[0]).write(speculation)
    return Written(("-sc", json.dumps(speculation.config(), separators=(",", ":"))))


def _needs_modelfile(reading: Reading) -> bool:
    """Ollama's MTP layers draft only where a Modelfile says so, whatever the tag is called."""
    mtp = reading.speculation is not None and reading.speculation.method == "mtp"
    return reading.engine == "ollama" and (mtp or "create" in reading.program)


def _own(reading: Reading, target: str, written: Written) -> tuple[str, ...]:
    """To run, to measure, and to serve on another engine; nothing to measure for plain decoding."""
    verbs = ("run", "bench") if written.arguments else ("run",)
    lines = [shlex.join(["wager", verb, target, *written.arguments]) for verb in verbs]
    return (*lines, *_elsewhere(reading, ("serve",)))


def _in_measurements(written: Written) -> tuple[str, ...]:
    """What the config means in `wager bench`, where that is something else than in `wager run`."""
    config = json.loads(written.arguments[1]) if written.arguments else {}
    if not config or SpeculationConfig.measured(config) == SpeculationConfig.parse(config):
        return ()
    return ("to wager bench a length that is given is a fixed one: there the controller is off",)


def _elsewhere(reading: Reading, verbs: Sequence[str]) -> tuple[str, ...]:
    """How wager measures and serves it on another engine: on that of the line, where it can."""
    named = _given(reading, "--engine")[1:]
    for engine in dict.fromkeys((*named, reading.engine, "vllm", "llamacpp", "sglang")):
        if reading.speculation is None or engine not in _SERVERS:
            continue
        try:
            speculation, _ = _names(reading, engine)
            dialect(engine).write(speculation)
        except ConfigError:
            continue
        target, _ = _target(reading, engine)
        config = json.dumps((speculation or reading.speculation).config(), separators=(",", ":"))
        words = ("--engine", engine, target, "-sc", config)
        return tuple(shlex.join(["wager", verb, *words]) for verb in verbs)
    return ()


def _where(engine: str, role: Role, target: str) -> tuple[str, ...]:
    """How an engine's command names its target."""
    if role == "offline" and engine == "vllm":
        return ("--model", target)
    return naming(engine, target)


def _same(reading: Reading, role: Role, target: str, written: Written) -> str:
    """The command as it was, in its own engine's current form."""
    where = _where(reading.engine, role, target)
    if reading.engine == "ollama" and reading.target is None:
        where = ()
    rest = reading.rest
    if reading.engine == "llamacpp" and role == "server":
        rest = _with_port(rest)
    return shlex.join([*reading.prefix, *reading.program, *where, *rest, *written.arguments])


def _python(reading: Reading, target: str, written: Written) -> str:
    """A call of vLLM's with the config as a dict."""
    keywords = list(reading.rest)
    if written.arguments:
        keywords.append(f"speculative_config={json.loads(written.arguments[1])!r}")
    return f"{reading.program[0]}({', '.join([repr(target), *keywords])})"


def _with_port(rest: tuple[str, ...]) -> tuple[str, ...]:
    for option, value in (("--host", _HOST), ("--port", _LLAMA_PORT)):
        if option not in rest:
            rest = (*rest, option, value)
    return rest


def _address(reading: Reading) -> tuple[str, ...]:
    """Host and port, which all servers spell alike."""
    return (*_given(reading, "--host"), *_given(reading, "--port"))


def _given(reading: Reading, option: str) -> tuple[str, ...]:
    """An option among the rest and its value; empty where it is not there."""
    if option not in reading.rest:
        return ()
    place = reading.rest.index(option)
    return reading.rest[place : place + 2]


def _left_out(reading: Reading, engine: str, same: bool) -> tuple[str, ...]:
    """A note on the arguments of another engine that have nothing to do with speculation."""
    if same:
        return ()
    # `--engine` of wager's own verbs: the form for that engine is what was asked for.
    kept = (*(_address(reading) if engine in _SERVERS else ()), *_given(reading, "--engine"))
    rest = [word for word in reading.rest if word not in kept]
    if not rest:
        return ()
    return (f"left out, as options of {TITLES[reading.engine]}: {shlex.join(rest)}",)


def _target(reading: Reading, engine: str) -> tuple[str, tuple[str, ...]]:
    """The target as an engine takes it, or a word that stands for it."""
    target = reading.target
    if target is not None and reading.engine == "ollama" and engine != "ollama":
        stand_in = f"{_MODEL}.gguf" if engine == "llamacpp" else _MODEL
        return (
            (target, ())
            if is_gguf(target) and engine in ("llamacpp", "own")
            else (stand_in, (f"{stand_in} stands for the model of {target}",))
        )
    if engine == "llamacpp":
        if target is None:
            return f"{_MODEL}.gguf", ()
        if not is_gguf(target):
            return f"{_MODEL}.gguf", (f"MODEL.gguf stands for {target}, converted to GGUF",)
    elif target is None:
        return _MODEL, ()
    elif engine == "ollama" and reading.engine != "ollama" and is_hub_id(target):
        return _MODEL, (f"MODEL stands for {target}: a model of the library, or a path",)
    elif engine in ("vllm", "sglang") and is_gguf(target):
        said = f"MODEL stands for the Hugging Face directory or name of {target}"
        return _MODEL, (said,)
    return target, ()


def _names(reading: Reading, engine: str) -> tuple[Speculation | None, tuple[str, ...]]:
    """The drafter as an engine takes it: GGUF for llama.cpp, the other layout for the rest."""
    speculation = reading.speculation
    if speculation is None or speculation.method == "custom_class":
        return speculation, ()
    model = speculation.options.get("model")
    stand_in = "DRAFTER.gguf" if engine == "llamacpp" else "DRAFTER"
    if model is None and reading.engine == "ollama" and speculation.method == "dflash":
        if engine == "ollama":
            return speculation, ()
        note = f"{stand_in} stands for the drafter that comes with the tag"
    elif model is None and engine == "llamacpp" and speculation.method == "dspark":
        note = f"{stand_in} stands for the drafter in the target's checkpoint, converted to GGUF"
    elif engine == "ollama" and isinstance(model, str) and is_hub_id(model):
        note = f"{stand_in} stands for the path of {model}"
    else:
        same = isinstance(model, str) and is_gguf(model) is (engine == "llamacpp")
        if same or not isinstance(model, str) or engine in ("ollama", "own"):
            return speculation, ()
        layout = "converted to GGUF" if engine == "llamacpp" else "in Hugging Face's layout"
        note = f"{stand_in} stands for {model}, {layout}"
    notes = () if (model or "").startswith("DRAFTER") else (note,)
    return Speculation(speculation.method, {**speculation.options, "model": stand_in}), notes


def _ollama(
    reading: Reading, target: str, written: Written, version: str, notes: tuple[str, ...]
) -> Form:
    """A Modelfile, and the two commands that use it."""
    kept = reading.rest if reading.engine == "ollama" else ()
    modelfile = "\n".join((f"FROM {target}", *written.lines, *kept))
    lines = ("ollama create NAME -f Modelfile", "ollama run NAME")
    return Form("ollama", version, lines, modelfile, notes)
