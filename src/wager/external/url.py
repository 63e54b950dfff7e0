"""A server that is already running and speaks OpenAI's protocol, whoever started it.

What it does cannot be set from here, so plain and speculative decoding are two addresses, or one
address and something in the request that switches speculation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2

from wager.arms import Arm
from wager.backend import Answer, Counters, EngineError, Load, Prompt, Started
from wager.errors import ConfigError
from wager.external import client, llama_wire, metrics, openai, vllm_wire
from wager.external.reply import Reply

_ASK_S: Final = 10.0
# Other people's requests may run for ever.
_IDLE_WITHIN_S: Final = 1.0
_SALTED: Final = frozenset({"vllm", "wager"})
_COUNTS_EACH_PIECE: Final = frozenset({"sglang", "wager"})


@dataclass(frozen=True, slots=True)
class UrlOptions:
    """Addresses, with or without ``/v1``, and what is added to each request's body.

    ``url`` stands for both arms; ``url_off`` and ``url_on`` for one each. ``request_off`` and
    ``request_on`` are merged into the body. ``model`` is the served name, needed only where a
    server has several. ``metrics_url`` is the metrics page where it is not ``/metrics`` of the
    same address.
    """

    url: str | None = None
    url_off: str | None = None
    url_on: str | None = None
    request_off: Mapping[str, Any] = field(default_factory=dict)
    request_on: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    api_key: str | None = None
    metrics_url: str | None = None
    request_timeout_s: float = 900.0


class UrlBackend:
    """Running servers as a `wager.backend.Backend`: nothing is started and nothing stopped."""

    name = "url"
    fresh_start_is_cheap = True

    def __init__(self, options: UrlOptions) -> None:
        self.options = options
        self._off, self._on = _addresses(options)
        self._url = ""
        self._added: Mapping[str, Any] = {}
        self._model = ""
        self._engine: str | None = None
        self._readers: dict[str, metrics.Reader] = {}

    def check(self, arm: Arm) -> str:
        """See `wager.backend.Backend.check`."""
        if arm.speculation is not None and arm.speculation.options:
            raise ConfigError(
                f"arms: {arm.name}: a server that runs already cannot be given options; start it "
                f"with them and name the arm {arm.speculation.method} alone"
            )
        url, added = self._place(arm)
        return f"{url}, {json.dumps(dict(added))} in each request" if added else url

    def start(self, arm: Arm) -> Started:
        """See `wager.backend.Backend.start`. The server's caches stay as they are."""
        self.check(arm)
        self._url, self._added = self._place(arm)
        self._model, owner = self._served()
        page = self._page()
        family = metrics.parse(page).family if page is not None else None
        self._engine = family or (owner if owner in metrics.FAMILIES else None)
        warnings = ["the server runs on between the arms: its caches are not emptied"]
        if self._engine not in _SALTED and self._engine != "llamacpp":
            warnings.append("prompts cannot be salted: what one arm sent may be cached for another")
        if family is None:
            warnings.append("no metrics page of a known engine: drafts and acceptance are unknown")
        effective: dict[str, Any] = {"url": self._url, "model": self._model}
        if self._added:
            effective["request"] = dict(self._added)
        return Started(version=self._version(), effective=effective, warnings=warnings)

    def stream(self, prompts: Sequence[Prompt], load: Load) -> Iterator[Answer]:
        """See `wager.backend.Backend.stream`."""
        target = client.Target(
            self._url, self._headers(), self.options.request_timeout_s, not _is_local(self._url)
        )
        return client.stream(self, target, prompts, load)

    def request(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        """Path and body of a streaming request, with the arm's own part.

        An engine that was recognised is asked in its own way, which tells most: vLLM and
        llama-server name the tokens, SGLang counts them with each piece.
        """
        if self._engine == "vllm":
            path, body = vllm_wire.request(prompt, self._model)
        elif self._engine == "llamacpp":
            path, body = llama_wire.COMPLETION, llama_wire.body(prompt, self._text(prompt))
            body["model"] = self._model
        else:
            path, body = openai.request(prompt, self._model, extended=self._engine is not None)
        if self._engine == "wager":
            body["return_token_ids"] = True
        if self._engine in _COUNTS_EACH_PIECE:
            body["stream_options"]["continuous_usage_stats"] = True
        return path, {**body, **self._added}

    def salt(self, body: dict[str, Any], salt: str) -> None:
        """See `wager.external.client.Wire.salt`."""
        if self._engine in _SALTED:
            body["cache_salt"] = salt

    def read(self, event: dict[str, Any], reply: Reply) -> None:
        """Take one event of a stream into the reply."""
        if self._engine == "llamacpp":
            llama_wire.read(event, reply)
        else:
            vllm_wire.read(event, reply)

    def _text(self, prompt: Prompt) -> str | Sequence[int]:
        """What ``/completion`` is asked with; the server itself puts a chat into its template."""
        if prompt.token_ids is not None:
            return prompt.token_ids
        if prompt.text is not None:
            return prompt.text
        messages = [{"role": role, "content": text} for role, text in prompt.messages or ()]
        body = {"messages": messages, "model": self._model}
        response = self._ask("POST", f"{self._url}/apply-template", json=body)
        try:
            return str(response.json()["prompt"])
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"url: {self._url} gave no text for a chat (HTTP {response.status_code})"
            ) from error

    def counters(self) -> Counters:
        """See `wager.backend.Backend.counters`."""
        page = metrics.when_idle(self._page, _IDLE_WITHIN_S)
        if page is None:
            return Counters()
        return self._readers.setdefault(self._url, metrics.Reader()).read(page)

    def stop(self) -> None:
        """See `wager.backend.Backend.stop`: the server is not ours to end."""

    def close(self) -> None:
        """Nothing is kept."""

    def _place(self, arm: Arm) -> tuple[str, Mapping[str, Any]]:
        if arm.speculation is None:
            url, added, option = self._off, self.options.request_off, "off"
        else:
            url, added, option = self._on, self.options.request_on, "on"
        if url is None:
            raise ConfigError(f"url: {arm.name} has no address; give --url-{option} or --url")
        return url, added

    def _headers(self) -> dict[str, str]:
        key = self.options.api_key
        return {"authorization": f"Bearer {key}"} if key else {}

    def _ask(self, method: str, url: str, **options: Any) -> httpx2.Response:
        try:
            return httpx2.request(
                method,
                url,
                headers=self._headers(),
                timeout=_ASK_S,
                trust_env=not _is_local(url),
                verify=client.needs_certificates(url),
                **options,
            )
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise EngineError(f"url: {url} gave no answer: {error}") from error

    def _served(self) -> tuple[str, str]:
        """The model's served name, and who the server says owns it."""
        response = self._ask("GET", f"{self._url}/v1/models")
        if response.status_code in (401, 403):
            raise EngineError(f"url: {self._url} refuses the key (HTTP {response.status_code})")
        wanted = self.options.model
        try:
            served = {item["id"]: item.get("owned_by") or "" for item in response.json()["data"]}
        except (ValueError, KeyError, TypeError) as error:
            if wanted is None:
                raise EngineError(
                    f"url: {self._url}/v1/models lists no models (HTTP {response.status_code}); "
                    "check the address, or name the model"
                ) from error
            return wanted, ""
        if wanted is not None:
            if wanted in served:
                return wanted, str(served[wanted])
            raise ConfigError(
                f"model: {self._url} does not serve {wanted!r}; it has {_list(served)}"
            )
        if len(served) != 1:
            raise ConfigError(f"model: name one of those that {self._url} serves: {_list(served)}")
        return next((name, str(owner)) for name, owner in served.items())

    def _page(self) -> str | None:
        response = self._ask("GET", self.options.metrics_url or f"{self._url}/metrics")
        return response.text if response.status_code == 200 else None

    def _version(self) -> str | None:
        response = self._ask("GET", f"{self._url}/version")
        try:
            found = response.json()["version"] if response.status_code == 200 else None
        except (ValueError, KeyError, TypeError):
            return None
        return str(found) if found else None


