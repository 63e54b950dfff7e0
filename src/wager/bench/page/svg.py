"""Small inline SVG: scales with ticks, charts of lines and points, and rows of marks.

Colours come from classes, so that the page's style sheet decides them for light and dark. Every
text is escaped. Charts have a fixed size of about a phone's width; rows are as wide as their
container, since all their horizontal positions are percentages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

WIDTH: Final = 340
HEIGHT: Final = 216
_LEFT, _RIGHT, _TOP, _BOTTOM = 38, 14, 22, 36
# From fine to coarse: the first set with at most six ticks on the scale is taken.
_RATIO_TICKS: Final = (
    (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0),
    (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0),
    (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
    (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0),
)
_MOST_TICKS: Final = 6
# In a row the ends of the scale lie this far inside, so that no mark is cut off.
_INSET: Final = 1.5
# About the width of one character of a tick.
_CHARACTER: Final = 6.5
ROW_HEIGHT: Final = 20
SHAPES: Final = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.6L4.4 3.4h-8.8z",
    "M0-5L5 0L0 5L-5 0z",
    "M-4.4-3.4h8.8L0 4.6z",
    "M-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z",
)
"""One path per series, so that colour is never the only difference."""
COLOURS: Final = 8
PLAIN: Final = -1
"""The number of plain decoding, which is no series of its own."""
LOST: Final = -2
"""The number of what should not be there."""


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """One element. Attributes and text are escaped; Markup is taken as it is.

    An attribute ``class_`` loses its underscore and ``stroke_width`` becomes ``stroke-width``.
    """
    parts = [
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _spell(value))
        for key, value in attributes.items()
        if value is not None
    ]
    inner = Markup("").join(escape(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(name, Markup("").join(parts), inner)


def _spell(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to 0..1, linear or logarithmic; values beyond the ends are put at the ends."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]
    label: str
    unit: str = ""

    def at(self, value: float) -> float:
        low, high, v = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, v = math.log(low), math.log(high), math.log(v)
        return (v - low) / (high - low) if high > low else 0.5

    def tick_texts(self) -> list[tuple[float, str]]:
        """(position, text) of every tick."""
        return [(tick, f"{_short(tick)}{self.unit}") for tick in self.ticks]


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and value % (size / 10) == 0):
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def colour(index: int) -> str:
    """The class of a series' colour."""
    return {PLAIN: "plain", LOST: "lost"}.get(index, f"s{index % COLOURS}")


def linear(values: Iterable[float], label: str, *, start: float = 0.0, unit: str = "") -> Scale:
    """From ``start`` to a round number above all values, with three to six ticks."""
    top = max([v for v in values if math.isfinite(v)], default=start + 1.0)
    if top <= start:
        top = start + 1.0
    rough = (top - start) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= rough * 0.999)
    count = math.ceil((top - start) / step - 1e-9)
    ticks = tuple(round(start + i * step, 10) for i in range(count + 1))
    return Scale(start, ticks[-1], False, ticks, label, unit)


def ratios(values: Iterable[float], label: str) -> Scale:
    """Logarithmic and always with 1 on it: half as fast lies as far from 1 as twice as fast."""
    known = [v for v in values if v > 0.0 and math.isfinite(v)]
    low = min([0.8, *known]) / 1.05
    high = max([1.25, *known]) * 1.05
    for ticks in _RATIO_TICKS:
        inside = tuple(t for t in ticks if low <= t <= high)
        # A set that ends long before the scale does would leave half of it without a tick.
        reaches = low >= ticks[0] / 2 and high <= 2 * ticks[-1]
        if reaches and len(inside) <= _MOST_TICKS:
            break
    return Scale(low, high, True, inside, label, "x")


def ordinal(values: Sequence[float], label: str) -> Scale:
    """Different values at equal distances: their positions are 0, 1, 2, ..."""
    count = len(values)
    return Scale(-0.5, max(count - 0.5, 0.5), False, tuple(range(count)), label)


