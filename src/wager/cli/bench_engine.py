"""Which engine `wager bench` measures: its options, checked, and the backend made of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wager.backend import Load
from wager.cli.bench_options import json_object
from wager.errors import ConfigError, ModelError
from wager.memory import parse_size

if TYPE_CHECKING:
    from wager.external.server import ServerBackend
    from wager.external.url import UrlBackend

OWN: Final = "own"
CHATS_ONLY: Final = ("ollama",)
"""Engines whose streams take no raw text."""
_OWN_ONLY: Final = {"weights": "auto", "kv": "auto", "ops": "auto", "draft_memory": None}
_STARTED_ONLY: Final = ("engine_command", "engine_program", "engine_args", "kv_memory")
_URL_ONLY: Final = ("url", "url_off", "url_on", "request_off", "request_on", "metrics_url")


def refuse_foreign(engine: str, given: Mapping[str, Any]) -> None:
    """An option that the chosen engine would not hear of is refused rather than ignored."""
    for name, default in _OWN_ONLY.items():
        if engine != OWN and given.get(name, default) != default:
            option = name.replace("_", "-")
            raise ConfigError(
                f"{option}: is for wager's own engine; use --engine-args for {engine}"
            )
    for name in (*_STARTED_ONLY, "start_timeout"):
        if engine in (OWN, "url") and given[name] is not None:
            raise ConfigError(f"{name.replace('_', '-')}: is for engines that are started")
    for name in _URL_ONLY:
        if engine != "url" and given[name] is not None:
            raise ConfigError(f"{name.replace('_', '-')}: is for --engine url")
    if engine == OWN and given["request_timeout"] is not None:
        raise ConfigError("request-timeout: is for engines that are servers")
    if engine == "url":
        for name in ("threads", "max_model_len"):
            if given[name] is not None:
                option = name.replace("_", "-")
                raise ConfigError(f"{option}: a server that runs already cannot be given options")


def settings(engine: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that make two runs of an engine comparable: part of what a plan is."""
    own = ("weights", "kv", "threads", "max_model_len", "ops")
    other = ("threads", "max_model_len", *_STARTED_ONLY, *_URL_ONLY)
    return {name: given[name] for name in (own if engine == OWN else other)}


def vocab_size(model: str) -> int:
    """Needed for random token ids only; of a server that runs already it is not known."""
    from wager.models.facts.read import read_facts

    try:
        return read_facts(model, tokenizer=False).vocab_size
    except ModelError as error:
        raise ConfigError(
            "workload: random needs the size of the vocabulary, and the model tells none "
            f"({error}); leave it out, or name the model by its file or directory"
        ) from error


def open_engine(
    engine: str, model: str, loads: Sequence[Load], log_dir: Path | None, given: Mapping[str, Any]
) -> ServerBackend | UrlBackend:
    """A backend of any engine but the own one; nothing is started. Raises ConfigError."""
    if engine == "url":
        return _running(model, given)
    from wager.external.engines import open_backend
    from wager.external.server import ServerOptions

    try:
        arguments = tuple(shlex.split(given["engine_args"] or ""))
    except ValueError as error:
        raise ConfigError(f"engine-args: {error}") from error
    memory, most = given["kv_memory"], max((load.clients or 0 for load in loads), default=0)
    timeouts = {
        f"{name}_s": given[name]
        for name in ("start_timeout", "request_timeout")
        if given[name] is not None
    }
    options = ServerOptions(
        engine_command=given["engine_command"],
        program=given["engine_program"],
        arguments=arguments,
        max_model_len=given["max_model_len"],
        max_clients=most or None,
        kv_memory=None if memory is None else parse_size(memory, "kv-memory"),
        threads=given["threads"],
        log_dir=log_dir,
        measuring=True,
        **timeouts,
    )
    return open_backend(engine, model, options)


def _running(model: str, given: Mapping[str, Any]) -> UrlBackend:
    from wager.external.url import UrlBackend, UrlOptions

    def body(name: str) -> dict[str, Any]:
        text = given[name]
        option = name.replace("_", "-")
        return {} if text is None else json_object(option, text, '{"speculative": false}')

    timeout = given["request_timeout"]
    return UrlBackend(
        UrlOptions(
            url=given["url"],
            url_off=given["url_off"],
            url_on=given["url_on"],
            request_off=body("request_off"),
            request_on=body("request_on"),
            model=None if model == "-" else model,
            api_key=given["api_key"],
            metrics_url=given["metrics_url"],
            **({} if timeout is None else {"request_timeout_s": timeout}),
        )
    )
