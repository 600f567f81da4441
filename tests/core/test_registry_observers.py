"""Observers see every finished trajectory, off the caller's thread; what they cannot keep up with is counted."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace

from structlog.testing import capture_logs

from antiphon._observers import Observer, Observers
from antiphon.hookspecs import hookimpl
from antiphon.registry import Registry
from antiphon.types import Task, Trajectory

TRAJECTORY = Trajectory("t", Task("?"), "p", "a", "answer")


def test_an_observer_is_called_off_the_callers_thread() -> None:
    seen: list[tuple[Trajectory, str]] = []

    @hookimpl
    def antiphon_on_trajectory(trajectory: Trajectory) -> None:
        seen.append((trajectory, threading.current_thread().name))

    registry = Registry.load([], local={"here": SimpleNamespace(antiphon_on_trajectory=antiphon_on_trajectory)})
    registry.on_trajectory(TRAJECTORY)
    assert registry.drain(30)
    assert seen == [(TRAJECTORY, "antiphon-observers")]
    assert registry.close(30)
    registry.on_trajectory(TRAJECTORY)  # too late: counted, not raised
    assert registry.dropped == 1


def test_an_observer_may_leave_the_argument_out() -> None:
    seen: list[int] = []

    @hookimpl
    def antiphon_on_trajectory() -> None:
        seen.append(1)

    registry = Registry.load([], local={"here": SimpleNamespace(antiphon_on_trajectory=antiphon_on_trajectory)})
    registry.on_trajectory(TRAJECTORY)
    assert registry.close(30)
    assert seen == [1]


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    started, go_on = threading.Event(), threading.Event()
    seen: list[Trajectory] = []

    def slow(trajectory: Trajectory) -> None:
        started.set()
        assert go_on.wait(30)
        seen.append(trajectory)

    observers = Observers([Observer("slow", slow)], size=2)
    observers.put(TRAJECTORY)
    assert started.wait(30)  # one is being observed, two may wait
    with capture_logs() as logs:
        for _ in range(5):
            observers.put(TRAJECTORY)
    assert observers.dropped == 3
    assert [entry["event"] for entry in logs] == ["observers_dropped"]
    assert not observers.drain(0)
    go_on.set()
    assert observers.drain(30)
    assert len(seen) == 3
    observers.close(30)


def test_an_observer_that_raises_is_named_once_and_the_others_go_on() -> None:
    seen: list[Trajectory] = []

    def bad(trajectory: Trajectory) -> None:
        raise SystemExit("no, with sk-abcdefghijklmnopqrstuvwxyz")

    observers = Observers([Observer("plugin 'bad' of antiphon-bad 2.3", bad), Observer("good", seen.append)])
    with capture_logs() as logs:
        for _ in range(3):
            observers.put(TRAJECTORY)
        assert observers.drain(30)
    assert len(seen) == 3
    [entry] = logs
    assert entry["plugin"] == "plugin 'bad' of antiphon-bad 2.3"
    assert "SystemExit: no" in entry["error"]
    assert "abcdefghij" not in entry["error"]
    observers.close(30)


def test_without_observers_there_is_no_thread() -> None:
    observers = Observers([])
    observers.put(TRAJECTORY)
    assert observers.dropped == 0
    assert observers.close(30)


def test_python_ends_although_an_observer_hangs_and_after_one_that_is_slow() -> None:
    program = """
import sys, threading
from antiphon._observers import Observer, Observers
from antiphon.types import Task, Trajectory

hangs = sys.argv[1] == "hangs"

def observe(trajectory):
    threading.Event().wait(None if hangs else 0.1)
    print("seen", flush=True)

observers = Observers([Observer("o", observe)])
observers.put(Trajectory("t", Task("?"), "p", "a", "answer"))
"""
    for mode, printed in (("slow", "seen\n"), ("hangs", "")):
        done = subprocess.run([sys.executable, "-c", program, mode], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout == printed
