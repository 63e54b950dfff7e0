"""Any engine's speculation options, said what they mean and written in every engine's current form.

Nothing is started and no file is read: it is all in the tables of `wager.external.dialects`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from wager.arms import Speculation
from wager.errors import ConfigError
from wager.external.dialects import ENGINES, dialect, read_only, vllm
from wager.external.dialects.base import Reading, Written
from wager.external.dialects.options import TITLES, is_gguf, is_hub_id
from wager.external.translate_bodies import read_body
from wager.external.translate_split import Pasted, Role, split

_PROGRAMS: Final = {
    "vllm": ("vllm", "serve"),
    "llamacpp": ("llama-server",),
    "sglang": ("python", "-m", "sglang.launch_server"),
    "ollama": ("ollama", "run"),
}
_PORTS: Final = {"vllm": "8000", "llamacpp": "8080", "sglang": "30000"}
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


@dataclass(frozen=True, slots=True)
class Translation:
    """What was understood, and its form for each engine that was asked for."""

    reading: Reading
    role: Role
    forms: tuple[Form, ...]


def translate(text: str | Sequence[str], to: str = "all") -> Translation:
    """Read ``text`` (or the words of a command) and write it for ``to``: an engine, or all.

    Raises ConfigError where nothing could be made of it, and for an unknown engine.
    """
    if to not in ("all", *ENGINES):
        raise ConfigError(f"to: must be all or one of {', '.join(ENGINES)}; got {to!r}")
    pasted = split(text)
    if pasted.config is not None:
        reading = read_body(pasted.config, vllm.read_config)
    elif pasted.engine is None:
        raise ConfigError(
            f"translate: no speculation option of any engine in {shlex.join(pasted.arguments)!r}"
        )
    elif pasted.engine in read_only.ENGINES:
        reading = read_only.read(pasted.engine, pasted.arguments)
    else:
        reading = dialect(pasted.engine).read(pasted.arguments)
    if pasted.role == "python":
        reading = _as_keywords(reading, pasted.kept)
    reading = replace(
        reading, findings=(*pasted.findings, *reading.findings),
        prefix=pasted.prefix, program=pasted.program or _tag_program(reading, pasted),
    )  # fmt: skip
    if not (reading.findings or reading.speculation or pasted.program):
        raise ConfigError(f"translate: no speculation option of any engine in {_shown(text)!r}")
    wanted: tuple[str, ...] = ENGINES if to == "all" else (to,)
    if pasted.config is not None and reading.speculation is None:
        # A request that sets nothing about drafting: no server's command follows from it.
        wanted = ()
    return Translation(reading, pasted.role, _forms(reading, pasted.role, wanted))


def _tag_program(reading: Reading, pasted: Pasted) -> tuple[str, ...]:
    """A tag of Ollama's library by itself is something to run."""
    alone = reading.engine == "ollama" and pasted.arguments == (reading.target,)
    return _PROGRAMS["ollama"] if alone else ()


def _as_keywords(reading: Reading, kept: tuple[str, ...]) -> Reading:
    """The findings about a call, with its keywords spelled as there."""

    def spelled(what: str) -> str:
        name, space, value = what.partition(" ")
        if not name.startswith("--"):
            return what
        return name[2:].replace("-", "_") + ("=" if space else "") + value

    findings = tuple(replace(f, what=spelled(f.what)) for f in reading.findings)
    return replace(reading, findings=findings, rest=kept)


def _shown(text: str | Sequence[str]) -> str:
    return text if isinstance(text, str) else shlex.join(text)


