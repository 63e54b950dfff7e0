"""From options to a server that runs: the port, the model, uvicorn, and an end in good order.

The port is taken before the model is read, so that one that is in use is known at once, and it
refuses connections until the server is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import uvicorn

from wager.config import EngineConfig
from wager.engine.service import AsyncLLM
from wager.errors import ConfigError, ModelError, RequestError
from wager.server import connections, logs
from wager.server.app import create_app, create_metrics_app
from wager.server.lifetime import LAST_WORDS_S
from wager.server.options import ServerOptions
from wager.server.service import Service
from wager.speculation import SpeculationConfig

log = logging.getLogger(__name__)

FAILED: Final = 1
"""Exit status when the engine failed."""

_POLL_S: Final = 0.01
_CUT_S: Final = LAST_WORDS_S + 1.0
"""How long the ends of requests may take, before the connections that are left are cut."""
_MARGIN_S: Final = 10.0
"""What the server waits beside ``drain_timeout``: more than that."""


def serve(
    model: str,
    config: EngineConfig,
    speculation: SpeculationConfig | None,
    options: ServerOptions,
    say: Callable[[str], None],
) -> int:
    """Serve until a signal comes; returns the exit status.

    0 after SIGINT or SIGTERM: nothing new is taken, and what runs has ``drain_timeout`` to end. A
    second signal ends it at once, and the status is 128 + its number. 1 when the engine failed.
    ``say`` is told when the server is ready. Raises ConfigError for an address that is not to be
    had, and whatever loading the model raises.
    """
    began = time.monotonic()
    logs.configure(options.json_logs)
    connections.allow_files(options.max_queue)
    with contextlib.ExitStack() as opened:
        sockets = _bind(options.host, options.port, "port", opened)
        side = (
            _bind(options.host, options.metrics_port, "metrics_port", opened)
            if options.metrics_port is not None
            else []
        )
        llm = AsyncLLM(model, speculation=speculation, config=config)

        def ready() -> None:
            for line in _ready_lines(llm, options, speculation, time.monotonic() - began):
                say(line)
            _warn_of_strangers(options)
            _warn_of_template(llm)

        return asyncio.run(_serve(llm, options, sockets, side, ready))


async def _serve(
    llm: AsyncLLM,
    options: ServerOptions,
    sockets: list[socket.socket],
    side: list[socket.socket],
    ready: Callable[[], None],
) -> int:
    try:
        app = create_app(llm, options)
        service: Service = app.state.service
        server = _MainServer(_config(app, options), service, ready)
        beside = None
        if side:
            config = _config(create_metrics_app(service), options)
            beside = _Server(config, "metrics_port", options.metrics_port)
        async with _running(beside, side):
            with _signals(server):
                await server.serve(sockets=sockets)
    finally:
        await llm.close()
    return server.status


class _Server(uvicorn.Server):
    """uvicorn's, without its signal handlers: it would raise the signals again when all is done.

    ``option`` is the one that has its ``port``.
    """

    def __init__(self, config: uvicorn.Config, option: str, port: int | None) -> None:
        super().__init__(config)
        self._option = option
        self._port = port

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets=sockets)
        except OSError as error:
            # Two that start at the same time may both have bound the port; one can listen.
            reason = f"cannot listen on port {self._port}: {error.strerror}"
            raise ConfigError(f"{self._option}: {reason}") from error

    def cut(self) -> None:
        """End what is connected; who does not read cannot be told."""
        connections.cut(self.server_state.connections)

    def cut_soon(self) -> None:
        """The same once there was time to tell."""
        asyncio.get_running_loop().call_later(_CUT_S, self.cut)


class _MainServer(_Server):
    """Stops in the order that the service wants, and when the engine fails."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config, "port", service.options.port)
        self.status = 0
        self._service = service
        self._ready = ready
        self._hurries = False

    def told(self, number: int) -> None:
        """A signal came."""
        if self._hurries:
            self.cut()
            return
        if self.should_exit:
            log.warning("a second signal: what still runs ends now")
            self.status = 128 + number
            self._hurries = True
            self._expire()
            return
        log.info("told to stop: what runs may take %g s", self._service.options.drain_timeout)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        if self._service.llm.failed is not None:
            # A supervisor starts another one; this one will not answer again.
            log.critical("the server stops, since its engine failed")
            self.status = FAILED
            return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        service = self._service
        service.drain()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(service.options.drain_timeout, self._expire)
        try:
            await super().shutdown(sockets=sockets)
        finally:
            timer.cancel()

    def _expire(self) -> None:
        self._service.expire()
        self.cut_soon()


