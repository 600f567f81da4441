"""Systems under comparison, each in a process of its own, that work only when it is their turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


class Clock:
    """Starts when it is made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def speed(self, tokens: int) -> tuple[float, float]:
        """Tokens a second: by the wall clock, by CPU time."""
        return tokens / (time.perf_counter() - self._wall), tokens / (time.process_time() - self._cpu)


class Turns:
    """A child process. `take` has it do a turn and gives its answer.

    Args:
        script: a file that calls `serve` when it is run with these arguments.
        python: the interpreter, for a system that lives in another environment.
    """

    def __init__(
        self, script: str, arguments: Sequence[object], *, threads: int, python: str = sys.executable, path: str = ""
    ) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        if path:
            environment["PYTHONPATH"] = path
        self._child = subprocess.Popen(
            [python, script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def take(self, *question: Any) -> Any:
        given, said = self._child.stdin, self._child.stdout
        if given is None or said is None:
            raise RuntimeError("the child has no pipes")
        given.write(json.dumps(question) + "\n")
        given.flush()
        line = said.readline()
        if not line:
            raise RuntimeError(f"{' '.join(map(str, self._child.args))} ended without an answer")  # type: ignore[arg-type]
        return json.loads(line)

    def close(self) -> None:
        if self._child.stdin is not None:
            self._child.stdin.close()
        self._child.wait()


def serve(turn: Callable[..., Any]) -> None:
    """In the child: answer until the parent closes the pipe. What else is printed goes to stderr."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(turn(*json.loads(line))), file=answers, flush=True)
