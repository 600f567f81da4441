"""Finds exact tags in text that comes in pieces: any chunking gives the same result, in linear time."""

from __future__ import annotations

import re
from collections.abc import Sequence

from antiphon.types import Action


class TagScanner:
    """What the parsers share. A subclass takes text by `_say` and tags by `_tag`, and sets `_action` when one closes.

    Args:
        tags: names of the tags, each written `<name>` and `</name>`.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self._written = tuple(f"<{slash}{tag}>" for tag in tags for slash in ("", "/"))
        self._pattern = re.compile("|".join(map(re.escape, self._written)))
        self._longest = max(map(len, self._written))
        self._text: list[str] = []
        self._length = 0
        self._held = ""  # the end of the text so far, where it may be the start of a tag
        self._problems: list[str] = []
        self._action: Action | None = None

    @property
    def closed(self) -> bool:
        return self._action is not None

    @property
    def end(self) -> int:
        return self._length + len(self._held)

    def feed(self, text: str) -> str:
        if self.closed:
            return ""
        text = self._held + text
        self._held = ""
        shown, at = [], 0
        for match in self._pattern.finditer(text):
            shown += [self._take(text[at : match.start()]), self._tag(match[0])]
            at = match.end()
            if self.closed:
                return "".join(shown)
        start = text.rfind("<", max(at, len(text) - self._longest + 1))
        if start >= 0 and any(tag.startswith(text[start:]) for tag in self._written):
            self._held = text[start:]
            text = text[:start]
        shown.append(self._take(text[at:]))
        return "".join(shown)

    def _take(self, text: str) -> str:
        """Take text that is no tag of the structure; returns what to show of it as thinking."""
        if not text:
            return ""
        self._count(text)
        return self._say(text)

    def _count(self, text: str) -> None:
        self._text.append(text)
        self._length += len(text)

    def _say(self, text: str) -> str:
        raise NotImplementedError

    def _tag(self, written: str) -> str:
        """Take a tag: `_count` it where it opens or closes something, `_take` it where it is but text."""
        raise NotImplementedError