def _config(app: Any, options: ServerOptions) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connections.protocol(connections.most_connections(options.max_queue)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        # Nobody stands before this server who may say on whose behalf he asks.
        proxy_headers=False,
        server_header=False,
        backlog=connections.BACKLOG,
        timeout_keep_alive=math.ceil(connections.IDLE_S),
        timeout_graceful_shutdown=math.ceil(options.drain_timeout + _MARGIN_S),
    )


@asynccontextmanager
async def _running(server: _Server | None, sockets: list[socket.socket]) -> AsyncIterator[None]:
    """A second server, for as long as the block runs. Raises ConfigError if it cannot start."""
    if server is None:
        yield
        return
    task = asyncio.ensure_future(server.serve(sockets=sockets))
    try:
        while not server.started and not task.done():
            await asyncio.sleep(_POLL_S)
        if task.done():
            task.result()
        yield
    finally:
        server.should_exit = True
        server.cut_soon()
        await asyncio.wait({task})
    task.result()


@contextmanager
def _signals(server: _MainServer) -> Iterator[None]:
    """SIGINT and SIGTERM tell the server to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    # What is ignored on purpose (a job in the background) stays so.
    heeded = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    for number in heeded:
        loop.add_signal_handler(number, server.told, int(number))
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)


def _bind(host: str, port: int, option: str, opened: contextlib.ExitStack) -> list[socket.socket]:
    """A socket for each address of the host, bound and not yet listening. Raises ConfigError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"host: {host!r} is not known: {error.strerror}") from error
    bound = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        one = opened.enter_context(socket.socket(family, kind, protocol))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            one.bind(address)
        except OSError as error:
            if family == socket.AF_INET6 and len(found) > 1 and not _in_use(error):
                # A name that stands for both kinds, on a machine without IPv6.
                continue
            raise ConfigError(
                f"{option}: cannot listen on {host}:{port}: {error.strerror}; choose another "
                f"with --{option.replace('_', '-')}"
            ) from error
        bound.append(one)
    if not bound:
        raise ConfigError(f"host: {host!r} has no address that this machine can listen on")
    return bound


def _in_use(error: OSError) -> bool:
    return error.errno in (errno.EADDRINUSE, errno.EACCES)


def _ready_lines(
    llm: AsyncLLM, options: ServerOptions, speculation: SpeculationConfig | None, seconds: float
) -> list[str]:
    """The model, its address, and what is in effect."""
    engine = llm.llm.engine
    what = "plain decoding" if speculation is None else f"drafting: {speculation.describe()}"
    size = f"{engine.max_model_len} tokens of context, {llm.llm.config.max_num_seqs} at once"
    lines = [
        f"{options.served_names[0]} is ready after {seconds:.1f} s at {options.url}; {what}; "
        f"weights {llm.llm.model.weights}, keys and values {engine.kv}, {size}"
    ]
    if options.metrics_port is not None:
        lines.append(f"metrics without a key at {options.host}:{options.metrics_port}/metrics")
    return lines


def _warn_of_template(llm: AsyncLLM) -> None:
    """A model whose chat template is broken can still go on with prompts."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for tools in (None, [tool]):
        try:
            llm.llm.tokenizer.chat([{"role": "user", "content": "a"}], tools=tools)
        except ModelError as error:
            log.warning("%s: /v1/chat/completions refuses what needs it", error)
        except RequestError:
            # There is none, or it wants another conversation.
            continue


def _warn_of_strangers(options: ServerOptions) -> None:
    if options.loopback:
        return
    if options.metrics_port is not None and options.api_keys:
        log.warning(
            "port %d can be reached from other machines, and shows the metrics without a key",
            options.metrics_port,
        )
    if not options.api_keys:
        log.warning(
            "%s can be reached from other machines, and there is no --api-key: whoever reaches it "
            "can use it",
            options.url,
        )
    else:
        log.warning(
            "%s can be reached from other machines without encryption: keys and texts can be read "
            "on the way, unless a proxy with TLS stands before it",
            options.url,
        )