def _addresses(options: UrlOptions) -> tuple[str | None, str | None]:
    """Where the plain arm and the others are asked. Raises ConfigError for what cannot be told
    apart."""
    if options.url is not None and (options.url_off or options.url_on):
        raise ConfigError("url: give --url, or --url-off and --url-on, not both")
    if options.metrics_url is not None and options.url is None:
        raise ConfigError("url: one metrics page cannot stand for two addresses; leave it out")
    off, on = (_base(given or options.url) for given in (options.url_off, options.url_on))
    if off is None and on is None:
        raise ConfigError("url: give --url-off and --url-on, or --url with --request-off or -on")
    if off == on and dict(options.request_off) == dict(options.request_on):
        raise ConfigError(
            f"url: both arms would send the same requests to {off}; give --url-off and --url-on, "
            "or what to add to a request with --request-off or --request-on"
        )
    return off, on


def _base(url: str | None) -> str | None:
    """The address without a path: ``host:8000`` and ``http://host:8000/v1/`` are the same."""
    if url is None:
        return None
    whole = url if "://" in url else f"http://{url}"
    return whole.rstrip("/").removesuffix("/v1").rstrip("/")


def _is_local(url: str) -> bool:
    """Whether the address is this machine, where a proxy of the environment has no say."""
    return httpx2.URL(url).host in ("127.0.0.1", "localhost", "::1")


def _list(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)[:10]) or "none"
