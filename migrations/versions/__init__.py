"""One module per revision, in one line of descent; a revision that has shipped is never edited."""
