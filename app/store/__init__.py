"""The database: tables, sessions, repositories, migrations and backups. Every query takes the user's id."""
