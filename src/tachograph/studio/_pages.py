"""The Studio's pages: static files of the package, which a browser keeps and asks about."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterator
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from importlib.abc import Traversable  # its place in 3.10; typeshed knows it there for all versions

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_TYPES |= {".html": "text/html", ".json": "application/json", ".woff2": "font/woff2", ".map": "application/json"}
_TEXTUAL = ("text/", "application/json", "image/svg+xml")


class File(NamedTuple):
    """A file, its type and a tag that another content has not."""

    content: bytes
    media_type: str
    tag: str


class Pages:
    """The files by their path below ``static/``; read once: another version is another process."""

    @cached_property
    def _files(self) -> dict[str, File]:
        return dict(_found(files("tachograph.studio").joinpath("static"), ""))

    @property
    def index(self) -> bool:
        """Whether there is a page at all."""
        return "index.html" in self._files

    def answer(self, name: str, request: Request) -> Response:
        """Return a file, that it has not changed since, or that there is none."""
        found = self._files.get(name)
        if found is None:
            return Response("404: Not Found\n", 404, media_type="text/plain")
        headers = {"ETag": found.tag, "Cache-Control": "no-cache", "Content-Security-Policy": CONTENT_SECURITY_POLICY}
        headers["Referrer-Policy"] = "no-referrer"
        if found.tag in [
            each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")
        ]:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers={**headers, "Content-Type": found.media_type})


def _found(folder: Traversable, prefix: str) -> Iterator[tuple[str, File]]:
    if not folder.is_dir():
        return
    for each in folder.iterdir():
        if each.is_dir():
            yield from _found(each, f"{prefix}{each.name}/")
        else:
            content = each.read_bytes()
            yield prefix + each.name, File(content, _type(each.name), f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _type(name: str) -> str:
    ending = "." + name.rpartition(".")[2]
    found = _TYPES.get(ending) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return found + "; charset=utf-8" if found.startswith(_TEXTUAL) else found
