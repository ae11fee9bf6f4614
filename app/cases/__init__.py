"""Services of cases: what the pages of agents and the widget share beyond the repositories of ``app.store.cases``."""
