"""``python -m app`` is the same program as ``deskmate``."""

from app.cli import main

if __name__ == "__main__":
    main()
