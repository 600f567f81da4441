"""Acme's models as pool members: the file that describes them, relative to this package."""

MEMBERS = "members.toml"
