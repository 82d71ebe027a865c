"""Bugs that can be built into a run: each must turn its verdict."""

DELETED_FIRST = "deleted-first"  # relays delete rows before they hand them over
MISSING_COMMITTED = "missing-committed"  # the check endpoint takes a missing record for a commit
PLANTED = (DELETED_FIRST, MISSING_COMMITTED)
