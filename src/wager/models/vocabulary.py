"""Whether two models mean the same by a token id: what lets one draft for the other."""

from __future__ import annotations

from wager.errors import ConfigError
from wager.models.tokenizer import Tokenizer


def common_ids(target: Tokenizer, drafter: Tokenizer) -> int:
    """How many ids, counted from 0, both know and mean the same by.

    Rows of an embedding that pad it beyond the tokenizer do not count, and one vocabulary may end
    before the other. Raises ConfigError where an id that both know differs, with the share of the
    drafter's tokens that the target has at all.
    """
    size = min(target.vocab_size, drafter.vocab_size)
    if target.hash == drafter.hash:
        return size
    for token in range(size):
        ours, theirs = target.token_bytes(token), drafter.token_bytes(token)
        if ours != theirs or target.is_special(token) != drafter.is_special(token):
            raise ConfigError(_differs(target, drafter, token))
    return size


def _differs(target: Tokenizer, drafter: Tokenizer, token: int) -> str:
    known = {target.token_bytes(i) for i in range(target.vocab_size)}
    tokens = [drafter.token_bytes(i) for i in range(drafter.vocab_size)]
    share = sum(one in known for one in tokens) / max(len(tokens), 1)
    return (
        f"model: {drafter.name} has another vocabulary than {target.name}: id {token} is "
        f"{drafter.token_bytes(token)!r} there and {target.token_bytes(token)!r} here; "
        f"{share:.0%} of its tokens exist in the target at all, and every draft would have to be "
        "written as text and read again, which costs more tokens than it wins; choose a drafter "
        "with the target's tokenizer"
    )
