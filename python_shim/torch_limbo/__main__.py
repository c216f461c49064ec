"""``python -m torch_limbo``: see cli.py."""

import sys

from .cli import main_of_process

if __name__ == "__main__":
    sys.exit(main_of_process())
