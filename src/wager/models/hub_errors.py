"""What the hub's library raises, as one line for the user."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from wager.errors import ModelError


@contextmanager
def hub_errors(repo: str, revision: str | None) -> Iterator[None]:
    """Raises ModelError for what went wrong with a repository."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repo}: is gated: accept its terms on the hub, then set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{repo}: has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{repo}: there is no such model on the hub, or it is private and HF_TOKEN is not set"
        ) from error
    except errors.HfHubHTTPError as error:
        raise ModelError(f"{repo}: {_answer(error)}") from error
    except errors.HFValidationError as error:
        raise ModelError(f"{repo}: the hub answered: {_line(error)}") from error
    except Exception as error:
        if unreachable(error):
            what = f"the hub stopped answering ({type(error).__name__})"
        elif isinstance(error, OSError):
            # The cache of the hub's library cannot be written, or a file went away.
            what = _disk(error)
        else:
            raise
        raise ModelError(f"{repo}: {what}") from error


def unreachable(error: Exception) -> bool:
    """Whether the hub did not answer. The library's HTTP client depends on its version."""
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.startswith(
        "httpx"
    )


def no_space(where: str) -> str:
    """What to say of a full disk."""
    return (
        f"the disk of {where} is full; make room, or let HF_HOME name a directory on another disk"
    )


def _answer(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 429:
        return "the hub asks for fewer requests (429); wait some minutes, or set HF_TOKEN"
    if status in (401, 403):
        return f"the hub refuses access ({status}); set HF_TOKEN to a token that may read it"
    return f"the hub answered: {_line(error)}"


def _disk(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return no_space(str(error.filename or "the hub's cache"))
    return _line(error)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
