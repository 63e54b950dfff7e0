"""What the server writes down, on standard error: lines for people, or JSON, each with the id of
the request that it is about."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, Final, TextIO

REQUEST_ID: Final[ContextVar[str]] = ContextVar("wager_request_id", default="")
"""Of the request that the running task works for; "" where it works for none."""

_FIELDS: Final = "wager_fields"


def fields(**values: Any) -> dict[str, Any]:
    """``extra`` of a log call: values that JSON lines show by themselves."""
    return {_FIELDS: values}


class TextLines(logging.Formatter):
    """``2026-11-30 10:15:30 INFO [id] message``, and the traceback where there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(mark)s%(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        request_id = REQUEST_ID.get()
        record.mark = f"[{request_id}] " if request_id else ""
        return super().format(record)


class JsonLines(logging.Formatter):
    """One object per line: time (UTC), level, logger, message, request_id, and what `fields` gave;
    ``exception`` is the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = REQUEST_ID.get()
        if request_id:
            line["request_id"] = request_id
        line |= getattr(record, _FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(json_lines: bool, stream: TextIO | None = None) -> None:
    """Send all logs of the process to ``stream``, standard error by default: ours from INFO on,
    those of libraries from WARNING on. What was configured before is replaced."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if json_lines else TextLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("wager").setLevel(logging.INFO)
