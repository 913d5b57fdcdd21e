"""A detector in service: its traffic is collected, and its successor trained, compared and promoted."""
