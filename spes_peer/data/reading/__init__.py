"""Files that people have, to records: one module for each format. Streaming: memory does not grow with a file.

A record is the raw bytes of one document, or of a part of a large one. What they say (JSON, broken UTF-8, nothing at
all) is found out where they are tokenized, in many processes at a time.
"""
