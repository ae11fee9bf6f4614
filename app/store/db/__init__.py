"""Tables, transactions, the database driver, and notifications between processes."""
