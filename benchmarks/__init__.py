"""Commands that measure ferret itself; README.md has what came of them."""
