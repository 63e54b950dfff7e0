"""What `wager run` does once the model is there: one answer, or turn after turn."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wager.bench.spelling import shares_by_source
from wager.cli.stream import answer, wants_color
from wager.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from wager.cli.run import Telling
    from wager.engine.llm import LLM
    from wager.engine.stats import EngineStats
    from wager.types import RequestOutput


class Session:
    """Answers on standard output; statistics and notes on standard error."""

    def __init__(
        self,
        llm: LLM,
        chosen: dict[str, Any],
        telling: Telling,
        *,
        system: str | None,
    ) -> None:
        self._llm = llm
        self._params = replace(llm.default_params(), **chosen)
        self._start = [{"role": "system", "content": system}] if system is not None else []
        self._stats, self._explain = telling.stats, telling.explain
        self._color = wants_color(sys.stdout, telling.no_color)

    def once(self, text: str, raw: bool) -> None:
        """One answer. Models with a chat template are asked through it, unless ``raw``."""
        if raw or not self._llm.tokenizer.has_chat_template:
            if self._start:
                raise ConfigError("system: this model has no chat template to put it into")
            ids = self._llm.prompt_ids(text)
        else:
            ids = self._llm.chat_ids([*self._start, {"role": "user", "content": text}])
        self._answer(ids, [])

    def chat(self) -> None:
        """Read a line, answer it with the history, until /exit or the end of the input."""
        if not self._llm.tokenizer.has_chat_template:
            raise ConfigError("prompt: this model has no chat template; give a PROMPT to go on")
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):  # line editing, where Python has it
                import readline  # noqa: F401
        history = list(self._start)
        while (line := _read_line()) is not None:
            if line == "/exit":
                return
            if line == "/clear":
                history = list(self._start)
            elif line:
                history.append({"role": "user", "content": line})
                self._turn(history)

    def _turn(self, history: list[dict[str, str]]) -> None:
        said: list[str] = []
        try:
            self._answer(self._llm.chat_ids(history), said)
        except KeyboardInterrupt:
            # Ctrl-C ends the answer, not the chat; what was said stays part of it.
            print()
        except RequestError as error:
            # Most of all: the chat has outgrown the context.
            history.pop()
            print(f"wager: {error}; /clear starts anew", file=sys.stderr)
            return
        history.append({"role": "assistant", "content": "".join(said)})

    def _answer(self, ids: Sequence[int], said: list[str]) -> None:
        self._llm.engine.stats.reset()
        bets = self._llm.engine.bets
        if bets is not None:
            bets.controller.decisions.reset()
        last = answer(self._llm, ids, self._params, sys.stdout, self._color, said)
        if not (said and said[-1].endswith("\n")):
            print()
        if self._stats and last is not None:
            sys.stdout.flush()
            asked = self._llm.engine.speculation
            several = asked is not None and len(asked.methods) > 1
            print(statistics(self._llm.engine.stats, last, several), file=sys.stderr)
        if self._explain and bets is not None:
            sys.stdout.flush()
            print(bets.controller.decisions.describe(), file=sys.stderr)


def _read_line() -> str | None:
    """The next turn without spaces around it; None when the user is done."""
    try:
        return input("> " if sys.stdin.isatty() and sys.stdout.isatty() else "").strip()
    except EOFError:
        if sys.stdout.isatty():
            print()
        return None


def statistics(stats: EngineStats, last: RequestOutput, several: bool = False) -> str:
    """What the steps of one answer cost and what its drafts brought, in a few lines.

    ``several`` methods were asked: then it is said who spoke, even if it was one of them alone.
    """
    counts = stats.counts
    lines = [
        f"{counts.committed} tokens in {counts.steps} steps: "
        f"{_number(counts.tokens_per_step, 2)} tokens per step",
        _step_times(stats),
    ]
    if counts.drafted:
        lines.append(
            f"drafts on {_percent(counts.coverage)} of the steps; {counts.drafted} tokens drafted, "
            f"{counts.accepted} accepted ({_percent(counts.acceptance_rate)}); "
            f"{_number(counts.acceptance_length, 2)} tokens per step with a draft"
        )
        shares = [_percent(share) for share in counts.acceptance_by_position_unconditional]
        lines.append("acceptance by position (unconditional): " + ", ".join(shares))
        if several or len(stats.by_source) > 1:
            lines.append(f"by source: {shares_by_source(stats.by_source)}")
    else:
        lines.append("no drafts")
    if last.first_token_s is not None and last.total_s is not None:
        seconds = last.total_s - last.first_token_s
        speed = (counts.committed - 1) / seconds if counts.committed > 1 and seconds else None
        lines.append(
            f"first token after {1e3 * last.first_token_s:.0f} ms "
            f"({last.cached_tokens} prompt tokens from the cache), "
            f"then {_number(speed, 1)} tokens/s"
        )
    return "\n".join(lines)


def _step_times(stats: EngineStats) -> str:
    kinds = (
        ("prompt", stats.prefill_steps, stats.prefill_ms),
        ("plain", stats.plain_steps, stats.plain_ms),
        ("verify", stats.verify_steps, stats.verify_ms),
    )
    parts = [f"{name} {steps} x {total / steps:.2f} ms" for name, steps, total in kinds if steps]
    return f"steps: {', '.join(parts)}; of it drafting {stats.draft_ms:.2f} ms in all"


def _number(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.0f} %"
