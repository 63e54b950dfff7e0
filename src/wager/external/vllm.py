"""vLLM as a backend: ``vllm serve``, on a CPU or a GPU.

Read at version 0.32.0: its log, its metrics page, its streams.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, Final

from wager.arms import Arm
from wager.backend import EngineError, Prompt, Started
from wager.errors import ConfigError
from wager.external import flags, metrics, program, vllm_wire
from wager.external.dialects import dialect
from wager.external.dialects.options import is_gguf
from wager.external.reply import Reply
from wager.external.server import ServerBackend

_GIB: Final = 1 << 30
_CPU_KV_GIB: Final = 2
_GENERATION: Final = "--generation-config"
_PER_REQUEST: Final = "--per-request-spec-decode-metrics"

_PREFIX: Final = re.compile(r"^\(\w[^)]*\) +")
_STAMP: Final = re.compile(r"^WARNING [\d-]+ [\d:]+ \[[^\]]+\] ")
_KV_TOKENS: Final = re.compile(r"KV cache size: ([\d,]+) tokens")
_VERSION: Final = re.compile(r"\bversion (\d[\w.+]*)")
_ARGUMENTS: Final = re.compile(r"non-default args: (\{.*\})")
_SPECULATIVE: Final = re.compile(r"speculative_config=(None|SpeculativeConfig\([^)]*\))")
_SETTINGS: Final = ("dtype", "max_seq_len", "enforce_eager", "kv_cache_dtype", "device_config")
# Warnings that bear on speed, on what is drafted, or on which requests are answered.
_MATTERS: Final = re.compile(
    r"speculat|spec_decode|draft|runner|async scheduling|min_p|logit_bias|scheduled_tokens"
    r"|enforce eager|compiling|openmp|iomp|tcmalloc|fall(ing)? ?back|slow|performance|disabl|ignor"
    r"|deprecat|not support|preempt|acceptance",
    re.IGNORECASE,
)
_COMPILED: Final = re.compile(
    r"saved AOT compiled function|Compiling model again|Compiling a graph"
)
_NOT_ACTIVE: Final = "NOT ACTIVE: vLLM started without speculation, though the arm asks for it"


class VllmBackend(ServerBackend):
    """Starts ``vllm serve`` for each arm, with its prefix cache off.

    A program whose name does not begin with ``vllm`` is taken for a wrapper of ``vllm serve``.
    """

    name = "vllm"
    _cold: bool | None = None

    def check(self, arm: Arm) -> str:
        if is_gguf(self.model):
            raise ConfigError(
                f"model: vLLM reads no GGUF files, and {self.model!r} is one; give a Hugging Face "
                "directory or name"
            )
        if self.options.threads is not None and not _on_cpu():
            raise ConfigError("threads: vLLM has no such option on a GPU; leave it out")
        written = dialect(self.name).write(arm.speculation)
        if self.options.engine_command is None:
            self._flags().require(self.command(arm, 0)[1:], self.name)
        said = shlex.join(written.arguments) or "no speculation"
        return "; ".join([said, *written.notes])

    def command(self, arm: Arm, port: int) -> list[str]:
        host = ["--host", self.options.host, "--port", str(port)]
        return [*self._serve(), self.model, *host, *self.arguments(arm)]

    def arguments(self, arm: Arm) -> list[str]:
        options = self.options
        found = []
        if options.max_model_len is not None:
            found += ["--max-model-len", str(options.max_model_len)]
        # As many as were measured is no limit for a server that others use.
        if options.max_clients is not None and options.measuring:
            found += ["--max-num-seqs", str(options.max_clients)]
        if options.measuring:
            # Prompts are salted as well, but a hit within one measurement would still be a gift.
            found.append("--no-enable-prefix-caching")
            # Or a model's own min_p would apply, which cannot be said away: a server that
            # speculates refuses the field, 0 included.
            if options.engine_command is not None or _GENERATION in self._flags():
                found += [_GENERATION, "vllm"]
        if options.kv_memory is not None and not _on_cpu():
            found += ["--kv-cache-memory-bytes", str(options.kv_memory)]
        if arm.speculation is not None:
            asks = options.measuring and options.engine_command is None
            if asks and _PER_REQUEST in self._flags():
                found += [_PER_REQUEST, "detailed"]
            found += dialect(self.name).write(arm.speculation).arguments
        return [*found, *options.arguments]

    def environment(self, arm: Arm) -> dict[str, str]:
        """What a CPU build must be told, unless this process's environment tells it already."""
        options = self.options
        wanted = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        if _on_cpu():
            wanted |= self._cpu_environment()
        # A setting of the user's own goes first, except where an option asks for another value.
        asked = {
            "VLLM_CPU_KVCACHE_SPACE": options.kv_memory,
            "VLLM_CPU_OMP_THREADS_BIND": options.threads,
        }
        return {
            name: value
            for name, value in wanted.items()
            if name not in os.environ or asked.get(name) is not None
        }

    def _cpu_environment(self) -> dict[str, str]:
        memory = self.options.kv_memory
        space = _CPU_KV_GIB if memory is None else -(-memory // _GIB)
        wanted = {
            # Without it vLLM asks for nearly all memory of the machine; whole GiB only.
            "VLLM_CPU_KVCACHE_SPACE": str(space),
            # Its own choice keeps a core back.
            "VLLM_CPU_OMP_THREADS_BIND": program.ranges(program.cores(self.options.threads)),
            # n-gram lookup runs on one thread of numba's. Over OpenMP, which numba takes by itself,
            # that leaves torch one thread too, for the model as well (numba/numba#9387).
            "NUMBA_THREADING_LAYER": "workqueue",
        }
        if self.options.engine_command is None:
            # Speculation on a CPU is slow without Intel's OpenMP, which vLLM installs beside
            # itself and does not load.
            library = Path(self._program()).resolve().parent.parent / "lib" / "libiomp5.so"
            if library.exists():
                wanted["LD_PRELOAD"] = str(library)
        return wanted

    def before_start(self, arm: Arm) -> None:
        cache = self._cache()
        self._cold = not (cache.is_dir() and any(cache.iterdir()))

    def version_in(self, log: str) -> str | None:
        return read_log(log).version

    def started(self, log: str) -> Started:
        found = read_log(log)
        _, page = self.get(self.metrics_path())
        found.kv_tokens = _kv_tokens(page) or found.kv_tokens
        found.effective |= {"environment": self.environment(self.arm)} if self.arm else {}
        found.cold = self._was_cold(found, log)
        asked = self.arm is not None and self.arm.speculation is not None
        if asked and found.effective.get("speculative_config") == "None":
            found.warnings.insert(0, _NOT_ACTIVE)
        return found

    def _was_cold(self, found: Started, log: str) -> bool | None:
        """Whether code was compiled at this start; None in eager mode, which compiles nothing.

        Code that is kept may turn out not to load, so the log has the last word.
        """
        if found.effective.get("enforce_eager") == "True":
            return None
        return True if _COMPILED.search(log) else self._cold

    def request(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        return vllm_wire.request(prompt, self.model)

    def salt(self, body: dict[str, Any], salt: str) -> None:
        body["cache_salt"] = salt

    def read(self, event: dict[str, Any], reply: Reply) -> None:
        vllm_wire.read(event, reply)

    def _program(self) -> str:
        return program.find(self.options.program, self.name)

    def _serve(self) -> list[str]:
        found = self._program()
        return [found, "serve"] if Path(found).name.startswith("vllm") else [found]

    def _flags(self) -> flags.Flags:
        try:
            return flags.ask([*self._serve(), "--help=all"])
        except EngineError:
            # Versions that do not hide options in groups do not know the word, and list them all.
            return flags.ask([*self._serve(), "--help"])

    def _cache(self) -> Path:
        """Where compiled code is kept between starts."""
        environment = {**os.environ, **self.options.environment}
        home = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        root = environment.get("VLLM_CACHE_ROOT") or str(Path(home) / "vllm")
        return Path(root).expanduser() / "torch_compile_cache"


def read_log(log: str) -> Started:
    """What vLLM's log tells of a start: version, KV tokens, settings in effect, warnings.

    ``effective`` holds the arguments that it took, and the speculative config as the engine made
    it, ``None`` as a text where there is none.
    """
    started = Started(effective={}, warnings=[])
    for raw in log.splitlines():
        line = _PREFIX.sub("", raw)
        if found := _KV_TOKENS.search(line):
            started.kv_tokens = int(found[1].replace(",", ""))
        elif found := _ARGUMENTS.search(line):
            started.effective |= _literal(found[1])
        elif "Initializing a" in line and "LLM engine" in line:
            started.effective |= _initialised(line)
        elif stamp := _STAMP.match(line):
            said = line[stamp.end() :].strip()
            if _MATTERS.search(said) and said not in started.warnings:
                started.warnings.append(said)
        elif started.version is None and (found := _VERSION.search(line)):
            started.version = found[1]
    return started


def _initialised(line: str) -> dict[str, Any]:
    effective: dict[str, Any] = {}
    if found := _SPECULATIVE.search(line):
        effective["speculative_config"] = found[1]
    for name in _SETTINGS:
        if found := re.search(rf"\b{name}=([\w.]+)", line):
            effective[name] = found[1]
    return effective


def _literal(text: str) -> dict[str, Any]:
    """A dict as Python prints it, sets and the like within it as text, so that it can be written
    as JSON; empty where it holds something that is no literal."""
    try:
        found = json.loads(json.dumps(ast.literal_eval(text), default=repr, skipkeys=True))
    except (ValueError, SyntaxError):
        return {}
    return {"arguments": found} if isinstance(found, dict) else {}


def _kv_tokens(page: str) -> int | None:
    series = metrics.parse(page).series("vllm:cache_config_info")
    for labels in series or {}:
        told = dict(labels)
        if told.get("kv_cache_size_tokens", "").isdigit():
            return int(told["kv_cache_size_tokens"])
    return None


def _on_cpu() -> bool:
    """Whether vLLM would run on the CPU: no accelerator's tool is on PATH."""
    return not any(shutil.which(tool) for tool in ("nvidia-smi", "rocm-smi", "xpu-smi"))
