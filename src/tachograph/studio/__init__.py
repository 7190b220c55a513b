"""The Studio: what a hub's pages read of runs, live and stored, and the pages themselves."""
