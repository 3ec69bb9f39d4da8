"""The three roles: what they are told, what they can do, and what is kept of it."""
