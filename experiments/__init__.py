"""One file a table or figure of the paper: which runs, which evaluations, how it is laid out."""