def _forms(reading: Reading, role: Role, wanted: Sequence[str]) -> tuple[Form, ...]:
    """A client's command has one form; a server's has one per engine."""
    if role == "client":
        return tuple(_client(reading, engine) for engine in wanted)
    if reading.speculation is None and any(f.severity == "error" for f in reading.findings):
        understood = reading.program
        if not understood:
            return ()
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
        written = dialect(engine).write(speculation)
    except ConfigError as error:
        elsewhere = _elsewhere(reading, ("bench", "serve")) if engine == "own" else ()
        return Form(engine, version, elsewhere, error=str(error))
    target, more = _target(reading, engine)
    notes = (*more, *notes, *written.notes)
    python = role == "python" and engine != "vllm"
    if (
        engine == reading.engine
        and reading.program
        and not python
        and not _needs_modelfile(reading)
    ):
        line = (
            _python(reading, target, written)
            if role == "python"
            else _same(reading, role, target, written)
        )
        return Form(engine, version, (line,), notes=notes)
    left = _left_out(reading, engine)
    notes = (*left, *notes)
    if engine == "ollama":
        return _ollama(reading, target, written, version, notes)
    if engine == "own":
        lines = tuple(
            shlex.join(["wager", verb, target, *written.arguments]) for verb in ("run", "bench")
        )
        lines = (*lines, *_elsewhere(reading, ("serve",))) if written.arguments else lines[:1]
        return Form(engine, version, lines, notes=notes)
    rest = reading.rest if engine == reading.engine else _address(reading, engine)
    where = ("-m", target) if engine == "llamacpp" else (target,)
    if engine == "llamacpp" and is_gguf(target) and not target.endswith(".gguf"):
        where = ("-hf", target)
    if engine == "sglang":
        where = ("--model-path", target)
    if engine == "llamacpp":
        rest = _with_port(rest)
    words = [*_PROGRAMS[engine], *where, *rest, *written.arguments]
    return Form(engine, version, (shlex.join(words),), notes=notes)


def _needs_modelfile(reading: Reading) -> bool:
    """Ollama's MTP layers draft only where a Modelfile says so, whatever the tag is called."""
    mtp = reading.speculation is not None and reading.speculation.method == "mtp"
    return reading.engine == "ollama" and (mtp or "create" in reading.program)


def _elsewhere(reading: Reading, verbs: Sequence[str]) -> tuple[str, ...]:
    """How wager measures and serves it on another engine: on that of the line, where it can."""
    for engine in dict.fromkeys((reading.engine, "vllm", "llamacpp", "sglang")):
        if reading.speculation is None or engine not in _PORTS:
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


def _same(reading: Reading, role: Role, target: str, written: Written) -> str:
    """The command as it was, in its own engine's current form."""
    where: tuple[str, ...] = (target,)
    if reading.engine == "ollama" and reading.target is None:
        where = ()
    if reading.engine == "llamacpp":
        where = ("-m" if target.endswith(".gguf") else "-hf", target)
    elif reading.engine == "sglang" or role == "offline":
        where = ("--model-path" if reading.engine == "sglang" else "--model", target)
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
    for option, value in (("--host", _HOST), ("--port", _PORTS["llamacpp"])):
        if option not in rest:
            rest = (*rest, option, value)
    return rest


def _address(reading: Reading, engine: str) -> tuple[str, ...]:
    """Host and port, which all servers spell alike."""
    kept: list[str] = []
    for option in ("--host", "--port"):
        if option in reading.rest:
            place = reading.rest.index(option)
            kept += reading.rest[place : place + 2]
    return tuple(kept)


def _left_out(reading: Reading, engine: str) -> tuple[str, ...]:
    """A note on the arguments of another engine that have nothing to do with speculation."""
    if engine == reading.engine:
        return ()
    kept = _address(reading, engine) if engine in _PORTS else ()
    rest = [word for word in reading.rest if word not in kept]
    if "--engine" in rest:
        # Of wager's own verbs: the form for that engine is what was asked for.
        place = rest.index("--engine")
        del rest[place : place + 2]
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


def as_json(translation: Translation) -> dict[str, Any]:
    """For programs: what was read, the findings, and the forms; null for what does not apply."""
    reading = translation.reading
    config: Mapping[str, Any] | None = (
        None if reading.speculation is None else reading.speculation.config()
    )
    return {
        "engine": reading.engine,
        "target": reading.target,
        "speculative_config": config,
        "findings": [
            {"severity": f.severity, "what": f.what, "text": f.text} for f in reading.findings
        ],
        "forms": [
            {
                "engine": form.engine, "version": form.version or None,
                "commands": list(form.commands), "modelfile": form.modelfile,
                "notes": list(form.notes), "error": form.error,
            }
            for form in translation.forms
        ],
    }  # fmt: skip
