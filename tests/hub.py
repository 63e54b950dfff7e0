"""A stand-in for the model hub on the loopback interface, serving a directory of repositories.

    with fake_hub(tmp_path / "repos") as hub:      # repos/org/name/config.json, ...
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)

`served` counts the bytes of every file that went out, so that a test can say that no weights did.
`point_library_at` turns an imported huggingface_hub to it (it reads its environment once).
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the stand-in serves, and what it was asked for.

    Repositories named in ``gated`` refuse who brings no token; files named in ``broken`` are
    answered with 404 although they are listed; ``details`` adds fields (tags, pipeline_tag,
    downloads, ...) to what the hub tells of a repository.

    As on the hub, weights are stored apart: their names lead to another host (`/stored/...`), their
    size and sha256 stand in the headers of the redirect. ``cuts`` has, by file, after how many
    bytes the next answers break off; ``busy`` is how many requests for files are answered with 429;
    files named in ``altered`` come with other bytes than those that are stated. ``tokens`` are the
    Authorization headers of requests to the other host.
    """

    root: Path
    endpoint: str = ""
    gated: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    details: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)
    requests: list[str] = field(default_factory=list)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    busy: int = 0
    altered: set[str] = field(default_factory=set)
    tokens: list[str | None] = field(default_factory=list)
    ranges: list[tuple[str, str | None]] = field(default_factory=list)

    def repos(self) -> list[str]:
        return sorted(
            f"{name.parent.name}/{name.name}" for name in self.root.glob("*/*") if name.is_dir()
        )

    def files(self, repo: str) -> dict[str, Path]:
        base = self.root / repo
        return {str(p.relative_to(base)): p for p in sorted(base.rglob("*")) if p.is_file()}

    def info(self, repo: str) -> dict[str, Any]:
        return {
            "id": repo,
            "modelId": repo,
            "sha": COMMIT,
            "private": False,
            "gated": "manual" if repo in self.gated else False,
            "tags": [],
            "downloads": 0,
            "siblings": [
                {"rfilename": name, **stated(path)} for name, path in self.files(repo).items()
            ],
            **self.details.get(repo, {}),
        }


def stored_apart(path: Path) -> bool:
    """Whether a file is kept by its sha256 beside the repository (Git LFS)."""
    return path.suffix in (".safetensors", ".gguf")


def etag_of(path: Path) -> str:
    """The name of a file's bytes in the hub's cache: sha256, or git's hash of a blob."""
    data = path.read_bytes()
    if stored_apart(path):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def stated(path: Path) -> dict[str, Any]:
    """What the hub says of a file's bytes."""
    size, found = path.stat().st_size, etag_of(path)
    if stored_apart(path):
        return {"size": size, "blobId": hashlib.sha1(found.encode()).hexdigest(),
                "lfs": {"size": size, "sha256": found, "pointerSize": 134}}  # fmt: skip
    return {"size": size, "blobId": found}


@contextmanager
def fake_hub(root: Path) -> Iterator[Hub]:
    """Serve ``root/org/name/...`` until the block ends."""
    hub = Hub(root)

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def point_library_at(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path, *, offline: bool = False
) -> None:
    """Turn huggingface_hub of this process, and of those that it starts, to an endpoint."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_HOME", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1" if offline else "0")
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(head=True)

    def do_GET(self) -> None:
        self._answer(head=False)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        path = unquote(urlsplit(self.path).path)
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)/paths-info/([^/]+)", path)
        self.hub.requests.append(f"POST {path}")
        if not found or not self._known(found[1], found[2]):
            return
        asked = json.loads(body)["paths"] if body[:1] == b"{" else parse_qs(body.decode())["paths"]
        tree = {entry["path"]: entry for entry in self._tree(found[1])}
        self._json([tree[name] for name in asked if name in tree])

    def _answer(self, head: bool) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), parse_qs(url.query)
        self.hub.requests.append(f"{self.command} {path}")
        if path == "/api/models":
            return self._json(self._search(query))
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/(.+))?", path)
        if found:
            if self._known(found[1], found[2] or "main"):
                self._json(self.hub.info(found[1]))
            return None
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", path)
        if found:
            if self._known(found[1], found[2]):
                inside = f"{found[3].rstrip('/')}/" if found[3] else ""
                self._json([e for e in self._tree(found[1]) if e["path"].startswith(inside)])
            return None
        found = re.fullmatch(r"/stored/([^/]+/[^/]+)/(.+)", path)
        if found:
            self.hub.tokens.append(self.headers.get("Authorization"))
            return self._bytes(found[1], found[2], head)
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if found and self._known(found[1], found[2]):
            return self._file(found[1], found[3], head)
        if not found:
            self._refuse(404, "RepoNotFound", path)
        return None

    def _known(self, repo: str, revision: str) -> bool:
        """Whether the request may go on; answers it with the hub's error otherwise."""
        if repo not in self.hub.repos():
            self._refuse(401, "RepoNotFound", f"Repository {repo} not found")
        elif repo in self.hub.gated and not self.headers.get("Authorization"):
            self._refuse(401, "GatedRepo", f"Access to model {repo} is restricted")
        elif revision not in ("main", COMMIT):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return True
        return False

    def _search(self, query: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        words = " ".join(query.get("search", [])).lower().split()
        author = (query.get("author") or [""])[0]
        tags = {tag for value in query.get("filter", []) for tag in value.split(",")}
        found = []
        for repo in self.hub.repos():
            info = self.hub.info(repo)
            fits = all(word in repo.lower() for word in words) and tags <= set(info["tags"])
            if fits and repo.startswith(f"{author}/" if author else ""):
                found.append(info)
        return found[: int((query.get("limit") or ["1000"])[0])]

    def _tree(self, repo: str) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": name, "size": path.stat().st_size,
             "oid": hashlib.sha1(name.encode()).hexdigest()}
            for name, path in self.hub.files(repo).items()
        ]  # fmt: skip

    def _file(self, repo: str, name: str, head: bool) -> None:
        path = self.hub.files(repo).get(name)
        if path is None or name in self.hub.broken:
            return self._refuse(404, "EntryNotFound", f"{name} is not in {repo}")
        if self.hub.busy and not head:
            self.hub.busy -= 1
            return self._refuse(429, "TooManyRequests", "slower, please", **{"Retry-After": "0"})
        if not stored_apart(path):
            return self._bytes(repo, name, head)
        port = self.hub.endpoint.rpartition(":")[2]
        self.send_response(302)
        self.send_header("Location", f"http://localhost:{port}/stored/{repo}/{name}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Size", str(path.stat().st_size))
        self.send_header("X-Linked-Etag", f'"{etag_of(path)}"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def _bytes(self, repo: str, name: str, head: bool) -> None:
        path = self.hub.files(repo)[name]
        data = path.read_bytes()
        status, begin, end = 200, 0, len(data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked:
            status, begin = 206, int(asked[1])
            end = min(int(asked[2] or len(data)) + 1, len(data))
        self.send_response(status)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{etag_of(path)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.end_headers()
        if head:
            return
        self.hub.ranges.append((name, self.headers.get("Range")))
        if name in self.hub.altered:
            data = bytes(255 - byte for byte in data)
        if cuts := self.hub.cuts.get(name):
            end = min(end, begin + cuts.pop(0))
            self.close_connection = True
        self.hub.served[f"{repo}/{name}"] += end - begin
        self.wfile.write(data[begin:end])

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: int, code: str, message: str, **headers: str) -> None:
        data = b"" if self.command == "HEAD" else json.dumps({"error": message}).encode()
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
