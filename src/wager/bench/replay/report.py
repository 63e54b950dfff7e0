"""What a replay found, for people and as JSON (docs/replay.md describes the fields)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wager.bench.estimate import KIND, StepTable
from wager.bench.logs.records import NOTES
from wager.bench.replay.rules import noted
from wager.bench.replay.run import ArmReplay, Replay
from wager.bench.replay.tally import SpeedUp, Tally
from wager.bench.spelling import NA, number, percent
from wager.types import DraftCounts

SCHEMA: Final = 1
REPLAYED: Final = "replayed"
"""The kind of figures that follow from recorded answers by the rule of verification, exactly."""

_POSITIONS: Final = 16
_GROUPS: Final = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """What was replayed with what."""

    source: str
    tokenizer: str
    engine: str = "own"
    group: str | None = None
    steps: StepTable | None = None
    clients: tuple[int, ...] = ()


def to_json(replay: Replay, asked: Asked) -> str:
    """Never NaN or infinity; null is not known."""
    checks = replay.vocabulary.checks
    found = {
        "schema": SCHEMA,
        "kind": REPLAYED,
        "source": asked.source,
        "tokenizer": asked.tokenizer,
        "engine": asked.engine,
        "group": asked.group,
        "steps": _steps_json(asked.steps),
        "answers": replay.requests,
        "prompt_tokens": replay.prompt_tokens,
        "answer_tokens": replay.answer_tokens,
        "answers_with_token_ids": replay.with_ids,
        "shapes": replay.shapes,
        "notes": replay.notes,
        "checks": asdict(checks),
        "left_out": [{"reason": r, **asdict(bad)} for r, bad in replay.bad.items()],
        "arms": [_arm_json(arm, asked) for arm in replay.arms],
    }
    return json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _steps_json(steps: StepTable | None) -> dict[str, Any] | None:
    if steps is None:
        return None
    return {"source": steps.source, "ms": {str(rows): ms for rows, ms in steps.known.items()}}


def _arm_json(arm: ArmReplay, asked: Asked) -> dict[str, Any]:
    groups = [] if asked.group is None else _by_size(arm)
    return {
        "arm": arm.arm.name,
        "settings": arm.settings.describe(),
        "drafter_failures": arm.failures,
        "total": _tally_json(arm.total, asked),
        "groups": [{"group": name, **_tally_json(tally, asked)} for name, tally in groups],
    }


def _tally_json(tally: Tally, asked: Asked) -> dict[str, Any]:
    counts, ratio = tally.counts, tally.tokens_per_step
    return {
        "answers": tally.requests,
        "steps": counts.steps,
        "drafted_steps": counts.drafted_steps,
        "committed": counts.committed,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "tokens_per_step": ratio.value,
        "tokens_per_step_low": ratio.low,
        "tokens_per_step_high": ratio.high,
        "tokens_per_step_mean_of_requests": tally.mean_of_requests,
        "decode_tokens_per_step": tally.decode_tokens_per_step,
        "acceptance_length": counts.acceptance_length,
        "acceptance_rate": counts.acceptance_rate,
        "coverage": counts.coverage,
        "drafted_at": counts.drafted_at,
        "tried_at": tally.tried_at[: len(counts.drafted_at)],
        "accepted_at": counts.accepted_at,
        "by_source": {source: _source_json(own) for source, own in tally.by_source.items()},
        "acceptance_by_position_unconditional": counts.acceptance_by_position_unconditional,
        "acceptance_by_position_conditional": tally.conditional[: len(counts.drafted_at)],
        "speed_up": [{"kind": KIND, **asdict(s)} for s in _speed_ups(tally, asked)],
    }


def _source_json(counts: DraftCounts) -> dict[str, Any]:
    return {
        "drafted_steps": counts.drafted_steps,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "acceptance_rate": counts.acceptance_rate,
        "acceptance_length": counts.acceptance_length,
    }


def _speed_ups(tally: Tally, asked: Asked) -> list[SpeedUp]:
    if asked.steps is None:
        return []
    found = [tally.speed_up(asked.steps, clients) for clients in asked.clients]
    return [s for s in found if s is not None]


def _by_size(arm: ArmReplay) -> list[tuple[str | None, Tally]]:
    return sorted(arm.groups.items(), key=lambda item: (-item[1].requests, item[0] or ""))


# For people


def show(out: Console, replay: Replay, asked: Asked) -> None:
    """Print everything."""

    def say(text: str) -> None:
        out.print(text, soft_wrap=True, markup=False)

    for line in header(replay, asked):
        say(line)
    out.print()
    out.print(_acceptance(replay))
    if asked.group is not None:
        out.print()
        out.print(_groups(replay, asked.group))
    drafting = [arm for arm in replay.arms if arm.total.counts.drafted]
    several = [arm for arm in drafting if len(arm.total.by_source) > 1]
    if several:
        out.print()
        out.print(_sources(several))
    if drafting:
        out.print()
        say("Acceptance by position. Unconditional: accepted / all drafts; conditional: accepted")
        say("/ tried, that is drafts that reach the position with all before it accepted.")
        out.print(_positions(drafting))
    if asked.steps is not None:
        out.print()
        say(f"Speed-up of decode, {KIND.upper()} from step times ({asked.steps.source}), not "
            "measured:")  # fmt: skip
        out.print(_speeds(replay, asked))
    remarks = notes(replay, asked)
    if remarks:
        out.print()
    for line in remarks:
        say(f"- {line}")


def header(replay: Replay, asked: Asked) -> list[str]:
    """What was read."""
    until = ["INTERRUPTED: this is what was replayed until then."] if replay.interrupted else []
    shapes = ", ".join(
        f"{n} {shape}" if len(replay.shapes) > 1 else shape for shape, n in replay.shapes.items()
    )
    return [
        f"{asked.source}: {replay.requests} answers of {replay.answer_tokens} tokens to prompts of "
        f"{replay.prompt_tokens} ({shapes}); tokenizer {asked.tokenizer}",
        f"Replayed by the rule of {replay.rule.name}: what each drafter would have proposed, held "
        "against the recorded answers. Nothing was run.",
        *until,
    ]


def _grid(first: str, *titles: str) -> Table:
    """A table that fits into 80 columns; where names are long the first column folds."""
    grid = Table(show_edge=False, pad_edge=False, box=None, padding=(0, 1, 0, 0))
    grid.add_column(first, overflow="fold")
    for title in titles:
        grid.add_column(title, justify="right", no_wrap=True)
    return grid


_FIGURES: Final = (
    "tokens / step\n[95 %]", "mean of\nanswers", "acceptance\nlength", "accepted\n/ drafted",
    "draft\ncoverage",
)  # fmt: skip


def _figures(tally: Tally) -> list[Text]:
    counts, ratio = tally.counts, tally.tokens_per_step
    spread = "" if ratio.low is None else f" [{ratio.low:.2f}, {number(ratio.high, 2)}]"
    row = (
        f"{number(ratio.value, 2)}{spread}",
        number(tally.mean_of_requests, 2),
        number(counts.acceptance_length, 2),
        percent(counts.acceptance_rate),
        percent(counts.coverage),
    )
    # Text objects, since rich would take the bracket of an interval for a style.
    return [Text(cell) for cell in row]


def _acceptance(replay: Replay) -> Table:
    grid = _grid("arm", *_FIGURES)
    for arm in replay.arms:
        grid.add_row(Text(arm.arm.name), *_figures(arm.total))
    return grid


def _groups(replay: Replay, field: str) -> Table:
    grid = _grid(f"arm and\n{field}", "answers", *_FIGURES)
    for arm in replay.arms:
        grid.add_row(Text(arm.arm.name))
        for name, tally in _by_size(arm)[:_GROUPS]:
            shown = NA if name is None else name[:40]
            grid.add_row(Text(f"  {shown}"), str(tally.requests), *_figures(tally))
    return grid


def _sources(arms: Sequence[ArmReplay]) -> Table:
    """Of arms in which several methods, or parts of one, spoke."""
    titles = ("drafts", "drafted", "accepted", "accepted\n/ drafted", "acceptance\nlength")
    grid = _grid("arm and\nsource", *titles)
    for arm in arms:
        grid.add_row(Text(arm.arm.name))
        for source, own in arm.total.by_source.items():
            counted = (own.drafted_steps, own.drafted, own.accepted)
            rates = (percent(own.acceptance_rate), number(own.acceptance_length, 2))
            grid.add_row(Text(f"  {source}"), *map(str, counted), *rates)
    return grid


def _positions(arms: Sequence[ArmReplay]) -> Table:
    titles = ("unconditional", "conditional", "drafted", "tried", "accepted")
    grid = _grid("arm and\nposition", *titles)
    for arm in arms:
        grid.add_row(Text(arm.arm.name))
        counts, tally = arm.total.counts, arm.total
        shares = counts.acceptance_by_position_unconditional
        accepted = counts.accepted_at + [0] * len(counts.drafted_at)
        for j in range(min(len(counts.drafted_at), _POSITIONS)):
            grid.add_row(
                f"  {j + 1}",
                _exact(shares[j]),
                _exact(tally.conditional[j]),
                str(counts.drafted_at[j]),
                str(tally.tried_at[j]),
                str(accepted[j]),
            )
    return grid


def _exact(value: float | None) -> str:
    return NA if value is None else f"{100 * value:.1f} %"


def _speeds(replay: Replay, asked: Asked) -> Table:
    titles = ("speed-up", "plain\nms / step", "drafting\nms / step", "tokens\n/ step", "pays\nfrom")
    grid = _grid("arm and\nclients", *titles)
    grid.add_column("")
    for arm in replay.arms:
        if arm.config is None:
            continue
        tally = arm.total
        grid.add_row(Text(arm.arm.name))
        for found in _speed_ups(tally, asked):
            grid.add_row(
                f"  {found.clients}",
                f"{found.value:.2f}x",
                f"{found.plain_ms:.1f}",
                f"{found.step_ms:.1f}{'*' if found.extrapolated else ''}",
                number(tally.decode_tokens_per_step, 2),
                f"{found.break_even:.2f}",
                "a loss" if found.value < 1.0 else "",
            )
    return grid


def notes(replay: Replay, asked: Asked) -> list[str]:
    """What a reader must know beside the tables; one line each."""
    out = [_left_out(reason, bad.count, bad.lines) for reason, bad in replay.bad.items()]
    out += [f"{n} {NOTES[key]}" for key, n in replay.notes.items()]
    out += _check_notes(replay)
    if asked.group is not None and set(replay.arms[0].groups) == {None}:
        out.append(f"no line has the field {asked.group!r}, so there is one group only")
    out += noted([arm.settings for arm in replay.arms])
    for arm in replay.arms:
        if arm.config is not None and not arm.total.counts.drafted:
            out.append(f"{arm.arm.name} never proposed anything")
        if arm.failures:
            out.append(f"{arm.arm.name}: the drafter broke in {arm.failures} answers, which went "
                       "on without it")  # fmt: skip
        shown = len(arm.total.counts.drafted_at)
        if shown > _POSITIONS:
            out.append(f"{arm.arm.name}: positions behind {_POSITIONS} are in --json")
        if asked.group is not None and len(arm.groups) > _GROUPS:
            out.append(f"{arm.arm.name}: {len(arm.groups) - _GROUPS} more groups are in --json")
    steps = asked.steps
    speeds = [s for a in replay.arms if a.config is not None for s in _speed_ups(a.total, asked)]
    if steps is not None and any(s.extrapolated for s in speeds):
        out.append(f"*: some steps have more than {steps.last} rows, the most that the step table "
                   "holds; their time is extrapolated along its last slope")  # fmt: skip
    return out


def _left_out(reason: str, count: int, lines: Sequence[int]) -> str:
    which = ", ".join(map(str, lines)) + (", ..." if count > len(lines) else "")
    plural = "s" if count > 1 else ""
    return f"LEFT OUT: {count} line{plural} ({which}): {reason}"


def _check_notes(replay: Replay) -> list[str]:
    checks, out = replay.vocabulary.checks, []
    if checks.decoded_differ:
        out.append(
            f"WRONG TOKENIZER? in {checks.decoded_differ} of {checks.decoded} answers checked the "
            "recorded token ids do not decode to the recorded text"
        )
    if checks.prompts_differ:
        out.append(
            f"{checks.prompts_differ} of {checks.prompts} prompts have another length than the log "
            "states: tools, a system text or a chat template that are not here"
        )
    if checks.answers_differ:
        out.append(
            f"{checks.answers_differ} of {checks.answers} answers have another number of tokens "
            "than the log states: text does not always give the same tokens again"
        )
    if checks.beyond_context:
        out.append(
            f"{checks.beyond_context} answers end behind the context of --max-model-len: the "
            "server's was longer"
        )
    if replay.requests and replay.with_ids < replay.requests:
        out.append(
            f"{replay.requests - replay.with_ids} of {replay.requests} answers were given as text: "
            "their tokens are the tokenizer's, which may differ from those that were generated"
        )
    return out
