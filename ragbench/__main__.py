"""`python -m ragbench`: the command, where its script is not on the path."""

from ragbench.apps.cli import app

if __name__ == "__main__":
    app(prog_name="ragbench")
