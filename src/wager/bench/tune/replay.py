"""Acceptance of drafters that depend on token ids alone, without an engine: by replay of the plain
answers of a look, or of a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from wager.arms import PLAIN, Arm
from wager.backend import Answer, Prompt
from wager.bench.logs.read import read_log
from wager.bench.logs.records import Entry, Recorded
from wager.bench.measure import Measurement
from wager.bench.replay.rules import settings
from wager.bench.replay.run import Replay, replayed
from wager.bench.replay.tokens import Vocabulary
from wager.bench.tune.predict import Acceptance, of_replay
from wager.bench.tune.search import Replayer
from wager.errors import ConfigError

_MOST_ANSWERS: Final = 2000


def replayer(engine: str, vocabulary: Vocabulary, logs: Path | None = None) -> Replayer:
    """By an engine's rule. With ``logs`` their answers stand for every workload. Raises ConfigError
    for logs that cannot be read."""

    def replay(
        arms: Sequence[Arm], measurements: Sequence[Measurement]
    ) -> dict[str, dict[str, Acceptance]]:
        known = [arm for arm in arms if _can_be(arm, engine)]
        if not known:
            return {}
        # Real runs of the own engine begin without what was learnt; a log is traffic as it came.
        cold = engine == "own" and logs is None
        done = replayed(known, vocabulary, engine, cold=cold)
        if logs is not None:
            done.run(read_log(logs), _MOST_ANSWERS)
            done.check(str(logs))
            return _of_logs(done, [m.workload for m in measurements])
        done.run(recorded(measurements))
        return _of_look(done)

    return replay


def _can_be(arm: Arm, engine: str) -> bool:
    try:
        settings(arm, engine)
    except ConfigError:
        return False
    return True


def _of_look(done: Replay) -> dict[str, dict[str, Acceptance]]:
    out: dict[str, dict[str, Acceptance]] = {}
    for arm in done.arms:
        for workload, tally in arm.groups.items():
            found = of_replay(tally)
            if workload is not None and found is not None:
                out.setdefault(arm.arm.name, {})[workload] = found
    return out


def _of_logs(done: Replay, workloads: Sequence[str]) -> dict[str, dict[str, Acceptance]]:
    out: dict[str, dict[str, Acceptance]] = {}
    for arm in done.arms:
        found = of_replay(arm.total)
        if found is not None:
            out[arm.arm.name] = dict.fromkeys(workloads, replace(found, source="logs"))
    return out


def recorded(measurements: Sequence[Measurement]) -> Iterator[Entry]:
    """The plain answers of each workload at its first load, one for each prompt."""
    seen: set[str] = set()
    number = 0
    for measurement in measurements:
        if measurement.workload in seen:
            continue
        seen.add(measurement.workload)
        for prompt in measurement.prompts:
            answers = measurement.sound(PLAIN, prompt)
            if answers:
                number += 1
                yield _record(number, measurement.workload, prompt, answers[0])


def _record(number: int, workload: str, prompt: Prompt, answer: Answer) -> Recorded:
    params = prompt.params
    own_end = answer.finish_reason == "stop" and not params.stop and not params.stop_token_ids
    return Recorded(
        line=number,
        shape="look",
        messages=prompt.messages,
        text=prompt.text,
        prompt_ids=prompt.token_ids,
        answer=answer.text,
        answer_ids=None if answer.token_ids is None else tuple(answer.token_ids),
        ending="end" if own_end else "cut",
        max_tokens=params.max_tokens,
        ignore_eos=params.ignore_eos,
        stop_token_ids=params.stop_token_ids,
        group=workload,
    )
