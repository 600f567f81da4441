"""How a member's name is matched: exact name or alias after folding, never by substring."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from antiphon.errors import ConfigError, DescriptorError, did_you_mean

if TYPE_CHECKING:
    from antiphon.contracts import MemberView
    from antiphon.descriptor import Descriptor

# Every dash that a model or a word processor writes for a hyphen: Unicode category Pd and the minus signs.
_DASHES = re.compile(
    r"[\u02d7\u2010-\u2015\u2043\u2212\u2796\ufe58\ufe63\uff0d\u058a\u05be\u1400\u1806\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u2e5d"
    r"\u301c\u3030\u30a0\U00010d6e\U00010ead]"
)
_SPACES = re.compile(r"[\s\u2800]+")  # the Braille pattern without dots is no space to Unicode, and looks like one
# Invisible characters that models copy along with a name, Unicode's Default_Ignorable_Code_Point: soft hyphen, joiners,
# zero-width ones, BOM, bidi marks, fillers, invisible operators, variation selectors, tags.
_INVISIBLE = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    r"\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def fold(name: str) -> str:
    """The key that two spellings of one name share: NFKC, one dash, one space, no case, trimmed."""
    folded = _INVISIBLE.sub("", unicodedata.normalize("NFKC", name))
    folded = _SPACES.sub(" ", _DASHES.sub("-", folded)).strip()
    return unicodedata.normalize("NFKC", folded.casefold())


class Names:
    """Resolves what a policy wrote to one name of a pool.

    Args:
        aliases: canonical name -> its aliases.

    Raises:
        DescriptorError: two members share a name or an alias after folding.
    """

    def __init__(self, aliases: Mapping[str, Iterable[str]]) -> None:
        self._by_key: dict[str, str] = {}
        for name, others in aliases.items():
            for spelling in (name, *others):
                key = fold(spelling)
                if not key:
                    raise DescriptorError(f"member {name!r} has an empty name or alias; give it a readable one")
                owner = self._by_key.setdefault(key, name)
                if owner != name:
                    raise DescriptorError(
                        f"{spelling!r} means both {owner!r} and {name!r} in this pool; "
                        f"rename one of them or drop the alias"
                    )
        self.names: tuple[str, ...] = tuple(aliases)

    @classmethod
    def of(cls, descriptors: Iterable[Descriptor], pool: str = "the pool") -> Names:
        """The names of a pool's members.

        Raises:
            DescriptorError: two of them share a name or an alias; names the pool as `pool`.
        """
        aliases: dict[str, tuple[str, ...]] = {}
        for descriptor in descriptors:
            if descriptor.name in aliases:
                raise DescriptorError(f"{pool} has two members called {descriptor.name!r}; list it once, or rename one")
            aliases[descriptor.name] = descriptor.aliases
        try:
            return cls(aliases)
        except DescriptorError as error:
            raise DescriptorError(f"{pool}: {error}") from None

    def resolve(self, asked: str) -> str | None:
        """The canonical name, or None where nobody of that name is in the pool."""
        return self._by_key.get(fold(asked))


def named(asked: str, resolve: Callable[[str], str | None], members: Iterable[MemberView], *, owner: str = "") -> str:
    """The canonical name of the member that is meant.

    Args:
        resolve: of the pool that `members` are in.
        owner: what the error begins with: who asked.

    Raises:
        ConfigError: nobody is called so; says who comes near.
    """
    name = resolve(asked)
    if name is None:
        hint = did_you_mean(asked, (view.name for view in members))
        raise ConfigError(f"{owner}nobody in the pool is called {asked!r}{hint}")
    return name
