"""What speculation took of each request's time: a step's, in equal shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wager.engine.scheduler import Work
from wager.types import RequestOutput


def share(
    works: Sequence[Work], outputs: Iterable[RequestOutput], draft_s: float, verify_s: float
) -> None:
    """Add a step's seconds to its requests, and bring their outputs up to date.

    ``draft_s`` is what the drafters took, shared by the requests that decode; ``verify_s`` the rest
    that a draft has a part in (the pass, and the sampling), shared by all requests of the step and
    counted for those whose drafts it verified.
    """
    drafted = {w.sequence.request.request_id for w in works if w.draft.tokens}
    if not drafted and draft_s <= 0.0:
        return
    requests = {w.sequence.request.request_id: w.sequence.request for w in works}
    decoding = {w.sequence.request.request_id for w in works if w.decoding}
    for name in decoding:
        requests[name].draft_ms += 1e3 * draft_s / len(decoding)
    for name in drafted:
        requests[name].verify_ms += 1e3 * verify_s / len(requests)
    for output in outputs:
        request = requests.get(output.request_id)
        if request is not None:
            output.draft_ms, output.verify_ms = request.draft_ms, request.verify_ms
