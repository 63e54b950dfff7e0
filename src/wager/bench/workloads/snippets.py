"""Small Python functions and files made from templates, with names and constants that vary."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Final

_ITEMS: Final = (
    "orders", "readings", "samples", "invoices", "events", "packets", "scores", "bookings",
    "visits", "tickets", "messages", "parcels", "payments", "sensors", "measurements", "rows",
)  # fmt: skip
_TOTALS: Final = ("total", "result", "collected", "summary", "output", "answer", "buffer", "state")
_LIMITS: Final = ("limit", "threshold", "ceiling", "cutoff", "maximum", "boundary")
_ADJECTIVES: Final = ("recent", "valid", "daily", "pending", "unique", "sorted", "weekly", "final")

# {items}, {item}, {acc}, {limit} are names, {adj} an adjective, {a} and {b} numbers.
_FUNCTIONS: Final = (
    '''def count_{adj}_{items}({items}, {limit}={a}):
    """Count how many {items} lie above the {limit}."""
    {acc} = 0
    for {item} in {items}:
        if {item} is None:
            continue
        if {item} > {limit}:
            {acc} += 1
    if {acc} > {b}:
        {acc} = {b}
    return {acc}
''',
    '''def group_{adj}_{items}({items}, size={a}):
    """Split {items} into groups of at most the given size."""
    {acc} = []
    current = []
    for {item} in {items}:
        current.append({item})
        if len(current) == size:
            {acc}.append(current)
            current = []
    if current:
        {acc}.append(current)
    return {acc}
''',
    '''def average_{adj}_{items}({items}, window={a}):
    """Moving average of {items} over a window."""
    {acc} = []
    running = 0.0
    for index, {item} in enumerate({items}):
        running += {item}
        if index >= window:
            running -= {items}[index - window]
        width = min(index + 1, window)
        {acc}.append(running / width)
    return {acc}
''',
    '''def merge_{adj}_{items}(first, second, {limit}={b}):
    """Merge two sorted lists of {items} and keep the smallest ones."""
    {acc} = []
    left = right = 0
    while left < len(first) and right < len(second):
        if first[left] <= second[right]:
            {acc}.append(first[left])
            left += 1
        else:
            {acc}.append(second[right])
            right += 1
    {acc}.extend(first[left:])
    {acc}.extend(second[right:])
    return {acc}[:{limit}]
''',
    '''def parse_{adj}_{items}(text, {limit}={a}):
    """Read {items} from lines of the form name=value."""
    {acc} = {{}}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, _, value = line.partition("=")
        {acc}[name.strip()] = float(value) * {b}
        if len({acc}) >= {limit}:
            break
    return {acc}
''',
    '''def rank_{adj}_{items}({items}, {limit}={a}):
    """The best {items} by score, highest first."""
    {acc} = {{}}
    for {item} in {items}:
        key = {item}["name"]
        {acc}[key] = {acc}.get(key, 0) + {item}["score"]
    ordered = sorted({acc}, key={acc}.get, reverse=True)
    if len(ordered) > {limit}:
        ordered = ordered[:{limit}]
    return [(key, {acc}[key]) for key in ordered]
''',
    '''def retry_{adj}_{items}(send, {items}, {limit}={a}):
    """Send all {items}; try each one again until the {limit} is reached."""
    {acc} = []
    for {item} in {items}:
        for attempt in range({limit}):
            if send({item}, timeout={b}):
                break
        else:
            {acc}.append({item})
    return {acc}
''',
    '''def scale_{adj}_{items}({items}, {limit}={b}):
    """Scale {items} so that the largest one equals the {limit}."""
    {acc} = max({items}, default=0)
    if {acc} == 0:
        return list({items})
    factor = {limit} / {acc}
    scaled = []
    for {item} in {items}:
        scaled.append(round({item} * factor, {small}))
    return scaled
''',
)

_NEW_NAMES: Final = (
    "gathered", "outcome", "tally", "register", "ledger", "basket", "running_sum", "accumulated",
    "chosen", "storage", "record_book", "inventory",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Function:
    """Source of one function and the name of the variable that it is built around."""

    source: str
    variable: str


def function(rng: Random) -> Function:
    """A function of 8 to 14 lines."""
    items = rng.choice(_ITEMS)
    variable = rng.choice(_TOTALS)
    source = rng.choice(_FUNCTIONS).format(
        items=items,
        item=items[:-1] if items.endswith("s") else items,
        acc=variable,
        limit=rng.choice(_LIMITS),
        adj=rng.choice(_ADJECTIVES),
        a=rng.randint(3, 60),
        b=rng.randint(61, 900),
        small=rng.randint(1, 4),
    )
    return Function(source, variable)


def new_name(rng: Random) -> str:
    """A variable name that no template uses."""
    return rng.choice(_NEW_NAMES)


def rename(source: str, old: str, new: str) -> str:
    """``source`` with the identifier ``old`` (whole words only) replaced by ``new``."""
    return re.sub(rf"\b{re.escape(old)}\b", new, source)


_SETTINGS: Final = (
    ("TIMEOUT_SECONDS", 5, 90), ("MAX_RETRIES", 2, 12), ("PAGE_SIZE", 10, 200),
    ("CACHE_ENTRIES", 64, 4096), ("WORKERS", 1, 32), ("BATCH_SIZE", 8, 512), ("PORT", 1024, 9999),
    ("QUEUE_LENGTH", 16, 900), ("POLL_INTERVAL", 1, 60), ("LOG_LEVEL", 1, 5),
    ("MAX_UPLOAD_KB", 128, 8192), ("SESSION_MINUTES", 5, 240),
)  # fmt: skip
_FILE_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class Edit:
    """A file, the three changes asked for (line mark, new value), and the file after them."""

    source: str
    changes: tuple[tuple[str, int], ...]
    expected: str


def edited_file(rng: Random) -> Edit:
    """A file of 40 lines with three settings marked ``# change A`` to ``# change C``."""
    settings = rng.sample(_SETTINGS, len(_SETTINGS))
    marked = sorted(rng.sample(range(len(settings)), 3))
    before: list[str] = []
    after: list[str] = []
    changes: list[tuple[str, int]] = []
    for index, (name, low, high) in enumerate(settings):
        old, new = rng.sample(range(low, high + 1), 2)
        mark = ""
        if index in marked:
            letter = "ABC"[marked.index(index)]
            mark = f"  # change {letter}"
            changes.append((letter, new))
        before.append(f"{name} = {old}{mark}")
        after.append(f"{name} = {new if mark else old}{mark}")
    body = _body(rng, _FILE_LINES - len(settings) - 2)
    head = [f'"""Settings of the {rng.choice(_ADJECTIVES)} {rng.choice(_ITEMS)} service."""', ""]
    return Edit(
        "\n".join(head + before + body) + "\n",
        tuple(changes),
        "\n".join(head + after + body) + "\n",
    )


def _body(rng: Random, lines: int) -> list[str]:
    """Functions after the settings, cut and filled to exactly ``lines`` lines."""
    body: list[str] = []
    while len(body) < lines:
        body += ["", "", *function(rng).source.rstrip("\n").split("\n")]
    # A cut function would not parse; what does not fit becomes a comment block.
    while len(body) > lines:
        start = max(i for i, line in enumerate(body) if line.startswith("def "))
        del body[start - 2 :]
    body += [f"# note {i + 1}: {rng.choice(_ADJECTIVES)} {rng.choice(_ITEMS)} are kept for "
             f"{rng.randint(2, 90)} days" for i in range(lines - len(body))]  # fmt: skip
    return body
