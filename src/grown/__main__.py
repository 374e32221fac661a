"""`python -m grown`."""

from grown.cli.main import main

if __name__ == "__main__":  # the processes of `grown compare --jobs` import this file too
    main()
