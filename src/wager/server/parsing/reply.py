"""A reply's text, taken apart while it grows."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from wager.server.parsing.calls import CallReader
from wager.server.parsing.pieces import WHITE, Kind, Piece, find_mark
from wager.server.parsing.reasoning import THINK, THOUGHT
from wager.server.parsing.tools import (
    PYTHON_TAG,
    TOOL_CLOSE,
    TOOL_OPEN,
    Style,
    choose,
    marks,
    tool_style,
)

# Long text is taken apart in parts of this size, so that taking from its front costs little.
_PART: Final = 512


def reply_parser(
    *,
    template: str | None,
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: object,
    reasoning: bool,
    opened_reasoning: bool,
    new_id: Callable[[], str] | None = None,
) -> ReplyParser:
    """The parser of one choice of a reply.

    ``template`` is the text of the model's chat template: it tells how calls are written.
    ``reasoning`` separates it; ``opened_reasoning`` says that the reply begins inside it. Raises
    RequestError for tools that cannot be offered, and for a model that calls in no known way.
    """
    functions = choose(tools, tool_choice).functions
    return ReplyParser(
        style=tool_style(template) if functions else None,
        names=frozenset(function.name for function in functions),
        reasoning=reasoning,
        opened_reasoning=reasoning and opened_reasoning,
        new_id=new_id or call_id,
    )


def call_id() -> str:
    """A name for one call, new in every reply."""
    return f"call_{secrets.token_hex(12)}"


class ReplyParser:
    """Give it the text as it comes (`push`), then `finish`; it gives pieces.

    Reasoning is taken as such at the beginning of the reply only. White space next to the marks of
    reasoning and of calls belongs to the marks. What looked like a call and turns out to be none
    is content, to the letter; where that shows only after the call's arguments began to go out,
    the rest of the text is content, and the arguments stay the unfinished JSON that they are.
    """

    def __init__(
        self,
        *,
        style: Style | None,
        names: Collection[str],
        reasoning: bool,
        opened_reasoning: bool,
        new_id: Callable[[], str],
    ) -> None:
        self._style = style
        self._names = names
        self._new_id = new_id
        self._calls = 0
        # Those whose arguments end within their JSON.
        self._cut: set[int] = set()
        self._out: list[Piece] = []
        # Text that is not taken apart yet: what is looked at, and what comes behind that.
        self._left = ""
        self._queue: deque[str] = deque()
        # White space whose meaning depends on what follows.
        self._held: list[str] = []
        self._kind: Kind = "content"
        # Behind reasoning, before any content.
        self._behind_reasoning = False
        # Llama 3: a call may begin with a bare brace here. Hermes: a call's end mark is missing.
        self._bare = style == "llama3"
        self._unclosed = False
        # A model whose prompt has opened the reasoning may open it again.
        self._may_open = opened_reasoning
        self._reader = CallReader(names, False)
        self._mark = ""
        self._raw: list[str] = []
        self._started = False
        self._step: Callable[[bool], bool] = self._in_content
        if opened_reasoning:
            self._step = self._before_reasoning
            self._kind = "reasoning"
        elif reasoning:
            self._step = self._at_start

    @property
    def tool_calls(self) -> bool:
        """Whether a call was found so far."""
        return self._calls > 0

    def whole_calls(self, first_only: bool = False) -> bool:
        """Whether calls were found, and the arguments of each, or of the first, are there to the
        end. To be asked when the reply is over."""
        return self._calls > 0 and not (0 in self._cut if first_only else self._cut)

    def push(self, text: str) -> list[Piece]:
        """What is certain now."""
        self._queue.extend(text[at : at + _PART] for at in range(0, len(text), _PART))
        self._run(False)
        return self._taken()

    def finish(self) -> list[Piece]:
        """What was kept back; the reply has ended, or was cut."""
        self._run(True)
        if self._held and not (self._kind == "content" and self._calls):
            self._emit(self._kind, "".join(self._held))
        self._held.clear()
        return self._taken()

    def _run(self, ended: bool) -> None:
        while True:
            while self._step(ended and not self._queue):
                pass
            if not self._queue:
                return
            self._left += self._queue.popleft()

    # The steps: each takes from the text that is left, and says whether there is more to do.

    def _at_start(self, final: bool) -> bool:
        rest = self._left.lstrip(WHITE)
        if rest.startswith(THINK):
            self._left = rest[len(THINK) :]
            self._kind = "reasoning"
            self._step = self._before_reasoning
        elif THINK.startswith(rest) and not final:
            return False
        else:
            self._step = self._in_content
        return True

    def _before_reasoning(self, final: bool) -> bool:
        """Inside the reasoning, before its first word."""
        self._left = self._left.lstrip(WHITE)
        if self._may_open and self._left.startswith(THINK):
            self._left = self._left[len(THINK) :]
            self._may_open = False
            return True
        if self._style == "hermes" and self._left.startswith(TOOL_OPEN):
            self._to_content()
            return True
        awaited = (THINK,) * self._may_open + (TOOL_OPEN,) * (self._style == "hermes")
        if not self._left or (not final and any(m.startswith(self._left) for m in awaited)):
            return False
        self._step = self._in_reasoning
        return True

    def _in_reasoning(self, final: bool) -> bool:
        before, mark, self._left = find_mark(self._left, (THOUGHT,), final)
        self._say(before)
        if mark is None:
            return False
        self._held.clear()
        self._to_content()
        return True

    def _to_content(self) -> None:
        self._kind = "content"
        self._behind_reasoning = True
        self._step = self._in_content

    def _in_content(self, final: bool) -> bool:
        if not self._left:
            return False
        if self._style is None:
            text, self._left = self._left, ""
            self._say(text)
            return False
        if self._bare and not self._skip_to_brace():
            return bool(self._left) and not self._bare
        if self._bare:
            self._begin("")
            return True
        wanted = marks(self._style) if self._unclosed else (TOOL_OPEN,)
        if self._style == "llama3":
            wanted = (PYTHON_TAG,)
        before, mark, self._left = find_mark(self._left, wanted, final)
        self._say(before)
        if mark is None:
            return False
        if mark == TOOL_CLOSE:
            self._unclosed = False
            self._held.clear()
        else:
            self._begin(mark)
        return True

    def _skip_to_brace(self) -> bool:
        """Whether a bare call begins here; else, unless it is open yet, none can any more."""
        rest = self._left.lstrip(f"{WHITE};" if self._calls else WHITE)
        self._hold(self._left[: len(self._left) - len(rest)])
        self._left = rest
        if rest and rest[0] != "{":
            self._bare = False
        return rest.startswith("{")

    # Calls

    def _begin(self, mark: str) -> None:
        self._reader = CallReader(self._names, needs_arguments=self._style == "llama3")
        self._mark = mark
        self._raw = []
        self._started = self._bare = self._unclosed = False
        self._step = self._in_call

    def _in_call(self, final: bool) -> bool:
        text, self._left = self._left, ""
        for at, char in enumerate(text):
            progress = self._reader.feed(char)
            if progress != "more":
                self._give()
                if progress == "done":
                    self._bare = self._style == "llama3"
                    self._unclosed = self._style == "hermes"
                    self._end_call(text[at + 1 :])
                else:
                    self._no_call(text, at)
                return True
        self._give()
        if final:
            self._no_call(text, len(text))
            return True
        if not self._started:
            self._raw.append(text)
        return False

    def _give(self) -> None:
        """Give out what is known of the call."""
        if not self._reader.ready:
            return
        if not self._started:
            self._started = True
            self._behind_reasoning = False
            self._held.clear()
            start = Piece("tool_start", "", self._calls, self._reader.name, self._new_id())
            self._out.append(start)
            self._calls += 1
        self._emit("tool_arguments", self._reader.take(), self._calls - 1)

    def _no_call(self, text: str, at: int) -> None:
        """The text cannot be a call from ``at`` on: it is content."""
        if self._started:
            # Arguments that are whole make a call, whatever its outer object lacks.
            if not self._reader.complete:
                self._cut.add(self._calls - 1)
            self._unclosed = self._style == "hermes" and self._reader.complete
            self._end_call(text[at:])
            return
        self._queue.extendleft((text, *reversed(self._raw)))
        self._raw = []
        self._say(self._mark)
        self._end_call("")

    def _end_call(self, rest: str) -> None:
        self._left = rest
        self._step = self._in_content

    # Pieces

    def _say(self, text: str) -> None:
        """Content or reasoning; white space at its end waits for what follows."""
        if self._behind_reasoning:
            text = text.lstrip(WHITE)
            self._behind_reasoning = not text
        if self._style is None and self._kind == "content":
            self._emit("content", text)
            return
        kept = text.rstrip(WHITE)
        if kept:
            self._emit(self._kind, "".join(self._held) + kept)
            self._held.clear()
        self._hold(text[len(kept) :])

    def _hold(self, space: str) -> None:
        if space and not self._behind_reasoning:
            self._held.append(space)

    def _emit(self, kind: Kind, text: str, index: int = 0) -> None:
        if not text:
            return
        last = self._out[-1] if self._out else None
        if last is not None and (last.kind, last.index) == (kind, index):
            self._out[-1] = replace(last, text=last.text + text)
        else:
            self._out.append(Piece(kind, text, index))

    def _taken(self) -> list[Piece]:
        taken, self._out = self._out, []
        return taken
