"""What a person looks at: tables, figures, the page. Figures and pages need the `[plots]` extra."""
