"""Rules of the application as plain functions and data, without I/O."""
