"""`python -m deploy` is the `sluice` command."""

from deploy.cli import main

if __name__ == "__main__":
    main()
