"""System prompts and canned replies: files, and the versions that admins write."""
