"""The detector a user keeps and deploys, and the functions that make one."""
