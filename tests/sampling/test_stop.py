"""Stop strings against a search of the whole text after each piece."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wager.sampling.stop import StopSearch


def naive(
    pieces: list[str], stops: list[str], include: bool, unarmed: int
) -> tuple[str, str | None]:
    """The text that remains and the stop string that ended it."""
    text = ""
    for number, piece in enumerate(pieces):
        old, text = len(text), text + piece
        if number < unarmed:
            continue
        for at in range(len(text)):
            for stop in stops:
                if text.startswith(stop, at) and at + len(stop) > old:
                    return text[: at + len(stop) if include else at], stop
    return text, None


def could_still_match(text: str, stops: list[str]) -> int:
    """Where the tail begins that may become a stop string."""
    return next(
        (at for at in range(len(text))
         if any(s.startswith(text[at:]) and len(s) > len(text) - at for s in stops)),
        len(text),
    )  # fmt: skip


@settings(max_examples=1500, deadline=None)
@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    include=st.booleans(),
    unarmed=st.integers(0, 6),
)
def test_any_pieces(pieces: list[str], stops: list[str], include: bool, unarmed: int) -> None:
    search = StopSearch(stops, include)
    released = whole = ""
    for number, piece in enumerate(pieces):
        whole += piece
        released += search.push(piece, armed=number >= unarmed)
        if search.found is not None:
            break
        assert released == whole[: could_still_match(whole, stops)]
    else:
        released += search.flush()
    assert (released, search.found) == naive(pieces, stops, include, unarmed)
    assert search.flush() == ""


@pytest.mark.parametrize("cut", range(1, 12))
def test_across_any_border(cut: int) -> None:
    text = "Hello STOP more"
    search = StopSearch(["STOP"])
    released = search.push(text[:cut])
    if search.found is None:
        released += search.push(text[cut:])
    assert (released, search.found) == ("Hello ", "STOP")


@pytest.mark.parametrize(("stops", "found"), [(["ab", "abc"], "ab"), (["abc", "ab"], "abc")])
def test_same_start_takes_the_first_in_the_list(stops: list[str], found: str) -> None:
    search = StopSearch(stops, include=True)
    assert search.push("xabcd") == "x" + found
    assert search.found == found


def test_long_stop_string_is_cheap_to_miss() -> None:
    """A near miss of thousands of characters gives all the text back."""
    search = StopSearch(["a" * 5000 + "b"])
    released = "".join(search.push("a") for _ in range(5000))
    assert released == ""
    assert search.push("c") == "a" * 5000 + "c"
