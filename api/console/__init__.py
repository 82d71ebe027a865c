"""Pages for operators, over the services that the HTTP interface calls."""
