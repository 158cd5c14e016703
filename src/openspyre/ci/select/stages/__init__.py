"""Four stages from two git refs of a test suite to a run and its rules. Imports nothing of ours."""
