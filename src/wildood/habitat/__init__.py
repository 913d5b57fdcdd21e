"""A directory in which a detector is served, its traffic collected, and its successor trained, compared and promoted."""
