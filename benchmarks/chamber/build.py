"""Rebuilds the chamber, from a fixed seed: its facts, its specialists, and what is measured of them."""

from __future__ import annotations

import facts
import measure
import teach
from lessons import MEMBERS


def main() -> None:
    facts.main()
    for member in MEMBERS:
        print(teach.teach(member))
    measure.main([])


if __name__ == "__main__":
    main()
