"""`python -m antiphon.cli`."""

from antiphon.cli import main

main()
