"""Training recipes: the equations of each method, nothing about loops or files."""
