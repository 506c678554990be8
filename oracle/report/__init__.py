"""Reports of a session for people: the terminal's verdict table."""
