"""An engine's metrics page in the Prometheus text format: its counters, and whether they restarted.

Counters of the page are cumulative, one series per label set (engine, model), and their names may
carry ``_total`` or not. What a page does not show is not known: None, never 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from wager.backend import Counters

Labels: TypeAlias = frozenset[tuple[str, str]]

FAMILIES: Final = ("wager", "vllm", "llamacpp", "sglang")
"""Prefixes of the engines' metrics, without the colon. wager may show vLLM's beside its own."""

_SCHEME: Final = {
    "drafts": "spec_decode_num_drafts",
    "drafted": "spec_decode_num_draft_tokens",
    "accepted": "spec_decode_num_accepted_tokens",
    "generated": "generation_tokens",
    "preemptions": "num_preemptions",
}
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": _SCHEME,
    "wager": _SCHEME,
    "llamacpp": {
        "drafts": _SCHEME["drafts"],
        "drafted": _SCHEME["drafted"],
        "accepted": _SCHEME["accepted"],
        "generated": "tokens_predicted",
    },
    # SGLang's other figures of speculation are gauges: averages that cannot be subtracted.
    "sglang": {"drafts": "spec_verify_calls", "generated": "generation_tokens"},
}
# vLLM has no counter of steps, but two histograms take one value for each: a request's first, and
# all others (the time between tokens is per step there, not per token).
_STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("time_to_first_token_seconds_count", "inter_token_latency_seconds_count"),
    "wager": ("num_request_steps",),
}
_RUNNING: Final = {
    "vllm": "num_requests_running",
    "wager": "num_requests_running",
    "llamacpp": "requests_processing",
    "sglang": "num_running_reqs",
}
_LOOK_EVERY_S: Final = 0.05
_START_TIME: Final = "process_start_time_seconds"
_POSITIONS: Final = "spec_decode_num_accepted_tokens_per_pos"


@dataclass(frozen=True, slots=True)
class Page:
    """The samples of one reading: by name, then by labels."""

    samples: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    @property
    def family(self) -> str | None:
        """Whose page it is, one of FAMILIES; None where no metric has a known prefix."""
        prefixes = {name.partition(":")[0] for name in self.samples}
        return next((family for family in FAMILIES if family in prefixes), None)

    def series(self, name: str) -> Mapping[Labels, float] | None:
        """A counter's series, its name given without ``_total``; None where it is not shown."""
        return self.samples.get(f"{name}_total") or self.samples.get(name)

    def total(self, name: str) -> int | None:
        """A counter over all its labels."""
        series = self.series(name)
        return int(sum(series.values())) if series else None

    def by_position(self, name: str) -> tuple[int, ...] | None:
        """A counter over all labels but ``position``: entry j is position j."""
        sums: dict[int, float] = {}
        for labels, value in (self.series(name) or {}).items():
            position = dict(labels).get("position", "")
            if position.isdigit():
                sums[int(position)] = sums.get(int(position), 0.0) + value
        if not sums:
            return None
        return tuple(int(sums.get(j, 0)) for j in range(max(sums) + 1))

    @property
    def running(self) -> int | None:
        """Requests that the server is at work on, over all labels; None where it does not say."""
        family = self.family
        series = self.samples.get(f"{family}:{_RUNNING[family]}") if family else None
        return int(sum(series.values())) if series else None

    def value(self, name: str) -> float | None:
        """A gauge that has one series; None where it is not shown or has more."""
        series = self.samples.get(name) or {}
        return next(iter(series.values())) if len(series) == 1 else None


def parse(text: str) -> Page:
    """Read a page. A line that is no sample is left out, as if it were not shown."""
    try:
        return Page(_collect(text))
    except ValueError:
        found: dict[str, dict[Labels, float]] = {}
        for line in text.splitlines():
            try:
                for name, series in _collect(line + "\n").items():
                    found.setdefault(name, {}).update(series)
            except ValueError:
                continue
        return Page(found)


def _collect(text: str) -> dict[str, dict[Labels, float]]:
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if math.isfinite(sample.value):
                labels = frozenset(sample.labels.items())
                found.setdefault(sample.name, {})[labels] = sample.value
    return found


def counters(page: Page, resets: int = 0) -> Counters:
    """What the page says of speculation; all None for a page of no known family."""
    family = page.family
    if family is None:
        return Counters(resets=resets)
    found: dict[str, Any] = {
        key: page.total(f"{family}:{name}") for key, name in _NAMES[family].items()
    }
    at = page.by_position(f"{family}:{_POSITIONS}")
    parts = [page.total(f"{family}:{name}") for name in _STEPS.get(family, ())]
    known = [part for part in parts if part is not None]
    steps = sum(known) if known and len(known) == len(parts) else None
    return Counters(**found, steps=steps, accepted_at=at, resets=resets)


def when_idle(read: Callable[[], str | None], patience_s: float) -> str | None:
    """The page once nothing runs, or as it is after ``patience_s`` seconds.

    A request that is cancelled goes on for a moment, and some engines count a request only when
    it is over.
    """
    end = time.monotonic() + patience_s
    text = read()
    while text is not None and parse(text).running and time.monotonic() < end:
        time.sleep(_LOOK_EVERY_S)
        text = read()
    return text


class Reader:
    """Turns successive pages of one server into counters, and counts their restarts.

    A restart is seen in any single series that fell or went away, which a sum over labels hides,
    and in the server's own start time where the page shows it.
    """

    def __init__(self) -> None:
        self._before = Page()
        self.resets = 0

    def read(self, text: str) -> Counters:
        """The counters of the next page."""
        page = parse(text)
        if _started_again(self._before, page):
            self.resets += 1
        self._before = page
        return counters(page, self.resets)


def _started_again(before: Page, after: Page) -> bool:
    family = before.family
    if family is None:
        return False
    start, start_before = after.value(_START_TIME), before.value(_START_TIME)
    if start is not None and start_before is not None and start != start_before:
        return True
    for name in [*_NAMES[family].values(), _POSITIONS]:
        now = after.series(f"{family}:{name}") or {}
        for labels, value in (before.series(f"{family}:{name}") or {}).items():
            if now.get(labels, -1.0) < value:
                return True
    return False
