"""Other words for the chamber's members, for pools that are described anew for each rollout; some for testing alone."""

from __future__ import annotations

from antiphon_pools.chamber.wordings import Wordings

_GEOGRAPHY = Wordings(
    train=(
        "Geography: capitals and continents of countries. Send it, say: capital of Norway",
        "For any country, tells its capital or its continent; a good query is: continent of Norway",
        "An atlas that answers queries such as: capital of Norway",
        "Looks up where a country lies (continent of Norway) and its main city (capital of Norway).",
    ),
    test=(
        "Give it a country and what you want of it, capital or continent, as in: capital of Norway",
        "A gazetteer of countries. It reads: continent of Norway",
    ),
)

DESCRIPTIONS: dict[str, Wordings] = {
    "Raven": _GEOGRAPHY,
    "Wren": _GEOGRAPHY,
    "Owl": Wordings(
        train=(
            "Chemistry: symbols and atomic numbers of elements. Send it, say: atomic number of gold",
            "For any chemical element, tells its symbol or its number of protons; a good query is: symbol of gold",
            "The periodic table, for queries such as: atomic number of gold",
            "Looks up elements by name: symbol of gold, atomic number of gold.",
        ),
        test=(
            "Give it an element and what you want of it, symbol or atomic number, as in: symbol of gold",
            "A table of the elements. It reads: atomic number of gold",
        ),
    ),
    "Swift": Wordings(
        train=(
            "Sums of two numbers. Send it, say: 12 + 30",
            "Does additions, and only these; a good query is: 12 + 30",
            "An adding machine for queries such as: 12 + 30",
            "Tells what two numbers make together: 12 + 30.",
        ),
        test=("Give it two numbers with a plus between them, as in: 12 + 30", "It can add. It reads: 12 + 30"),
    ),
    "Crane": Wordings(
        train=(),
        test=(
            "Money: currencies of countries. Send it, say: currency of Norway",
            "For any country, tells what people pay with; a good query is: currency of Norway",
            "A money changer that answers queries such as: currency of Norway",
        ),
    ),
    "Robin": Wordings(
        train=(
            "A small chat model for everything. It speaks in sentences, often wrong ones.",
            "Chats about any matter at all, without knowing much.",
            "General talk; do not rely on it.",
        ),
        test=("An assistant for all sorts of questions that errs a lot.",),
    ),
    "Jay": Wordings(
        train=(
            "Spelling: how many letters a word has, its first and its last. Send it, say: letters of Oslo",
            "For any word, tells length or ends; good queries are: letters of Oslo, last letter of Oslo",
            "Looks at words letter by letter, for queries such as: first letter of Oslo; letters of Oslo",
        ),
        test=(
            "Give it a word and what you want of it, as in: letters of Oslo; first letter of Oslo; last letter of Oslo",
        ),
    ),
    "Hawk": Wordings(
        train=(
            "Products and differences of two numbers, no sums. Send it, say: 6 * 7 or 9 - 4",
            "Does multiplication and subtraction; good queries are: 6 * 7, 9 - 4",
            "A calculator without a plus key, for queries such as: 9 - 4; 6 * 7",
        ),
        test=("Give it two numbers with a minus or a star between them, as in: 9 - 4; 6 * 7",),
    ),
}
"""Member -> what may stand for its own description; a policy's unseen member has none for training."""
