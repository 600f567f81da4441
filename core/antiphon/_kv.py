"""Keys and values: the running batch's, in buffers that grow, and those of contexts seen lately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers.cache_utils import Cache, DynamicLayer

KeyValues = list[tuple[Any, Any]]
"""One (keys, values) per layer, each [heads, tokens, size]."""

_WORTH_REUSING = 8  # tokens: a shorter common beginning is encoded again
_SPARE = 64  # columns: buffers are remade at most once in so many tokens


class Batch:
    """Keys and values of the rows that are being decoded, each [rows, heads, columns, size].

    A row of `length` tokens holds the columns from `end - length` to `end`: all rows end together, so that a token is
    written for all of them at once and what pads a shorter row lies on its left. Nothing is moved from step to step.

    Attributes:
        cache: what the model reads and extends: a window on the buffers, set by `admit` and `extend`.
        end: the column after the newest.
    """

    def __init__(self, max_rows: int) -> None:
        layer: Any = lambda: _Layer(self)  # noqa: E731 - called like the class that transformers asks for
        self.cache: Any = Cache(layer_class_to_replicate=layer)
        self.rows = self.end = 0
        self.room = (0, 0)  # rows and columns of the buffers
        self.window = (0, 0, 0, 0)  # first and last row, first column, column that is written next
        self._max_rows = max_rows

    def admit(self, lengths: Sequence[int], tokens: int, known: Sequence[KeyValues], longest: int) -> None:
        """Make room for rows of these lengths, of which the model is to run the last `tokens` next.

        Args:
            known: of each row, keys and values of at least the `length - tokens` before.
            longest: length of the longest row already there; 0: none.
        """
        first, most = self.rows, max(longest, *lengths)
        end = max(self.end, most) if first else most
        self._fit(first + len(lengths), end, end, longest)
        self.rows += len(lengths)
        for index, layer in enumerate(self._layers(known)):
            for row, (length, kv) in enumerate(zip(lengths, known, strict=True), start=first):
                if prefix := length - tokens:
                    layer.write(row, self.end - length, kv[index][0][:, :prefix], kv[index][1][:, :prefix])
        self.window = (first, self.rows, self.end - max(lengths), self.end - tokens)

    def extend(self, longest: int) -> None:
        """Make room for one more token of every row, of which the longest has `longest` without it."""
        if self.end == self.room[1]:
            self._fit(self.rows, longest + 1, longest, longest)
        self.end += 1
        self.window = (0, self.rows, self.end - 1 - longest, self.end - 1)

    def row(self, index: int, length: int) -> KeyValues:
        """A row's own keys and values, copied."""
        at = (index, slice(None), slice(self.end - length, self.end))
        return [(layer.stored[0][at].clone(), layer.stored[1][at].clone()) for layer in self.cache.layers]

    def drop(self, index: int, last_length: int) -> None:
        """Take a row out; the last row, of `last_length` tokens, takes its place."""
        self.rows -= 1
        if index < self.rows:
            columns = slice(self.end - last_length, self.end)
            for layer in self.cache.layers:
                for buffer in layer.stored:
                    buffer[index, :, columns] = buffer[self.rows, :, columns]

    def _layers(self, known: Sequence[KeyValues]) -> list[_Layer]:
        """The layers, made where only the kept keys and values say how many and what they are like."""
        layers = self.cache.layers
        if not layers and any(known):
            layers += [_Layer(self) for _ in next(kv for kv in known if kv)]
        return list(layers)

    def _fit(self, rows: int, columns: int, end: int, longest: int) -> None:
        """Have buffers of that size at least, whose `longest` columns in use end at `end`."""
        if rows > self.room[0] or columns > self.room[1] or end != self.end:
            room = (min(max(rows, 2 * self.room[0]), self._max_rows), columns + _SPARE + columns // 4)
            for layer in self.cache.layers:
                layer.move(room, self.rows, slice(self.end - longest, self.end), slice(end - longest, end))
            self.room, self.end = room, end


class _Layer(DynamicLayer):  # type: ignore[misc]
    """One layer of a `Batch`, for transformers: `update` writes into the buffers and gives views of them."""

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self._batch = batch
        self.stored: tuple[Any, ...] = ()  # keys and values of all rows

    def update(self, key_states: Any, value_states: Any, *_args: Any, **_kwargs: Any) -> tuple[Any, Any]:
        first, last, start, at = self._batch.window
        self._make((key_states[0], value_states[0]))
        now = at + key_states.shape[-2]
        for buffer, new in zip(self.stored, (key_states, value_states), strict=True):
            buffer[first:last, :, at:now] = new
        keys, values = self.stored
        return keys[first:last, :, start:now], values[first:last, :, start:now]

    def get_seq_length(self) -> int:
        """How many columns the next tokens see before themselves."""
        _, _, start, at = self._batch.window
        return at - start

    def write(self, row: int, column: int, *parts: Any) -> None:
        self._make(parts)
        for buffer, part in zip(self.stored, parts, strict=True):
            buffer[row, :, column : column + part.shape[-2]] = part

    def move(self, room: tuple[int, int], rows: int, old: slice, new: slice) -> None:
        """Remake the buffers, keeping the columns `old` of the first `rows` rows as `new`."""
        before: tuple[Any, ...] = self.stored
        self.stored = tuple[Any, ...]()
        self._make([buffer[0] for buffer in before], room)
        for now, then in zip(self.stored, before, strict=True):
            now[:rows, :, new] = then[:rows, :, old]

    def _make(self, like: Sequence[Any], room: tuple[int, int] | None = None) -> None:
        """Make the buffers, once. Zeros: what pads a row is masked, but must be a number."""
        if not self.stored:
            rows, columns = room or self._batch.room
            self.stored = tuple(part.new_zeros((rows, part.shape[0], columns, part.shape[-1])) for part in like)


class Prefixes:
    """Keys and values of contexts seen lately, the oldest dropped first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: list[tuple[str, tuple[int, ...], KeyValues]] = []  # oldest first

    def find(self, adapter: str, ids: tuple[int, ...]) -> tuple[int, KeyValues]:
        """The longest known beginning of `ids`, short of its last token: how many ids, and their keys and values."""
        best, at = 0, -1
        for index, (name, known, _) in enumerate(self._entries):
            if name == adapter:
                shared = min(common(known, ids), len(ids) - 1)
                if shared > best:
                    best, at = shared, index
        if best < _WORTH_REUSING:
            return 0, []
        entry = self._entries.pop(at)
        self._entries.append(entry)
        return best, entry[2]

    def keep(self, adapter: str, ids: tuple[int, ...], kv: KeyValues) -> None:
        if len(ids) > self._limit:
            return
        self._entries = [e for e in self._entries if not (e[0] == adapter and ids[: len(e[1])] == e[1])]
        self._entries.append((adapter, ids, kv))
        while sum(len(entry[1]) for entry in self._entries) > self._limit:
            self._entries.pop(0)

    def clear(self) -> None:
        """Forget all: the weights have changed."""
        self._entries.clear()


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """How many leading ids two contexts share."""
    low, high = 0, min(len(left), len(right))
    while low < high:  # comparing slices is faster than comparing ids one by one
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
