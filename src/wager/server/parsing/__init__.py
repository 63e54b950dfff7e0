"""What a reply's text means: reasoning, calls of tools, and the rest.

`reply_parser` reads a reply as it grows; what it says does not depend on where the text is cut.
`tool_grammar` gives the grammar that makes a model call a tool. Which way of writing calls a model
has learnt is told by its chat template (`tool_style`). Nothing here knows tokens, requests or HTTP,
but for `reasoning_tokens`, which counts them.
"""

from __future__ import annotations

from wager.server.parsing.grammar import tool_grammar
from wager.server.parsing.pieces import Piece
from wager.server.parsing.reasoning import opened_reasoning, reasoning_tokens
from wager.server.parsing.reply import ReplyParser, reply_parser
from wager.server.parsing.tools import Style, marks, tool_style

__all__ = [
    "Piece",
    "ReplyParser",
    "Style",
    "marks",
    "opened_reasoning",
    "reasoning_tokens",
    "reply_parser",
    "tool_grammar",
    "tool_style",
]
