"""What happened to a daemon: typed events, each a line of JSON in its state folder, and the status that they make.

The events are the source: a daemon shows the fold of those that it wrote (`picture`), so that the status, the
dashboard, Prometheus' figures and a replay are views of the same thing.

    changes    what events lead from one status to another, and what an event makes of a status
    lines      an event as a line of JSON
    folder     the files
    journal    writes them
    picture    what a daemon shows
    recording  the same, read again: the status at any moment
    words      an event as a person reads it
"""

FOLDER = "events"
"""Of a state folder."""
