"""`python -m grown`."""

from grown.cli.main import main

main()
