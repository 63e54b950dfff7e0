"""One file of the hub into its cache: begun anew where it broke off, and named when it is right.

The library's own download begins again from nothing after an interruption, and believes what came.
This one keeps what came under a name of its own, goes on from there, and gives the bytes their
final name only when size and hash are those that the hub states.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if sys.platform != "win32":
    import fcntl

from wager.errors import CorruptFile
from wager.models.hub_cache import PARTIAL
from wager.models.hub_errors import unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE: Final = 1 << 20
_TRIES: Final = 5
"""In a row that bring nothing."""
_WAIT_SECONDS: Final = 1.0
_LONGEST_WAIT: Final = 30.0
_BUSY: Final = (408, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the hub says of a file; None is what it does not say. ``git`` is git's sha1 of a blob,
    of files that are not stored apart."""

    size: int | None
    sha256: str | None = None
    git: str | None = None

    def digest(self) -> Any:
        """A hash object for the file's bytes, of the kind that is stated."""
        if self.sha256 is None and self.git is not None and self.size is not None:
            return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        return hashlib.sha256()

    @property
    def hash(self) -> str | None:
        """What `digest` has to come to."""
        return self.sha256 or (self.git if self.size is not None else None)


def is_sound(path: Path, expected: Expected, tell: Callable[[int], None]) -> bool:
    """Whether a file is what the hub states; ``tell`` hears how many bytes were read."""
    if expected.size is not None and path.stat().st_size != expected.size:
        return False
    digest = expected.digest()
    with path.open("rb") as file:
        _read_into(digest, file, tell)
    return expected.hash is None or digest.hexdigest() == expected.hash


def fetch(url: str, blob: Path, what: str, expected: Expected, tell: Callable[[int], None]) -> None:
    """The bytes of ``url`` as the file ``blob``; ``tell`` hears how many are there.

    Raises CorruptFile when they are not those that the hub states, OSError, and what the hub's
    library and its HTTP client raise.
    """
    part = blob.with_name(f"{blob.name}{PARTIAL}")
    blob.parent.mkdir(parents=True, exist_ok=True)
    with part.open("a+b") as file, _alone(file):
        if blob.exists():  # another pull brought it while this one waited
            part.unlink(missing_ok=True)
            return
        digest = _Download(url, file, expected, tell).run()
        size = file.tell()
        wrong = _difference(digest, size, expected)
        if wrong is not None:
            part.unlink()
            raise CorruptFile(
                f"{what}: came with {wrong}; nothing of it was kept: pull again, and if it is the "
                "same again, ask who runs the hub or the proxy in between"
            )
        file.flush()
        os.fsync(file.fileno())
        part.replace(blob)


@contextmanager
def _alone(file: BinaryIO) -> Iterator[None]:
    """Waits until no other process writes this file; the kernel frees it whatever happens."""
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _difference(digest: Any, size: int, expected: Expected) -> str | None:
    if expected.size is not None and size != expected.size:
        return f"{size} bytes, not {expected.size}"
    if expected.hash is not None and digest.hexdigest() != expected.hash:
        return f"the {digest.name} {digest.hexdigest()}, not {expected.hash}"
    return None


class _Download:
    """One file, by as many requests as it takes. What is there of it already counts."""

    def __init__(
        self, url: str, file: BinaryIO, expected: Expected, tell: Callable[[int], None]
    ) -> None:
        self._url = url
        self._file = file
        self._expected = expected
        self._tell = tell
        self._digest = expected.digest()
        self._busy = 0

    def run(self) -> Any:
        """Returns the digest of the whole file."""
        self._file.seek(0)
        _read_into(self._digest, self._file, lambda _: None)
        size = self._expected.size
        if size is not None and self._file.tell() > size:
            self._restart()
        failed = 0
        while True:
            before = self._file.tell()
            if size is not None and before == size:
                return self._digest
            try:
                wait = self._ask(before)
            except Exception as error:
                if not unreachable(error) or failed + 1 >= _TRIES:
                    raise
                wait = None
            else:
                if size is None and wait is None:
                    return self._digest
            failed = 0 if self._file.tell() > before else failed + 1
            if failed >= _TRIES:
                raise ConnectionError("the answers break off")
            time.sleep(min(_WAIT_SECONDS * failed if wait is None else wait, _LONGEST_WAIT))

    def _ask(self, have: int) -> float | None:
        """One request from byte ``have`` on; seconds to wait where the hub says that it is busy.

        The client drops the token where the hub sends it on to another host.
        """
        from huggingface_hub import constants, get_session, get_token, hf_raise_for_status

        headers = {"Accept-Encoding": "identity"}
        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if have and self._expected.size is None:
            # Nobody could tell whether what is there is the whole file already.
            self._restart()
        elif have:
            headers["Range"] = f"bytes={have}-"
        with get_session().stream(
            "GET", self._url, headers=headers, follow_redirects=True,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        ) as response:  # fmt: skip
            if response.status_code in _BUSY:
                self._busy += 1
                if self._busy < _TRIES:
                    return _asked_wait(response.headers.get("Retry-After"), self._busy)
            hf_raise_for_status(response)
            if "Range" in headers and response.status_code != 206:
                self._restart()
            # As they come: pieces of a fixed size would be lost where an answer breaks off.
            for piece in response.iter_bytes():
                self._file.write(piece)
                self._digest.update(piece)
                self._tell(self._file.tell())
        return None

    def _restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._digest = self._expected.digest()


def _asked_wait(header: str | None, times: int) -> float:
    """Seconds; the header may hold a date, too, which is not worth reading for a few of them."""
    return float(header) if header and header.isdigit() else _WAIT_SECONDS * 2**times


def _read_into(digest: Any, file: BinaryIO, tell: Callable[[int], None]) -> None:
    while piece := file.read(_PIECE):
        digest.update(piece)
        tell(file.tell())
