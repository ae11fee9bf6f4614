"""The command line: ``deskmate serve``, ``db``, ``user``, ``export``, ``import`` and ``doctor``."""