@dataclass(frozen=True, slots=True)
class Point:
    """One measured value; ``low`` and ``high`` are its interval, ``note`` its text alternative."""

    x: float
    y: float
    note: str
    low: float | None = None
    high: float | None = None
    text: str | None = None
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one colour and shape (``index``), joined by a line if ``joined``."""

    name: str
    index: int
    points: Sequence[Point]
    dashed: bool = False
    joined: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """What `chart` draws. ``x_texts`` replaces the texts of the ticks of x.

    ``one`` draws a line at y = 1 and shades what lies below it, with ``below`` written there.
    ``diagonal`` draws x = y, with its text.
    """

    alternative: str
    x: Scale
    y: Scale
    series: Sequence[Series]
    x_texts: Sequence[str] | None = None
    one: bool = False
    below: str = ""
    diagonal: str = ""


def chart(what: Chart) -> Markup:
    """A chart as one ``svg`` element."""
    parts = [*_grid(what), *_references(what)]
    for series in what.series:
        parts += _series(series, what)
    return tag(
        "svg", tag("title", what.alternative), *parts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", class_="chart",
    )  # fmt: skip


def _x(scale: Scale, value: float) -> float:
    return _LEFT + scale.at(value) * (WIDTH - _LEFT - _RIGHT)


def _y(scale: Scale, value: float) -> float:
    return HEIGHT - _BOTTOM - scale.at(value) * (HEIGHT - _TOP - _BOTTOM)


def _grid(what: Chart) -> list[Markup]:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = [tag("text", what.y.label, x=2, y=12, class_="label")]
    for value, text in what.y.tick_texts():
        y = _y(what.y, value)
        parts.append(tag("line", x1=_LEFT, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", text, x=_LEFT - 5, y=y + 4, class_="tick end"))
    texts = what.x_texts or [text for _, text in what.x.tick_texts()]
    for value, text in zip(what.x.ticks, texts, strict=True):
        parts.append(tag("text", text, x=_x(what.x, value), y=bottom + 14, class_="tick mid"))
    parts.append(tag("text", what.x.label, x=right, y=HEIGHT - 6, class_="label end"))
    return parts


def _references(what: Chart) -> list[Markup]:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = []
    if what.one:
        y = _y(what.y, 1.0)
        if bottom > y:
            parts.append(tag("rect", x=_LEFT, y=y, width=right - _LEFT, height=bottom - y,
                             class_="loss"))  # fmt: skip
        parts.append(tag("line", x1=_LEFT, x2=right, y1=y, y2=y, class_="one"))
        if what.below:
            parts.append(_aside(what.below))
    if what.diagonal:
        low, high = max(what.x.low, what.y.low), min(what.x.high, what.y.high)
        x1, y1, x2, y2 = (f(s, v) for v in (low, high) for f, s in ((_x, what.x), (_y, what.y)))
        below = [(x1, y1), (x2, y2), (right, y2), (right, bottom), (x1, bottom)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in below)
        parts.append(tag("polygon", points=points, class_="loss"))
        parts.append(tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="one"))
        parts.append(_aside(what.diagonal))
    return parts


def _aside(text: str) -> Markup:
    """What the shade means, under the plot, where no mark can cover it."""
    square = tag("rect", x=2, y=HEIGHT - 15, width=10, height=10, class_="loss key")
    return square + tag("text", text, x=16, y=HEIGHT - 6, class_="aside")


def _series(series: Series, what: Chart) -> list[Markup]:
    paint = colour(series.index)
    places = [(_x(what.x, p.x), _y(what.y, p.y)) for p in series.points]
    parts = []
    if series.joined and len(places) > 1:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = " dashed" if series.dashed else ""
        parts.append(tag("polyline", points=line, class_=f"line {paint}{dash}"))
    for point, (x, y) in zip(series.points, places, strict=True):
        if point.low is not None and point.high is not None:
            y1, y2 = _y(what.y, point.low), _y(what.y, point.high)
            parts.append(tag("line", x1=x, x2=x, y1=y1, y2=y2, class_=f"bar {paint}"))
            for y_end in (y1, y2):
                cap = tag("line", x1=x - 6, x2=x + 6, y1=y_end, y2=y_end, class_=f"bar {paint}")
                parts.append(cap)
        hollow = series.dashed or point.hollow
        place = f"translate({x:.1f} {y:.1f})"
        parts.append(_shape(series.index, hollow, tag("title", point.note), transform=place))
        if point.text:
            # To the left of a mark near the right edge, where the text would leave the picture.
            fits = x + 7 + _CHARACTER * len(point.text) <= WIDTH
            at, kind = (x + 7, "tick") if fits else (x - 7, "tick end")
            parts.append(tag("text", point.text, x=at, y=y + 4, class_=kind))
    return parts


@dataclass(frozen=True, slots=True)
class Mark:
    """One thing in a row: a ``point``, a ``line`` or ``bar`` from value to ``to``, a ``dot``."""

    kind: str
    value: float
    index: int = 0
    to: float | None = None
    note: str = ""
    hollow: bool = False


def row(scale: Scale, marks: Sequence[Mark], alternative: str, *, one: bool = False) -> Markup:
    """One row of a plot whose rows share ``scale``; as wide as its container."""
    middle = ROW_HEIGHT / 2
    parts = [
        tag("line", x1=_percent(scale, t), x2=_percent(scale, t), y1=0, y2=ROW_HEIGHT,
            class_="one" if one and t == 1.0 else "grid")
        for t in scale.ticks
    ]  # fmt: skip
    if one:
        parts.insert(0, tag("rect", x=0, y=0, width=_percent(scale, 1.0), height=ROW_HEIGHT,
                            class_="loss"))  # fmt: skip
    parts += [_mark(scale, mark, middle) for mark in marks]
    return tag("svg", tag("title", alternative), *parts, width="100%", height=ROW_HEIGHT,
               role="img", class_="row")  # fmt: skip


def axis(scale: Scale) -> Markup:
    """The ticks under the rows of a plot."""
    parts = []
    for value, text in scale.tick_texts():
        at = scale.at(value)
        anchor = "start" if at < 0.04 else "end" if at > 0.96 else "mid"
        x = "0" if anchor == "start" else "100%" if anchor == "end" else _percent(scale, value)
        parts.append(tag("text", text, x=x, y=12, class_=f"tick {anchor}"))
    return tag("svg", *parts, width="100%", height=16, aria_hidden="true", class_="row")


def _percent(scale: Scale, value: float) -> str:
    return f"{_INSET + (100 - 2 * _INSET) * scale.at(value):.2f}%"


def _mark(scale: Scale, mark: Mark, middle: float) -> Markup:
    paint = colour(mark.index)
    x = _percent(scale, mark.value)
    title = tag("title", mark.note) if mark.note else Markup("")
    if mark.kind == "line":
        end = _percent(scale, mark.value if mark.to is None else mark.to)
        return tag("line", title, x1=x, x2=end, y1=middle, y2=middle, class_=f"bar {paint}")
    if mark.kind == "bar":
        low, high = sorted((mark.value, mark.value if mark.to is None else mark.to))
        width = f"{(100 - 2 * _INSET) * (scale.at(high) - scale.at(low)):.2f}%"
        return tag("rect", title, x=_percent(scale, low), y=middle - 5, width=width, height=10,
                   class_=f"fill {paint}")  # fmt: skip
    if mark.kind == "dot":
        return tag("circle", title, cx=x, cy=middle, r=3.2, class_=f"dot {paint}")
    return tag("svg", _shape(mark.index, mark.hollow, title), x=x, y=middle, class_="place")


def _shape(index: int, hollow: bool, *children: str, **attributes: object) -> Markup:
    """The mark of a series around (0, 0)."""
    kind = f"mark {colour(index)}{' hollow' if hollow else ''}"
    return tag("path", *children, d=SHAPES[index % len(SHAPES)], class_=kind, **attributes)


def symbol(index: int, *, hollow: bool = False) -> Markup:
    """The mark of a series, for a legend."""
    shape = _shape(index, hollow)
    return tag("svg", shape, viewBox="-6 -6 12 12", width=12, height=12, aria_hidden="true")
