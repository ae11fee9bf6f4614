"""The database: tables, sessions, repositories, migrations and backups.

Queries of a user's own data take the user's id. Those of all users are the desk's and the maintenance's alone.
"""
