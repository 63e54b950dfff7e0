"""How the server is run, checked when made. A bad value raises ConfigError and names the option."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from wager.checks import flag, real, whole
from wager.config import MAX_GRAMMAR_CHARACTERS
from wager.errors import ConfigError

MetricsAlias: TypeAlias = Literal["", "vllm"]

# What a header can carry, and what no shell or proxy takes apart.
_KEY: Final = re.compile(r"[\x21-\x7e]{1,512}")
_ORIGIN: Final = re.compile(r"\*|[a-z][a-z0-9+.\-]*://[^/\s,]+")
_LARGEST_BODY: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where the server listens, who may ask, and how much. Defaults are the command line's too.

    ``max_queue`` is how many requests may wait, ``max_body`` in bytes, ``max_prompts`` in a list,
    ``max_choices`` bounds ``n``, ``max_depth`` the nesting of JSON. Times are in seconds:
    ``request_timeout`` bounds one request, ``drain_timeout`` what goes on when the server is told
    to stop, ``stall_timeout`` how long the engine may show no progress before `/health` says so.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_names: tuple[str, ...] = ("default",)
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_queue: int = 256
    max_body: int = 4 << 20
    max_prompts: int = 64
    max_choices: int = 16
    max_stops: int = 16
    max_schema_bytes: int = 64 << 10
    max_depth: int = 64
    request_timeout: float = 600.0
    drain_timeout: float = 30.0
    stall_timeout: float = 60.0
    metrics_alias: MetricsAlias = ""
    metrics_port: int | None = None
    dashboard_show_text: bool = False
    json_logs: bool = False

    def __post_init__(self) -> None:
        if not self.host or any(sign.isspace() for sign in self.host):
            raise ConfigError(f"host: must be a name or an address; got {self.host!r}")
        whole("port", self.port, 1, 65535)
        if self.metrics_port is not None:
            whole("metrics_port", self.metrics_port, 1, 65535)
            if self.metrics_port == self.port:
                raise ConfigError(
                    f"metrics_port: {self.metrics_port} is --port too; the server has /metrics "
                    "there already, so leave --metrics-port out or give another"
                )
        if self.metrics_alias not in get_args(MetricsAlias):
            raise ConfigError(
                f"metrics_alias: must be vllm, or left out; got {self.metrics_alias!r}"
            )
        flag("dashboard_show_text", self.dashboard_show_text)
        flag("json_logs", self.json_logs)
        self._check_texts()
        self._check_limits()

    def _check_texts(self) -> None:
        if not self.served_names:
            raise ConfigError("served_model_name: give at least one name")
        for name in self.served_names:
            if not name or not name.isprintable():
                raise ConfigError(f"served_model_name: {name!r} is no name that can be printed")
        for number, key in enumerate(self.api_keys, 1):
            # Which key it is must not end up in a log.
            if not _KEY.fullmatch(key):
                raise ConfigError(
                    f"api_key: key {number} of {len(self.api_keys)} is empty, or has a sign that "
                    "is not printable ASCII, or more than 512 of them"
                )
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"allowed_origins: {origin!r} is no origin; write e.g. http://localhost:3000 "
                    "(scheme, host and port, nothing after them), or * for every page there is"
                )

    def _check_limits(self) -> None:
        most = {
            "max_queue": 1 << 20, "max_body": _LARGEST_BODY, "max_prompts": 1 << 16,
            "max_choices": 128, "max_stops": 32, "max_schema_bytes": MAX_GRAMMAR_CHARACTERS,
            "max_depth": 256,
        }  # fmt: skip
        for name, high in most.items():
            whole(name, getattr(self, name), 1, high)
        real("request_timeout", self.request_timeout, 0.0, 86400.0 * 30, open_low=True)
        real("drain_timeout", self.drain_timeout, 0.0, 86400.0)
        real("stall_timeout", self.stall_timeout, 0.0, 86400.0, open_low=True)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """Where the server is found."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
