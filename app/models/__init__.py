"""The models that a user can load: those found on this machine, those recommended, and how they get here."""
