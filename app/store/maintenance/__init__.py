"""Migrations, backups, copies between databases, integrity checks and retention."""
