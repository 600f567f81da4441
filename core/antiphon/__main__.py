"""`python -m antiphon`."""

from antiphon.cli import main

main()
