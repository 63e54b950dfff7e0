"""What starts each engine today, and how its command names the model."""

from __future__ import annotations

from typing import Final

PROGRAMS: Final = {
    "vllm": ("vllm", "serve"),
    "llamacpp": ("llama-server",),
    "sglang": ("python", "-m", "sglang.launch_server"),
    "ollama": ("ollama", "run"),
    "own": ("wager", "run"),
}
"""The words that a command begins with."""


def naming(engine: str, target: str, *, on_hub: bool = False) -> tuple[str, ...]:
    """The arguments that name ``target`` behind the program.

    ``on_hub``: it is a name on the hub even where it ends in .gguf (``org/name/file.gguf``).
    """
    if engine == "sglang":
        return ("--model-path", target)
    if engine != "llamacpp":
        return (target,)
    parts = target.split("/", 2)
    if on_hub and len(parts) == 3:
        return ("-hf", "/".join(parts[:2]), "-hff", parts[2])
    return ("-m" if target.lower().endswith(".gguf") and not on_hub else "-hf", target)
