"""Lists of one kind, page by page: pages shrink until they fit, and a bad object costs only itself.

Owns the size of pages and what becomes of an object that cannot be used: it is left out, or cut, and reported.
Knows no watch. An answer that no API server gives is never used, not even in part: a list with one bad item could
otherwise empty a dataplane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcagent.kube.client import MAX_ANSWER, Client
from mcagent.kube.errors import ApiGarbageError, ApiTooLargeError, ExpiredError
from mcagent.kube.source import RawObject, is_object, object_key
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from mcagent.model.parsing.document import MAX_DEPTH, decode_noting_cuts, was_cut
from mcagent.model.parsing.field import printable

PAGE = 500  # objects, at most
PAGE_BYTES = 32 * 1024 * 1024  # 20 objects as large as etcd takes them; in memory it is several times as much
# Names without contents: Kubernetes API concepts, "Metadata-only fetches".
_NAMES_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

Report = Callable[[str, str], None]
"""Takes what happened to an object: a word for metrics, and the text."""
TOO_DEEP = f"what is nested more than {MAX_DEPTH} deep is not read"


def display_name(kind: Kind, obj: RawObject) -> str:
    """Return how the log names an object."""
    return f"{kind} {printable(object_key(obj), 320)}"


class Lister:
    """Lists the objects at a path, again and again. `selectors` are those of the API.

    `keep` makes what is kept of an object; `report` takes what cannot be used as it is.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind,
        path: str,
        selectors: Mapping[str, str] | None = None,
        *,
        page: int = PAGE,
        page_bytes: int = PAGE_BYTES,
        timeout: float = 60.0,
        keep: Callable[[RawObject], Any] = lambda obj: obj,
        report: Report = lambda _reason, _text: None,
    ) -> None:
        self._client, self._kind, self._path, self._selectors = client, kind, path, dict(selectors or {})
        self._most, self._bytes, self._timeout = page, page_bytes, timeout
        self._keep, self._report = keep, report
        self._page = page  # as large as they were good last

    def read(self, *, stopping: Callable[[], bool] = lambda: False) -> tuple[list[Any], str]:
        """Return all objects, and the version from which to watch. Raises SourceError.

        A history that is compacted between two pages means one page for all, as for client-go's pager.
        """
        try:
            return self._pages(stopping, paged=True)
        except ExpiredError:
            return self._pages(stopping, paged=False)

    def _pages(self, stopping: Callable[[], bool], *, paged: bool) -> tuple[list[Any], str]:
        objects: list[Any] = []
        token = ""
        while True:
            query = self._selectors | ({"continue": token} if token else {})
            if paged:
                query["limit"] = str(self._page)
            try:
                items, rv, token = self._fetch(query, self._bytes if paged else MAX_ANSWER)
            except ApiTooLargeError:
                if not paged:
                    raise
                if self._page > 1:
                    self._page //= 2
                    continue
                rv, token = self._pass_over(query)
                items = []
            objects += map(self._keep, items)
            if not token or stopping():
                return objects, rv

    def _fetch(self, query: Mapping[str, str], most: int) -> tuple[list[RawObject], str, str]:
        """Return items, version and continue token of a page. Raises SourceError."""
        text = self._client.get(self._path, query, timeout=self._timeout, most=most)
        if len(text) < most // 4:
            self._page = min(2 * self._page, self._most)
        answer, cut = self._decoded(text)
        items, rv, token = self._checked(answer, f"{KINDS[self._kind].name}List")
        for item in items if cut else ():
            if was_cut(item):
                self._report("nested", f"{display_name(self._kind, item)}: {TOO_DEEP}")
        return items, rv, token

    def _pass_over(self, query: Mapping[str, str]) -> tuple[str, str]:
        """Take one object to be too large, and name it. Returns version and continue token. Raises SourceError."""
        answer, _ = self._decoded(self._client.get(self._path, query, timeout=self._timeout, accept=_NAMES_ONLY))
        items, rv, token = self._checked(answer, "PartialObjectMetadataList")
        for item in items:
            self._report(
                "too-large", f"{display_name(self._kind, item)} has more than {self._bytes} bytes: it is not read"
            )
        return rv, token

    def _decoded(self, text: bytes) -> tuple[Any, bool]:
        try:
            return decode_noting_cuts(text)
        except ValueError as err:
            raise ApiGarbageError(f"{self._client.server}: GET {self._path}: the answer is not JSON") from err

    def _checked(self, answer: Any, kind: str) -> tuple[list[RawObject], str, str]:
        wrong = ApiGarbageError(f"{self._client.server}: GET {self._path}: the answer is no {kind}")
        if not isinstance(answer, dict) or answer.get("kind") != kind:
            raise wrong
        meta, items = answer.get("metadata"), answer.get("items")
        if items is None:
            items = []  # how Go writes an empty list
        if not isinstance(meta, dict) or not isinstance(items, list) or not all(map(is_object, items)):
            raise wrong
        rv, token = meta.get("resourceVersion"), meta.get("continue") or ""
        if not isinstance(rv, str) or not rv or not isinstance(token, str):
            raise wrong
        return items, rv, token
