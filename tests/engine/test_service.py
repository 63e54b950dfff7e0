"""The engine behind asyncio: aborts in every phase, what it shows of itself, and how it ends.

A gate in front of the engine's steps makes each phase last as long as the test wants.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from wager import LLM, AsyncLLM, SamplingParams
from wager.errors import ConfigError, RequestError
from wager.types import RequestOutput

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
PATIENCE_S = 20.0


class Gate:
    """Lets the engine take as many steps as it is told, then lets it wait."""

    def __init__(self, llm: AsyncLLM) -> None:
        engine: Any = llm.llm.engine
        self._step = engine.step
        self._allowed = threading.Semaphore(0)
        self._open = threading.Event()
        self.at_door = 0
        self.steps = 0
        engine.step = self._guarded

    def _guarded(self) -> list[RequestOutput]:
        if not self._open.is_set():
            self.at_door += 1
            self._allowed.acquire()
        outputs: list[RequestOutput] = self._step()
        self.steps += 1
        return outputs

    async def step(self, count: int = 1) -> None:
        """Let it take steps, and wait until they are done."""
        wanted = self.steps + count
        for _ in range(count):
            self._allowed.release()
        await until(lambda: self.steps >= wanted)

    async def closed(self) -> None:
        """Until the engine waits in front of the next step."""
        await until(lambda: self.at_door > self.steps)

    def open(self) -> None:
        self._open.set()
        self._allowed.release()


async def until(true: Callable[[], object]) -> None:
    for _ in range(int(PATIENCE_S / 0.002)):
        if true():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("waited in vain")


@asynccontextmanager
async def gated(path: Path, **options: Any) -> AsyncIterator[tuple[AsyncLLM, Gate]]:
    options = {"weights": "f32", "threads": 1, "check_integrity": True, **options}
    async with AsyncLLM(str(path), **options) as llm:
        gate = Gate(llm)
        try:
            yield llm, gate
        finally:
            gate.open()


def idle(llm: AsyncLLM) -> bool:
    engine = llm.llm.engine
    return not engine.has_work() and not engine.pool.in_use


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_request_that_waits_is_aborted_before_the_next_step(tiny_path: Path) -> None:
    async def run() -> None:
        async with gated(tiny_path, max_num_seqs=1) as (llm, gate):
            first = asyncio.ensure_future(llm.generate([5, 6, 7], GREEDY))
            second = asyncio.ensure_future(llm.generate([8, 9], GREEDY))
            await gate.closed()
            await gate.step()
            await gate.closed()
            assert (llm.running, llm.waiting) == (1, 1)
            await cancelled(second)
            assert (llm.running, llm.waiting) == (1, 0)
            # The step that stood at the door, and the one before which the abort is read.
            await gate.step(2)
            assert len(list(llm.llm.engine.scheduler.sequences())) == 1
            gate.open()
            assert len((await first).outputs[0].token_ids) == 12
            await until(lambda: idle(llm))
            assert llm.llm.engine.stats.aborted == 1

    asyncio.run(run())


def test_a_prompt_that_is_being_read_is_aborted(tiny_path: Path) -> None:
    async def run() -> None:
        async with gated(tiny_path, max_num_seqs=4, max_batch_tokens=16) as (llm, gate):
            task = asyncio.ensure_future(llm.generate([5] * 400, GREEDY))
            await gate.closed()
            await gate.step(2)
            await gate.closed()
            await cancelled(task)
            await gate.step(2)
            await until(lambda: idle(llm))
            # Of the 25 steps that the prompt takes: two, the one at the door, and the report.
            assert gate.steps == 4
            assert llm.llm.engine.stats.prompt_tokens == 48

    asyncio.run(run())


def test_a_request_that_decodes_is_aborted(tiny_path: Path) -> None:
    async def run() -> None:
        async with gated(tiny_path) as (llm, gate):
            pieces = llm.stream([5, 6], LONG)
            first = asyncio.ensure_future(pieces.__anext__())
            await gate.closed()
            await gate.step(3)
            await first
            await gate.closed()
            await pieces.aclose()
            await gate.step(2)
            await until(lambda: idle(llm))
            assert gate.steps == 5

    asyncio.run(run())


def test_a_request_is_aborted_by_its_name(tiny_path: Path) -> None:
    async def run() -> None:
        async with gated(tiny_path) as (llm, gate):
            task = asyncio.ensure_future(llm.generate([5, 6], LONG, request_id="mine"))
            await gate.closed()
            llm.abort("nobody's")
            llm.abort("mine")
            gate.open()
            answer = await asyncio.wait_for(task, PATIENCE_S)
            assert answer.request_id == "mine"
            assert answer.outputs[0].finish_reason == "abort"
            assert len(answer.outputs[0].token_ids) <= 1
            llm.abort("mine")
            assert len((await llm.generate([5, 6], GREEDY)).outputs[0].token_ids) == 12

    asyncio.run(run())


def test_names_are_in_use_once(tiny_path: Path) -> None:
    async def run() -> None:
        async with gated(tiny_path) as (llm, gate):
            task = asyncio.ensure_future(llm.generate([5, 6], GREEDY, request_id="mine"))
            await gate.closed()
            with pytest.raises(RequestError, match="request_id: 'mine' is in use already"):
                await llm.generate([5, 6], GREEDY, request_id="mine")
            gate.open()
            first = await task
            again = await llm.generate([5, 6], GREEDY, request_id="mine")
            assert again.outputs[0].token_ids == first.outputs[0].token_ids

    asyncio.run(run())


@pytest.mark.parametrize("read", [False, True], ids=["queued", "read"])
def test_a_name_is_free_once_its_stream_was_left(read: bool, tiny_path: Path) -> None:
    """Also where the engine has not read of it yet, or has, and told nobody so far."""

    async def run() -> None:
        async with gated(tiny_path) as (llm, gate):
            expected = asyncio.ensure_future(llm.generate([9, 8], GREEDY))
            first = asyncio.ensure_future(llm.generate([5, 6], LONG, request_id="mine"))
            await gate.closed()
            await gate.step(3)
            await gate.closed()
            await cancelled(first)
            if read:
                await gate.step()
                await gate.closed()
            second = asyncio.ensure_future(llm.generate([9, 8], LONG, request_id="mine"))
            await asyncio.sleep(0)
            await cancelled(second)
            third = asyncio.ensure_future(llm.generate([9, 8], GREEDY, request_id="mine"))
            await asyncio.sleep(0)
            # The third one's alone: the others are gone.
            gate.open()
            answer = await asyncio.wait_for(third, PATIENCE_S)
            assert answer.request_id == "mine"
            assert answer.outputs[0].finish_reason == "length"
            assert answer.outputs[0].token_ids == (await expected).outputs[0].token_ids
            await until(lambda: idle(llm))
            assert llm.llm.engine.stats.aborted == 2

    asyncio.run(run())


def test_a_name_that_is_used_again_ends_the_request_that_has_it_now(tiny_path: Path) -> None:
    async def run() -> None:
        async with gated(tiny_path) as (llm, gate):
            first = asyncio.ensure_future(llm.generate([5, 6], LONG, request_id="mine"))
            await gate.closed()
            await gate.step()
            await gate.closed()
            await cancelled(first)
            second = asyncio.ensure_future(llm.generate([9, 8], LONG, request_id="mine"))
            await asyncio.sleep(0)
            llm.abort("mine")
            gate.open()
            answer = await asyncio.wait_for(second, PATIENCE_S)
            assert answer.outputs[0].finish_reason == "abort"
            assert answer.outputs[0].token_ids == []
            await until(lambda: idle(llm))
            assert llm.llm.engine.stats.aborted == 2

    asyncio.run(run())


def test_random_leavers_do_not_disturb_the_others(tiny_path: Path) -> None:
    """Fifty requests on two places; half of the clients leave, whatever their requests are at."""

    async def run() -> None:
        options: dict[str, Any] = {"weights": "f32", "threads": 1, "check_integrity": True}
        async with AsyncLLM(str(tiny_path), max_num_seqs=2, **options) as llm:
            prompts = [[5 + n, 6, 7 + n % 5] for n in range(50)]
            alone = [(await llm.generate(p, GREEDY)).outputs[0].token_ids for p in prompts[::2]]
            tasks = [asyncio.ensure_future(llm.generate(p, GREEDY)) for p in prompts]
            for number, task in enumerate(tasks[1::2]):
                await asyncio.sleep(0.0005 * (number % 7))
                task.cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            kept = [one for one in answers[::2] if isinstance(one, RequestOutput)]
            assert [one.outputs[0].token_ids for one in kept] == alone
            await until(lambda: idle(llm))
            assert (llm.running, llm.waiting) == (0, 0)

    asyncio.run(run())


def test_what_it_shows_of_itself(tiny_path: Path) -> None:
    async def run() -> None:
        async with gated(tiny_path, max_num_seqs=1) as (llm, gate):
            assert (llm.running, llm.waiting, llm.stalled_s, llm.failed) == (0, 0, None, None)
            before = llm.snapshot
            tasks = [asyncio.ensure_future(llm.generate([5, n], GREEDY)) for n in (6, 7, 8)]
            await gate.closed()
            assert (llm.running, llm.waiting) == (0, 3)
            # It does not get on, and says so.
            await until(lambda: (llm.stalled_s or 0.0) > 0.05)
            await gate.step()
            await gate.closed()
            assert (llm.running, llm.waiting) == (1, 2)
            assert llm.snapshot is not before
            assert llm.snapshot.running == 1
            assert llm.snapshot.steps == before.steps + 1
            gate.open()
            await asyncio.gather(*tasks)
            await until(lambda: llm.stalled_s is None)
            assert (llm.running, llm.waiting) == (0, 0)
            assert llm.snapshot.running == 0
            assert llm.snapshot.finished == before.finished + 3

    asyncio.run(run())


def test_a_consumer_that_dawdles_is_not_taken_for_work(tiny_path: Path) -> None:
    async def run() -> None:
        async with gated(tiny_path) as (llm, gate):
            gate.open()
            async with aclosing(llm.stream([5, 6], GREEDY)) as pieces:
                await pieces.__anext__()
                await until(lambda: idle(llm))
                await until(lambda: llm.stalled_s is None)
                assert (llm.running, llm.waiting) == (0, 0)
            assert llm.llm.engine.stats.aborted == 0

    asyncio.run(run())


def test_an_engine_that_fails_says_why(tiny_path: Path) -> None:
    async def run() -> None:
        llm = AsyncLLM(str(tiny_path), weights="f32", threads=1)

        go = threading.Event()

        def broken() -> None:
            assert go.wait(PATIENCE_S)
            raise RuntimeError("the step broke")

        engine: Any = llm.llm.engine
        engine.step = broken
        asked = asyncio.gather(
            *[llm.generate([5, n], GREEDY) for n in (6, 7)], return_exceptions=True
        )
        await until(lambda: llm.waiting == 2)
        go.set()
        found = await asyncio.wait_for(asked, PATIENCE_S)
        assert [str(one) for one in found] == ["AsyncLLM: the engine failed"] * 2
        assert all(isinstance(one, ConfigError) for one in found)
        # What is raised in two tasks would gather the lines of both.
        assert found[0] is not found[1]
        assert found[0].__cause__ is llm.failed
        assert isinstance(llm.failed, RuntimeError)
        assert llm.stalled_s is None
        assert (llm.running, llm.waiting) == (0, 0)
        with pytest.raises(ConfigError, match="closed"):
            await llm.generate([5, 6], GREEDY)
        await llm.close()
        await llm.close()

    asyncio.run(run())


def test_closing_ends_what_runs(tiny_path: Path) -> None:
    async def run() -> None:
        async with gated(tiny_path) as (llm, gate):
            tasks = [asyncio.ensure_future(llm.generate([5, n], LONG)) for n in (6, 7)]
            await gate.closed()
            closing = asyncio.ensure_future(llm.close())
            await asyncio.sleep(0)
            gate.open()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(one, ConfigError) for one in found)
            await closing
            assert llm.failed is None

    asyncio.run(run())


def test_a_loaded_model_will_do(tiny_path: Path) -> None:
    async def run() -> None:
        loaded = LLM(str(tiny_path), weights="f32", threads=1)
        expected = loaded.generate([[5, 6]], GREEDY)[0].outputs[0].token_ids
        async with AsyncLLM(loaded) as llm:
            assert (await llm.generate([5, 6], GREEDY)).outputs[0].token_ids == expected
        with pytest.raises(ConfigError, match="threads: the model is loaded already"):
            AsyncLLM(loaded, threads=2)

    asyncio.run(run())


def test_a_long_text_is_read_elsewhere(tiny_path: Path) -> None:
    async def run() -> None:
        async with gated(tiny_path) as (llm, gate):
            gate.open()
            short, long = "the cat " * 4, "the cat " * 3000
            ids = llm.llm.prompt_ids(short)
            by_text = await llm.generate(short, GREEDY)
            assert by_text.prompt_token_ids == ids
            with pytest.raises(RequestError, match=r"prompt: \d+ tokens, but the context holds"):
                await llm.generate(long, GREEDY)

    asyncio.run(run())
