"""Whether the model that answered is the one that was asked, and whose price holds where it is not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from antiphon.names import fold

if TYPE_CHECKING:
    from antiphon.descriptor import Descriptor

# How providers mark a release of one model: gpt-4o-2024-08-06, gpt-4-0613, gemini-1.5-pro-002. Sizes and versions of
# the name (-8b, -v0.3) are other models; `-latest` is whichever release there is.
_RELEASE = re.compile(r"[-@:](\d{4}-\d{2}-\d{2}|\d{8}|\d{6}|\d{4}|\d{3})\Z")
_LATEST = re.compile(r"[-@:]latest\Z")


def key(model: str) -> str:
    """A model id without the providers before its last slash and without `-latest`, folded as names are."""
    return _LATEST.sub("", fold(model.rsplit("/", 1)[-1]))


def is_same(asked: str, served: str) -> bool:
    """Both ids name one model: equal, or one is a release of the other. Two different releases are two models."""
    one, other = key(asked), key(served)
    return bool(one and other) and (one == other or _RELEASE.sub("", one) == other or one == _RELEASE.sub("", other))


def is_asked(descriptor: Descriptor, served: str) -> bool:
    """The served model is the asked member, by its name, an alias or the id of any of its endpoints."""
    ids = (endpoint.model for endpoint in descriptor.endpoints)
    return any(is_same(spelling, served) for spelling in (*ids, descriptor.name, *descriptor.aliases))


class Owners:
    """Finds the descriptor that a served model belongs to, priced at the endpoint that serves it.

    Args:
        descriptors: those of the pool first, then those of the catalogue; the first that fits is taken.
    """

    def __init__(self, descriptors: Iterable[Descriptor]) -> None:
        self._by_key: dict[str, Descriptor] = {}
        known = tuple(descriptors)
        for descriptor in known:  # an endpoint's own id says most: it comes before any name or alias
            for endpoint in descriptor.endpoints:
                self._by_key.setdefault(key(endpoint.model), descriptor.at(endpoint))
        for descriptor in known:
            for spelling in (descriptor.name, *descriptor.aliases):
                self._by_key.setdefault(key(spelling), descriptor)

    def find(self, served: str) -> Descriptor | None:
        wanted = key(served)
        return self._by_key.get(wanted) or self._by_key.get(_RELEASE.sub("", wanted))
